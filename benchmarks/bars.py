"""The bars of docs/benchmarks.md: ratios unless a unit is named, upper bounds but for `INGEST`."""

from __future__ import annotations

from typing import Final

TRAINING_STEP: Final = 1.05
"""A step of FedDBP against one with cross-entropy only, ResNet-18."""
SMALL_TRAINING_STEP: Final = 1.2
"""The same, small networks."""
FLIP_CROP: Final = 1.05
RANDAUGMENT: Final = 1.05
"""A step with augmentation against one without, ResNet-18."""
SMALL_FLIP_CROP: Final = 1.15
SMALL_RANDAUGMENT: Final = 1.5
"""The same, the fastest small network."""
FISHER_PASS: Final = 1.05
"""Prototypes and Fisher scores against a forward pass."""
WIRE_BYTES: Final = 1.01
"""Bytes of messages against bytes of tensors."""
STARTUP_SECONDS: Final = 0.5
"""Start of the server to its first health answer."""
ROUND_GAP_MILLISECONDS: Final = 20.0
"""Last receipt of a round to every client holding the next assignment."""
CLOSING: Final = 1.0
"""Closing a round of 1,000 clients against one numpy pass."""
FLAT_MEMORY: Final = 1.05
"""Memory in late rounds against that in earlier ones."""
ROUND_TIME: Final = 1.7
ROUND_CPU: Final = 1.9
ROUND_MEMORY_MB: Final = 40.0
"""A round without training against a bare grpc.aio server; memory in MB above its."""
CPU_GROWTH: Final = 1.3
"""Server CPU of a client and round, among 400 clients against 25."""
JOIN_SECONDS: Final = 20.0
"""Until all of 10,000 clients have joined."""
PEAK_MEMORY_MB: Final = 700.0
"""Of the server with 1,000 clients at C=100."""
INGEST: Final = 0.8
"""Bytes of uploads a second, checked and durable, against a bare stream; at least."""
