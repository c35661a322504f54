"""Names the tests that a run of pytest has skipped, by reason.

python deploy/skipped_tests.py REPORT.xml, which `pytest --junitxml` has written
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

_WHOLE_MODULE: Final = "collection skipped"
"""What pytest writes for a module that is skipped as a whole; path, line and reason are in the text."""


def skipped_by_reason(report: Path) -> dict[str, list[str]]:
    """The files of skipped tests, one for each test; expected failures are not among them."""
    files: dict[str, list[str]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        for skip in case.findall("skipped"):
            if skip.get("type") == "pytest.xfail":
                continue
            reason = skip.get("message", "")
            if reason == _WHOLE_MODULE:
                reason = str(ast.literal_eval(skip.text or "")[-1]).removeprefix("Skipped: ")
            files[reason].append(_file(case.get("classname") or case.get("name") or ""))
    return files


def _file(name: str) -> str:
    """The file of a test or of its class, from the dotted name."""
    module, separator, test = name.rpartition(".test_")
    return f"{module}{separator}{test.partition('.')[0]}".replace(".", "/") + ".py"


def main(report: Path) -> None:
    found = skipped_by_reason(report)
    if not found:
        print("gate: passed, and no test was skipped")
        return
    print(f"gate: passed, but {sum(map(len, found.values()))} tests or modules were SKIPPED on this machine:")
    for reason, files in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"  {len(files):4d}  {reason}: {', '.join(sorted(set(files)))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
