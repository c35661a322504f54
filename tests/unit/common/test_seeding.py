from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from feddbp_common.seeding import derive_seed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.text("abc", max_size=5) | st.integers(0, 99), max_size=3))
def test_a_seed_depends_on_its_arguments_alone_and_fits_every_generator(seed: int, purpose: list[str | int]) -> None:
    derived = derive_seed(seed, *purpose)
    assert derived == derive_seed(seed, *purpose)
    assert 0 <= derived < 2**63


def test_no_two_choices_share_a_seed() -> None:
    purposes = ["participation", "init", "order", "split"]
    derived = [derive_seed(*choice) for choice in product(range(8), purposes, range(8), range(8))]
    derived += [derive_seed(*choice) for choice in product(range(8), purposes, range(8))]
    derived += [derive_seed(run) for run in range(8)]
    assert len(set(derived)) == len(derived)


def test_a_purpose_is_not_told_apart_by_arithmetic() -> None:
    assert derive_seed(1, 2) != derive_seed(2, 1)
    assert derive_seed(1, "client", 23) != derive_seed(12, "client", 3)
    assert derive_seed(0, 1, 11) != derive_seed(0, 11, 1)


def test_neighbouring_seeds_have_nothing_in_common() -> None:
    bits = [(derive_seed(seed, "init") ^ derive_seed(seed + 1, "init")).bit_count() for seed in range(400)]
    assert 29 < sum(bits) / len(bits) < 34  # half of 63, if every bit is a fair coin


def test_seeds_are_the_same_in_every_version() -> None:
    assert derive_seed(0) == 3456079177858693020
    assert derive_seed(7, "participation", 3) == 6070067430221555964
