"""`feddbp.connect`: the status of a running server's run, and the operator's calls on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.rpc.credentials import DEFAULT_ADDRESS, ClientCredentials, check_address, check_exposure
from feddbp_lab.api.background_loop import BackgroundLoop
from feddbp_lab.api.run_status import RunStatus
from feddbp_lab.control_client import Request, call_control, watch_status


class RunControl:
    """A server's run from an operator's side; `close` it, or use it as a context manager.

    Calls raise `FedDBPError`: the server cannot be reached, or refuses to answer.
    """

    def __init__(self, server: str, credentials: ClientCredentials) -> None:
        self.server = server
        self._credentials = credentials
        self._loop = BackgroundLoop(closed="the connection is closed; feddbp.connect opens another")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends open calls and iterations; they and later calls raise `ConfigurationError`."""
        self._loop.close()

    def status(self) -> RunStatus:
        return self._call(pb.GetStatusRequest())

    def watch(self, *, patience: timedelta = timedelta(minutes=5)) -> Generator[RunStatus, None, None]:
        """The status now and at every change, until the run is over.

        A lost connection is opened again; after `patience` without an answer the error is raised. The
        generator's `close` ends the stream early.
        """
        return self._loop.iterate(self._statuses(patience))

    def pause(self) -> RunStatus:
        """No round opens or closes, and deadlines stand still, until `resume`."""
        return self._call(pb.PauseRequest())

    def resume(self) -> RunStatus:
        """The open round's deadline starts afresh."""
        return self._call(pb.ResumeRequest())

    def stop(self, reason: str = "") -> RunStatus:
        """Ends the run for good; results so far are kept."""
        return self._call(pb.StopRequest(reason=reason))

    def drop(self, client: int, reason: str = "") -> RunStatus:
        """Removes a client from the run; it may join again."""
        return self._call(pb.DropClientRequest(client_id=client, reason=reason))

    def block(self, client: int, reason: str = "") -> RunStatus:
        """Removes a client from the run, and refuses its calls until `allow`."""
        return self._call(pb.BlockClientRequest(client_id=client, reason=reason))

    def allow(self, client: int) -> RunStatus:
        """Ends a block."""
        return self._call(pb.AllowClientRequest(client_id=client))

    async def _statuses(self, patience: timedelta) -> AsyncGenerator[RunStatus, None]:
        async with aclosing(watch_status(self.server, self._credentials, patience=patience)) as messages:
            async for message in messages:
                yield RunStatus.from_message(message)

    def _call(self, request: Request) -> RunStatus:
        return RunStatus.from_message(self._loop.call(call_control(request, self.server, self._credentials)))


def connect(
    server: str = DEFAULT_ADDRESS,
    *,
    certs: str | Path | None = None,
    token_file: str | Path | None = None,
    insecure: bool = False,
) -> RunControl:
    """Status and control of the run at HOST:PORT.

    `certs` is a directory made by `feddbp certs` with the operator's certificate, `token_file` holds the operator's
    token. Another machine is only contacted with TLS, unless `insecure` allows it without.
    """
    check_address(server)
    directory = None if certs is None else Path(certs)
    check_exposure(server, certs=directory, insecure=insecure)
    return RunControl(
        server, ClientCredentials(certs=directory, token_file=None if token_file is None else Path(token_file))
    )
