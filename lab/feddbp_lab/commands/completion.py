"""`feddbp completion SHELL`: prints a completion script for the three commands."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from feddbp_common.config.catalog import DATASETS, MODEL_GROUPS
from feddbp_common.config.command_line import Parser
from feddbp_common.errors import ExitCode
from feddbp_common.methods import METHODS
from feddbp_lab.terminal.completion import CommandWords, bash_script, fish_script, words_of, zsh_script

PROG: Final = "feddbp completion"
_SCRIPTS: Final = MappingProxyType({"bash": bash_script, "zsh": zsh_script, "fish": fish_script})


def command(argv: Sequence[str]) -> int:
    parser = Parser(
        prog=PROG,
        description="Prints a completion script for feddbp, feddbp-server and feddbp-client. "
        "For this shell: source <(feddbp completion bash); to keep it: see docs/user-guide.md.",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    print(_SCRIPTS[parser.parse_args(argv).shell](all_words()))
    return ExitCode.OK


def all_words() -> dict[str, CommandWords]:
    """The words of the three commands; their modules are imported, but no torch."""
    from feddbp_client.cli import _start as client
    from feddbp_lab.cli import COMMANDS, Command
    from feddbp_server.cli import _serve as server

    known = {"--method": tuple(METHODS), "--dataset": tuple(DATASETS), "--model-group": tuple(MODEL_GROUPS)}

    def words(listed: Command) -> CommandWords:
        run = listed.load()
        if not listed.subcommands:
            return words_of(run, known)
        return CommandWords(subcommands={name: words_of(run, known, name) for name in listed.subcommands})

    ours = {name: words(listed) for name, listed in COMMANDS.items() if name != "completion"}
    ours["completion"] = CommandWords(subcommands={shell: CommandWords() for shell in _SCRIPTS})
    return {
        "feddbp": CommandWords(subcommands=ours),
        "feddbp-server": words_of(server, known),
        "feddbp-client": words_of(client, known),
    }
