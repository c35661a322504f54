"""The arithmetic of secure sums: shares of a secret, and reals as integers modulo 2^64."""

from __future__ import annotations

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddbp_common.errors import FedDBPError
from feddbp_common.secure_sums import shamir
from feddbp_common.secure_sums.derivation import KeyStream
from feddbp_common.secure_sums.digests import digest
from feddbp_common.secure_sums.fixed_point import FRACTION_BITS, from_fixed, largest_value, to_fixed


def test_every_polynomial_over_a_small_field_gives_its_secret_back() -> None:
    """All secrets, all coefficients and all sets of holders, over the field of 5 elements with a threshold of 3."""
    prime, holders, threshold = 5, range(4), 3
    for secret, *drawn in itertools.product(range(prime), repeat=threshold):
        values = iter(drawn)
        shares = shamir.split(secret, holders, threshold=threshold, draw=lambda _: next(values), prime=prime)  # noqa: B023
        for chosen in itertools.combinations(holders, threshold):
            known = {holder: shares[holder] for holder in chosen}
            assert shamir.combine(known, threshold=threshold, prime=prime) == secret


def test_fewer_shares_than_the_threshold_tell_nothing() -> None:
    """Over all polynomials, any two shares come with every secret equally often."""
    prime, threshold = 5, 3
    for pair in itertools.combinations(range(4), 2):
        seen: dict[tuple[int, ...], list[int]] = {}
        for secret, *drawn in itertools.product(range(prime), repeat=threshold):
            values = iter(drawn)
            shares = shamir.split(secret, range(4), threshold=threshold, draw=lambda _: next(values), prime=prime)  # noqa: B023
            seen.setdefault(tuple(shares[holder] for holder in pair), []).append(secret)
        assert len(seen) == prime**2
        assert all(sorted(found) == list(range(prime)) for found in seen.values())


def test_weights_of_the_sets_that_are_tried_for_one_secret_are_known_for_the_next() -> None:
    holders = range(100)
    shared = [shamir.split(secret, holders, threshold=3, draw=secrets.randbelow) for secret in range(2)]
    sets = list(itertools.islice(itertools.combinations(holders, 3), 300))
    shamir._weights_at_zero.cache_clear()
    for shares in shared:
        for chosen in sets:
            shamir.combine({holder: shares[holder] for holder in chosen}, threshold=3)
    assert shamir._weights_at_zero.cache_info().misses == len(sets)


@given(
    secret=st.integers(0, 2**256 - 1),
    holders=st.sets(st.integers(0, 100_000), min_size=5, max_size=20),
    data=st.data(),
)
def test_any_holders_at_the_threshold_give_the_secret(secret: int, holders: set[int], data: st.DataObject) -> None:
    threshold = 2 * len(holders) // 3 + 1
    shares = shamir.split(secret, holders, threshold=threshold, draw=secrets.randbelow)
    chosen = data.draw(st.sets(st.sampled_from(sorted(holders)), min_size=threshold))
    assert shamir.combine({holder: shares[holder] for holder in chosen}, threshold=threshold) == secret
    with pytest.raises(ValueError, match="the threshold is"):
        shamir.combine(dict(list(shares.items())[: threshold - 1]), threshold=threshold)


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=128))
def test_sums_are_exact_in_any_order(rows: list[list[float]]) -> None:
    words = [to_fixed(row, parties=128) for row in rows]
    with np.errstate(over="ignore"):
        forward, backward = sum(words[1:], words[0]), sum(words[-2::-1], words[-1])
    np.testing.assert_array_equal(forward, backward)
    exact = [sum(round(row[i] * 2**FRACTION_BITS) for row in rows) / 2**FRACTION_BITS for i in range(3)]
    np.testing.assert_array_equal(from_fixed(forward), exact)


def test_a_value_too_large_for_the_sum_is_refused_with_the_limit() -> None:
    limit = largest_value(128)
    to_fixed([np.nextafter(limit, 0), -np.nextafter(limit, 0)], parties=128)
    for bad in (limit, -limit, np.inf, np.nan):
        with pytest.raises(FedDBPError, match=r"too large to be summed over 128 clients; the limit is 1\.67772e\+07"):
            to_fixed([0.0, bad], parties=128)


def test_digests_tell_lists_of_parts_apart() -> None:
    assert len({digest("a", "bc"), digest("ab", "c"), digest("a", "b", "c"), digest("a", b"bc", b"")}) == 4


def test_numbers_below_a_bound_come_in_equal_shares() -> None:
    stream = KeyStream(bytes(32))
    drawn = np.bincount([stream.below(5) for _ in range(5000)], minlength=5)
    assert drawn.sum() == 5000
    assert np.all(np.abs(drawn - 1000) < 150)
