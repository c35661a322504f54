"""The dashboard of a federation on this machine, as a child process."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from feddbp_common.errors import FedDBPError
from feddbp_lab.processes.flags import clean_environment
from feddbp_lab.processes.supervisor import ChildProcess, ProcessSupervisor

_POLL_SECONDS: Final = 0.05
_MARK: Final = "feddbp dashboard: http"


class DashboardProcess:
    """Serves the page of a run while the context is entered."""

    def __init__(self, directory: Path, server: str, *, certs: Path | None = None) -> None:
        self._directory = directory
        self._server = server
        self._certs = certs
        self._supervisor = ProcessSupervisor()
        self._child: ChildProcess | None = None
        self.address = ""
        """Of the page, with the key that lets its reader control the run."""

    async def __aenter__(self) -> Self:
        key = secrets.token_urlsafe(18)
        key_file = self._write_key(key)
        arguments = ("dashboard", str(self._directory / "server"), "--server", self._server, "--port", "0")
        certs = () if self._certs is None else ("--certs", str(self._certs))
        command = (sys.executable, "-P", "-m", "feddbp_lab.cli", *arguments, *certs, "--key-file", str(key_file))
        log = self._directory / "logs" / "dashboard.log"
        try:
            self._child = self._supervisor.start("the dashboard", command, log, environment=clean_environment())
            self.address = f"{await self._printed_address(self._child)}?key={key}"
        except BaseException:
            await self._supervisor.stop()
            raise
        finally:
            key_file.unlink(missing_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._supervisor.stop()

    async def exited(self) -> None:
        assert self._child is not None
        await asyncio.shield(self._child.exited)

    def _write_key(self, key: str) -> Path:
        path = self._directory / "logs" / "dashboard.key"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key)
        return path

    async def _printed_address(self, child: ChildProcess) -> str:
        while True:
            lines = child.last_lines(20)
            for line in lines:
                if line.startswith(_MARK):
                    return line.partition(": ")[2].strip()
            if not child.running:
                raise FedDBPError(lines[-1] if lines else "the dashboard did not start")
            await asyncio.sleep(_POLL_SECONDS)
