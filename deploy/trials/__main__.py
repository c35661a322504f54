"""Builds the images, runs an undisturbed federation, then disturbed ones, and compares their results."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from deploy.trials.disturbances import DISTURBANCES, Disturbance
from deploy.trials.project import CLIENTS, LEASE_SECONDS, ROUNDS, Outcome, Project, TrialError, engine_answers

DISTURBED_ROUND: Final = 2
_ROW: Final = "{:<46} {:<22} {:<18} {:<9} {:>7}"


def main() -> int:
    if not engine_answers():
        print("compose-test: SKIPPED, no trial was run: `docker info` failed on this machine")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        project = Project(f"feddbp-trial-{os.getpid()}", Path(directory))
        try:
            return _run_all(project)
        except TrialError as error:
            print(f"compose-test: error: {error}", file=sys.stderr)
            return 1
        finally:
            project.remove()


def _run_all(project: Project) -> int:
    began = time.monotonic()
    project.compose("build")
    print(
        f"images built in {time.monotonic() - began:.0f} s; {CLIENTS} clients, {ROUNDS} rounds, "
        f"lease {LEASE_SECONDS} s, disturbed in round {DISTURBED_ROUND}\n"
    )
    print(_ROW.format("disturbance", "exit codes", "sha256", "results", "seconds"), flush=True)
    undisturbed: Outcome | None = None
    all_same = True
    for disturbance in DISTURBANCES:
        began = time.monotonic()
        outcome = _run(project, disturbance)
        undisturbed = undisturbed or outcome
        same = outcome.succeeded and outcome == undisturbed
        all_same = all_same and same
        _print_row(disturbance, outcome, undisturbed, time.monotonic() - began)
    print(f"\n{'all results are equal' if all_same else 'NOT all results are equal'}")
    return 0 if all_same else 1


def _run(project: Project, disturbance: Disturbance) -> Outcome:
    project.remove()
    project.start()
    project.wait_for_round(DISTURBED_ROUND)
    disturbance.inject(project)
    if project.has_finished():
        raise TrialError(f"{disturbance.title}: the run ended before it could be disturbed")
    disturbance.recover(project)
    project.wait_for_end()
    return project.outcome()


def _print_row(disturbance: Disturbance, outcome: Outcome, undisturbed: Outcome, seconds: float) -> None:
    bad = {service: code for service, code in outcome.exit_codes.items() if code != 0}
    codes = ", ".join(f"{service} {code}" for service, code in bad.items()) or f"0 ({len(outcome.exit_codes)} services)"
    print(
        _ROW.format(
            disturbance.title,
            codes,
            outcome.prototypes[:16],
            "same" if outcome == undisturbed else "DIFFERENT",
            f"{seconds:.0f}",
        ),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
