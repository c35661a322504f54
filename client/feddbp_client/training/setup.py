"""Builds a client for a run: its data, its model, and the weights of its last checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.devices import CPU
from feddbp_client.compute.plan import Compute
from feddbp_client.compute.random_state import seed_generators
from feddbp_client.data import (
    CacheSpace,
    ClientData,
    DataError,
    SharedDatasetCache,
    at_image_size,
    check_samples_apart,
    load_dataset,
    load_private_data,
    private_shard,
    shard_of,
)
from feddbp_client.data.batches import channels_first
from feddbp_client.data.pixels import BYTES
from feddbp_client.methods.base import LocalMethod, Task
from feddbp_client.models import build_backbone, build_head
from feddbp_client.training.augmentation import augmentation_of
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.errors import WeightsMismatchError
from feddbp_client.training.frozen_weights import load_frozen_weights
from feddbp_client.training.optimization import own_optimizer
from feddbp_client.training.trainer import LocalTrainer
from feddbp_client.training.warm_start import read_initial, warm_start
from feddbp_common.config.catalog import CUSTOM_DATASET, MODEL_GROUPS
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.errors import ConfigurationError
from feddbp_common.humanize import round_name
from feddbp_common.label_counts import declared_counts
from feddbp_common.methods.sums import shared_classes, term_of
from feddbp_common.seeding import derive_seed
from feddbp_common.version import VERSION
from feddbp_common.wire import Payload

log = logging.getLogger("feddbp.client")


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options that each client sets itself: data, model and device."""

    data: Path | None
    data_dir: Path
    model: str | None
    compute: Compute = field(default_factory=Compute)
    allow_import: tuple[str, ...] = ()
    """Packages from which functions that the run names may be imported."""
    dataset_cache: SharedDatasetCache | None = None
    """Released when the client has its shard; without it the data set stays cached."""
    skip_unreadable: bool = False
    """Goes on without files in --data that are not readable images."""
    image_cache: CacheSpace | None = None
    """Where decoded images of a large folder are kept; without it they are decoded in every epoch."""
    frozen_weights: Path | None = None
    """The weights of a fixed network."""
    init_from: Path | None = None
    """A checkpoint whose weights this client begins with."""


@dataclass(frozen=True, kw_only=True)
class LocalClient:
    """A client's data, model and trainer for one run."""

    client_id: int
    run_id: str
    config: RunConfig
    data: ClientData
    trainer: LocalTrainer
    architecture: str
    head: str
    compute: Compute

    def data_summary(self) -> pb.DataSummary:
        return pb.DataSummary(
            label_counts=declared_counts(self.data.label_counts, self.config.privacy).tolist(),
            test_samples=len(self.data.test),
            image_shape=self.data.image_shape,
        )

    def term_of(self, upload: Payload, received: Payload) -> Payload:
        """What the client sends where uploads are only summed."""
        config = self.config
        weights, expansion = config.method_spec.sum_weights(config.settings), config.method_spec.expansion
        assert weights is not None  # checked with the configuration
        return term_of(
            upload if expansion is None else expansion.apply(upload),
            weights,
            shape=config.exchange_shape,
            samples=int(self.data.label_counts.sum()),
            shared=shared_classes(received, config.classes),
        )

    def capabilities(self) -> pb.Capabilities:
        return pb.Capabilities(
            architecture=self.architecture,
            parameters=sum(parameter.numel() for parameter in self.trainer.method.parameters()),
            device=str(self.compute),
            software_version=VERSION,
        )

    def checkpoint(self, round_number: int, metrics: pb.RoundMetrics) -> Checkpoint:
        return Checkpoint(
            run_id=self.run_id,
            client_id=self.client_id,
            round=round_number,
            architecture=self.architecture,
            head=self.head,
            image_shape=self.data.image_shape,
            pixels=self.data.pixels,
            class_names=self.data.class_names,
            config=run_to_proto(self.config),
            state=self.trainer.state(),
            metrics=metrics,
        )


def build_client(config: RunConfig, run_id: str, client_id: int, options: LocalOptions) -> LocalClient:
    """Loads the client's data and builds its model; slow and deterministic."""
    try:
        data = load_client_data(config, client_id, options)
    finally:  # a client whose data cannot be loaded must not hold the cache either
        if options.dataset_cache is not None:
            options.dataset_cache.release(client_id)
    architecture = options.model or config.architecture_of(client_id)
    if config.method_spec.common_architecture and architecture != config.guide.network:
        raise ConfigurationError(
            f"--model {architecture}: all clients of {config.method} train {config.guide.network}, the run's --guide"
        )
    if config.method_spec.fixed_network is not None and architecture != config.architecture_of(client_id):
        raise ConfigurationError(
            f"--model {architecture}: all clients of {config.method} have {config.architecture_of(client_id)}"
        )
    head = MODEL_GROUPS[config.training.model_group].head_of(client_id)
    method = build_method(config, client_id, architecture, head, data.image_shape)
    load_frozen_weights(method.backbone, config, options.frozen_weights)
    if options.init_from is not None:
        initial = read_initial(options.init_from)
        taken = warm_start(method, initial, architecture=architecture, image_shape=data.image_shape)
        log.info("client %d %s", client_id, taken)
    blank = channels_first(np.zeros((2, *data.train.images.shape[1:]), data.train.images.dtype))
    trainer = LocalTrainer(
        method=method,
        data=data,
        config=config,
        client_id=client_id,
        compute=options.compute,
        augment=augmentation_of(
            config.training,
            blank.to(options.compute.device),
            allowed=options.allow_import,
            float_range=(data.pixels.low, data.pixels.high),
        ),
        make_optimizer=own_optimizer(config.training, allowed=options.allow_import),
    )
    client = LocalClient(
        client_id=client_id,
        run_id=run_id,
        config=config,
        data=data,
        trainer=trainer,
        architecture=architecture,
        head=head,
        compute=options.compute,
    )
    log.info("client %d: %s", client_id, describe_client(client, options.data))
    return client


def describe_client(client: LocalClient, private: Path | None) -> str:
    """What the client has read, and what it trains."""
    data, config = client.data, client.config
    channels, height, width = data.image_shape
    held_out = f", {len(data.validation)} validation" if data.validation is not None else ""
    colours = "grey" if channels == 1 else "RGB" if channels == 3 else f"{channels} channels"
    pixels = "" if data.pixels == BYTES else f", {data.pixels}"
    origin = f"its share of {config.data.dataset}" if private is None else str(private)
    return (
        f"{len(data.train)} training{held_out} and {len(data.test)} test images of {width}x{height} "
        f"({colours}{pixels}), "
        f"{int((data.label_counts > 0).sum())} of {config.classes} classes, from {origin}; "
        f"{client.architecture} with {client.capabilities().parameters:,} parameters on {client.compute}"
    )


def load_client_data(config: RunConfig, client_id: int, options: LocalOptions) -> ClientData:
    if client_id >= config.clients:
        raise ConfigurationError(f"client id {client_id} is not one of this run's 0 to {config.clients - 1}")
    if options.data is not None:
        try:
            names = config.data.class_names or None
            private = load_private_data(
                options.data,
                classes=config.classes,
                class_names=names,
                image_size=config.data.image_size,
                space=options.image_cache,
                skip_unreadable=options.skip_unreadable,
            )
            if config.privacy.dp != "off":
                check_samples_apart(private, options.data)
            return private_shard(private, seed=config.seed, client_id=client_id, validation=config.training.validation)
        except DataError as error:
            raise ConfigurationError(f"--data {error}") from error
    if config.data.dataset == CUSTOM_DATASET:
        raise ConfigurationError("the run has no public data set, every client brings its own: give --data")
    shard = shard_of(
        load_dataset(config.data.dataset, options.data_dir),
        clients=config.clients,
        alpha=config.data.alpha,
        seed=config.seed,
        client_id=client_id,
        batch_size=config.training.batch_size,
        validation=config.training.validation,
        train_samples=config.newcomer_samples or None if config.is_newcomer(client_id) else None,
    )
    return shard if config.data.image_size is None else at_image_size(shard, config.data.image_size)


def build_method(
    config: RunConfig, client_id: int, architecture: str, head: str, image_shape: tuple[int, int, int]
) -> LocalMethod:  # type: ignore[type-arg]
    """The client's half of the method, its weights drawn from the run seed and the client's id."""
    is_fixed = config.method_spec.fixed_network is not None
    seed = derive_seed(config.seed, "fixed network") if is_fixed else derive_seed(config.seed, "weights", client_id)
    seed_generators(seed, CPU)
    width = config.training.feature_dim
    shape = config.exchange_shape
    backbone = build_backbone(architecture, image_shape, feature_dim=width)
    if config.training.init == "common":  # what is drawn from here on: branches and heads
        seed_generators(derive_seed(config.seed, "common weights"), CPU)
    method: LocalMethod = config.method_spec.load_trainer()(  # type: ignore[type-arg]
        backbone=backbone,
        make_head=lambda: build_head(head, config.classes, feature_dim=width),
        settings=config.settings,
        task=Task(
            classes=shape.classes,
            feature_dim=width,
            rounds=config.rounds,
            top_channels_only=shape.top_channels_only,
            wire_type=config.wire_type,
            seed=config.seed,
            image_shape=image_shape,
            guide=config.guide.network,
            fusion_at_client=shape.fusion_at_client,
            has_unshared_classes=config.sends_terms,
            label_smoothing=config.training.label_smoothing,
            clip_bound=config.privacy.clip_bound,
            is_private=config.privacy.dp != "off",
        ),
    )
    return method


def restore_checkpoint(client: LocalClient, directory: ClientDirectory) -> Checkpoint | None:
    """Loads the weights of the last checkpoint, if there is one, into the client and returns it."""
    checkpoint = directory.load()
    if checkpoint is None:
        return None
    if checkpoint.architecture != client.architecture:
        raise ConfigurationError(
            f"client {client.client_id} started this run with {checkpoint.architecture}, not {client.architecture}; "
            "give the same --model"
        )
    if checkpoint.image_shape != client.data.image_shape:
        raise ConfigurationError(
            f"client {client.client_id} started this run with images of shape {list(checkpoint.image_shape)}, not "
            f"{list(client.data.image_shape)}; give the same --data, or set the run's --image-size"
        )
    if not checkpoint.pixels.shares_scale(client.data.pixels):
        raise ConfigurationError(
            f"client {client.client_id} started this run with pixels that are {checkpoint.pixels}, not "
            f"{client.data.pixels}; give the same --data"
        )
    try:
        client.trainer.load_state(checkpoint.state)
    except WeightsMismatchError as error:  # a model of one's own may have been edited under the same name
        raise ConfigurationError(
            f"client {client.client_id}: the weights in {directory.checkpoint} do not fit {client.architecture} any "
            f"more: {error}; give the --model that this run was started with"
        ) from None
    ends_at = checkpoint.round if checkpoint.upload is None else None  # written after the final evaluation alone
    done = round_name(checkpoint.round, client.config.rounds, ends_at=ends_at)
    log.info("client %d resumes after %s", client.client_id, done)
    return checkpoint
