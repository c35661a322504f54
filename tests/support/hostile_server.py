"""A server that answers with any bytes, over a real socket, and a client without torch that takes part in its run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from raw_calls import METHODS, Shape, serialised

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.devices import CPU
from feddbp_client.compute.plan import Compute
from feddbp_client.compute.slots import TrainingSlots
from feddbp_client.daemon import session_loop
from feddbp_client.daemon.connection import CallTimeouts, Connection
from feddbp_client.daemon.session_loop import ClientDaemon, DaemonOptions
from feddbp_client.data.pixels import BYTES
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import LocalOptions
from feddbp_client.training.trainer import RoundResult, TrainerState
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.config.training import TrainingConfig
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY
from feddbp_common.rpc.server_features import ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE
from feddbp_common.wire import Payload, PrototypeSet, encode

RUN_ID: Final = "0123abcd-4567cdef"
SESSION: Final = "s" * 32
CONFIG: Final = RunConfig(
    method_settings={"k_top": 2},
    clients=4,
    rounds=1,
    data=DataConfig(dataset="custom", classes=5, class_names=("a", "b", "c", "d", "e")),
    training=TrainingConfig(feature_dim=8),
)
PROTOTYPES: Final = encode(
    Payload(prototypes=PrototypeSet(class_ids=np.arange(5, dtype=np.int32), vectors=np.ones((5, 8), dtype=np.float32)))
)
UPLOAD: Final = encode(Payload(tensors={"weights": np.ones(3, dtype=np.float32)}))


@dataclass(frozen=True)
class Failure:
    """A call that ends with a status instead of an answer."""

    code: grpc.StatusCode
    details: str
    refusal: bytes = b""


Replies = Sequence[bytes | Failure]


def honest_replies(*, earlier: bool = False) -> dict[str, Replies]:
    """What a server answers in a run of one round; an event stream pauses until the client has uploaded.

    An `earlier` version sends no state with its events, and takes no report with an upload.
    """
    opened = pb.RoundEvent(
        round_opened=pb.RoundOpened(round=0, selected=True, deadline=Duration(seconds=60)),
        state=None if earlier else pb.PushedState(manifest=PROTOTYPES.manifest, body=PROTOTYPES.body()),
    )
    ended = pb.RoundEvent(run_ended=pb.RunEnded(outcome=pb.RUN_OUTCOME_FINISHED, reason="all rounds are complete"))
    features = [ADMISSION_FEATURE] if earlier else [ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE]
    described = pb.GetRunResponse(
        config=run_to_proto(CONFIG), run_id=RUN_ID, software_version="0.2.0", features=features
    )
    parts = (
        pb.DownloadPart(manifest=PROTOTYPES.manifest),
        pb.DownloadPart(chunk=pb.Chunk(data=PROTOTYPES.body())),
    )
    return {
        "GetRun": serialised([described]),
        "Join": serialised([pb.JoinResponse(session=SESSION, epoch=1, lease=Duration(seconds=30))]),
        "Follow": serialised([opened, ended]),
        "Download": serialised(parts),
        "Report": serialised([pb.ReportResponse()]),
        "Upload": serialised([pb.UploadReceipt(round=0, sha256=UPLOAD.manifest.sha256)]),
        "Leave": serialised([pb.LeaveResponse()]),
    }


@dataclass
class HostileServer:
    """Answers each method with its replies; records what it receives."""

    replies: Mapping[str, Replies] = field(default_factory=honest_replies)
    requests: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    address: str = ""
    upload_wait: float = 60.0
    """Seconds after which the second event is sent in any case."""
    _uploaded: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, replies: Mapping[str, Replies]) -> None:
        """Starts over with other replies."""
        self.replies = replies
        self.requests.clear()
        self._uploaded.clear()

    async def answer(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        for number, reply in enumerate(self.replies[method]):
            if method == "Follow" and number == 1:
                with suppress(TimeoutError):  # a client that was told something else does not upload
                    await asyncio.wait_for(self._uploaded.wait(), self.upload_wait)
            if isinstance(reply, Failure):
                context.set_trailing_metadata(((REFUSAL_METADATA_KEY, reply.refusal),))
                await context.abort(reply.code, reply.details)
            else:
                yield reply

    def handler_of(self, method: str) -> Any:
        _, shape = METHODS[method]

        async def unary(request: bytes, context: Any) -> bytes:
            self.requests[method].append(request)
            return await anext(self.answer(method, context))

        async def answers(request: bytes, context: Any) -> AsyncIterator[bytes]:
            self.requests[method].append(request)
            async for reply in self.answer(method, context):
                yield reply

        async def upload(requests: AsyncIterator[bytes], context: Any) -> bytes:
            self.requests[method].append(await anext(requests))
            await context.send_initial_metadata((("feddbp-admitted", "1"),))
            async for part in requests:
                self.requests[method].append(part)
            self._uploaded.set()
            return await anext(self.answer(method, context))

        if shape is Shape.UNARY:
            return grpc.unary_unary_rpc_method_handler(unary)
        if shape is Shape.ANSWERS:
            return grpc.unary_stream_rpc_method_handler(answers)
        return grpc.stream_unary_rpc_method_handler(upload)


@asynccontextmanager
async def hostile_server(replies: Mapping[str, Replies] | None = None) -> AsyncIterator[HostileServer]:
    answering = HostileServer(replies or honest_replies())
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    methods = {name: answering.handler_of(name) for name, (service, _) in METHODS.items() if service == "Federation"}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("feddbp.v1.Federation", methods),))
    answering.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield answering
    finally:
        await server.stop(grace=None)


class _HollowTrainer:
    """Trains nothing and uploads the same every time."""

    def stop(self) -> None: ...

    def load_state(self, state: TrainerState) -> None: ...

    def evaluate(self, received: Payload, round_number: int) -> RoundResult:
        return RoundResult(metrics=pb.RoundMetrics(), upload=None)

    def train(self, received: Payload, round_number: int, on_epoch: object) -> RoundResult:
        upload = Payload(tensors={"weights": np.ones(3, dtype=np.float32)})
        return RoundResult(metrics=pb.RoundMetrics(), upload=upload)


def hollow_client(config: RunConfig, run_id: str, client_id: int, *_: object) -> SimpleNamespace:
    """A client without data and model, in place of `build_client`."""

    def checkpoint(round_number: int, metrics: pb.RoundMetrics) -> Checkpoint:
        return Checkpoint(
            run_id=run_id,
            client_id=client_id,
            round=round_number,
            architecture="none",
            head="none",
            image_shape=(1, 1, 1),
            class_names=config.data.class_names,
            config=run_to_proto(config),
            state=TrainerState(model={}),
            metrics=metrics,
        )

    return SimpleNamespace(
        client_id=client_id,
        run_id=run_id,
        config=config,
        data=SimpleNamespace(image_shape=(1, 1, 1), pixels=BYTES),
        trainer=_HollowTrainer(),
        architecture="none",
        data_summary=pb.DataSummary,
        capabilities=pb.Capabilities,
        compute=Compute(),
        checkpoint=checkpoint,
    )


@asynccontextmanager
async def hollow_daemon(
    address: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch, *, server_moved: bool = False
) -> AsyncIterator[ClientDaemon]:
    """The real daemon over a real connection, which trains nothing and gives up at once."""
    monkeypatch.setattr(session_loop, "build_client", hollow_client)
    connection = Connection(address, timeouts=CallTimeouts(answer=timedelta(seconds=30)))
    options = DaemonOptions(
        state_dir=state_dir,
        patience=timedelta(0),
        local=LocalOptions(data=None, data_dir=state_dir, model=None),
        server_moved=server_moved,
    )
    try:
        yield ClientDaemon(0, connection, options, slots=TrainingSlots({CPU: 1}))
    finally:
        await connection.close()
