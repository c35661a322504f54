"""The files of deploy/, read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def yaml_documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def yaml_text(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def stages(dockerfile: Path) -> dict[str, list[str]]:
    """The instructions of each stage, with continued lines joined and comments left out; the last one is called ''."""
    lines = (line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in filter(None, (" ".join(line.split()) for line in joined.splitlines())):
        if line.startswith("FROM "):
            found[line.partition(" AS ")[2]] = []
        list(found.values())[-1].append(line)
    return found


def environment(instructions: list[str]) -> dict[str, str]:
    """What the ENV lines of a stage set."""
    pairs = (pair for line in instructions if line.startswith("ENV ") for pair in line.split()[1:])
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod of the manifests, by the name of what makes it."""
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in yaml_documents(path):
            if document["kind"] in ("StatefulSet", "Job"):
                yield document["metadata"]["name"], document["spec"]["template"]["spec"]
