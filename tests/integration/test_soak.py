"""The short form of `make soak`: many rounds of light clients without errors or growth of memory and files."""

from __future__ import annotations

from benchmarks.soak import Plan, measurements, soak

PLAN = Plan(clients=4, rounds=24, dataset="cifar100", flat_from=3)
MOST_GROWTH = 16e6
"""Bytes; a server that kept every upload would grow by 34 MB of tensors alone."""


def test_a_short_soak_has_no_errors_and_no_growth() -> None:
    outcome = soak(PLAN)
    assert outcome.errors == []
    assert outcome.all_errors == 0
    assert outcome.rounds_done == PLAN.clients * (PLAN.rounds + 1)  # and the last evaluation
    early, late = outcome.samples[PLAN.flat_from], outcome.samples[-1]
    assert late.mean - early.mean < MOST_GROWTH
    files = measurements(PLAN, outcome)[-1]
    assert files.holds, files.detail
