"""The Federation service: reads a request, finds whose it is, calls the coordinator, answers. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.config.run import run_to_proto
from feddbp_common.fault_injection import fault_point
from feddbp_common.rpc.keepalive import DEFAULT_LEASE, keepalive_options
from feddbp_common.wire import chunked
from feddbp_server.rpc.auth import Identity, client_may
from feddbp_server.rpc.status_codes import answers, streams
from feddbp_server.rpc.upload import UploadReceiver
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.sessions import Client

Context = grpc.aio.ServicerContext[Any, Any]
_MAX_DOWNLOADS: Final = 4
"""Of one session at a time: one, and those of lost connections that were not noticed yet. Each holds its bytes."""


class FederationService(pb_grpc.FederationServicer):
    """What clients call."""

    def __init__(self, coordinator: Coordinator, *, identity: Identity, ingest: UploadReceiver) -> None:
        self.coordinator = coordinator
        self._identity = identity
        self._ingest = ingest

    def _caller(self, session: str, context: Context) -> Client:
        """Whose session it is; a session is of no use to whoever else got hold of it."""
        client = self.coordinator.sessions.by_session(session)
        try:
            client_may(self._identity, context, client.client_id)
        except RefusedError as error:
            raise error.of(client.client_id) from None
        return client

    @answers
    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        self._identity.check_is_known(context)
        config = self.coordinator.config
        return pb.GetRunResponse(config=run_to_proto(config), run_id=self.coordinator.run_id)

    @answers
    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        client_may(self._identity, context, request.client_id)
        client, secret = await self.coordinator.join(request)
        response = pb.JoinResponse(session=secret, epoch=client.epoch)
        response.lease.FromTimedelta(self.coordinator.sessions.lease)
        return response

    @streams
    async def Follow(self, request: pb.FollowRequest, context: Context) -> AsyncIterator[pb.RoundEvent]:
        client = self._caller(request.session, context)
        async for event in self.coordinator.follow(client):
            yield event

    @streams
    async def Download(self, request: pb.DownloadRequest, context: Context) -> AsyncIterator[pb.DownloadPart]:
        client = self._caller(request.session, context)
        if client.downloads >= _MAX_DOWNLOADS:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "this session has too many downloads open").of(client.client_id)
        client.downloads += 1
        try:
            encoded = await self.coordinator.download(client, request.round)
            yield pb.DownloadPart(manifest=encoded.manifest)
            fault_point("server.download.sending")
            for piece in chunked(encoded.segments):
                yield pb.DownloadPart(chunk=pb.Chunk(data=piece))
        finally:
            client.downloads -= 1

    @answers
    async def Upload(self, request_iterator: AsyncIterator[pb.UploadPart], context: Context) -> pb.UploadReceipt:
        def caller(session: str) -> Client:
            return self._caller(session, context)

        return await self._ingest.receive(request_iterator, caller)

    @answers
    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportResponse:
        client = self._caller(request.session, context)
        match request.WhichOneof("report"):
            case "progress":
                self.coordinator.report_progress(client, request.progress)
            case "metrics":
                await self.coordinator.report_metrics(client, request.round, request.metrics)
            case "failure":
                self.coordinator.report_failure(client, request.round, request.failure.cause)
            case None:
                raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "the report says nothing", field="report")
        return pb.ReportResponse()

    @answers
    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        client = self._caller(request.session, context)
        await self.coordinator.leave(client, request.reason)
        return pb.LeaveResponse()


def server_options(lease: timedelta = DEFAULT_LEASE) -> list[tuple[str, int]]:
    """Pings that notice a client that is gone before its lease ends, and limits on messages."""
    return [
        *keepalive_options(lease),
        # clients ping as often as they need to: that is no reason to throw them out
        ("grpc.http2.max_ping_strikes", 0),
        # a chunk is 256 KiB and every other message smaller; metadata holds a token at most
        ("grpc.max_receive_message_length", 1 << 20),
        ("grpc.max_metadata_size", 16 << 10),
        # a client needs a handful, and one process may be a thousand clients
        ("grpc.max_concurrent_streams", 4096),
        # never share a port with a second server: a bind error has to be an error
        ("grpc.so_reuseport", 0),
    ]
