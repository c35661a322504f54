"""Numbers, durations and ids as text."""

from __future__ import annotations

import pytest

from feddbp_common.humanize import (
    address_text,
    client_names,
    human_bytes,
    human_seconds,
    id_ranges,
    listed_ids,
    percent,
    quantity,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (22_000_000, "22.0 MB"),
        (3.2e12, "3.2 TB"),
    ],
)
def test_bytes_have_decimal_units(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min")],
)
def test_durations_have_one_or_two_units(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_a_share_is_a_percentage_and_a_missing_one_a_dash() -> None:
    assert percent(None) == "–"
    assert percent(0.8125) == "81.2 %"


def test_consecutive_ids_are_a_range() -> None:
    assert id_ranges([7, 0, 1, 2, 9, 10]) == "0-2, 7, 9-10"
    assert id_ranges([]) == ""


def test_one_client_is_named_in_the_singular() -> None:
    assert (client_names([3]), client_names([3, 4, 7])) == ("client 3", "clients 3-4, 7")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:3471", "10.0.0.7:3471"),
        ("ipv6:%5B::1%5D:3471", "[::1]:3471"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("", ""),
    ],
)
def test_the_address_of_a_peer_has_no_scheme(peer: str, address: str) -> None:
    assert address_text(peer) == address


@pytest.mark.parametrize(("count", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_a_quantity_of_one_is_in_the_singular(count: int, text: str) -> None:
    assert quantity(count, "round") == text


def test_a_long_list_of_ids_is_cut_off_between_two_of_them() -> None:
    assert listed_ids(range(5_000)) == "0-4999"
    text = listed_ids(range(0, 5_000, 2))
    assert text.startswith("0, 2, 4, ")
    assert text.endswith(", 98, 100 and others, 2500 in all")
