"""What `feddbp predict` and `feddbp export` share: the argument CHECKPOINT, and loading the trained client from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from feddbp_common.config.command_line import Parser, import_from_working_directory, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.optional_deps import CHECKPOINT_MODULES, require

if TYPE_CHECKING:
    from feddbp_client.inference.trained_client import TrainedClient


def checkpoint_parser(prog: str, others: str, description: str, model: type[FrozenModel]) -> Parser:
    """The parser of a command whose first argument is a checkpoint; `others` are the arguments that follow it."""
    parser = settings_parser(prog, description, model)
    parser.usage = f"{prog} CHECKPOINT {others} [options]"
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="a client's directory in its --state-dir, STATE_DIR/RUN/client-ID, or the file in it",
    )
    return parser


def load_client(path: Path, *, prog: str, device: str) -> TrainedClient:
    require(prog, CHECKPOINT_MODULES, extra="client")
    # torch takes a second to import: errors in the flags are reported before that
    from feddbp_client.inference.trained_client import TrainedClient
    from feddbp_client.training.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(path)
    if ":" in checkpoint.architecture:
        import_from_working_directory()
    return TrainedClient(checkpoint, device=device)
