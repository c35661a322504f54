"""A head that all clients share: downloaded each round, trained, and uploaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from feddbp_client.methods.base import SettingsT
from feddbp_client.methods.plain import PlainModel
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.linear_head import HEAD_BIAS, HEAD_WEIGHT
from feddbp_common.wire import Payload
from feddbp_common.wire.payload import FloatArray


class SharedHeadModel(PlainModel[SettingsT]):
    """An own backbone with the shared head; predictions use the newest head."""

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        with torch.no_grad():
            for name, parameter in self._head_parameters().items():
                parameter.copy_(torch.tensor(payload.tensors[name]))

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return Payload(tensors={name: _as_array(tensor) for name, tensor in self._head_parameters().items()})

    def _head_parameters(self) -> dict[str, Tensor]:
        assert isinstance(self.head, nn.Linear)  # a run whose heads differ is refused when it is configured
        return {HEAD_WEIGHT: self.head.weight, HEAD_BIAS: self.head.bias}


def _as_array(parameter: Tensor) -> FloatArray:
    """A copy, as training continues to change the parameter."""
    array: FloatArray = parameter.detach().float().cpu().clone().numpy()
    return array
