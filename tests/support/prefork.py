"""Processes forked from a template process that has imported their modules once.

A command started this way is a process of its own, with its own arguments, environment, working directory, output and
exit code. It is spared the imports: seconds of CPU time for every client that would load torch. It differs in one more
point: numerical libraries read OMP_NUM_THREADS and OPENBLAS_NUM_THREADS in the template, where both are 1, whatever the
environment of the command says.
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
_EXIT_SECONDS: Final = 5.0
_NUMBER: Final = struct.Struct("=i")
_READS_THE_ENVIRONMENT: Final = "feddbp_common.fault_injection"
"""Reads its variable when it is imported, so a forked process has to load it again."""


class TemplateEndedError(RuntimeError):
    """The template process, or the supervisor of a forked process, has ended early."""


class ForkedProcess:
    """The part of `subprocess.Popen` that tests need, for a process that a template has forked."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid: int = self._number("before it forked the process")

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(self._number(f"before process {self.pid}"))
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

    def _number(self, when: str) -> int:
        data = os.read(self._status, _NUMBER.size)
        if len(data) < _NUMBER.size:
            os.close(self._status)
            raise TemplateEndedError(f"the supervisor ended {when}")
        return int(_NUMBER.unpack(data)[0])


class Template:
    """A process with modules loaded, started at the first use and ended with the test process."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._running: tuple[socket.socket, subprocess.Popen[bytes]] | None = None

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        env: dict[str, str],
        cwd: Path,
    ) -> ForkedProcess:
        """Runs `module.main` in a new process, whose output goes to two file descriptors, which may be the same."""
        os.umask(umask := os.umask(0o077))
        request = {"module": module, "arguments": list(arguments), "env": env, "cwd": str(cwd), "umask": umask}
        control, template = self._connected()
        status, reported = os.pipe()
        try:
            socket.send_fds(control, [json.dumps(request).encode()], [stdout, stderr, reported])
        except OSError as error:
            os.close(status)
            raise self._ended(control, template) from error
        finally:
            os.close(reported)
        try:
            return ForkedProcess(status)
        except TemplateEndedError as error:
            raise self._ended(control, template) from error

    def _ended(self, control: socket.socket, template: subprocess.Popen[bytes]) -> TemplateEndedError:
        """The error that names the exit code of the template; the next start begins a new one."""
        self._running = None
        control.close()
        with suppress(subprocess.TimeoutExpired):
            template.wait(_EXIT_SECONDS)
        return TemplateEndedError(
            f"the template process of {', '.join(self._modules)} ended with exit code {template.returncode}; "
            "its standard error is that of the tests"
        )

    def _connected(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
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
        return self._running

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The template process, if it was started."""
        return None if self._running is None else self._running[1]

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
        data, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
        if not data:
            _reap(0)
            return None
        *outputs, status = descriptors
        if os.fork() == 0:
            control.close()
            if _supervise(status):
                os._exit(0)
            for output, stream in zip(outputs, (sys.stdout, sys.stderr), strict=True):
                os.dup2(output, stream.fileno())
                os.close(output)
            request: dict[str, Any] = json.loads(data)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
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
