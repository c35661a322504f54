"""Completion scripts for shells, written from the parsers of all commands.

A script has all words in it: pressing Tab starts no Python. It is written again after an update.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from feddbp_common.config.command_line import Parser
from feddbp_common.errors import FedDBPError

Command = Callable[[Sequence[str]], int]


@dataclass(frozen=True, kw_only=True)
class OptionWords:
    """A flag of a command."""

    flag: str
    help: str
    takes_value: bool
    values: tuple[str, ...] = ()
    """Those it may have, where they are few; empty for any other, such as a file."""


@dataclass(kw_only=True)
class CommandWords:
    """What may follow a command: flags, or the name of a subcommand."""

    options: list[OptionWords] = field(default_factory=list)
    subcommands: dict[str, CommandWords] = field(default_factory=dict)

    def walk(self, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], CommandWords]]:
        yield path, self
        for name, words in self.subcommands.items():
            yield from words.walk((*path, name))


class _CapturedError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def words_of(command: Command, known: Mapping[str, Sequence[str]], *subcommand: str) -> CommandWords:
    """The words of a command, from the parser it makes; `known` are the values of some flags."""
    try:
        with _parsers_captured():
            command([*subcommand, "--help"])
    except _CapturedError as captured:
        return _words(captured.parser, known)
    except FedDBPError:
        pass
    return CommandWords()


@contextmanager
def _parsers_captured() -> Iterator[None]:
    """Ends a command when it uses its parser."""

    def capture(self: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _CapturedError(self)

    names = ("parse_args", "parse_known_args", "parse_intermixed_args")
    for name in names:
        setattr(Parser, name, capture)
    try:
        yield
    finally:
        for name in names:
            delattr(Parser, name)


def _words(parser: argparse.ArgumentParser, known: Mapping[str, Sequence[str]]) -> CommandWords:
    words = CommandWords()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words.subcommands |= {name: _words(sub, known) for name, sub in action.choices.items()}
        elif action.option_strings and action.help is not argparse.SUPPRESS:
            words.options.append(_option(action, known))
    return words


def _option(action: argparse.Action, known: Mapping[str, Sequence[str]]) -> OptionWords:
    flag, metavar = action.option_strings[-1], str(action.metavar or "")
    listed = metavar[1:-1].split(",") if metavar.startswith("{") else map(str, action.choices or ())
    return OptionWords(
        flag=flag,
        help=(action.help or "").partition(" [FEDDBP")[0].replace("%%", "%"),
        takes_value=action.nargs != 0,
        values=tuple(known.get(flag, ())) or tuple(listed),
    )


def bash_script(commands: Mapping[str, CommandWords]) -> str:
    """Also for zsh, after bashcompinit. Where nothing is known, the shell completes file names."""
    places = [place for name, words in commands.items() for place in words.walk((name,))]
    steps = "|".join(f'"{" ".join(path)}"' for path, _ in places if len(path) > 1)
    values = [
        f'    "{" ".join(path)} {option.flag}") words={shlex.quote(" ".join(option.values))};;'
        for path, words in places
        for option in words.options
        if option.values
    ]
    taking = [
        f'    "{" ".join(path)} {option.flag}") return;;'
        for path, words in places
        for option in words.options
        if option.takes_value and not option.values
    ]
    flags = [f'      "{" ".join(path)}") words="{_flags(words)}";;' for path, words in places]
    parents = [(path, words) for path, words in places if words.subcommands]
    names = [f'      "{" ".join(path)}") words="{" ".join(words.subcommands)}";;' for path, words in parents]
    lines = [
        "# completion of FedDBP's commands",
        "_feddbp_complete() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local at="${COMP_WORDS[0]##*/}" word words=""',
        "  COMPREPLY=()",
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'    case "$at $word" in {steps}) at="$at $word";; esac',
        "  done",
        '  case "$at $prev" in',
        *values,
        *taking,
        "  esac",
        '  if [[ -z "$words" && "$cur" == -* ]]; then',
        '    case "$at" in',
        *flags,
        "    esac",
        '  elif [[ -z "$words" ]]; then',
        '    case "$at" in',
        *names,
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        f"complete -o default -F _feddbp_complete {' '.join(commands)}",
    ]
    return "\n".join(lines)


def zsh_script(commands: Mapping[str, CommandWords]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash_script(commands)}"


def fish_script(commands: Mapping[str, CommandWords]) -> str:
    return "\n".join(
        line for name, words in commands.items() for path, found in words.walk((name,)) for line in _fish(path, found)
    )


def _fish(path: tuple[str, ...], words: CommandWords) -> Iterator[str]:
    name, *parents = path
    seen = [f"__fish_seen_subcommand_from {parent}" for parent in parents]
    inside = [f"not __fish_seen_subcommand_from {' '.join(words.subcommands)}"] if words.subcommands else []
    condition = "; and ".join([*seen, *inside])
    where = f"complete -c {name}" + (f" -n {shlex.quote(condition)}" if condition else "")
    for subcommand in words.subcommands:
        yield f"{where} -f -a {subcommand}"
    for option in words.options:
        value = (
            f" -x -a {shlex.quote(' '.join(option.values))}" if option.values else " -r" if option.takes_value else ""
        )
        yield f"{where} -l {option.flag.removeprefix('--')}{value} -d {shlex.quote(option.help)}"


def _flags(words: CommandWords) -> str:
    return " ".join(option.flag for option in words.options)
