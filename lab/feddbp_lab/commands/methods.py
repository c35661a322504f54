"""`feddbp methods`: lists the methods, the settings of each, and what it sends."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.text import Text

from feddbp_common.config.catalog import FEATURE_DIM
from feddbp_common.config.command_line import Parser
from feddbp_common.config.data import MAX_CLASSES
from feddbp_common.config.diagnostics import did_you_mean, suggestion
from feddbp_common.config.run import MAX_CLIENTS
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import NO_VALUE
from feddbp_common.methods import METHODS, PRESET_MARK, ExchangeShape, Method, method_named, split_preset
from feddbp_common.methods.payload_size import ImageShape, PayloadSize
from feddbp_lab.terminal.format import plain_table, terminal

PROG: Final = "feddbp methods"


def command(argv: Sequence[str]) -> int:
    parser = Parser(prog=PROG, description="Lists the methods, or the settings of one.", allow_abbrev=False)
    parser.add_argument("name", nargs="?", metavar="NAME[:PRESET]", help="a method, to list its settings")
    parser.add_argument(
        "--classes", type=_number(MAX_CLASSES), default=100, metavar="C", help="number of classes (default: 100)"
    )
    parser.add_argument(
        "--feature-dim",
        type=_number(65_535),
        default=FEATURE_DIM,
        metavar="D",
        help=f"width of a prototype (default: {FEATURE_DIM})",
    )
    parser.add_argument(
        "--clients", type=_number(MAX_CLIENTS), default=20, metavar="K", help="number of clients (default: 20)"
    )
    parser.add_argument(
        "--image-size",
        type=_number(224, minimum=16),
        default=32,
        metavar="PIXELS",
        help="height and width of an image (default: 32)",
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="as JSON")
    arguments = parser.parse_args(argv)
    scale = Scale(
        shape=ExchangeShape(classes=arguments.classes, feature_dim=arguments.feature_dim, clients=arguments.clients),
        image=(3, arguments.image_size, arguments.image_size),
    )
    chosen = _chosen(arguments.name) if arguments.name else None
    if arguments.as_json:
        described = [_as_dict(Chosen(each), scale) for each in METHODS.values()]
        print(json.dumps(_as_dict(chosen, scale) if chosen else described, indent=2))
    else:
        terminal().print(settings_table(chosen, scale) if chosen else methods_table(scale))
    return ExitCode.OK


@dataclass(frozen=True)
class Chosen:
    """A method, and the preset of it that was asked for; empty without one."""

    method: Method
    preset: str = ""

    @property
    def name(self) -> str:
        return f"{self.method.name}{PRESET_MARK}{self.preset}" if self.preset else self.method.name

    @property
    def changed(self) -> Mapping[str, Any]:
        """The settings of the preset."""
        return self.method.presets[self.preset].settings if self.preset else {}

    def value(self, setting: str, field: FieldInfo) -> Any:
        return self.changed.get(setting, field.get_default())


def _chosen(name: str) -> Chosen:
    """Raises ConfigurationError, with what was meant, for a method or preset that does not exist."""
    of_method, mark, preset = name.partition(PRESET_MARK)
    with_it = (
        [] if mark or name in METHODS else [full for full in _all_presets() if full.endswith(f"{PRESET_MARK}{name}")]
    )
    if with_it:
        raise ConfigurationError(f"no method is called {name!r}{suggestion(with_it)}")
    method = method_named(of_method)
    if mark and preset not in method.presets and (hint := did_you_mean(preset, method.presets)):
        raise ConfigurationError(f"{of_method} has no preset {preset!r}{hint}")
    split_preset(name)
    return Chosen(method, preset)


def _all_presets() -> list[str]:
    return [f"{method.name}{PRESET_MARK}{preset}" for method in METHODS.values() for preset in method.presets]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a method's traffic depends on besides its settings."""

    shape: ExchangeShape
    image: ImageShape

    def bytes_of(self, chosen: Chosen, payload: PayloadSize) -> int:
        """Bytes per client and round, with the settings of the preset or else the method's defaults."""
        return payload.size(chosen.method.settings(**chosen.changed), self.shape, self.image)

    def is_described(self, chosen: Chosen, payload: PayloadSize) -> bool:
        """Whether content and formula, which are of the default settings, hold for the preset."""
        return self.bytes_of(chosen, payload) == self.bytes_of(Chosen(chosen.method), payload)

    def __str__(self) -> str:
        _, height, width = self.image
        return (
            f"C={self.shape.classes}, d={self.shape.feature_dim}, {self.shape.clients} clients, "
            f"RGB images of {height}x{width}"
        )


def methods_table(scale: Scale) -> RenderableType:
    table = plain_table("name", "method", "a client sends", "bytes up", "bytes down")
    for column in table.columns[3:]:
        column.justify, column.no_wrap = "right", True
    for method in METHODS.values():
        table.add_row(
            Text(method.name, style="bold"),
            f"{method.title}: {method.reference}",
            method.up.content if method.up else NO_VALUE,
            *(
                f"{scale.bytes_of(Chosen(method), payload):,}" if payload else NO_VALUE
                for payload in (method.up, method.down)
            ),
        )
    return Group(
        table,
        Text(f"Maximum bytes of tensors per client and round, for {scale}.", style="dim"),
        Text("Settings and formulas of a method: feddbp methods NAME, or NAME:PRESET", style="dim"),
        Text(f"Presets, named groups of settings: {', '.join(_all_presets())}", style="dim"),
    )


def settings_table(chosen: Chosen, scale: Scale) -> RenderableType:
    method = chosen.method
    title = f"{method.title}{PRESET_MARK}{chosen.preset}" if chosen.preset else method.title
    reference = method.presets[chosen.preset].description if chosen.preset else method.reference
    heading = Group(Text.assemble((title, "bold"), f"  {reference}"), *_traffic(chosen, scale))
    settings = method.settings.model_fields
    if not settings:
        return Group(heading, "No settings.")
    table = plain_table("setting", *(["value"] if chosen.preset else []), "default", "description")
    for name, field in settings.items():
        description = Text(field.description or "")
        choices = _choices(field)
        if choices:
            description.append(f" ({', '.join(choices)})", style="dim")
        value = Text(str(chosen.value(name, field)), style="bold" if name in chosen.changed else "")
        table.add_row(
            Text(name, style="bold"), *([value] if chosen.preset else []), str(field.get_default()), description
        )
    hint = Text(f"Change one with --set, e.g. --set {_example(method)}", style="dim")
    if chosen.preset:
        return Group(heading, table, Text(f"Select it with --method {chosen.name}", style="dim"), hint)
    return Group(heading, table, hint, *_presets(method))


def _presets(method: Method) -> list[RenderableType]:
    if not method.presets:
        return []
    table = plain_table("preset", "settings", "description")
    for name, preset in method.presets.items():
        settings = ", ".join(f"{setting}={value}" for setting, value in preset.settings.items())
        table.add_row(Text(name, style="bold"), settings, preset.description)
    example = f"{method.name}{PRESET_MARK}{next(iter(method.presets))}"
    return [Text(), table, Text(f"Select one with the method, e.g. --method {example}", style="dim")]


def _traffic(chosen: Chosen, scale: Scale) -> list[Text]:
    lines = [
        Text(f"{direction}: {_formula(chosen, payload, scale)}{scale.bytes_of(chosen, payload):,} bytes")
        for direction, payload in (("up", chosen.method.up), ("down", chosen.method.down))
        if payload
    ]
    return [*lines, Text(f"per client and round, for {scale}", style="dim")] if lines else []


def _formula(chosen: Chosen, payload: PayloadSize, scale: Scale) -> str:
    return f"{payload.content}, {payload.formula}: " if scale.is_described(chosen, payload) else ""


def _number(maximum: int, *, minimum: int = 2) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not minimum <= int(text) <= maximum:
            raise ArgumentTypeError(f"{text!r} is not a number from {minimum} to {maximum}")
        return int(text)

    return number


def _choices(field: FieldInfo) -> list[str]:
    return list(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else []


def _example(method: Method) -> str:
    name, field = next(iter(method.settings.model_fields.items()))
    return f"{name}={field.get_default()}"


def _as_dict(chosen: Chosen, scale: Scale) -> dict[str, Any]:
    method = chosen.method
    return {
        "name": method.name,
        **({"preset": chosen.preset} if chosen.preset else {}),
        "title": method.title,
        "reference": method.reference,
        **{
            direction: {
                **(
                    {"content": payload.content, "formula": payload.formula}
                    if scale.is_described(chosen, payload)
                    else {}
                ),
                "bytes": scale.bytes_of(chosen, payload),
            }
            for direction, payload in (("up", method.up), ("down", method.down))
            if payload
        },
        "presets": [
            {"name": name, "settings": dict(preset.settings), "description": preset.description}
            for name, preset in method.presets.items()
        ],
        "settings": [
            {
                "name": name,
                "default": field.get_default(),
                **({"value": chosen.value(name, field)} if chosen.preset else {}),
                "description": field.description or "",
                **({"choices": _choices(field)} if _choices(field) else {}),
            }
            for name, field in method.settings.model_fields.items()
        ],
    }
