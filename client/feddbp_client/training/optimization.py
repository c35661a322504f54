"""Steps of a client's weights: the optimiser, its learning-rate schedule, and clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from feddbp_client.compute.precision import Precision
from feddbp_client.methods.base import LocalMethod
from feddbp_client.training.references import load_reference
from feddbp_common.config.training import TrainingConfig
from feddbp_common.config.types import REFERENCE_MARK
from feddbp_common.errors import ConfigurationError, FedDBPError, one_line

MakeOptimizer = Callable[..., torch.optim.Optimizer]
"""Called with parameter groups that have their learning rate, and with `momentum` and `weight_decay` by keyword."""


_SHORT_STEP: Final = 1.0
"""Norm of the gradient in short steps."""


class OptimizerStateError(FedDBPError):
    """State of an optimiser that cannot be stored, or does not fit the optimiser it is loaded into."""


def learning_rate_factor(training: TrainingConfig, progress: float, rounds: int) -> float:
    """The factor of all learning rates after `progress` of the client's rounds; fractions are parts of a round."""
    match training.schedule:
        case "cosine":
            return (1 + math.cos(math.pi * min(1.0, progress / rounds))) / 2
        case "step":
            return training.schedule_factor ** (int(progress) // training.schedule_rounds)
        case "constant":
            return 1.0


def own_optimizer(training: TrainingConfig, *, allowed: Sequence[str]) -> MakeOptimizer | None:
    """The function that a run names to make its optimiser; None if it names a built-in one."""
    if REFERENCE_MARK not in training.optimizer:
        return None
    make: MakeOptimizer = load_reference(training.optimizer, allowed, what="the run's optimizer")
    return make


class Optimization:
    """Trains a method's parameters as a run asks for. The optimiser starts afresh every round unless it is kept."""

    def __init__(
        self,
        method: LocalMethod,  # type: ignore[type-arg]
        training: TrainingConfig,
        precision: Precision,
        *,
        rounds: range,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self._method = method
        self._training = training
        self._precision = precision
        self._rounds = rounds
        """In which the client trains; the schedule extends over them."""
        self._make = make_optimizer or _BUILTIN[training.optimizer]
        self._optimizer: torch.optim.Optimizer | None = None
        self._learning_rates: list[float] = []
        """Of the parameter groups, before the schedule."""
        self._scaler = precision.scaler()
        self._round = 0
        self._steps = 0
        self._steps_in_round = 1
        self._clip_norm = training.clip_norm

    def check(self) -> None:
        """Makes the optimiser once, so that one of a user's own fails before the client joins, and not in a round."""
        try:
            optimizer = self._new_optimizer()
        except Exception as error:  # a user's function may raise anything
            raise ConfigurationError(f"the run's optimizer {self._training.optimizer}: {one_line(error)}") from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            returned = type(optimizer).__name__
            raise ConfigurationError(
                f"the run's optimizer {self._training.optimizer}: returned {returned}, not a torch.optim.Optimizer"
            )
        if len(optimizer.param_groups) != len(self._learning_rates):
            raise ConfigurationError(
                f"the run's optimizer {self._training.optimizer}: has {len(optimizer.param_groups)} parameter groups, "
                f"but was given {len(self._learning_rates)}"
            )

    def begin_round(self, round_number: int, steps: int) -> None:
        """Prepares for a round of so many steps."""
        self._round, self._steps, self._steps_in_round = round_number, 0, max(1, steps)
        if self._optimizer is None or not self._training.keep_optimizer:
            self._optimizer = self._new_optimizer()
        self._scaler = self._precision.scaler()

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of the loss."""
        optimizer = self._current
        self._set_learning_rates(optimizer)
        optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(optimizer)
        self._method.clip_gradients()
        if self._clip_norm:
            nn.utils.clip_grad_norm_(self._method.parameters(), self._clip_norm)
        self._scaler.step(optimizer)
        self._scaler.update()
        self._steps += 1

    @contextmanager
    def in_short_steps(self) -> Iterator[None]:
        """Clips gradients to a norm with which a step changes little, whatever the run says."""
        self._clip_norm = _SHORT_STEP
        try:
            yield
        finally:
            self._clip_norm = self._training.clip_norm

    def end_round(self) -> None:
        """Frees gradients, and the optimiser's state unless it is kept."""
        self._current.zero_grad(set_to_none=True)
        if not self._training.keep_optimizer:
            self._optimizer = None

    def state(self) -> dict[str, Tensor]:
        """What outlives a round: the optimiser's state where it is kept, by parameter and name."""
        if self._optimizer is None or not self._training.keep_optimizer:
            return {}
        return dict(_flat(self._optimizer))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continues with the state of a checkpoint; without any, the optimiser starts afresh."""
        self._optimizer = None
        if not state:
            return
        if not self._training.keep_optimizer:
            raise OptimizerStateError("the checkpoint has an optimiser's state, but the run does not keep it")
        optimizer = self._new_optimizer()
        _restore(optimizer, state)
        self._optimizer = optimizer

    def move_to(self, device: torch.device) -> None:
        """Moves the optimiser's state to the device of its parameters."""
        if self._optimizer is None:
            return
        for parameter, group in _parameters(self._optimizer):
            values = self._optimizer.state.get(parameter, {})
            for name, value in values.items():
                values[name] = _placed(value, device, group)

    @property
    def _current(self) -> torch.optim.Optimizer:
        assert self._optimizer is not None, "a round has begun"
        return self._optimizer

    def _new_optimizer(self) -> torch.optim.Optimizer:
        groups = self._method.parameter_groups(self._training.learning_rate)
        self._learning_rates = [group["lr"] for group in groups]
        return self._make(groups, momentum=self._training.momentum, weight_decay=self._training.weight_decay)

    def _set_learning_rates(self, optimizer: torch.optim.Optimizer) -> None:
        if self._training.schedule == "constant":
            return
        progress = self._round - self._rounds.start + self._steps / self._steps_in_round
        factor = learning_rate_factor(self._training, progress, len(self._rounds))
        for group, learning_rate in zip(optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = learning_rate * factor


def _adamw(groups: list[dict[str, Any]], *, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    del momentum  # refused when the run is configured
    return torch.optim.AdamW(groups, weight_decay=weight_decay)


_BUILTIN: dict[str, MakeOptimizer] = {"sgd": torch.optim.SGD, "adamw": _adamw}


def _flat(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The state of every parameter, and what the optimiser has changed in its groups, as tensors of exact types."""
    for number, (parameter, _) in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                yield _stored(f"parameter.{number}", name, value)
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name not in ("params", "lr") and isinstance(value, Tensor | int | float):
                yield _stored(f"group.{number}", name, value)


def _restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Sets the state itself: `load_state_dict` of an optimiser would cast it to the types of parameters."""
    parameters = _parameters(optimizer)
    try:
        for key, tensor in state.items():
            owner, number, kind, name = key.split(".", 3)
            value = tensor.clone() if kind == "tensor" else tensor.item()
            if owner == "parameter":
                parameter, group = parameters[int(number)]
                optimizer.state[parameter][name] = _placed(value, parameter.device, group)
            else:
                optimizer.param_groups[int(number)][name] = value
    except (IndexError, ValueError) as error:
        raise OptimizerStateError(f"the optimiser's state in the checkpoint does not fit: {error}") from error


def _parameters(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, dict[str, Any]]]:
    """All parameters, each with its group."""
    return [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]


def _placed(value: Any, device: torch.device, group: Mapping[str, Any]) -> Any:
    """The value on the device; torch keeps counters on the host, but for kernels that read them themselves."""
    if isinstance(value, Tensor) and (value.dim() or group.get("fused") or group.get("capturable")):
        return value.to(device)
    return value


def _stored(owner: str, name: str, value: Any) -> tuple[str, Tensor]:
    if isinstance(value, Tensor):
        return f"{owner}.tensor.{name}", value.detach()
    if isinstance(value, int | float):
        kept = torch.float64 if isinstance(value, float) else torch.bool if isinstance(value, bool) else torch.int64
        return f"{owner}.number.{name}", torch.tensor(value, dtype=kept)
    raise OptimizerStateError(
        f"the optimiser's state {name!r} is a {type(value).__name__}; only tensors and numbers can be kept over rounds"
    )
