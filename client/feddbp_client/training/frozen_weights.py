"""Weights of a fixed network, from a file that all clients of a run have."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import safetensors
from torch import Tensor, nn

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.frozen import FrozenSettings

FLAG: Final = "--frozen-weights"
_PREFIXES: Final = ("", "0.", "model.backbone.", "model.backbone.0.", "backbone.", "backbone.0.")
"""Before the name of a tensor: as the network itself names it, or a client's checkpoint."""


def load_frozen_weights(backbone: nn.Module, config: RunConfig, path: Path | None) -> None:
    """Loads the weights that the run names by their digest; refuses any other file."""
    settings = config.settings
    wanted = settings.weights_sha256 if isinstance(settings, FrozenSettings) else ""
    if path is None and not wanted:
        return
    if path is None:
        raise ConfigurationError(
            f"the network of this run has weights from a file: give {FLAG} FILE (SHA-256 {wanted})"
        )
    if not wanted:
        raise ConfigurationError(f"{FLAG} {path}: this run has no network with weights from a file")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise ConfigurationError(f"{FLAG} {path}: its SHA-256 is {found}, but the run has {wanted}")
        with safetensors.safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigurationError(f"{FLAG} {path}: cannot be read as safetensors: {error}") from None
    backbone.load_state_dict({name: _tensor(name, like, stored, path) for name, like in backbone.state_dict().items()})


def _tensor(name: str, like: Tensor, stored: dict[str, Tensor], path: Path) -> Tensor:
    bare = name.removeprefix("0.")  # of the body in its frame
    for prefix in _PREFIXES:
        found = stored.get(prefix + bare)
        if found is None:
            continue
        if found.shape != like.shape:
            raise ConfigurationError(
                f"{FLAG} {path}: {prefix + bare} has shape {list(found.shape)}, the network's has {list(like.shape)}"
            )
        if not found.isfinite().all():
            raise ConfigurationError(f"{FLAG} {path}: {prefix + bare} has a value that is not finite")
        return found.to(like.dtype)
    raise ConfigurationError(f"{FLAG} {path}: has no tensor {bare}")
