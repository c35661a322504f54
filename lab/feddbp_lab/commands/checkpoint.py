"""What `feddbp predict` and `feddbp export` have in common: the trained client they are given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from feddbp_common.config.command_line import Parser, import_from_working_directory, settings_parser
from feddbp_common.config.types import Frozen
from feddbp_common.optional_deps import require

if TYPE_CHECKING:
    from feddbp_client.inference.trained_client import TrainedClient

_NEEDED: Final = ("torch", "safetensors", "PIL")


class Options(Frozen):
    """Options of a command that uses a trained client."""


def checkpoint_parser(prog: str, others: str, description: str, model: type[Options]) -> Parser:
    """The parser of a command whose first argument is a checkpoint; `others` names those that follow it."""
    parser = settings_parser(prog, description, model)
    parser.usage = f"{prog} CHECKPOINT {others} [options]"
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="a client's directory in its --state-dir, STATE_DIR/RUN/client-ID, or the file in it",
    )
    return parser


def load_client(path: Path, *, who: str, device: str) -> TrainedClient:
    require(who, _NEEDED, extra="client")
    # torch takes a second to import: mistakes in the flags are told before that
    from feddbp_client.inference.restore import read_checkpoint
    from feddbp_client.inference.trained_client import TrainedClient

    checkpoint = read_checkpoint(path)
    if ":" in checkpoint.architecture:
        import_from_working_directory()
    return TrainedClient(checkpoint, device=device)
