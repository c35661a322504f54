"""The Federation service: reads a request, finds whose it is, calls the coordinator, answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from functools import cached_property

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.config.run import run_to_proto
from feddbp_common.errors import PayloadError
from feddbp_common.rpc.server_features import ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE
from feddbp_common.version import VERSION
from feddbp_server.rpc.auth import Context, Identity
from feddbp_server.rpc.upload import ADMITTED, Uploads
from feddbp_server.run.admission.refusals import RefusedError, as_refusal
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.pushed_states import EventWithState
from feddbp_server.run.sessions import Session
from feddbp_server.store import StoreError


class FederationService(pb_grpc.FederationServicer):
    """Owns who is calling: resolves a call's session and identity, and leaves every decision to the coordinator."""

    def __init__(self, coordinator: Coordinator, *, identity: Identity, uploads: Uploads) -> None:
        self._coordinator = coordinator
        self._identity = identity
        self._uploads = uploads

    @contextmanager
    def _acting_as(self, client_id: int, context: Context) -> Iterator[None]:
        """Holds the caller to the identity of a client; every refusal from inside carries the client's id.

        Unless the run has no client of this id.
        """
        try:
            self._identity.check_client(context, client_id)
            yield
        except (RefusedError, PayloadError, StoreError) as error:
            refusal = as_refusal(error)
            if client_id < self._coordinator.config.clients:  # any other id is made up; it would be a caller of its own
                refusal.client_id = client_id
            raise refusal from None

    @contextmanager
    def _caller(self, secret: str, context: Context) -> Iterator[Session]:
        """The session of a secret, which alone is not enough where callers have identities."""
        session = self._coordinator.sessions.resolve(secret)
        with self._acting_as(session.client_id, context):
            # a block is durable before the session has ended: a crash in between leaves a session that is valid
            self._coordinator.check_allowed(session.client_id)
            yield session

    @cached_property
    def _run(self) -> pb.GetRunResponse:
        """The same for every caller, once the run has begun."""
        return pb.GetRunResponse(
            config=run_to_proto(self._coordinator.config),
            run_id=self._coordinator.run_id,
            software_version=VERSION,
            required_features=self._coordinator.required_features,
            features=[ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE],
        )

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        self._identity.check_party(context)
        for client_id in self._coordinator.blocked:
            if self._identity.is_client(context, client_id):
                self._coordinator.check_allowed(client_id)
        return self._run

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        with self._acting_as(request.client_id, context):
            session, secret = await self._coordinator.join(request, peer=context.peer())
            response = pb.JoinResponse(session=secret, epoch=session.epoch)
            response.lease.FromTimedelta(self._coordinator.sessions.lease)
            return response

    async def Follow(  # type: ignore[override]  # an event with its state serialises itself
        self, request: pb.FollowRequest, context: Context
    ) -> AsyncIterator[pb.RoundEvent | EventWithState]:
        with self._caller(request.session, context) as session:
            events = self._coordinator.follow(session, peer=context.peer(), wants_state=request.wants_state)
            async with aclosing(events):
                async for event in events:
                    yield event

    async def Download(self, request: pb.DownloadRequest, context: Context) -> AsyncIterator[pb.DownloadPart]:
        with self._caller(request.session, context) as session:
            async with aclosing(self._coordinator.download(session, request.round)) as parts:
                async for part in parts:
                    yield part

    async def Upload(self, request_iterator: AsyncIterator[pb.UploadPart], context: Context) -> pb.UploadReceipt:
        async with self._uploads.reading(request_iterator) as parts:
            header = await self._uploads.header(parts)
            with self._caller(header.session, context) as session:
                return await self._uploads.upload(
                    session, header, parts, admit=lambda: context.send_initial_metadata(ADMITTED)
                )

    async def AdvanceSum(self, request: pb.AdvanceSumRequest, context: Context) -> pb.AdvanceSumResponse:
        with self._caller(request.session, context) as session:
            return await self._coordinator.advance_sum(session, request)

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportResponse:
        with self._caller(request.session, context) as session:
            match request.WhichOneof("report"):
                case "progress":
                    self._coordinator.report_progress(session, request.progress)
                case "metrics":
                    await self._coordinator.report_metrics(session, request.round, request.metrics)
                case "failure":
                    await self._coordinator.report_failure(session, request.round, request.failure)
                case None:
                    raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "the report says nothing", field="report")
            return pb.ReportResponse()

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        with self._caller(request.session, context) as session:
            await self._coordinator.leave(session, request.reason)
            return pb.LeaveResponse()
