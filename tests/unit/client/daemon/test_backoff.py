"""Delays and patience of the backoff."""

from __future__ import annotations

from datetime import timedelta

from feddbp_client.daemon.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def backoff(clock: Clock, *, patience: float = 100.0) -> Backoff:
    """Without jitter: every delay has its full length."""
    return Backoff(patience=timedelta(seconds=patience), clock=clock, jitter=lambda: 1.0)


def test_delays_double_up_to_the_longest() -> None:
    retry = backoff(Clock())
    assert [retry.next_delay() for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_jitter_shortens_a_delay_by_half_at_most() -> None:
    retry = Backoff(patience=timedelta(minutes=1), clock=Clock(), jitter=lambda: 0.0)
    assert retry.next_delay() == 0.1


def test_the_time_that_a_server_asks_for_is_kept_within_patience() -> None:
    clock = Clock()
    retry = backoff(clock, patience=30)
    assert retry.next_delay(asked=timedelta(seconds=20)) == 22.0  # and a tenth of jitter
    clock.now = 22.0
    assert retry.next_delay(asked=timedelta(seconds=20)) == 8.0
    assert retry.next_delay() == 0.2  # its own delays have not grown
    clock.now = 30.0
    assert retry.next_delay(asked=timedelta(seconds=1)) is None


def test_patience_runs_out() -> None:
    clock = Clock()
    retry = backoff(clock, patience=5)
    assert retry.next_delay() == 0.2
    clock.now = 4.9
    assert retry.next_delay() is not None
    clock.now = 5.0
    assert retry.next_delay() is None


def test_a_server_that_answers_but_fails_is_retried_without_end_at_growing_delays() -> None:
    clock = Clock()
    retry = backoff(clock, patience=5)
    delays = []
    for _ in range(8):
        clock.now += 4
        delays.append(retry.next_delay())
        retry.answered()
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]  # capped by the remaining patience


def test_success_resets_the_delays() -> None:
    retry = backoff(Clock())
    for _ in range(5):
        retry.next_delay()
    retry.succeeded()
    assert retry.next_delay() == 0.2


def test_a_server_that_wants_to_be_called_at_once_is_not_called_in_a_busy_loop() -> None:
    backoff = Backoff(patience=timedelta(seconds=60), clock=lambda: 0.0, jitter=lambda: 0.0)
    assert backoff.next_delay(asked=timedelta(0)) == 0.1
    assert backoff.next_delay(asked=timedelta(seconds=3)) == 3.0


def test_a_patience_of_days_is_kept_to_its_end() -> None:
    retry = backoff(Clock(), patience=timedelta(days=7).total_seconds())
    assert [retry.next_delay() for _ in range(2000)][-1] == 10.0
