"""Every sink of text from another party: no escape sequence, forged line, markup or formula gets through."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foreign_text import FOREIGN, results_with

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.logs import JsonFormatter, PlainFormatter, print_outcome
from feddbp_common.printable import make_printable, printable, printable_values
from feddbp_lab.control_client import StatusPages
from feddbp_lab.results.curves import draw_curves, plot_text
from feddbp_lab.terminal.format import terminal
from feddbp_lab.terminal.run_table import run_table
from feddbp_lab.terminal.status_view import StatusView


def record_of(text: str) -> logging.LogRecord:
    return logging.LogRecord("feddbp.client", logging.INFO, __file__, 1, "client %d waits: %s", (0, text), None)


def status_of(text: str) -> pb.RunStatus:
    """As it comes from a server; halves of surrogate pairs cannot be sent."""
    sent = text.encode(errors="replace").decode()
    status = pb.RunStatus(run_id=sent, method=sent, reason=sent, software_version=sent, phase=pb.PHASE_COLLECTING)
    status.refusals[sent] = 1
    status.incidents.add(message=sent, client_id=0)
    status.clients.add(
        client_id=0,
        peer=sent,
        capabilities=pb.Capabilities(architecture=sent, device=sent, software_version=sent, name=sent),
    )
    pages = StatusPages()
    pages.add(status)
    return pages.whole


def shown_on_terminal(renderable: Any) -> str:
    console = terminal(file=io.StringIO(), width=200, force_terminal=False)
    console.print(renderable)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


SINKS: dict[str, Callable[[str, Path], str]] = {
    "log": lambda text, _: PlainFormatter("%(levelname)s %(message)s").format(record_of(text)),
    "JSON log": lambda text, _: str(json.loads(JsonFormatter().format(record_of(text)))["message"]),
    "status": lambda text, _: shown_on_terminal(StatusView(status=status_of(text), now=0.0)),
    "report": lambda text, directory: shown_on_terminal(
        run_table(results_with(text, directory=directory), Path("run"))
    ),
}


@pytest.mark.parametrize("text", FOREIGN, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_shows_foreign_text_as_text(sink: str, text: str, tmp_path: Path) -> None:
    shown = SINKS[sink](text, tmp_path)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert len(shown) < 50_000
    if text.isprintable() and len(text) < 30:
        assert text in shown  # as it is: neither markup nor a formula nor an emoji
    if sink.endswith("log"):
        assert "\n" not in shown


@pytest.mark.parametrize("text", FOREIGN, ids=lambda text: ascii(text[:20]))
def test_the_last_line_of_a_command_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome("feddbp-client", f"error: {text}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


@pytest.mark.parametrize("text", FOREIGN, ids=lambda text: ascii(text[:20]))
def test_curves_are_drawn_whatever_clients_call_their_models_and_losses(text: str, tmp_path: Path) -> None:
    draw_curves(results_with(text, directory=tmp_path), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1_000
    assert len(plot_text(text)) <= 80


def test_every_text_of_a_message_becomes_printable() -> None:
    message = pb.GetRunResponse(run_id="a\nb", features=["\x1b", "ok"])
    message.config.method_settings.update({"tau\n": "x\n", "nested": {"deep": ["\x07"]}})
    message.config.data.class_names.extend(["\u202e"])
    make_printable(message)
    assert (message.run_id, list(message.features)) == (r"a\nb", [r"\x1b", "ok"])
    assert message.config.data.class_names[0] == r"\u202e"
    assert message.config.method_settings["nested"]["deep"][0] == r"\x07"  # type: ignore[index]


def test_texts_keep_their_meaning_and_are_bounded() -> None:
    assert printable("naïve ✓ 名前 🙂") == "naïve ✓ 名前 🙂"
    assert printable("x" * 600) == "x" * 497 + "..."
    assert printable("\n" * 600).endswith("...")
    assert len(printable("\n" * 600)) <= 500
    assert printable_values({"a\n": ["b\n", 1, None, {"c": "\x1b"}]}) == {r"a\n": [r"b\n", 1, None, {"c": r"\x1b"}]}


def test_no_other_console_is_used() -> None:
    """Consoles with markup would parse what clients call themselves."""
    package = Path(sys.modules["feddbp_lab"].__file__ or "").parent
    makers = [path for path in package.rglob("*.py") if "Console(" in path.read_text(encoding="utf-8")]
    assert [path.name for path in makers] == ["format.py"]
