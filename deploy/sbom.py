"""Writes a CycloneDX bill of materials of this environment: every installed distribution with version and licence.

sbom.py FILE
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PROJECT = "feddbp"


def component(distribution: Distribution) -> dict[str, Any]:
    metadata = distribution.metadata
    name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{distribution.version}",
        "name": name,
        "version": distribution.version,
        "purl": f"pkg:pypi/{name}@{distribution.version}",
    }
    if "License-Expression" in metadata:
        found["licenses"] = [{"expression": metadata["License-Expression"]}]
    return found


def bill_of_materials() -> dict[str, Any]:
    """The same for the same environment: it has no time and no serial number."""
    components = sorted(map(component, distributions()), key=lambda found: found["bom-ref"])
    by_name = {found["name"]: found for found in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**by_name[PROJECT], "type": "application"}},
        "components": [found for name, found in by_name.items() if name != PROJECT],
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill_of_materials(), indent=2) + "\n", encoding="utf-8")
