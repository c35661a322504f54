"""A client's checkpoint: its model and its last upload.

It is one safetensors file, replaced atomically: after a kill at any moment the old one or the new one is
complete. It has no random state, as every round is seeded by its number, and an optimiser's only if the run keeps it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import safetensors
import torch
from google.protobuf.message import DecodeError
from safetensors.torch import save_file
from torch import Tensor

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.data.pixels import BYTES, PixelRange
from feddbp_client.training.trainer import TrainerState
from feddbp_client.training.weight_average import averaged_weights
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.atomic_files import commit_file
from feddbp_common.errors import ConfigurationError, FedDBPError
from feddbp_common.fault_injection import fault_point
from feddbp_common.version import VERSION
from feddbp_common.wire import Encoded

_FORMAT_FAMILY: Final = "feddbp-checkpoint-"
_FORMAT: Final = f"{_FORMAT_FAMILY}1"
_DEEP_FORMAT: Final = f"{_FORMAT_FAMILY}2"
"""With pixels other than bytes, which a reader of format 1 would scale as bytes."""
_MODEL: Final = "model."
_OPTIMIZER: Final = "optimizer."
_AVERAGE: Final = "average."
_UPLOAD: Final = "contribution"  # the key of checkpoint format 1
_RECEIVED: Final = "received"
_CLIENT_DIRECTORIES: Final = ("client-*", "*/client-*", "clients/*/client-*")
"""Patterns below a run's directory, a client's state directory, and the output of `feddbp demo`."""


class CheckpointError(FedDBPError):
    """A checkpoint that cannot be read or written; the message names it and the cause."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A client's state after a round it trained in, or after the final evaluation."""

    run_id: str
    client_id: int
    round: int
    architecture: str
    head: str
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    config: pb.RunConfig
    state: TrainerState
    metrics: pb.RoundMetrics
    upload: Encoded | None = None
    received: Encoded | None = None
    """The last download, which a restored client needs to predict."""
    pixels: PixelRange = BYTES
    """How the client's images are scaled."""

    def evaluated_weights(self) -> dict[str, Tensor]:
        """The averaged weights, where there are any, and the client's own for the rest."""
        return {**self.state.model, **averaged_weights(self.state.average)}

    def save(self, path: Path) -> None:
        parts = {_MODEL: self.state.model, _OPTIMIZER: self.state.optimizer, _AVERAGE: self.state.average}
        tensors = {
            prefix + name: tensor.detach().cpu().contiguous()
            for prefix, part in parts.items()
            for name, tensor in part.items()
        }
        metadata = {
            "format": _FORMAT if self.pixels == BYTES else _DEEP_FORMAT,
            "software_version": VERSION,
            "run_id": self.run_id,
            "client_id": str(self.client_id),
            "round": str(self.round),
            "architecture": self.architecture,
            "head": self.head,
            "image_shape": json.dumps(self.image_shape),
            "pixels": json.dumps(asdict(self.pixels)),
            "class_names": json.dumps(self.class_names),
            "config": _text(self.config.SerializeToString()),
            "metrics": _text(self.metrics.SerializeToString()),
        }
        for name, encoded in ((_UPLOAD, self.upload), (_RECEIVED, self.received)):
            if encoded is not None:
                tensors[name] = torch.frombuffer(bytearray(encoded.body() or b"\0"), dtype=torch.uint8)
                metadata[name] = _text(encoded.manifest.SerializeToString())
        partial = path.with_suffix(".part")
        try:
            save_file(tensors, partial, metadata)
            fault_point("client.checkpoint.written")
            commit_file(partial, path)
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                _check_format(path, metadata)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return cls(
                run_id=metadata["run_id"],
                client_id=int(metadata["client_id"]),
                round=int(metadata["round"]),
                architecture=metadata["architecture"],
                head=metadata["head"],
                image_shape=_image_shape(metadata["image_shape"]),
                pixels=PixelRange(**json.loads(metadata["pixels"])) if "pixels" in metadata else BYTES,
                class_names=_class_names(metadata["class_names"]),
                config=pb.RunConfig.FromString(_bytes(metadata["config"])),
                metrics=pb.RoundMetrics.FromString(_bytes(metadata["metrics"])),
                state=TrainerState(
                    model=_part(_MODEL, tensors),
                    optimizer=_part(_OPTIMIZER, tensors),
                    average=_part(_AVERAGE, tensors),
                ),
                upload=_encoded(_UPLOAD, metadata, tensors),
                received=_encoded(_RECEIVED, metadata, tensors),
            )
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint {path}") from None
        except (OSError, KeyError, TypeError, ValueError, DecodeError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint file, or the one in a client's directory."""
    try:
        return Checkpoint.load(_in_directory(path) if path.is_dir() else path)
    except CheckpointError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:  # of a path that may not be looked at; `load` turns its own into a CheckpointError
        raise ConfigurationError(f"cannot read the checkpoint {path}: {error.strerror}") from None


def _in_directory(directory: Path) -> Path:
    file = directory / CHECKPOINT_NAME
    if file.exists():
        return file
    for where in _CLIENT_DIRECTORIES:
        found = sorted(directory.glob(f"{where}/{CHECKPOINT_NAME}"))
        if found:
            raise ConfigurationError(f"{directory} is not a client's directory; give one, such as {found[0].parent}")
    raise ConfigurationError(
        f"there is no checkpoint in {directory}; a client writes {CHECKPOINT_NAME} after its first training round"
    )


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    found = metadata.get("format", "")
    if not found.startswith(_FORMAT_FAMILY):
        raise CheckpointError(f"{path} is not a client's checkpoint")
    if found not in (_FORMAT, _DEEP_FORMAT):
        writer = metadata.get("software_version", "(a later version)")
        raise CheckpointError(later_version_message(path, found, writer, f"{_FORMAT} and {_DEEP_FORMAT}"))


def later_version_message(path: Path, found: str, writer: str, known: str) -> str:
    """What is wrong with a file or directory whose format this version does not know."""
    return (
        f"{path} was written by feddbp {writer} ({found}); this is feddbp {VERSION}, which reads {known}: "
        "use the version that wrote it, or a later one"
    )


def _class_names(text: str) -> tuple[str, ...]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) and name.isprintable() for name in names):
        raise ValueError("class names are not a list of printable strings")
    return tuple(names)


def _image_shape(text: str) -> tuple[int, int, int]:
    """Only positive integers are accepted: a user's own model function is called with them."""
    channels, height, width = json.loads(text)
    if not all(type(size) is int and size > 0 for size in (channels, height, width)):
        raise ValueError(f"{text} is not the shape of an image")
    return channels, height, width


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _encoded(name: str, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Encoded | None:
    if name not in metadata:
        return None
    manifest = pb.Manifest.FromString(_bytes(metadata[name]))
    body = tensors[name].numpy().tobytes()[: manifest.total_bytes]
    return Encoded(manifest=manifest, segments=(memoryview(body),))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
