"""The one release of a client in a run: drawn once, stored, entered into the ledger, and only then sent.

A client that is killed in between finds its release on disk and sends the same bytes; a second draw would let the noise
be averaged away.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from feddbp_client.privacy.ledger import Entry, Ledger
from feddbp_common.artifacts import RELEASE_NAME
from feddbp_common.atomic_files import replace_private
from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.differential_privacy.accountant import best_order, epsilon_of, noise_for
from feddbp_common.differential_privacy.mechanism import Table, variance_of, with_noise
from feddbp_common.errors import ConfigurationError, FedDBPError
from feddbp_common.fault_injection import fault_point
from feddbp_common.optional_deps import require

log = logging.getLogger("feddbp.client")

_AGREEMENT: Final = 1e-3
"""Relative difference of two accountants; the other one tries only some orders."""


class AccountantsDisagreeError(FedDBPError):
    """Two computations of epsilon differ: nothing is released."""


class PrivateRelease:
    """Draws a client's release of a run, or finds the one that was drawn before."""

    def __init__(
        self, directory: Path, ledger: Ledger, privacy: PrivacyConfig, *, run_id: str, client_id: int, sharers: int
    ) -> None:
        self._path = directory / RELEASE_NAME
        self._ledger = ledger
        self._client_id = client_id
        multiplier = noise_for(privacy.epsilon, privacy.delta)
        epsilon = confirmed_epsilon(multiplier, privacy.delta)
        self._variance = variance_of(multiplier, clients=sharers)
        self._entry = Entry(run_id=run_id, noise_multiplier=multiplier, epsilon=epsilon, delta=privacy.delta)

    def check(self) -> None:
        """Raises ConfigurationError if this client may not, or cannot, release anything in this run."""
        if self._ledger.has(self._entry.run_id) and not self._path.exists():
            raise ConfigurationError(
                f"client {self._client_id} has made its release of run {self._entry.run_id} before, and {self._path} "
                "is gone; restore it from a backup, or start another run: a second draw would spend the budget twice"
            )
        self._ledger.check(self._entry)

    def __call__(self, exact: Callable[[], Table]) -> Table:
        """The table with noise; the exact one is computed only if there is no release yet."""
        self.check()
        table = self._stored()
        if table is None:
            table = with_noise(exact(), self._variance)
            self._store(table)
        fault_point("client.release.stored")
        self._ledger.record(self._entry)
        fault_point("client.release.recorded")
        return table

    def _stored(self) -> Table | None:
        if not self._path.exists():
            return None
        try:
            table = np.load(self._path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error}; restore it from a backup") from None
        return np.asarray(table, dtype=np.int64)

    def _store(self, table: Table) -> None:
        stored = io.BytesIO()
        np.save(stored, table, allow_pickle=False)
        replace_private(self._path, stored.getvalue())  # in a secure sum it has only a share of the noise
        entry = self._entry
        log.info(
            "client %d has drawn its release: epsilon %.4g at delta %g for any one of its training samples",
            self._client_id,
            entry.epsilon,
            entry.delta,
        )


@cache
def confirmed_epsilon(noise_multiplier: float, delta: float) -> float:
    """Epsilon by `dp-accounting`, if ours agrees with it."""
    require("dp = frozen", ("dp_accounting",), extra="privacy")
    import dp_accounting  # takes seconds

    order = best_order(noise_multiplier, delta)
    orders = [1 + (order - 1) * factor for factor in np.geomspace(0.5, 2, 1001)]
    accountant = dp_accounting.rdp.RdpAccountant(orders=orders)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier))
    found, own = float(accountant.get_epsilon(delta)), epsilon_of(noise_multiplier, delta)
    if abs(found - own) > _AGREEMENT * own:
        raise AccountantsDisagreeError(
            f"epsilon is {found:g} by dp-accounting and {own:g} by feddbp; nothing is released"
        )
    return max(found, own)


def prepare_release(
    privacy: PrivacyConfig, directory: Path, *, run_id: str, client_id: int, budget: float, sharers: int = 1
) -> PrivateRelease | None:
    """The release of a run that promises differential privacy, checked against the budget; None in any other run.

    `sharers` is the fewest clients whose releases are only ever seen as their sum, which have the noise together.
    """
    if privacy.dp == "off":
        return None
    state_dir = directory.parent.parent  # of the client in all its runs
    ledger = Ledger(state_dir / f"client-{client_id}.ledger.jsonl", client_id=client_id, budget=budget)
    release = PrivateRelease(directory, ledger, privacy, run_id=run_id, client_id=client_id, sharers=sharers)
    release.check()
    return release
