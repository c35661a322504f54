"""What a server can do beyond version 0.1.0, as it names it in `GetRun`; clients use what it names."""

from __future__ import annotations

from typing import Final

ADMISSION_FEATURE: Final = "upload.admission"
"""Clients may wait until their upload's header is admitted before they send the body."""
ADMITTED_METADATA_KEY: Final = "feddbp-admitted"
"""Initial metadata of an upload whose header was admitted."""
PUSHED_STATE_FEATURE: Final = "follow.state"
"""The event of a round has the client's state in it."""
UPLOADED_REPORT_FEATURE: Final = "upload.report"
"""An upload may have the client's report in its header."""
