"""Compares two methods on scikit-learn's digits, and predicts a digit with a trained client.

python examples/federation_from_script.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import feddbp

METHODS = ("local", "feddbp")  # `local` trains every client alone: what a federation has to beat


class Progress:
    """Prints a line for each round; a status comes at every change of the run, many times a round."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.rounds_done = 0

    def __call__(self, status: feddbp.RunStatus) -> None:
        if status.round > self.rounds_done:
            self.rounds_done = status.round
            print(f"{self.method}: {status.round} of {status.rounds} rounds done", flush=True)


def run_method(method: str, rounds: int, directory: Path) -> feddbp.FederationResult:
    run = feddbp.RunConfig(
        method=method,
        clients=3,
        rounds=rounds,
        data={"dataset": "digits", "alpha": 1.0},
        training={"local_epochs": 2, "learning_rate": 0.05},
    )
    # All clients in one process; without `processes` there is one for each core.
    return feddbp.Federation(run, directory=directory, processes=1).run(on_status=Progress(method))


def print_table(results: dict[str, feddbp.FederationResult]) -> None:
    print("\naccuracy on the test samples of all clients, by round")
    for method, result in results.items():
        # the curve starts before the first round, when models are untrained
        curve = "".join(f"{point['weighted']:8.1%}" for point in result.summary["curve"][1:])
        print(f"{method:8}{curve}   sent {result.summary['bytes_up'] / 1000:.0f} kB")


def predict_digit(result: feddbp.FederationResult) -> None:
    # A client knows the classes it was trained on; take the one that holds most of them.
    holder = max(result.summary["per_client"], key=lambda client: int(client["classes_held"]))
    client = result.client(holder["client"])
    digits = load_digits()
    pixels = np.rint(digits.images[0] * (255 / 16)).astype(np.uint8)
    (prediction,) = client.predict([pixels], top=2)
    print(f"\nclient {holder['client']} ({client.facts.architecture}) on a picture of a {digits.target[0]}:")
    for candidate in prediction.candidates:
        print(f"  {candidate.name}, {prediction.measure} {candidate.value:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares local training with FedDBP.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    # A run of your own goes to a directory that stays: run again, the script then resumes what was interrupted.
    with tempfile.TemporaryDirectory() as directory:
        results = {method: run_method(method, rounds, Path(directory, method)) for method in METHODS}
        print_table(results)
        predict_digit(results["feddbp"])


if __name__ == "__main__":
    main()
