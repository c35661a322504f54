"""The event stream of a run on a server: started, client joined, client reported, round closed, ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.printable import make_printable
from feddbp_common.rpc.credentials import OPERATOR, ClientCredentials
from feddbp_common.wire import BodyAssembler, PrototypeSet, decode
from feddbp_lab.control_client import CHANNEL_OPTIONS, as_call_error


async def watch_run(
    address: str, credentials: ClientCredentials, *, from_round: int = 0, history_only: bool = False
) -> AsyncGenerator[pb.RunEvents, None]:
    """The events so far and every further one, in pages; ends with the run, or when the server shuts down.

    Raises ServerUnreachableError or RequestRefusedError; a caller that reconnects gives the first round it misses.
    """
    request = pb.WatchRunRequest(from_round=from_round, history_only=history_only)
    async with credentials.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        try:
            async for page in stub.WatchRun(request, metadata=credentials.metadata()):
                make_printable(page)
                yield page
        except grpc.aio.AioRpcError as error:
            raise as_call_error(error, address, with_certificate=credentials.certs is not None) from None


async def fetch_prototypes(
    address: str, credentials: ClientCredentials, *, from_round: int = 0
) -> dict[int, PrototypeSet]:
    """The global prototypes that the server has kept, by completed rounds."""
    found: dict[int, PrototypeSet] = {}
    header, body = pb.PrototypesHeader(), BodyAssembler(0)
    request = pb.GetPrototypesRequest(from_round=from_round)

    def finish() -> None:
        if header.manifest.total_bytes and body.complete:
            prototypes = decode(header.manifest, body.body()).prototypes
            if prototypes is not None:
                found[header.round] = prototypes

    async with credentials.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        try:
            async for part in stub.GetPrototypes(request, metadata=credentials.metadata()):
                if part.HasField("header"):
                    finish()
                    header, body = part.header, BodyAssembler(part.header.manifest.total_bytes)
                else:
                    body.add(part.chunk.data)
        except grpc.aio.AioRpcError as error:
            raise as_call_error(error, address, with_certificate=credentials.certs is not None) from None
    finish()
    return found


async def fetch_client_prototypes(
    address: str, credentials: ClientCredentials, client_id: int
) -> list[pb.ClientPrototype]:
    """How a client's latest upload differs from the global prototypes, by class."""
    async with credentials.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        request = pb.GetClientPrototypesRequest(client_id=client_id)
        try:
            return [row async for row in stub.GetClientPrototypes(request, metadata=credentials.metadata())]
        except grpc.aio.AioRpcError as error:
            raise as_call_error(error, address, with_certificate=credentials.certs is not None) from None
