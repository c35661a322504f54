"""Sizes of a method's payloads, computed before a run, in bytes of tensors without framing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from feddbp_common.methods.contract import ExchangeShape

ImageShape: TypeAlias = tuple[int, int, int]
"""Channels, height and width. Some methods exchange networks whose size depends on it."""

REAL_BYTES: Final = 4
"""Size of a float32 or an int32."""


@dataclass(frozen=True, kw_only=True)
class PayloadSize:
    """The payload of one direction in a round."""

    content: str
    formula: str
    """For people: C classes, d channels, m classes that a client holds, K clients."""
    size: Callable[[Any, ExchangeShape, ImageShape], int]
    """Returns the bytes for a client that holds every class, which is the maximum."""


def prototype_rows(_: Any, shape: ExchangeShape, __: ImageShape) -> int:
    return REAL_BYTES * shape.classes * shape.feature_dim


NO_PAYLOAD: Final = PayloadSize(content="nothing", formula="0", size=lambda *_: 0)
LOCAL_PROTOTYPES: Final = PayloadSize(content="prototypes", formula="4md", size=prototype_rows)
GLOBAL_PROTOTYPES: Final = PayloadSize(content="prototypes", formula="4Cd", size=prototype_rows)
