"""A linear head in a payload: the names of its tensors, their rules and their size."""

from __future__ import annotations

from typing import Any, Final

from feddbp_common.methods.contract import ExchangeShape
from feddbp_common.methods.payload_size import REAL_BYTES, ImageShape, PayloadSize
from feddbp_common.wire import Dim, TensorRule

HEAD_WEIGHT: Final = "head.weight"
HEAD_BIAS: Final = "head.bias"


def head_rules(shape: ExchangeShape) -> tuple[TensorRule, ...]:
    classes, width = Dim.exactly(shape.classes), Dim.exactly(shape.feature_dim)
    return TensorRule(name=HEAD_WEIGHT, shape=(classes, width)), TensorRule(name=HEAD_BIAS, shape=(classes,))


def head_bytes(_: Any, shape: ExchangeShape, __: ImageShape) -> int:
    return REAL_BYTES * shape.classes * (shape.feature_dim + 1)


HEAD_PAYLOAD_SIZE: Final = PayloadSize(content="the head", formula="4C(d + 1)", size=head_bytes)
