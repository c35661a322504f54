"""Payloads to encode, and strategies that make them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feddbp_common.wire import FisherScores, Payload, PrototypeSet, TopChannels


def prototype_set(
    class_ids: Sequence[int] = (0, 2), *, width: int = 4, counts: Sequence[int] | None = (3, 5)
) -> PrototypeSet:
    vectors = np.arange(len(class_ids) * width, dtype=np.float32).reshape(len(class_ids), width) - 2.5
    return PrototypeSet(
        class_ids=np.array(class_ids, dtype=np.int32),
        vectors=vectors,
        counts=None if counts is None else np.array(counts, dtype=np.int32),
    )


def sample_payload(*, top_channels: bool = False) -> Payload:
    """Two classes of width four, their Fisher part, and a head with a bias."""
    fisher: FisherScores | TopChannels
    if top_channels:
        fisher = TopChannels(np.array([[3, 0], [1, 2]], dtype=np.uint16))
    else:
        fisher = FisherScores(np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4))
    return Payload(
        prototypes=prototype_set(),
        fisher=fisher,
        tensors={
            "head": np.arange(6, dtype=np.float32).reshape(2, 3),
            "steps": np.array([-7, 9], dtype=np.int32),
        },
    )


def prototypes_of(payload: Payload) -> PrototypeSet:
    assert payload.prototypes is not None
    return payload.prototypes


def arrays(dtype: Any, *, max_dims: int = 4) -> st.SearchStrategy[np.ndarray]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=0, max_side=4)
    return hnp.arrays(dtype, shapes, elements=_elements(dtype))


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    """Anything that can be said: any part may be missing, and any matrix may have no rows."""
    width = draw(st.integers(1, 5))
    class_ids = sorted(draw(st.sets(st.integers(0, 65_535), max_size=5)))
    rows = len(class_ids)
    prototypes: PrototypeSet | None = None
    fisher: FisherScores | TopChannels | None = None
    if draw(st.booleans()):
        counts = draw(st.none() | st.lists(st.integers(1, 2**31 - 1), min_size=rows, max_size=rows))
        prototypes = PrototypeSet(
            class_ids=np.array(class_ids, dtype=np.int32),
            vectors=draw(hnp.arrays(np.float32, (rows, width), elements=_elements(np.float32))),
            counts=None if counts is None else np.array(counts, dtype=np.int32),
        )
        form = draw(st.sampled_from(["none", "scores", "top"]))
        if form == "scores":
            fisher = FisherScores(draw(hnp.arrays(np.float32, (rows, width), elements=_elements(np.float32))))
        elif form == "top":
            fisher = TopChannels(draw(hnp.arrays(np.uint16, (rows, draw(st.integers(0, width))))))
    names = st.text("abcdefghijklmnop._0123456789", min_size=1, max_size=12)
    kinds = st.sampled_from([np.float32, np.int32, np.uint16]).flatmap(arrays)
    return Payload(prototypes=prototypes, fisher=fisher, tensors=draw(st.dictionaries(names, kinds, max_size=3)))


def same(one: Payload, other: Payload) -> bool:
    """Equal in every part, names and order included, bit for bit."""
    if (one.prototypes is None) != (other.prototypes is None) or type(one.fisher) is not type(other.fisher):
        return False
    if one.prototypes is not None and other.prototypes is not None:
        if one.prototypes.class_ids.tolist() != other.prototypes.class_ids.tolist():
            return False
        if _listed(one.prototypes.counts) != _listed(other.prototypes.counts):
            return False
    pairs = list(zip(one.arrays(), other.arrays(), strict=True))
    return all(
        left_name == right_name
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
        for (left_name, left), (right_name, right) in pairs
    )


def _listed(counts: np.ndarray | None) -> list[int]:
    """No counts and no rows to count read the same on the wire."""
    return [] if counts is None else counts.tolist()


def _elements(dtype: Any) -> st.SearchStrategy[Any] | None:
    return st.floats(-65_000, 65_000, width=32) if dtype is np.float32 else None
