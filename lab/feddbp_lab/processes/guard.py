"""Runs one command, and takes it down with everything it started when whoever started the guard is gone.

A launcher that is killed with SIGKILL cannot stop its children. Linux could (PR_SET_PDEATHSIG), but only by code that
runs between fork and exec, which is unsafe in a process with threads (gRPC has some), only while the very thread that
forked lives, and not for grandchildren. A pipe has none of these limits, on any Unix: the guard reads standard input,
of which the launcher holds the other end and writes nothing; however the launcher ends, the kernel closes it.

The guard leads a process group of its own (the launcher sees to that), the command is in it, and so the group's id is
the guard's and stays valid until the launcher has collected the guard. Started as a file, not as a module, with the
standard library alone: it costs a few milliseconds and nothing a user has installed can break it.
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


def _take_down_when_alone(alone: threading.Event) -> None:
    while os.read(0, 1):
        pass
    alone.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main(command: list[str]) -> int:
    # Signals to the group are meant for the command. Handlers, not SIG_IGN: that one the command would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    alone = threading.Event()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - the launcher's own command
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED
    threading.Thread(target=_take_down_when_alone, args=(alone,), daemon=True).start()
    code = child.wait()
    if alone.is_set():
        # nobody asks for the code any more, and nobody else would end what the command left behind
        os.killpg(0, signal.SIGKILL)
    return code if code >= 0 else 128 - code  # as shells tell of a signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
