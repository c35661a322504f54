"""The command `feddbp` with clients that only pretend."""

from __future__ import annotations

import sys

from feddbp_lab import federation
from feddbp_lab.cli import main

federation.CLIENT_MODULE = "lab_fake_client"  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main())
