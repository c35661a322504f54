"""The lock file has every version of constraints.txt with a hash, and the bill of materials every distribution."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.lock import lock_of, pins
from deploy.sbom import bill_of_materials

ROOT = Path(__file__).parents[3]
_LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_pinned_version_but_that_of_torch_is_locked() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {}
    for line in lines:
        if not line.startswith("#"):
            found = _LINE.fullmatch(line)
            assert found is not None, line
            locked[normalised(found[1])] = found[2]
    pinned = dict(pin.split("==") for pin in pins((ROOT / "constraints.txt").read_text()))
    wanted = {normalised(name): version for name, version in pinned.items()}
    assert locked == wanted, "run `make lock`"
    assert not {"torch", "torchvision"} & locked.keys()


def test_a_lock_names_neither_an_address_nor_a_file() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    item = {
        "metadata": {"name": "b", "version": "1"},
        "download_info": {"url": "https://example.org/b.whl", "archive_info": {"hashes": {"sha256": "0" * 64}}},
    }
    assert lock_of({"install": [item]}).splitlines()[1] == f"b==1 --hash=sha256:{'0' * 64}"


def test_the_bill_of_materials_names_what_is_installed() -> None:
    bill = bill_of_materials()
    assert bill["metadata"]["component"]["name"] == "feddbp"
    names = {component["name"] for component in bill["components"]}
    assert {"grpcio", "numpy", "torch"} <= names
    assert bill == bill_of_materials()
