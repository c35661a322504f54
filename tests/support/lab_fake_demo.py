"""The command `feddbp` with clients that only pretend."""

from __future__ import annotations

import sys

from feddbp_lab.cli import main
from feddbp_lab.processes import local_federation as federation

federation.CLIENT_MODULE = "lab_fake_client"  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main())
