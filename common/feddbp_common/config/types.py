"""The base of everything that is configured."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Checked fields and no others, numbers that are finite, and no change once it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
