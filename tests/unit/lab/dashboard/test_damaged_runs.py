"""A folder of runs of which some are damaged: those are named, and the others shown as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from foreign_text import results_with
from unreadable import close_to_this_user

from feddbp_common.artifacts import AUDIT_NAME, CLIENTS_NAME, DATABASE_NAME, METRICS_NAME, ROUNDS_NAME, SUMMARY_NAME
from feddbp_lab.dashboard.access import Access
from feddbp_lab.dashboard.library import Library
from feddbp_lab.dashboard.web import build_app
from feddbp_lab.results.run_files import find_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs called a, b and c, each with results."""
    for name in "abc":
        results_with("net", directory=tmp_path / name)
    return tmp_path


@pytest.fixture
async def browser(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(Library(folder=folder, runs=find_runs(folder)), Access(open_to_view=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
        yield client


def break_database(run: Path) -> None:
    (run / SUMMARY_NAME).unlink()
    (run / DATABASE_NAME).write_bytes(b"no database" * 100)


async def test_a_damaged_run_is_named_beside_the_others(browser: httpx.AsyncClient, folder: Path) -> None:
    break_database(folder / "b")
    (folder / "c" / SUMMARY_NAME).write_text("{")
    listing = (await browser.get("/api/runs")).json()
    assert [run["name"] for run in listing["runs"]] == ["a"]
    assert [(run["key"], run["name"]) for run in listing["damaged"]] == [("1", "b"), ("2", "c")]
    problems = [run["problem"] for run in listing["damaged"]]
    assert problems[0] == f"{folder}/b/{DATABASE_NAME} cannot be read: file is not a database"
    assert problems[1].startswith(f"the results in {folder}/c are damaged: {SUMMARY_NAME}: ")
    assert (await browser.get("/run/0/api/run")).status_code == 200


async def test_a_run_of_another_user_is_named_beside_the_others(
    browser: httpx.AsyncClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_to_this_user(monkeypatch, folder / "b")
    listing = (await browser.get("/api/runs")).json()
    assert [run["name"] for run in listing["runs"]] == ["a", "c"]
    problem = f"{folder}/b/{SUMMARY_NAME}: Permission denied"
    assert listing["damaged"] == [{"key": "1", "name": "b", "problem": problem}]
    page = await browser.get("/run/1/")
    assert page.status_code == 422
    assert "Permission denied" in page.text


async def test_the_page_of_a_damaged_run_says_what_is_damaged(browser: httpx.AsyncClient, folder: Path) -> None:
    break_database(folder / "a")
    (folder / "b" / METRICS_NAME).write_text('{"client": 0\n')
    for key, problem in (("0", f"{DATABASE_NAME} cannot be read"), ("1", f"damaged: {METRICS_NAME}, line 1: ")):
        page = await browser.get(f"/run/{key}/")
        assert page.status_code == 422
        assert page.headers["content-security-policy"]
        assert problem in page.text
        answer = await browser.get(f"/run/{key}/api/run")
        assert answer.status_code == 422
        assert problem in answer.json()["error"]
        assert "\n" not in answer.json()["error"]


async def test_the_page_of_a_run_says_which_lines_were_left_out(browser: httpx.AsyncClient, folder: Path) -> None:
    run = folder / "a"
    (run / ROUNDS_NAME).write_text("[]\n{\n" + '{"round": 0}\n')
    # the last line is being written
    (run / CLIENTS_NAME).write_text('{"client": 0, "device": "cpu"}\n{"client": \n{"client": 1')
    (run / AUDIT_NAME).mkdir()
    answer = (await browser.get("/run/0/api/run")).json()
    assert answer["status"]["notes"] == [
        f"{CLIENTS_NAME}: 1 damaged line was left out",
        f"{ROUNDS_NAME}: 3 damaged lines were left out",
        f"{AUDIT_NAME} cannot be read: Is a directory",
    ]
    assert [client["device"] for client in answer["clients"]] == ["cpu", "", ""]
    assert (await browser.get("/run/1/api/run")).json()["status"]["notes"] == []


async def test_a_page_is_shown_without_the_comparison_with_a_damaged_run(
    browser: httpx.AsyncClient, folder: Path
) -> None:
    summary = folder / "b" / SUMMARY_NAME
    summary.write_text(summary.read_text().replace('"method": "feddbp"', '"method": "local"'))
    (folder / "b" / METRICS_NAME).write_text("{")
    answer = await browser.get("/run/0/api/run")
    assert answer.status_code == 200
    assert answer.json()["baseline"] == {}
    assert (await browser.get("/run/1/api/run")).status_code == 422
