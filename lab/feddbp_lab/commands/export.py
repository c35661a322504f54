"""`feddbp export`: writes a trained client to a file that other programs load without this project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from feddbp_common.config.command_line import settings_from
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import human_bytes
from feddbp_lab.commands.checkpoints import checkpoint_parser, load_client

PROG: Final = "feddbp export"
FileFormat = Literal["torch-export", "torchscript", "onnx"]
BY_SUFFIX: Final[dict[str, FileFormat]] = {".pt2": "torch-export", ".pt": "torchscript", ".onnx": "onnx"}


class ExportFileConfig(FrozenModel):
    """Export: the file format."""

    file_format: FileFormat | None = Field(
        None,
        description="torch-export, torchscript or onnx; by default by the file name's suffix: " + ", ".join(BY_SUFFIX),
        json_schema_extra={"flag": "--format"},
    )


class ExportConfig(FrozenModel):
    """All options of `feddbp export`."""

    export: ExportFileConfig = ExportFileConfig()


def command(argv: Sequence[str]) -> int:
    parser = checkpoint_parser(PROG, "OUT", "Exports a trained client to a file for other programs.", ExportConfig)
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write; an existing one is replaced")
    flags = parser.parse_intermixed_args(argv)
    out: Path = flags.out
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigurationError(f"{out}: {'is a directory' if out.is_dir() else f'no such directory: {out.parent}'}")
    file_format = _file_format(out, settings_from(ExportConfig, flags).export.file_format)
    client = load_client(flags.checkpoint, prog=PROG, device="cpu")
    from feddbp_client.inference.model_export import export, facts_of

    export(client, out, file_format)
    facts, shape = client.facts, ", ".join(map(str, client.facts.image_shape))
    print(f"{out}: {file_format}, {human_bytes(out.stat().st_size)}")
    print(f"input: {facts.pixels.dtype} images [batch, {shape}], from {facts.pixels.low:g} to {facts.pixels.high:g}")
    print(f"output: float32 scores [batch, {len(facts.class_names)}], {facts_of(client)['scores']}; highest wins")
    return ExitCode.OK


def _file_format(out: Path, chosen: FileFormat | None) -> FileFormat:
    """By the suffix; a --format that the suffix contradicts would write a file that its readers do not take."""
    by_suffix = BY_SUFFIX.get(out.suffix.lower())
    if chosen is None and by_suffix is None:
        raise ConfigurationError(f"{out}: unknown suffix; give --format, or a name that ends in {', '.join(BY_SUFFIX)}")
    if chosen is not None and by_suffix not in (None, chosen):
        suffix = next(suffix for suffix, known in BY_SUFFIX.items() if known == chosen)
        raise ConfigurationError(f"{out}: --format {chosen} is written to a file that ends in {suffix}")
    return chosen or by_suffix  # type: ignore[return-value]  # one of them is given
