"""A server or a client of Flower's legacy gRPC, which `benchmarks.flower` starts in an environment of its own.

It imports nothing of this project: Flower needs an older protobuf. `serve CLIENTS ROUNDS CLASSES PORT` prints times and
CPU times of the rounds as JSON; `join PORT CLASSES` takes part. Bytes are those of `benchmarks.bare`.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import flwr
import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

WIDTH = 512


class Average(flwr.server.strategy.FedAvg):
    """Averages the first array of every client, and notes when a round ended."""

    def __init__(self, clients: int, classes: int) -> None:
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=ndarrays_to_parameters([np.zeros((classes, WIDTH), np.float32)]),
        )
        self.ends = []

    def aggregate_fit(self, server_round, results, failures):
        arrays = (parameters_to_ndarrays(result.parameters)[0] for _, result in results)
        total = sum(array.astype(np.float64) for array in arrays)
        self.ends.append((time.perf_counter(), time.process_time(), len(results)))
        return ndarrays_to_parameters([(total / len(results)).astype(np.float32)]), {}


class Client(flwr.client.NumPyClient):
    """Uploads the same two arrays in every round."""

    def __init__(self, classes: int) -> None:
        self._arrays = list(np.random.default_rng(0).random((2, classes, WIDTH), dtype=np.float32))

    def fit(self, parameters, config):
        return self._arrays, 1, {}


def main(words: list[str]) -> None:
    kind, *numbers = words
    if kind == "join":
        port, classes = map(int, numbers)
        flwr.client.start_client(
            server_address=f"127.0.0.1:{port}", client=Client(classes).to_client(), insecure=True, max_wait_time=120
        )
        return
    clients, rounds, classes, port = map(int, numbers)
    strategy = Average(clients, classes)
    config = flwr.server.ServerConfig(num_rounds=rounds)
    flwr.server.start_server(server_address=f"127.0.0.1:{port}", config=config, strategy=strategy)
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    print(json.dumps({"version": flwr.__version__, "ends": strategy.ends, "peak": peak}))


if __name__ == "__main__":
    main(sys.argv[1:])
