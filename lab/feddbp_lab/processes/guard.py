"""Runs one command and stops it, with every process it started, when the process that started the guard ends.

A launcher that is killed with SIGKILL cannot stop its children. Linux could (PR_SET_PDEATHSIG), but only by code that
runs between fork and exec, which is unsafe in a process with threads (gRPC has some), only while the thread that forked
lives, and not for grandchildren. A pipe has none of these limits, on any Unix: the guard reads standard input, of which
the launcher holds the other end and writes nothing; however the launcher ends, the kernel closes it.

The launcher starts the guard as the leader of a process group, and the command belongs to that group. The group's id is
the guard's process id, valid until the launcher has waited for the guard. The guard is started as a file, not as a
module, and imports the standard library only: it starts in a few milliseconds and no installed package can break it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 10.0
_NOT_STARTED = 127


def main(command: list[str]) -> int:
    # Signals to the group are meant for the command. Handlers, not SIG_IGN, which the command would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    orphaned = threading.Event()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - the launcher's own command
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED
    threading.Thread(target=_stop_group_when_orphaned, args=(orphaned,), daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        # no launcher is left to read the code, or to end what the command has left behind
        os.killpg(0, signal.SIGKILL)
    return code if code >= 0 else 128 - code  # as a shell reports a signal


def _stop_group_when_orphaned(orphaned: threading.Event) -> None:
    while os.read(0, 1):
        pass
    orphaned.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
