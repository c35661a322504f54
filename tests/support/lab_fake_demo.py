"""The command `feddbp` with client processes that do not train (`lab_fake_client`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from feddbp_lab.cli import main
from feddbp_lab.processes import local_federation

_CHECKOUT = Path(__file__).parents[2]


def python_path() -> str:
    """The PYTHONPATH with which a process and its children find this module, `lab_fake_client` and `benchmarks`."""
    inherited = filter(None, (os.environ.get("PYTHONPATH"),))
    return os.pathsep.join((str(_CHECKOUT / "tests" / "support"), str(_CHECKOUT), *inherited))


if __name__ == "__main__":
    local_federation.CLIENT_MODULE = "lab_fake_client"  # type: ignore[misc]
    sys.exit(main())
