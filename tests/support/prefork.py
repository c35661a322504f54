"""Processes forked from a template process that has imported their modules once.

A command started this way is a process of its own, with its own arguments, environment, working directory, output and
exit code. It is spared the imports only: seconds of CPU time for every client that would load torch.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_REQUEST_BYTES: Final = 1 << 17
_END_SECONDS: Final = 60.0
_NUMBER: Final = struct.Struct("=i")
_READS_THE_ENVIRONMENT: Final = "feddbp_common.fault_injection"
"""Reads its variable when it is imported, so a forked process has to load it again."""


class ForkedProcess:
    """The part of `subprocess.Popen` that tests need, for a process that a template has forked."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid: int = self._number()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(self._number())
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        (number,) = _NUMBER.unpack(os.read(self._status, _NUMBER.size))
        return int(number)


class Template:
    """A process with modules loaded, started at the first use and ended with the test process."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._running: tuple[socket.socket, subprocess.Popen[bytes]] | None = None

    def start(
        self, module: str, arguments: Sequence[str], *, log: int, env: dict[str, str], cwd: Path
    ) -> ForkedProcess:
        """Runs `module.main` in a new process; `log` is the file descriptor of its standard output and error."""
        os.umask(umask := os.umask(0o077))
        request = {"module": module, "arguments": list(arguments), "env": env, "cwd": str(cwd), "umask": umask}
        status, reported = os.pipe()
        socket.send_fds(self._connected(), [json.dumps(request).encode()], [log, reported])
        os.close(reported)
        return ForkedProcess(status)

    def _connected(self) -> socket.socket:
        if self._running is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    # a forked process has none of the threads that a numerical library has started
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            self._running = ours, process
        return self._running[0]

    def close(self) -> None:
        """Ends the template once all its processes have ended."""
        if self._running is not None:
            control, process = self._running
            control.close()
            process.wait(_END_SECONDS)
            self._running = None


# --- the template process ---


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Forks a process for every request; returns the request in that process, and nothing at the end of requests."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 2)
        if not data:
            _reap(0)
            return None
        log, status = descriptors
        if os.fork() == 0:
            control.close()
            if _supervise(status):
                os._exit(0)
            os.dup2(log, sys.stdout.fileno())
            os.dup2(log, sys.stderr.fileno())
            os.close(log)
            request: dict[str, Any] = json.loads(data)
            return request
        os.close(log)
        os.close(status)
        _reap(os.WNOHANG)


def _reap(options: int) -> None:
    """Waits for supervisors: only then does the CPU time of their processes count as the template's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _supervise(status: int) -> bool:
    """Forks the process and reports its id and how it ended; returns whether this is the supervisor."""
    pid = os.fork()
    if pid == 0:
        os.close(status)
        return False
    os.write(status, _NUMBER.pack(pid))
    os.write(status, _NUMBER.pack(os.waitpid(pid, 0)[1]))
    return True


def _run(request: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]  # as `python -m` has it
    sys.argv = [request["module"], *request["arguments"]]
    if _READS_THE_ENVIRONMENT in sys.modules:
        importlib.reload(sys.modules[_READS_THE_ENVIRONMENT])
    return int(importlib.import_module(request["module"]).main())


def _exit_without_teardown(code: list[int]) -> None:
    """Ends a process whose `main` has returned before its modules are torn down: that would copy most of its memory."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code[0])


def _main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the test process, which ends all others
    code: list[int] = []
    atexit.register(_exit_without_teardown, code)  # called last, because registered first
    descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{modules} have started threads, which a forked process would not have"
    gc.freeze()
    request = _serve(socket.socket(fileno=int(descriptor)))
    if request is None:
        return 0
    code.append(_run(request))
    return code[0]


if __name__ == "__main__":
    sys.exit(_main())
