"""The modes of computing: process-wide settings of torch, and what they change in a model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

import torch
from torch import nn

from feddbp_client.compute.devices import card_of
from feddbp_client.compute.hardware import Hardware
from feddbp_client.config import Mode
from feddbp_client.models.blocks import backbones_in

_WORKSPACE_VARIABLE: Final = "CUBLAS_WORKSPACE_CONFIG"
_DETERMINISTIC_WORKSPACES: Final = (":4096:8", ":16:8")
"""The values with which cuBLAS adds in a fixed order."""
_FIRST_COMPILED: Final = (7, 0)
"""Triton, which compiles for GPUs, has no support for older cards."""


def set_mode(mode: Mode) -> None:
    """Sets the mode of this process; to be called before CUDA starts."""
    match mode:
        case Mode.DETERMINISTIC:
            if os.environ.get(_WORKSPACE_VARIABLE) not in _DETERMINISTIC_WORKSPACES:
                os.environ[_WORKSPACE_VARIABLE] = _DETERMINISTIC_WORKSPACES[0]
            # operations without a deterministic algorithm raise an error
            torch.use_deterministic_algorithms(True)
            # only for programs that read memory before they have written it
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
            _allow_tf32(False)
        case Mode.FAST:
            torch.backends.cudnn.benchmark = True
            _allow_tf32(True)
        case Mode.DEFAULT:
            pass


def tune(method: nn.Module, device: torch.device, hardware: Hardware) -> None:
    """Prepares the backbones of a method for Mode.FAST, in place: names in its state stay the same.

    On a CPU nothing is done: with its convolutions channels last, ResNet-18 takes 8 to 20 % longer there.
    """
    if device.type != "cuda":
        return
    compiled = can_compile(device, hardware)
    for backbone in backbones_in(method):
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compiled:
            compile_in_place(backbone)


def can_compile(device: torch.device, hardware: Hardware) -> bool:
    card = card_of(device, hardware)
    return card is not None and card.capability >= _FIRST_COMPILED and find_spec("triton") is not None


def compile_in_place(backbone: nn.Module, **options: object) -> None:
    """Compiles the parts of a backbone at their first use; one that cannot be compiled is run as it is."""
    torch._dynamo.config.suppress_errors = True
    for part in backbone.children():
        part.compile(**options)


def _allow_tf32(allowed: bool) -> None:
    # not set_float32_matmul_precision(), which would change products on the CPU as well
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
