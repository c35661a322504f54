"""Waiting before trying again."""

from __future__ import annotations

from datetime import timedelta

from feddbp_client.daemon.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def backoff(clock: Clock, *, patience: float = 100.0) -> Backoff:
    """Without jitter: every delay is as long as it may be."""
    return Backoff(patience=timedelta(seconds=patience), clock=clock, jitter=lambda: 1.0)


def test_delays_double_up_to_the_longest() -> None:
    waiting = backoff(Clock())
    assert [waiting.next_delay() for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_jitter_never_halves_a_delay_by_more() -> None:
    waiting = Backoff(patience=timedelta(minutes=1), clock=Clock(), jitter=lambda: 0.0)
    assert waiting.next_delay() == 0.1


def test_patience_runs_out() -> None:
    clock = Clock()
    waiting = backoff(clock, patience=5)
    assert waiting.next_delay() == 0.2
    clock.now = 4.9
    assert waiting.next_delay() is not None
    clock.now = 5.0
    assert waiting.next_delay() is None


def test_a_server_that_answers_but_fails_is_asked_less_and_less_often_and_for_ever() -> None:
    clock = Clock()
    waiting = backoff(clock, patience=5)
    delays = []
    for _ in range(8):
        clock.now += 4
        delays.append(waiting.next_delay())
        waiting.answered()
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]  # no delay is longer than what is left of patience


def test_success_makes_everything_as_it_was() -> None:
    waiting = backoff(Clock())
    for _ in range(5):
        waiting.next_delay()
    waiting.succeeded()
    assert waiting.next_delay() == 0.2
