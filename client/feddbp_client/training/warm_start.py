"""Warm start: a client's first weights from the checkpoint of another run, with the same architecture."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from feddbp_client.training.checkpoint import Checkpoint, read_checkpoint
from feddbp_common.errors import ConfigurationError

log = logging.getLogger("feddbp.client")

FLAG: Final = "--init-from"
_BACKBONE: Final = "backbone."


def read_initial(path: Path) -> Checkpoint:
    """Reads a checkpoint, or the one in a client's directory."""
    try:
        return read_checkpoint(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{FLAG}: {error}") from None


def warm_start(
    method: nn.Module, checkpoint: Checkpoint, *, architecture: str, image_shape: tuple[int, int, int]
) -> str:
    """Loads the weights into a method that has just been built; returns what was loaded, for the log.

    The whole backbone has to fit. Of the rest, parameters of the same name and shape are taken: heads and branches of
    the same method and classes. What a method remembers of its run, such as prototypes, is not.
    """
    whose = f"{FLAG}: the checkpoint of client {checkpoint.client_id} of run {checkpoint.run_id}"
    if checkpoint.architecture != architecture:
        raise ConfigurationError(f"{whose} has {checkpoint.architecture}, this client {architecture}; see --model")
    if checkpoint.image_shape != image_shape:
        raise ConfigurationError(
            f"{whose} was trained with images of shape {list(checkpoint.image_shape)}, this client has "
            f"{list(image_shape)}"
        )
    stored = checkpoint.evaluated_weights()
    current = method.state_dict()
    parameters = {name for name, _ in method.named_parameters()}
    backbone = {name for name in current if name.startswith(_BACKBONE)}
    fitting = {name: stored[name] for name in parameters | backbone if _fits(stored.get(name), current[name])}
    if missing := sorted(backbone - fitting.keys()):
        raise ConfigurationError(f"{whose} does not fit {architecture}: {missing[0]} is missing or has another shape")
    if not all(weight.isfinite().all() for weight in fitting.values()):
        raise ConfigurationError(f"{whose}: its training has diverged, its weights are not all finite")
    method.load_state_dict({**current, **fitting})
    fresh = len(parameters - fitting.keys())
    rest = "all of its weights" if not fresh else f"the backbone, but not {fresh} other tensors, which are new"
    return f"starts from client {checkpoint.client_id} of run {checkpoint.run_id}: {rest}"


def _fits(stored: Tensor | None, current: Tensor) -> bool:
    return stored is not None and stored.shape == current.shape and stored.dtype == current.dtype
