"""The end of the gate: which tests were skipped, and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy_files import CHECKOUT

BROWSER = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("no Chromium is installed")

def test_the_page(browser): ...
def test_the_list(browser): ...
class TestLinks:
    def test_they_lead_somewhere(self, browser): ...
def test_without_a_browser(): ...

@pytest.mark.xfail
def test_what_is_known_to_fail():
    assert False
"""
TRACKING = "import pytest\npytest.importorskip('no_such_tracker', reason='the extra `tracker` is not installed')\n"


def end_of_gate(directory: Path, **modules: str) -> list[str]:
    """What the gate prints after a run of these test modules."""
    (directory / "tests").mkdir()
    (directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in modules.items():
        (directory / "tests" / f"{name}.py").write_text(text)
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:xdist")
    run = [sys.executable, "-m", "pytest", *quiet, "--junitxml=report.xml", "tests"]
    subprocess.run(run, cwd=directory, check=False, capture_output=True)
    script = [sys.executable, str(CHECKOUT / "deploy" / "skipped_tests.py"), "report.xml"]
    return subprocess.run(script, cwd=directory, check=True, capture_output=True, text=True).stdout.splitlines()


def test_skipped_tests_are_named_with_the_reason(tmp_path: Path) -> None:
    first, *reasons = end_of_gate(tmp_path, test_browser=BROWSER, test_tracking=TRACKING)
    assert first == "gate: passed, but 4 tests or modules were SKIPPED on this machine:"
    assert reasons == [
        "     3  no Chromium is installed: tests/test_browser.py",
        "     1  the extra `tracker` is not installed: tests/test_tracking.py",
    ]


def test_a_run_without_skipped_tests_says_so(tmp_path: Path) -> None:
    assert end_of_gate(tmp_path, test_all="def test_one(): ...\n") == ["gate: passed, and no test was skipped"]
