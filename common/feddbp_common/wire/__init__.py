"""Payloads: their content, their encoding and the rules that check them. Independent of rounds and methods."""

from feddbp_common.wire.chunks import CHUNK_BYTES, BodyAssembler, chunk_in, chunked
from feddbp_common.wire.codec import (
    Encoded,
    WireType,
    decode,
    digest_of,
    encode,
)
from feddbp_common.wire.payload import FisherScores, Payload, PrototypeSet, TopChannels
from feddbp_common.wire.rules import Dim, PayloadRules, PrototypeRule, TensorRule, check_manifest, check_values

__all__ = [
    "CHUNK_BYTES",
    "BodyAssembler",
    "Dim",
    "Encoded",
    "FisherScores",
    "Payload",
    "PayloadRules",
    "PrototypeRule",
    "PrototypeSet",
    "TensorRule",
    "TopChannels",
    "WireType",
    "check_manifest",
    "check_values",
    "chunk_in",
    "chunked",
    "decode",
    "digest_of",
    "encode",
]
