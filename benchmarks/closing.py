"""Time to close a round of 1,000 clients, relative to one numpy pass over the same bytes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import bars
from benchmarks.light_client import synthetic_payload
from benchmarks.measurement import Measurement, interleaved_ratio
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.wire import decode, encode
from feddbp_server.aggregation.aggregator import Aggregator
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.store import SqliteStore, Store, StoreWriter, UploadRecord

CLIENTS = 1000


def measure() -> list[Measurement]:
    config = RunConfig(clients=CLIENTS, data=DataConfig(dataset="cifar100"))
    rules = config.method_spec.upload_rules(config.settings, config.exchange_shape)
    encoded = encode(synthetic_payload(rules, 0))
    body, manifest = encoded.body(), encoded.manifest

    def fill(store: Store) -> None:
        for client in range(CLIENTS):
            record = UploadRecord(
                client_id=client, round=0, sha256=manifest.sha256, manifest=manifest.SerializeToString()
            )
            store.save_upload(record, body)

    uploads = [np.frombuffer(bytearray(body), dtype=np.float32) for _ in range(CLIENTS)]

    def numpy_pass() -> None:
        total = np.zeros(len(body) // 4, dtype=np.float64)
        for upload in uploads:
            total += upload

    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        thread = StoreWriter(SqliteStore(Path(directory)))
        runner.run(thread.run(fill))
        serving, restarted = (
            Aggregator(config, thread, cache_bytes=DEFAULT_LIMITS.cached_upload_bytes) for _ in range(2)
        )
        for client in range(CLIENTS):
            serving.cache(0, client, serving.kept_part(decode(manifest, body)))

        def closing(aggregator: Aggregator) -> Callable[[], object]:
            return lambda: runner.run(aggregator.close_round(0, lambda _: [1] * config.classes))

        from_cache = interleaved_ratio(closing(serving), numpy_pass, repeats=7, warm_up=1)
        from_disk = interleaved_ratio(closing(restarted), numpy_pass, repeats=5, warm_up=1)
        runner.run(thread.close())
    ratio, ours, theirs = from_cache
    return [
        Measurement(
            question="closing a round of 1,000 clients against one numpy pass over the same bytes, C=100",
            value=ratio,
            bar=bars.CLOSING,
            detail=f"{ours:.2f} s against {theirs:.2f} s for {CLIENTS * len(body) / 1e6:.0f} MB; "
            f"{from_disk[1]:.2f} s after a restart, when all uploads are read from disk",
        )
    ]
