"""Processes forked from a template: where their output goes, and the error if the template has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefork import ForkedProcess, Template, TemplateEndedError

PROGRAM = """
import sys

def main():
    print("result")
    print("warning", file=sys.stderr)
    return 3
"""


def start(template: Template, directory: Path, module: str = "program") -> ForkedProcess:
    (directory / f"{module}.py").write_text(PROGRAM)
    with (directory / "stdout").open("wb") as stdout, (directory / "stderr").open("wb") as stderr:
        return template.start(
            module, [], stdout=stdout.fileno(), stderr=stderr.fileno(), env=dict(os.environ), cwd=directory
        )


@pytest.fixture
def template() -> Iterator[Template]:
    made = Template("json")
    yield made
    made.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_standard_output_and_error_are_apart(template: Template, tmp_path: Path) -> None:
    assert start(template, tmp_path).wait(30) == 3
    assert (tmp_path / "stdout").read_text() == "result\n"
    assert (tmp_path / "stderr").read_text() == "warning\n"


def test_a_template_that_cannot_start_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(TemplateEndedError, match="the template process of no_such_module ended with exit code 1"):
        start(Template("no_such_module"), tmp_path)
    assert open_descriptors() == before


def test_a_killed_template_is_reported_once_and_replaced(template: Template, tmp_path: Path) -> None:
    process = start(template, tmp_path)
    assert process.wait(30) == 3
    assert template.process is not None
    template.process.kill()
    template.process.wait()
    before = open_descriptors()
    with pytest.raises(TemplateEndedError, match="exit code -9"):
        start(template, tmp_path)
    assert open_descriptors() < before
    assert start(template, tmp_path).wait(30) == 3
