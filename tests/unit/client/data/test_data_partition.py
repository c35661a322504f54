from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feddbp_client.data import DataError, dirichlet_split, least_samples, train_test_split


def reference_split(labels: list[int], clients: int, alpha: float, seed: int, least: int) -> list[list[int]]:
    """The documented procedure, with plain lists."""
    random = np.random.RandomState(seed)
    while True:
        held: list[list[int]] = [[] for _ in range(clients)]
        for number in sorted(set(labels)):
            members = np.array([index for index, label in enumerate(labels) if label == number])
            random.shuffle(members)
            shares = random.dirichlet([alpha] * clients).tolist()
            for client in range(clients):
                if len(held[client]) >= len(labels) / clients:
                    shares[client] = 0.0
            whole = sum(shares)
            start, running = 0, 0.0
            for client in range(clients):
                running += shares[client] / whole
                end = len(members) if client == clients - 1 else int(running * len(members))
                held[client] += members[start:end].tolist()
                start = end
        if min(map(len, held)) >= least:
            return held


LABELS = np.arange(600) % 10

PINNED = [
    [33, 13, 30, 39],
    [8, 36, 24, 16, 0, 12, 4, 28, 32, 21, 37, 1, 25, 5, 29, 17],
    [20, 9, 10, 2, 18, 6, 22, 14, 26, 34, 38, 15, 23, 27, 3, 7, 35, 31, 11, 19],
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("clients", "alpha", "least"), [(1, 0.1, 0), (4, 0.1, 40), (5, 0.5, 60), (7, 100.0, 70)])
def test_the_split_agrees_with_a_plain_reference(clients: int, alpha: float, least: int, seed: int) -> None:
    shares = dirichlet_split(LABELS, clients=clients, alpha=alpha, seed=seed, least=least)
    assert [share.tolist() for share in shares] == reference_split(LABELS.tolist(), clients, alpha, seed, least)


def test_the_split_is_the_same_on_every_machine() -> None:
    shares = dirichlet_split(np.arange(40) % 4, clients=3, alpha=0.5, seed=1, least=3)
    assert [share.tolist() for share in shares] == PINNED


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=30, max_size=150),
    clients=st.integers(1, 9),
    alpha=st.sampled_from([0.02, 0.1, 1.0, 50.0]),
    seed=st.integers(0, 2**32 - 1),
    least=st.integers(0, 3),
)
def test_every_split_is_a_partition_that_respects_the_limits(
    labels: list[int], clients: int, alpha: float, seed: int, least: int
) -> None:
    array = np.array(labels)
    try:
        shares = dirichlet_split(array, clients=clients, alpha=alpha, seed=seed, least=least)
    except DataError:
        assume(False)
    again = dirichlet_split(array, clients=clients, alpha=alpha, seed=seed, least=least)
    assert all(map(np.array_equal, shares, again))
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(labels)))
    assert min(map(len, shares)) >= least
    for client, share in enumerate(shares):
        # A client with an even share gets nothing more, except the sample that rounding may leave to the last one.
        allowed = 1 if client == clients - 1 else 0
        held = 0
        for number in np.unique(array):
            piece = int((array[share] == number).sum())
            assert piece <= allowed or held < len(labels) / clients
            held += piece


def test_another_seed_gives_another_split() -> None:
    one, other = (dirichlet_split(LABELS, clients=4, alpha=0.1, seed=seed, least=40) for seed in (1, 2))
    assert not all(map(np.array_equal, one, other))


def test_a_small_alpha_gives_few_classes_and_a_large_one_nearly_all() -> None:
    def classes_held(alpha: float) -> float:
        shares = dirichlet_split(np.arange(6000) % 10, clients=10, alpha=alpha, seed=1, least=40)
        return float(np.mean([len(set((share % 10).tolist())) for share in shares]))

    assert classes_held(0.1) < 6
    assert classes_held(100.0) == 10


def test_a_tiny_alpha_still_splits_while_it_can_be_drawn() -> None:
    labels = np.arange(2000) % 50
    shares = dirichlet_split(labels, clients=5, alpha=0.001, seed=1, least=100)
    assert sum(map(len, shares)) == 2000
    with pytest.raises(DataError, match="alpha 1e-09 is too small"):
        dirichlet_split(labels, clients=5, alpha=1e-9, seed=1, least=100)


def test_a_split_that_never_succeeds_ends_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddbp_client.data.partition._SPLIT_ATTEMPTS", 20)
    with pytest.raises(DataError, match=r"gave each of 20 clients 5 in 20 draws with alpha 0\.01; take fewer clients"):
        dirichlet_split(np.arange(100) % 2, clients=20, alpha=0.01, seed=1, least=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "over 0 clients"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"seed": -1}, "seed is -1"),
        ({"least": 151}, "600 samples are too few for 4 clients with at least 151 each"),
    ],
)
def test_an_impossible_split_is_refused_at_once(options: dict[str, float], message: str) -> None:
    settings = {"clients": 4, "alpha": 0.1, "seed": 1, "least": 10, **options}
    with pytest.raises(DataError, match=message):
        dirichlet_split(LABELS, **settings)  # type: ignore[arg-type]


def test_no_samples_are_too_few() -> None:
    with pytest.raises(DataError, match="0 samples are too few"):
        dirichlet_split(np.array([], dtype=np.int64), clients=1, alpha=1.0, seed=1, least=0)


@pytest.mark.parametrize(
    ("total", "clients", "batch_size", "least"),
    [(60_000, 20, 10, 40), (60_000, 20, 32, 128), (1797, 20, 32, 44), (40, 20, 32, 3)],
)
def test_the_least_is_a_batch_or_half_an_even_share(total: int, clients: int, batch_size: int, least: int) -> None:
    assert least_samples(total, clients, batch_size) == least


@given(samples=st.integers(3, 500), seed=st.integers(0, 2**32 - 1), client=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_a_quarter_is_the_test_part(samples: int, seed: int, client: int) -> None:
    train, test = train_test_split(samples, seed=seed, client_id=client)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(samples))
    assert len(train) == samples * 3 // 4
    again, _ = train_test_split(samples, seed=seed, client_id=client)
    assert np.array_equal(train, again)


def test_seed_and_client_both_decide_the_test_part() -> None:
    parts = [train_test_split(100, seed=s, client_id=c)[0].tolist() for s, c in [(1, 2), (2, 1), (1, 1)]]
    assert parts[0] != parts[1] != parts[2] != parts[0]
    assert parts[0] != sorted(parts[0])


def test_too_few_samples_to_train_and_test_on() -> None:
    with pytest.raises(DataError, match="client 7 has 2 samples, it needs at least 3"):
        train_test_split(2, seed=1, client_id=7)
