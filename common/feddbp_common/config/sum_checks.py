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
            f"with {wanted} the server sees only sums over clients, but that of {name} needs more with these settings; "
            f"methods that do with sums: {', '.join(_summed_methods())}"
        )
    if run.method_spec.fuses and run.privacy.fusion != "client":
        raise ConfigurationError(f"with {wanted} clients of {name} have to fuse for themselves; add fusion = client")
    if run.aggregation.rule != "mean":
        raise ConfigurationError(
            f"with {wanted} the server sees only sums over clients, but aggregation {run.aggregation.rule} compares "
            "their uploads; leave aggregation at mean"
        )
    alone = next((field for field in ("finetune_rounds", "newcomers") if getattr(run, field)), None)
    if run.exchange == "off" or alone is not None:
        raise ConfigurationError(
            f"with {wanted} the server sees only sums over clients, but {alone or 'exchange = off'} needs the upload "
            "of a single one"
        )
    if run.privacy.secure_sums and not MIN_CLIENTS <= run.clients <= MAX_CLIENTS:
        raise ConfigurationError(
            f"a secure sum is over {MIN_CLIENTS} to {MAX_CLIENTS} clients; the run has {run.clients}"
        )
    if run.privacy.secure_sums and run.clients * run.participation < MIN_CLIENTS:
        raise ConfigurationError(f"a secure sum needs {MIN_CLIENTS} clients, but fewer would take part in a round")


def _summed_methods() -> list[str]:
    return [name for name, method in METHODS.items() if method.sum_weights(method.settings()) is not None]
