"""How large the runs of an experiment are: as the paper's, or small enough for a few cores."""

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
    """Options every run of an experiment begins with; the experiment's own come on top."""

    title: str
    base: Mapping[str, Any]
    epochs: int
    seeds: tuple[int, ...] = (0, 1, 2)
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By method: settings that have to shrink with the runs, lest the server takes longer than the clients."""

    def scaled_epochs(self, epochs: int) -> int:
        """As many epochs in proportion to this profile's as the paper's to its own; at least one."""
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
            "as the paper says: HtFE-img-8, 100 rounds of 10 epochs, learning rate 0.01",
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
            # FedTGP's server has as many of its hundred passes as there are of the paper's ten local epochs. Its step
            # stays the paper's: at the clients' larger one its prototypes pull so hard that CIFAR-100 loses six points.
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
