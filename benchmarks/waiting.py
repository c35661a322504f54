"""Waiting for a round without following the run: only what is measured should be on the wire."""

from __future__ import annotations

import asyncio

from benchmarks.light_client import LightClient
from feddbp_client.daemon.connection import LATE_REASONS, CallRefusedError, Download

_PATIENCE_SECONDS = 30.0


async def download_once_open(client: LightClient, number: int) -> Download:
    """What a client receives in a round that is about to open; a server that is gone or too slow raises."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                return await client.download(number)
            except CallRefusedError as refusal:
                if refusal.reason not in LATE_REASONS:
                    raise
                await asyncio.sleep(0.05)
