"""`feddbp export`: a trained client as a file that needs nothing of this project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from feddbp_common.config.command_line import settings_from
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_lab.commands.options import Options, checkpoint_parser, load_client
from feddbp_lab.terminal.format import human_bytes

PROG: Final = "feddbp export"
FileFormat = Literal["torch-export", "torchscript", "onnx"]
BY_SUFFIX: Final[dict[str, FileFormat]] = {".pt2": "torch-export", ".pt": "torchscript", ".onnx": "onnx"}


class ExportFileConfig(Options):
    """Export: the kind of file."""

    file_format: FileFormat | None = Field(
        None,
        description="torch-export, torchscript or onnx; by default what the name's ending says: "
        + ", ".join(BY_SUFFIX),
        json_schema_extra={"flag": "--format"},
    )


class ExportConfig(Options):
    """All options of `feddbp export`."""

    export: ExportFileConfig = ExportFileConfig()


def command(argv: Sequence[str]) -> int:
    parser = checkpoint_parser(PROG, "OUT", "Makes a trained client a file for other programs.", ExportConfig)
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write, or to replace")
    flags = parser.parse_intermixed_args(argv)
    out: Path = flags.out
    file_format = settings_from(ExportConfig, flags).export.file_format or BY_SUFFIX.get(out.suffix)
    if file_format is None:
        raise ConfigurationError(f"{out}: give --format, or a name that ends in {', '.join(BY_SUFFIX)}")
    client = load_client(flags.checkpoint, who=PROG, device="cpu")
    from feddbp_client.inference.model_export import export, facts_of

    export(client, out, file_format)
    facts, shape = client.facts, ", ".join(map(str, client.facts.image_shape))
    print(f"{out}: {file_format}, {human_bytes(out.stat().st_size)}")
    print(f"takes uint8 images [batch, {shape}], from 0 to 255")
    print(f"gives float32 scores [batch, {len(facts.class_names)}], {facts_of(client)['scores']}; the greatest wins")
    return ExitCode.OK
