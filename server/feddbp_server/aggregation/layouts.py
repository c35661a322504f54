"""Layouts: shapes in which all clients must agree, though no rule fixes them; the majority of a round decides.

The first upload does not: its client could shut all others out. Until a round is closed, uploads of every layout are
admitted; those of a minority are left out of the average, and refused from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import refuse
from feddbp_server.store import UploadRecord
from feddbp_server.strategies import Shapes


@dataclass(frozen=True)
class Mismatch:
    """A tensor whose shape is not that of most clients."""

    name: str
    shape: tuple[int, ...] | None
    expected: tuple[int, ...] | None

    @property
    def difference(self) -> str:
        return f"has shape {_shown(self.shape)}, for other clients {_shown(self.expected)}"

    def __str__(self) -> str:
        return f"{self.name} {self.difference}"


class LayoutAgreement:
    """Owns the layout of a run, once a round has decided it."""

    def __init__(self, layout_of: Callable[[Shapes], Shapes]) -> None:
        self._layout_of = layout_of
        self._agreed: Shapes | None = None

    def check(self, manifest: pb.Manifest) -> None:
        """Refuses an upload whose tensors cannot be averaged with those of most clients."""
        layout = self._read(manifest)  # which may refuse it in any round
        mismatch = None if self._agreed is None else _first_mismatch(layout, self._agreed)
        if mismatch is not None:
            refuse(mismatch.name, mismatch.difference)

    def settle(self, records: Iterable[UploadRecord]) -> dict[int, Mismatch]:
        """Decides the layout by the uploads of a round, unless it is decided; returns those that do not have it."""
        layouts = {record.client_id: self._read(pb.Manifest.FromString(record.manifest)) for record in records}
        if self._agreed is None:
            self._agreed = _most_frequent(layouts)
        if self._agreed is None:
            return {}
        found = {client: _first_mismatch(layout, self._agreed) for client, layout in layouts.items()}
        return {client: mismatch for client, mismatch in found.items() if mismatch is not None}

    def _read(self, manifest: pb.Manifest) -> Shapes:
        return self._layout_of({tensor.name: tuple(tensor.shape) for tensor in manifest.tensors})


def _most_frequent(layouts: Mapping[int, Shapes]) -> Shapes | None:
    """The layout that most clients have; among equally many, that of the lowest client id."""
    clients: dict[tuple[object, ...], list[int]] = {}
    for client in sorted(layouts):
        clients.setdefault(tuple(sorted(layouts[client].items())), []).append(client)
    if not clients:
        return None
    # max keeps the first of equals, and groups are in the order of their lowest client id
    return layouts[max(clients.values(), key=len)[0]]


def _first_mismatch(layout: Shapes, expected: Shapes) -> Mismatch | None:
    for name in sorted(expected.keys() | layout.keys()):
        if layout.get(name) != expected.get(name):
            return Mismatch(name, layout.get(name), expected.get(name))
    return None


def _shown(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
