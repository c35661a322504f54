"""Waits for a round by retrying downloads, so that no event stream adds to the traffic that is measured."""

from __future__ import annotations

import asyncio

from benchmarks.light_client import LightClient
from feddbp_client.daemon.connection import LATE_REASONS, CallRefusedError
from feddbp_client.daemon.transfers import Download

_PATIENCE_SECONDS = 30.0


async def download_once_open(client: LightClient, number: int) -> Download:
    """Returns the download of a round once it is open; raises TimeoutError if that takes too long."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                return await client.download(number)
            except CallRefusedError as refusal:
                if refusal.reason not in LATE_REASONS:
                    raise
                await asyncio.sleep(0.05)
