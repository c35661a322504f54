"""Numbers, units and client ids as people read them, in logs and on terminals."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import unquote

NO_VALUE: Final = "–"
_LISTED: Final = 200
"""Characters of ids in a line; the status has all of them."""
_NAMED: Final = 20
"""Clients in a line up to which each is shown with its name."""


def human_bytes(count: float) -> str:
    """Decimal units, as network traffic is counted, with two or three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        # 999.5 would be rounded to 1000
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {left:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None) -> str:
    return NO_VALUE if share is None else f"{100 * share:.1f} %"


def quantity(count: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def id_ranges(ids: Collection[int]) -> str:
    """Ids with consecutive ones as a range: 0-3, 7."""
    ranges: list[list[int]] = []
    for number in sorted(ids):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}" for numbers in ranges)


def listed_ids(ids: Collection[int]) -> str:
    """Ids as ranges, cut off where they would fill the screen."""
    text = id_ranges(ids)
    if len(text) <= _LISTED:
        return text
    shown = text[:_LISTED].rpartition(", ")[0]
    return f"{shown} and others, {len(ids)} in all"


def client_names(ids: Collection[int], names: Callable[[int], str] = lambda _: "") -> str:
    """`client 3`, or `clients 0-3, 7`; with the names of those that have one, `clients 0-3, 7 (north-clinic)`."""
    named = [number for number in sorted(ids) if names(number)] if len(ids) <= _NAMED else []
    if not named:
        return f"client {id_ranges(ids)}" if len(ids) == 1 else f"clients {id_ranges(ids)}"
    shown = [f"{number} ({names(number)})" if number in named else str(number) for number in sorted(ids)]
    return f"client {shown[0]}" if len(ids) == 1 else f"clients {', '.join(shown)}"


def round_name(number: int, rounds: int, *, ends_at: int | None = None) -> str:
    """A round, counted from 1 for people; programs count from 0, and take the final evaluation for one more.

    That comes at `ends_at` in a run that ends before its planned `rounds`.
    """
    is_final = number >= (rounds if ends_at is None else ends_at)
    return "the final evaluation" if is_final else f"round {number + 1}/{rounds}"


def address_text(peer: str) -> str:
    """The address in gRPC's name of a peer: `10.0.0.7:3471` for `ipv4:10.0.0.7:3471`."""
    _, _, address = peer.partition(":")
    return unquote(address) if peer.startswith(("ipv4:", "ipv6:")) else peer


def join_address(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def short_device(device: str) -> str:
    """A device as a client reports it, without the name of its card: `cuda:1`."""
    return device.partition(" (")[0]
