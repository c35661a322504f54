"""An exponential moving average of a client's weights, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_STEPS = "steps"


class WeightAverage:
    """Averages parameters and the statistics of batch norm after every step.

    The decay begins low and rises to its value, so that the random first weights are soon forgotten. Uploads are made
    from the weights themselves.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._module = module
        self._decay = decay
        self._steps = 0
        self._average = {name: tensor.detach().clone() for name, tensor in _averaged(module).items()}

    @torch.no_grad()
    def update(self) -> None:
        """Adds the current weights to the average."""
        self._steps += 1
        decay = min(self._decay, self._steps / (self._steps + 9))
        current = _averaged(self._module)
        torch._foreach_lerp_(list(self._average.values()), [current[name] for name in self._average], 1 - decay)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Weights that change in this block, because the server's are received, replace their average too."""
        before = {name: tensor.detach().clone() for name, tensor in _averaged(self._module).items()}
        yield
        for name, tensor in _averaged(self._module).items():
            if not torch.equal(tensor, before[name]):
                self._average[name].copy_(tensor.detach())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module has the averaged weights in this block."""
        own = {name: tensor.detach().clone() for name, tensor in _averaged(self._module).items()}
        self._set(self._average)
        try:
            yield
        finally:
            self._set(own)

    def state(self) -> dict[str, Tensor]:
        return {_STEPS: torch.tensor(self._steps), **self._average}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._steps = int(state[_STEPS])
        for name, tensor in self._average.items():
            tensor.copy_(state[name])

    def move_to(self, device: torch.device) -> None:
        """Moves the average to the device of the weights."""
        self._average = {name: tensor.to(device) for name, tensor in self._average.items()}

    @torch.no_grad()
    def _set(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in _averaged(self._module).items():
            tensor.copy_(weights[name])


def averaged_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averaged weights of a stored state, by their names in the module."""
    return {name: tensor for name, tensor in state.items() if name != _STEPS}


def _averaged(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, and running statistics; other buffers are not weights and have no mean."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    for prefix, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None:
            assert part.running_var is not None
            dot = f"{prefix}." if prefix else ""
            found |= {f"{dot}running_mean": part.running_mean, f"{dot}running_var": part.running_var}
    return found
