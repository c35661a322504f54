"""`feddbp methods`: what can be trained, and with which settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from feddbp_common.cli import Parser
from feddbp_common.errors import ExitCode
from feddbp_common.methods import METHODS, Method, method_named

PROG: Final = "feddbp methods"


def command(argv: Sequence[str]) -> int:
    parser = Parser(prog=PROG, description="Lists the methods, or the settings of one.", allow_abbrev=False)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method, to see its settings")
    parser.add_argument("--json", action="store_true", dest="as_json", help="as JSON")
    arguments = parser.parse_args(argv)
    method = method_named(arguments.name) if arguments.name else None
    if arguments.as_json:
        described = [_as_dict(each) for each in METHODS.values()] if method is None else _as_dict(method)
        print(json.dumps(described, indent=2))
    else:
        Console().print(methods_table() if method is None else settings_table(method))
    return ExitCode.OK


def methods_table() -> RenderableType:
    table = _table("name", "title", "reference")
    for method in METHODS.values():
        table.add_row(Text(method.name, style="bold"), method.title, method.reference)
    return Group(table, Text("Settings of one: feddbp methods NAME", style="dim"))


def settings_table(method: Method) -> RenderableType:
    head = Text.assemble((method.title, "bold"), f"  {method.reference}")
    if not method.settings.model_fields:
        return Group(head, "It has no settings.")
    table = _table("setting", "default", "what it is")
    for name, field in method.settings.model_fields.items():
        meaning = Text(field.description or "")
        choices = _choices(field)
        if choices:
            meaning.append(f" ({', '.join(choices)})", style="dim")
        table.add_row(Text(name, style="bold"), str(field.get_default()), meaning)
    return Group(head, table, Text(f"Changed with --set, e.g. --set {_example(method)}", style="dim"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _choices(field: FieldInfo) -> list[str]:
    return list(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else []


def _example(method: Method) -> str:
    name, field = next(iter(method.settings.model_fields.items()))
    return f"{name}={field.get_default()}"


def _as_dict(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "reference": method.reference,
        "settings": [
            {
                "name": name,
                "default": field.get_default(),
                "description": field.description or "",
                **({"choices": _choices(field)} if _choices(field) else {}),
            }
            for name, field in method.settings.model_fields.items()
        ],
    }
