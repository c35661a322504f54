"""What running clients on this machine and drawing their results takes, besides what is always there."""

from __future__ import annotations

from typing import Final

from feddbp_common.optional_deps import require

_NEEDED: Final = ("torch", "torchvision", "sklearn", "safetensors", "matplotlib")


def check_installed(who: str) -> None:
    require(who, _NEEDED, extra="lab")
