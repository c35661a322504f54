"""Whether a run can do with sums over clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS
from feddbp_common.secure_sums import MAX_CLIENTS, MIN_CLIENTS

if TYPE_CHECKING:
    from feddbp_common.config.run import RunConfig


def check_sums(run: RunConfig) -> None:
    """Raises unless the server of the run needs nothing but sums over clients, and may have them."""
    name, wanted = run.method, "secure_sums" if run.privacy.secure_sums else "sums = fixed"
    if run.method_spec.sum_weights(run.settings) is None:
        raise ConfigurationError(
            f"{wanted}: the server of {name} with these settings needs more than sums over clients; "
            f"methods that do not: {', '.join(_summed_methods())}"
        )
    if run.method_spec.fuses and run.privacy.fusion != "client":
        raise ConfigurationError(f"{wanted}: clients of {name} have to fuse for themselves; add fusion = client")
    if run.aggregation.rule != "mean":
        raise ConfigurationError(
            f"{wanted}: aggregation {run.aggregation.rule} compares the uploads of clients, but the server sees only "
            "their sum; leave aggregation at mean"
        )
    alone = next((field for field in ("finetune_rounds", "newcomers") if getattr(run, field)), None)
    if run.exchange == "off" or alone is not None:
        raise ConfigurationError(
            f"{wanted}: with {alone or 'exchange = off'} the server would need the upload of a single client"
        )
    if run.privacy.secure_sums and not MIN_CLIENTS <= run.clients <= MAX_CLIENTS:
        raise ConfigurationError(
            f"secure_sums: the run has {run.clients} clients; sums are over {MIN_CLIENTS} to {MAX_CLIENTS}"
        )
    if run.privacy.secure_sums and run.clients * run.participation < MIN_CLIENTS:
        raise ConfigurationError(f"secure_sums: fewer than {MIN_CLIENTS} clients would take part in a round")


def _summed_methods() -> list[str]:
    return [name for name, method in METHODS.items() if method.sum_weights(method.settings()) is not None]
