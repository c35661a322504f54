"""Profiles: the size and the training of an experiment's runs, as in the paper or small enough for a few cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from feddbp_common.config.nested import dotted
from feddbp_common.errors import ConfigurationError

PAPER_EPOCHS: Final = 10
PAPER_LEARNING_RATE: Final = 0.01
QUICK_EPOCHS: Final = 2
_SEEDS: Final = (0, 1, 2)

# FedTGP's server trains for 100 epochs in the paper, scaled down here like the clients' 10: else it would take longer
# than the clients. Its learning rate stays the paper's: with the clients' larger one, accuracy on CIFAR-100 is six
# points lower.
_SHORTER_FEDTGP: Final = {
    "method_settings.server_epochs": 100 * QUICK_EPOCHS // PAPER_EPOCHS,
    "method_settings.server_learning_rate": PAPER_LEARNING_RATE,
}
_SMALL_IMAGES: Final = {name: {"data.image_size": 32} for name in ("flowers102", "tiny-imagenet")}
_TUNED: Final = {
    "learning_rate": 0.02,
    "momentum": 0.9,
    "keep_optimizer": True,
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "augment": "flip-crop",
    "validation": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Default options for every run of an experiment; the experiment's own options override them."""

    title: str
    base: Mapping[str, Any]
    epochs: int
    seeds: tuple[int, ...] = _SEEDS
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by dotted name, for runs of a method, of a method with a preset (NAME:PRESET), or on a data set."""

    def scaled_epochs(self, epochs: int) -> int:
        """Epochs of the paper scaled to this profile's epochs, at least one."""
        return max(1, round(epochs * self.epochs / PAPER_EPOCHS))

    def options_for(self, names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
        """The options, by dotted name, of a run of these names for which some options are given."""
        options = dotted(self.base)
        for name in names:
            options |= self.special.get(name, {})
        rounds = str(given.get("rounds", ""))
        if rounds.isdecimal() and "finetune_rounds" in options:
            # the same share of another number of rounds
            options["finetune_rounds"] = int(rounds) * options["finetune_rounds"] // options["rounds"]
        return options


def _profile(
    title: str,
    *,
    epochs: int,
    rounds: int,
    training: Mapping[str, Any],
    seeds: tuple[int, ...] = _SEEDS,
    special: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    **options: Any,
) -> Profile:
    base = {
        "clients": 20,
        "rounds": rounds,
        "data": {"alpha": 0.1},
        "training": {"model_group": "mini-8", "local_epochs": epochs, "batch_size": 32, **training},
        **options,
    }
    return Profile(title=title, base=base, epochs=epochs, seeds=seeds, special=special)


PROFILES: Final = MappingProxyType(
    {
        "quick": _profile(
            f"eight small networks, 40 rounds of {QUICK_EPOCHS} epochs, tuned training",
            epochs=QUICK_EPOCHS,
            rounds=40,
            finetune_rounds=8,
            training=_TUNED,
            special={"fedtgp": _SHORTER_FEDTGP, **_SMALL_IMAGES},
        ),
        "smoke": _profile(
            "8 clients, 3 rounds of 1 epoch: to see that everything runs",
            epochs=1,
            rounds=3,
            clients=8,
            finetune_rounds=1,
            training=_TUNED,
            seeds=(0,),
            special={"fedtgp": _SHORTER_FEDTGP, **_SMALL_IMAGES},
        ),
        "paper": _profile(
            "as in the paper: HtFE-img-8, 100 rounds of 10 epochs, rate 0.01",
            epochs=PAPER_EPOCHS,
            rounds=100,
            training={"model_group": "htfe-8", "learning_rate": PAPER_LEARNING_RATE},
        ),
        "short": _profile(
            f"quick of version 0.1.0: 15 rounds of {QUICK_EPOCHS} epochs, nothing tuned",
            epochs=QUICK_EPOCHS,
            rounds=15,
            training={"learning_rate": 0.05},
            special={"fedtgp": _SHORTER_FEDTGP},
        ),
    }
)


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise ConfigurationError(f"no profile is called {name!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]
