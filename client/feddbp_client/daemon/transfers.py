"""Uploads as messages, and downloads from messages, checked as strictly as the server checks uploads."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.reply_checks import MAX_DOWNLOAD_BYTES, OutOfBoundsError, checking_download
from feddbp_common.errors import PayloadError
from feddbp_common.fault_injection import fault_point
from feddbp_common.wire import (
    CHUNK_BYTES,
    BodyAssembler,
    Encoded,
    Payload,
    PayloadRules,
    check_manifest,
    check_values,
    chunked,
    decode,
    digest_of,
)


@dataclass(frozen=True, kw_only=True)
class Download:
    """A checked payload from the server, in both forms: decoded for training, encoded for the checkpoint."""

    payload: Payload
    encoded: Encoded
    message_bytes: int
    """Serialised size of all messages of the download."""


def upload_parts(
    session: str,
    round_number: int,
    encoded: Encoded,
    *,
    awaits_admission: bool = False,
    metrics: pb.RoundMetrics | None = None,
) -> Iterator[pb.UploadPart]:
    header = pb.UploadHeader(
        session=session,
        round=round_number,
        manifest=encoded.manifest,
        awaits_admission=awaits_admission,
        metrics=metrics,
    )
    yield pb.UploadPart(header=header)
    for piece in chunked(encoded.segments):
        yield pb.UploadPart(chunk=pb.Chunk(data=piece))


def upload_bytes(session: str, round_number: int, encoded: Encoded, *, awaits_admission: bool = False) -> int:
    """Serialised size of all `upload_parts` without a report, computed without building them: it is in the report."""
    bare = pb.UploadHeader(session=session, round=round_number, awaits_admission=awaits_admission)
    header = bare.ByteSize() + _field_bytes(encoded.manifest.ByteSize())
    whole, rest = divmod(sum(len(segment) for segment in encoded.segments), CHUNK_BYTES)
    sizes = [header, *[_field_bytes(CHUNK_BYTES)] * whole, *([_field_bytes(rest)] if rest else [])]
    return sum(map(_field_bytes, sizes))


def _field_bytes(length: int) -> int:
    """Size of a protobuf field of `length` bytes: a tag of one byte, the length as a varint, the content."""
    return 1 + max(1, -(-length.bit_length() // 7)) + length


async def received_download(parts: AsyncIterable[pb.DownloadPart], rules: PayloadRules) -> Download:
    """Assembles a download and checks it."""
    manifest: pb.Manifest | None = None
    assembler = BodyAssembler(0)
    message_bytes = 0
    async for part in parts:
        if part is None:  # what gRPC gives for bytes that are no message
            raise PayloadError("part", "is not a message")
        message_bytes += part.ByteSize()
        if manifest is None:
            if not part.HasField("manifest"):
                raise PayloadError("manifest", "is missing: a download begins with it")
            manifest = part.manifest
            check_manifest(manifest, rules, max_bytes=MAX_DOWNLOAD_BYTES)
            assembler = BodyAssembler(manifest.total_bytes)
        elif part.HasField("chunk"):
            assembler.add(part.chunk.data)
        else:
            raise PayloadError("part", "a chunk was expected")
    if manifest is None:
        raise PayloadError("manifest", "the download is empty: the server sent no parts")
    return _checked(manifest, assembler.body(), rules, message_bytes=message_bytes)


def pushed_download(event: pb.RoundEvent, rules: PayloadRules) -> Download | None:
    """The state in an event, checked as one that was downloaded; None if there is none."""
    if not event.HasField("state"):
        return None
    manifest, body = event.state.manifest, event.state.body
    with checking_download("Follow"):
        check_manifest(manifest, rules, max_bytes=MAX_DOWNLOAD_BYTES)
        if len(body) != manifest.total_bytes:
            raise PayloadError("body", f"has {len(body)} bytes where {manifest.total_bytes} were declared")
        return _checked(manifest, body, rules, message_bytes=event.ByteSize())


def _checked(manifest: pb.Manifest, body: bytes, rules: PayloadRules, *, message_bytes: int) -> Download:
    fault_point("client.download.receiving")
    if digest_of(manifest, [body]) != manifest.sha256:
        raise PayloadError("sha256", "the download does not match its digest: it was damaged in transit")
    payload = decode(manifest, body)
    try:
        check_values(payload, rules)
    except PayloadError as error:
        raise OutOfBoundsError("Download", error.field, error.reason) from None
    encoded = Encoded(manifest=manifest, segments=(memoryview(body),))
    return Download(payload=payload, encoded=encoded, message_bytes=message_bytes)
