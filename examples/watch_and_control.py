"""Watches the run of a server, and pauses it for a while after its first round.

    feddbp-server --port 50061 --state-dir watched/server --clients 2 --min-clients 2 --rounds 5 --local-epochs 3
    feddbp-client --ids 0-1 --server 127.0.0.1:50061 --state-dir watched/clients
    python examples/watch_and_control.py 127.0.0.1:50061

Each in a terminal of its own, in any order.
"""

from __future__ import annotations

import argparse
import time

import feddbp


def line(status: feddbp.RunStatus) -> str:
    accuracy = "" if status.mean_accuracy is None else f", accuracy {status.mean_accuracy:.1%}"
    waiting = f", waiting for clients {status.missing}" if status.missing else ""
    return f"{status.phase}, {status.round} of {status.rounds} rounds done{accuracy}{waiting}"


def watch(control: feddbp.RunControl, pause_seconds: float) -> None:
    """Prints a line whenever the phase or the round changes."""
    shown, still_to_do = None, ["pause", "resume"]
    for status in control.watch():  # ends with the run; a lost connection is opened again
        if (status.phase, status.round) != shown:
            shown = status.phase, status.round
            print(line(status), flush=True)
        # Acts on what the stream shows, so that lines appear in the order of events.
        if still_to_do[:1] == ["pause"] and status.phase == "collecting" and status.round >= 1:
            print("-> pause")
            control.pause()
            still_to_do.remove("pause")
        elif still_to_do == ["resume"] and status.phase == "paused":
            time.sleep(pause_seconds)  # clients keep training and uploading, but no round closes
            print("-> resume")
            control.resume()
            still_to_do.remove("resume")


def main() -> None:
    parser = argparse.ArgumentParser(description="Watches a run, and pauses it after its first round.")
    # No default, though `connect` has one: what is paused here should be the run that was meant.
    parser.add_argument("server", help="HOST:PORT")
    parser.add_argument("--pause-seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    # For a server on another machine: feddbp.connect("fl.example.org:50051", certs="certs")
    with feddbp.connect(arguments.server) as control:
        watch(control, arguments.pause_seconds)


if __name__ == "__main__":
    main()
