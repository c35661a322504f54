"""Shared by all commands: the parser, settings from all sources, and errors as one line and an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import BaseModel

from feddbp_common.config.flag_hints import flag_hint
from feddbp_common.config.nested import Tree
from feddbp_common.config.sources import add_flags, resolve
from feddbp_common.config.variables import CONFIG_VARIABLE, ENV_PREFIX, check_variables
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_common.logs import logs_are_json, print_outcome
from feddbp_common.version import VERSION

ModelT = TypeVar("ModelT", bound=BaseModel)


class Parser(argparse.ArgumentParser):
    """An argument parser whose error is one line, without the usage of all flags."""

    def error(self, message: str) -> NoReturn:
        hint = self._hint(message)
        raise ConfigurationError(f"{message}{hint or ';'} see {self.prog} --help")

    def _hint(self, message: str) -> str:
        flags = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        if not message.startswith("unrecognized arguments") or not flags:
            return ""
        return flag_hint(self.prog, flags[0], self._option_string_actions)


def settings_parser(prog: str, description: str, model: type[BaseModel]) -> Parser:
    """Returns the parser of a command whose options are the fields of a model."""
    parser = Parser(
        prog=prog,
        usage=f"{prog} [options]",
        description=description,
        epilog=f"Every option can also be set by the variable in brackets, or in a TOML file given by --config "
        f"({CONFIG_VARIABLE}); flags win over variables, variables over the file.",
        allow_abbrev=False,
    )
    add_settings(parser, model)
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return parser


def add_settings(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    add_flags(parser, model, env_prefix=ENV_PREFIX)
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help="read options from a TOML file")


def settings_from(
    model: type[ModelT], flags: argparse.Namespace, *, stored: Callable[[Tree], Tree] = lambda _: {}
) -> ModelT:
    """Resolves a command's options; `stored` fills in those that are not given, see `resolve`."""
    check_variables(model, os.environ)
    if flags.config is not None:
        return resolve(model, flags, env_prefix=ENV_PREFIX, file=flags.config, stored=stored)
    file = os.environ.get(CONFIG_VARIABLE)
    return resolve(
        model,
        flags,
        env_prefix=ENV_PREFIX,
        file=Path(file) if file else None,
        file_variable=CONFIG_VARIABLE,
        stored=stored,
    )


def import_from_working_directory() -> None:
    """Makes modules in the working directory importable, such as a user's own model; installed commands do not."""
    sys.path.insert(0, str(Path.cwd()))


def run_command(prog: str, command: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs a command and reports an error as one line on stderr and an exit code."""
    try:
        with _terminated_as_interrupted():
            return command(sys.argv[1:] if argv is None else argv)
    except FedDBPError as error:
        print_outcome(prog, f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        print_outcome(prog, "interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # the reader closed the pipe: suppress further output, including the flush at interpreter exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except Exception as error:
        if not logs_are_json():
            raise
        print_outcome(prog, f"error: {type(error).__name__}: {error}", exception=error)
        return ExitCode.FAILURE
    finally:
        if argv is None:  # the process ends with the command
            _ignore_interrupts()


def _ignore_interrupts() -> None:
    """A second Ctrl-C while the interpreter exits would print a traceback."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Until a command handles signals itself, SIGTERM ends it as Ctrl-C does: with a line and the same exit code."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
