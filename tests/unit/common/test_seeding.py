from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from feddbp_common.seeding import derive_seed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.text("abc", max_size=5) | st.integers(0, 99), max_size=3))
def test_a_seed_depends_only_on_its_arguments_and_has_63_bits(seed: int, purpose: list[str | int]) -> None:
    derived = derive_seed(seed, *purpose)
    assert derived == derive_seed(seed, *purpose)
    assert 0 <= derived < 2**63


def test_different_choices_have_different_seeds() -> None:
    purposes = ["participation", "init", "order", "split"]
    derived = [derive_seed(*choice) for choice in product(range(8), purposes, range(8), range(8))]
    derived += [derive_seed(*choice) for choice in product(range(8), purposes, range(8))]
    derived += [derive_seed(run) for run in range(8)]
    assert len(set(derived)) == len(derived)


def test_seed_and_purpose_are_not_interchangeable() -> None:
    assert derive_seed(1, 2) != derive_seed(2, 1)
    assert derive_seed(1, "client", 23) != derive_seed(12, "client", 3)
    assert derive_seed(0, 1, 11) != derive_seed(0, 11, 1)


def test_seeds_derived_from_adjacent_run_seeds_are_uncorrelated() -> None:
    bits = [(derive_seed(seed, "init") ^ derive_seed(seed + 1, "init")).bit_count() for seed in range(400)]
    assert 29 < sum(bits) / len(bits) < 34  # half of 63 bits differ if the bits are independent


def test_seeds_do_not_change_between_versions() -> None:
    assert derive_seed(0) == 3456079177858693020
    assert derive_seed(7, "participation", 3) == 6070067430221555964
