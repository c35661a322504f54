"""The audit of a run as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from feddbp_common.humanize import NO_VALUE
from feddbp_lab.privacy.audit import SIZES, SUM, UPLOAD, Audit
from feddbp_lab.privacy.tally import Tally
from feddbp_lab.terminal.format import plain_table


def size_text(size: tuple[int, int | None]) -> str:
    low, high = size
    return f"{low}+" if high is None else f"{low} to {high}"


def audit_tables(found: Audit) -> RenderableType:
    members = plain_table(title=f"{found.method} on {found.dataset}, {found.clients} clients: who is a member (AUC)")
    members.add_column("samples of the class")
    members.add_column("prototypes", justify="right")
    members.add_column(UPLOAD, justify="right")
    members.add_column(SUM, justify="right")
    for size in SIZES:
        tallies = [found.membership.get(attacked, {}).get(size) for attacked in (UPLOAD, SUM)]
        if tallies[0] is not None and tallies[0].pairs:
            members.add_row(size_text(size), str(tallies[0].prototypes), *map(_auc, tallies))
    for name, tally in found.baselines.items():
        members.add_row(name, str(tally.prototypes), _auc(tally), "", style="dim")
    labels = plain_table(title="Distance of the inferred distribution of a client's labels from the true one")
    labels.add_column("what is seen")
    labels.add_column("distance", justify="right")
    labels.add_column("")
    for form, distance in found.labels.items():
        told = form == found.told
        labels.add_row(form, f"{distance:.2f}", "in this run" if told else "", style="bold" if told else "")
    return Group(members, Text(), labels, Text(), *map(Text, _notes(found)))


def _notes(found: Audit) -> Iterator[str]:
    yield "AUC 0.5 is guessing, 1 is certainty, with its 95 % interval; distance 0 is exact knowledge."
    if found.hides_uploads:
        yield "The server of this run sees sums over clients alone, not a client's upload."
    if found.bound is not None:
        yield "Releases with noise are attacked in 20 draws, the one that was sent and 19 others."
        seen = SUM if found.hides_uploads else UPLOAD
        yield f"Differential privacy: no attack on {seen} has an AUC above {found.bound:.2f}, but by chance."


def as_json(found: Audit) -> dict[str, Any]:
    def tally_json(tally: Tally) -> dict[str, Any]:
        counted = {"prototypes": tally.prototypes, "pairs": tally.pairs}
        if not tally.pairs:
            return {**counted, "auc": None, "auc_low": None, "auc_high": None}
        return {**counted, "auc": tally.auc, "auc_low": tally.interval.low, "auc_high": tally.interval.high}

    return {
        "method": found.method,
        "dataset": found.dataset,
        "clients": found.clients,
        "membership": [
            {"attacked": attacked, "from": low, "to": high, **tally_json(tally)}
            for attacked, tallies in found.membership.items()
            for (low, high), tally in sorted(tallies.items())
        ],
        "baselines": {name: tally_json(tally) for name, tally in found.baselines.items()},
        "labels": found.labels,
        "labels_told": found.told,
        "hides_uploads": found.hides_uploads,
        "auc_bound": found.bound,
    }


def _auc(tally: Tally | None) -> str:
    if tally is None or not tally.pairs:
        return NO_VALUE
    low, high = tally.interval
    return f"{tally.auc:.2f} ({low:.2f}–{high:.2f})"
