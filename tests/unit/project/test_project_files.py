"""The files around the code: they agree with each other, and what they name is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from deploy_files import CHECKOUT, yaml_text
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
SDIST = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
FORMS = sorted(path for path in (CHECKOUT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]


def anchors(page: Path) -> set[str]:
    """What a link may name after '#': the page's headings in lower case, without punctuation, joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def required_by(extra: str) -> set[str]:
    """Names of what an extra of ours brings, those included that it brings by way of our other extras."""
    names: set[str] = set()
    for requirement in map(Requirement, PYPROJECT["project"]["optional-dependencies"][extra]):
        own = requirement.name == PYPROJECT["project"]["name"]
        names |= set().union(*map(required_by, requirement.extras)) if own else {requirement.name}
    return names


def released_versions() -> list[str]:
    """As the changelog lists them, the newest first."""
    text = (CHECKOUT / "CHANGELOG.md").read_text()
    return re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", text, re.MULTILINE)


def test_the_citation_is_of_the_last_release_and_the_licence() -> None:
    citation = yaml_text((CHECKOUT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (released_versions()[0], PYPROJECT["project"]["license"])
    assert citation["title"] == "FedDBP"
    assert [paper["type"] for paper in citation["references"]] == ["conference-paper"]


def test_the_changelog_lists_what_is_released_or_what_is_coming() -> None:
    text = (CHECKOUT / "CHANGELOG.md").read_text()
    newest = released_versions()[0]
    assert text.index("## Unreleased") < text.index(f"## {newest}")
    version = Version(VERSION)
    assert version == Version(newest) or (version.is_devrelease and version > Version(newest))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = CHECKOUT / name
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_questions_that_can_be_told_apart(form: Path) -> None:
    content = yaml_text(form.read_text())
    assert content["name"]
    assert content["description"]
    questions = [element for element in content["body"] if element["type"] != "markdown"]
    assert questions
    assert {element["type"] for element in questions} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({element["id"] for element in questions}) == len(questions)
    assert all(element["attributes"]["label"] for element in questions)


def test_hooks_before_a_commit_download_nothing() -> None:
    repositories = yaml_text((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook for repository in repositories for hook in repository["hooks"]]
    assert {repository["repo"] for repository in repositories} == {"local"}
    assert {hook["language"] for hook in hooks} == {"system", "pygrep"}


def test_what_the_source_archive_lists_is_there() -> None:
    assert [name for name in SDIST if not (CHECKOUT / name).exists()] == []


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a git checkout")
def test_the_source_archive_lists_all_that_is_under_version_control() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    tops = {name.partition("/")[0] for name in tracked.split("\0") if name}
    always = {"pyproject.toml", ".gitignore"}  # hatchling adds these by itself
    assert tops - always - set(SDIST) == set(), "add them to only-include in pyproject.toml"


def test_mypy_checks_every_folder_with_python_files() -> None:
    with_python = {name for name in SDIST if any((CHECKOUT / name).rglob("*.py"))}
    assert with_python == set(PYPROJECT["tool"]["mypy"]["files"])


def test_everything_make_installs_has_its_version_in_the_constraints() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    base = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    required = {canonicalize_name(name) for name in base | required_by("dev")}
    assert "torch" in required
    assert required - pinned == set()
