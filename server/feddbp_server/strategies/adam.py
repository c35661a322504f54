"""Adam in numpy, for the small networks the server trains without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import numpy as np

from feddbp_common.wire.payload import AnyArray
from feddbp_server.strategies.numerics import Wide

ADAM: Final = "adam."
"""Prefix of the optimiser's tensors, which are stored between rounds and not sent to clients."""

_STEPS: Final = ADAM + "steps"
_MEAN: Final = ADAM + "mean."
_SQUARE: Final = ADAM + "square."
_MEAN_DECAY: Final = 0.9
_SQUARE_DECAY: Final = 0.999
_EPSILON: Final = 1e-8


class Adam:
    """The Adam optimiser."""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._steps = 0
        self._means: dict[str, Wide] = {}
        self._squares: dict[str, Wide] = {}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, AnyArray], learning_rate: float) -> Self:
        """Restores the state that `tensors` returned; a new optimiser where there is none."""
        adam = cls(learning_rate)
        for name, tensor in tensors.items():
            if name == _STEPS:
                adam._steps = int(tensor[0])
            elif name.startswith(_MEAN):
                adam._means[name.removeprefix(_MEAN)] = tensor.astype(np.float64)
            elif name.startswith(_SQUARE):
                adam._squares[name.removeprefix(_SQUARE)] = tensor.astype(np.float64)
        return adam

    def tensors(self) -> dict[str, AnyArray]:
        state: dict[str, AnyArray] = {_STEPS: np.array([self._steps], dtype=np.int32)}
        state |= {_MEAN + name: mean.astype(np.float32) for name, mean in self._means.items()}
        state |= {_SQUARE + name: square.astype(np.float32) for name, square in self._squares.items()}
        return state

    def step(self, parameters: Mapping[str, Wide], gradients: Mapping[str, Wide]) -> None:
        """Changes the parameters in place."""
        self._steps += 1
        for name, gradient in gradients.items():
            mean = self._means.setdefault(name, np.zeros_like(gradient))
            square = self._squares.setdefault(name, np.zeros_like(gradient))
            mean += (1 - _MEAN_DECAY) * (gradient - mean)
            square += (1 - _SQUARE_DECAY) * (np.square(gradient) - square)
            # both start at zero, which biases them in the first steps
            unbiased_mean = mean / (1 - _MEAN_DECAY**self._steps)
            unbiased_square = square / (1 - _SQUARE_DECAY**self._steps)
            parameter = parameters[name]
            parameter -= self._learning_rate * unbiased_mean / (np.sqrt(unbiased_square) + _EPSILON)
