"""Restores a client's half of a method from a checkpoint, ready to predict."""

from __future__ import annotations

import torch

from feddbp_client.methods.base import LocalMethod
from feddbp_client.models import ModelError
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import build_method
from feddbp_common.config.run import RunConfig, run_from_proto
from feddbp_common.errors import ConfigurationError, FedDBPError, refuse
from feddbp_common.methods.sums import without_holders
from feddbp_common.wire import Payload, check_manifest, check_values, decode, digest_of


def restore_method(checkpoint: Checkpoint, device: torch.device) -> LocalMethod:  # type: ignore[type-arg]
    """The method in the checkpoint's state, with the last download received."""
    who = f"client {checkpoint.client_id} of run {checkpoint.run_id}"
    config = run_from_proto(checkpoint.config)
    if len(checkpoint.class_names) != config.classes:
        raise ConfigurationError(f"the checkpoint of {who} does not name the {config.classes} classes of its run")
    try:
        # the weights drawn here are replaced below; the caller's random state must not change
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            method = build_method(
                config, checkpoint.client_id, checkpoint.architecture, checkpoint.head, checkpoint.image_shape
            ).to(device)
    except ModelError as error:
        raise ConfigurationError(f"the model of {who} cannot be built: {error}") from error
    weights = checkpoint.evaluated_weights()
    if not all(weight.isfinite().all() for weight in weights.values()):
        raise ConfigurationError(f"the training of {who} has diverged: its weights are not all finite")
    try:
        method.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigurationError(f"the weights of {who} do not fit {checkpoint.architecture}") from error
    try:
        method.receive(_received(checkpoint, config), completed_rounds=checkpoint.round)
    except FedDBPError as error:
        raise ConfigurationError(f"the download in the checkpoint of {who} is damaged: {error}") from error
    # receive() sets the weights of some methods to the server's; those of the round's end are wanted
    method.load_state_dict(weights)
    return method


def _received(checkpoint: Checkpoint, config: RunConfig) -> Payload:
    received = checkpoint.received
    if received is None:
        return Payload()
    manifest, body = received.manifest, received.body()
    rules = config.download_rules
    check_manifest(manifest, rules, max_bytes=len(body))
    if digest_of(manifest, [body]) != manifest.sha256:
        refuse("sha256", "does not match the stored bytes")
    payload = decode(manifest, body)
    check_values(payload, rules)
    return without_holders(payload)
