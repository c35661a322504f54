"""Runs one command and stops it, with every process it started, when the process that started the guard ends.

A launcher that is killed with SIGKILL cannot stop its children. Linux could (PR_SET_PDEATHSIG), but only by code that
runs between fork and exec, which is unsafe in a process with threads (gRPC has some), only while the thread that forked
lives, and not for grandchildren. A pipe has none of these limits, on any Unix: the guard reads standard input, of which
the launcher holds the other end and writes nothing; however the launcher ends, the kernel closes it.

The launcher starts the guard as the leader of a process group, and the command belongs to that group. The group's id is
the guard's process id, valid until the launcher has waited for the guard. The guard is started as a file, not as a
module, and imports the standard library only: it starts in a few milliseconds and no installed package can break it.

The kernel kills the command if the guard itself is killed, as Ray does with the direct children of its workers. Here
PR_SET_PDEATHSIG has none of its limits: the guard forks before it has threads, in the thread that lives longest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

GRACE_SECONDS = 10.0
_NOT_STARTED = 127
_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(command: list[str]) -> int:
    # Signals to the group are meant for the command. Handlers, not SIG_IGN, which the command would inherit.
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)  # a launcher may have blocked some, as Ray's workers do
    orphaned = threading.Event()
    try:
        child = subprocess.Popen(  # noqa: S603 - the launcher's own command
            command, stdin=subprocess.DEVNULL, preexec_fn=_killer_of_orphans(os.getpid())
        )
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED
    threading.Thread(target=_stop_group_when_orphaned, args=(orphaned,), daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        # no launcher is left to read the code, or to end what the command has left behind
        os.killpg(0, signal.SIGKILL)
    return code if code >= 0 else 128 - code  # as a shell reports a signal


def _killer_of_orphans(guard: int) -> Callable[[], None] | None:
    """What the command does before it starts, on Linux: ask for SIGKILL at the end of the guard."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it was killed in between
            os._exit(_NOT_STARTED)

    return ask


def _stop_group_when_orphaned(orphaned: threading.Event) -> None:
    while os.read(0, 1):
        pass
    orphaned.set()
    os.killpg(0, signal.SIGTERM)
    os.killpg(0, signal.SIGCONT)  # the launcher may have stopped the command to copy its files
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
