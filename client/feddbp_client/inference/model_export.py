"""Exports a trained client to a file that runs without this project; prototypes are inside.

The file takes images [batch, channels, height, width] in the type of the client's training images and gives float32
scores [batch, classes], of which the greatest is the prediction. The kind of score, the class names and the range of
pixels are stored in it as JSON under FACTS_NAME.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from feddbp_client.data.pixels import PixelRange
from feddbp_client.data.readers.shared_files import replacing
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_client.methods.scores import ScoreKind
from feddbp_common.errors import ConfigurationError, FedDBPError, one_line
from feddbp_common.optional_deps import require

if TYPE_CHECKING:
    from onnx import ModelProto

FACTS_NAME: Final = "feddbp.json"
_NEEDED_FOR_ONNX: Final = ("onnx", "onnxscript")
_TRACED_BATCH: Final = 2
_TRIED_BATCHES: Final = (1, 3)
_TOLERANCE: Final = 1e-4


class ExportError(FedDBPError):
    """A model that cannot be exported; the message says why."""


def export(client: TrainedClient, path: Path, file_format: str) -> None:
    """Writes a client that was loaded on the CPU to a file, atomically."""
    if file_format == "onnx":
        require("exporting to ONNX", _NEEDED_FOR_ONNX, extra="onnx")
    write = FORMATS[file_format]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they concern torch's internals; the result is checked
        try:
            with replacing(path) as file:
                write(client, file, json.dumps(facts_of(client)))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error


def facts_of(client: TrainedClient) -> Mapping[str, object]:
    """What a user of the file needs to know of the client, its input and its scores."""
    kind = client.scorer.kind
    return {
        **asdict(client.facts),
        "input": f"{client.facts.pixels.dtype} [batch, channels, height, width]",
        "scores": "logits" if kind is ScoreKind.LOGIT else f"minus the {kind}",
    }


def _write_torch_export(client: TrainedClient, file: IO[bytes], facts: str) -> None:
    torch.export.save(_program(client), file, extra_files={FACTS_NAME: facts})


def _write_torchscript(client: TrainedClient, file: IO[bytes], facts: str) -> None:
    # traced from the client itself: the trace of an exported program would fix the batch size
    with _as_export_error(client):
        traced = torch.jit.trace(client.scorer, _example(client), check_trace=False)
    module = torch.jit.script(_PixelsOnly(traced, client.facts.pixels))
    _check_same(client, module)
    torch.jit.save(module, file, _extra_files={FACTS_NAME: facts})


def _write_onnx(client: TrainedClient, file: IO[bytes], facts: str) -> None:
    program = _program(client)
    with _as_export_error(client):
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert converted is not None
    converted.model.graph.outputs[0].name = "scores"
    converted.model.metadata_props[FACTS_NAME] = facts
    model = converted.model_proto
    _clear_needless_ceil_mode(model)
    content = model.SerializeToString()
    _check_same(client, _by_reference(content))
    file.write(content)


def _clear_needless_ceil_mode(model: ModelProto) -> None:
    """Clears ceil_mode where the stride is one: it has no effect there, but ONNX's reference overshoots the edge."""
    for node in model.graph.node:
        given = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "MaxPool" and given.keys() >= {"strides", "ceil_mode"} and set(given["strides"].ints) == {1}:
            given["ceil_mode"].i = 0


def _by_reference(content: bytes) -> Callable[[Tensor], Tensor]:
    """Runs an ONNX file with the reference implementation of the standard, which is slow."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(content)

    def scores(images: Tensor) -> Tensor:
        (found,) = evaluator.run(["scores"], {"images": images.numpy()})
        return torch.from_numpy(found)

    return scores


def _program(client: TrainedClient) -> ExportedProgram:
    """The client as a graph for any number of images."""
    any_number = {"images": {0: Dim("batch", min=1)}}
    with _as_export_error(client):
        program = torch.export.export(client.scorer, (_example(client),), dynamic_shapes=any_number, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine do not belong in the file
    _check_same(client, program.module())
    return program


def _example(client: TrainedClient) -> Tensor:
    return torch.zeros(_TRACED_BATCH, *client.facts.image_shape, dtype=_torch_type(client.facts.pixels))


def _torch_type(pixels: PixelRange) -> torch.dtype:
    found: torch.dtype = getattr(torch, pixels.dtype)
    return found


def _check_same(client: TrainedClient, module: Callable[[Tensor], Any]) -> None:
    """Raises ExportError unless the module gives the client's scores, also for larger and smaller batches."""
    random = torch.Generator().manual_seed(0)
    for count in _TRIED_BATCHES:
        images = _random_images(client, count, random)
        with _as_export_error(client), torch.no_grad():
            expected, found = client.scorer(images), module(images)
        if not torch.allclose(expected, found, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ExportError(f"{client.facts.architecture}, once exported, gives different scores for {count} images")


def _random_images(client: TrainedClient, count: int, random: torch.Generator) -> Tensor:
    pixels, shape = client.facts.pixels, (count, *client.facts.image_shape)
    if pixels.dtype == "float32":
        return torch.rand(shape, generator=random) * (pixels.high - pixels.low) + pixels.low
    return torch.randint(0, int(pixels.high) + 1, shape, generator=random).to(_torch_type(pixels))


@contextmanager
def _as_export_error(client: TrainedClient) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the model may be the user's own, and torch may raise anything
        raise ExportError(f"{client.facts.architecture} cannot be exported: {one_line(error, first=True)}") from error


class _PixelsOnly(nn.Module):
    """Checks the dtype, which a trace does not: images from 0 to 1 would be taken for black ones."""

    def __init__(self, traced: nn.Module, pixels: PixelRange) -> None:
        super().__init__()
        self.traced = traced
        self.expected = _torch_type(pixels)
        self.message = f"images must be {pixels}"

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype != self.expected:
            raise TypeError(self.message)
        return self.traced(images)  # type: ignore[no-any-return]


FORMATS: Final[Mapping[str, Callable[[TrainedClient, IO[bytes], str], None]]] = MappingProxyType(
    {"torch-export": _write_torch_export, "torchscript": _write_torchscript, "onnx": _write_onnx}
)
