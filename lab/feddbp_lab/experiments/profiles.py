"""Profiles: the size of an experiment's runs, as in the paper or small enough for a few cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from feddbp_common.errors import ConfigurationError

PAPER_EPOCHS: Final = 10
PAPER_LEARNING_RATE: Final = 0.01
QUICK_EPOCHS: Final = 2
QUICK_ROUNDS: Final = 15


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Default options for every run of an experiment; the experiment's own options override them."""

    title: str
    base: Mapping[str, Any]
    epochs: int
    seeds: tuple[int, ...] = (0, 1, 2)
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By method, settings that are scaled down with the runs; else the server would take longer than the clients."""

    def scaled_epochs(self, epochs: int) -> int:
        """Epochs of the paper scaled to this profile's epochs, at least one."""
        return max(1, round(epochs * self.epochs / PAPER_EPOCHS))

    def options_for(self, method: str) -> dict[str, Any]:
        return {f"method_settings.{name}": value for name, value in self.method_settings.get(method, {}).items()}


def _profile(
    title: str,
    *,
    model_group: str,
    epochs: int,
    learning_rate: float,
    rounds: int,
    method_settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Profile:
    training = {
        "model_group": model_group,
        "local_epochs": epochs,
        "batch_size": 32,
        "learning_rate": learning_rate,
    }
    base = {"clients": 20, "rounds": rounds, "data": {"alpha": 0.1}, "training": training}
    return Profile(title=title, base=base, epochs=epochs, method_settings=method_settings)


PROFILES: Final = MappingProxyType(
    {
        "paper": _profile(
            "as in the paper: HtFE-img-8, 100 rounds of 10 epochs, learning rate 0.01",
            model_group="htfe-8",
            epochs=PAPER_EPOCHS,
            learning_rate=PAPER_LEARNING_RATE,
            rounds=100,
        ),
        "quick": _profile(
            f"eight small architectures, {QUICK_ROUNDS} rounds of {QUICK_EPOCHS} epochs, learning rate 0.05",
            model_group="mini-8",
            epochs=QUICK_EPOCHS,
            learning_rate=0.05,
            rounds=QUICK_ROUNDS,
            # FedTGP's server trains for 100 epochs in the paper, scaled down here like the clients' 10. Its learning
            # rate stays the paper's: with the clients' larger one, accuracy on CIFAR-100 is six points lower.
            method_settings={
                "fedtgp": {
                    "server_epochs": 100 * QUICK_EPOCHS // PAPER_EPOCHS,
                    "server_learning_rate": PAPER_LEARNING_RATE,
                }
            },
        ),
    }
)


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise ConfigurationError(f"no profile is called {name!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]
