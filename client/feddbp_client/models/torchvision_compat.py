"""The one place that imports torchvision.

torchvision's wheels are built against one build of torch. Beside another build (a CUDA torchvision and a CPU torch, as
plain pip installs them) its compiled library does not load, and the import fails with "operator torchvision::nms does
not exist", because torchvision registers implementations for operators that were never declared. This project uses none
of them: declaring the missing schemas makes the import work.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

import torch

from feddbp_common.errors import ConfigurationError
from feddbp_common.optional_deps import install_command

_SCHEMAS: Final = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[torch.library.Library] = []
"""Kept until the process ends: the schemas are removed when a library is garbage-collected."""


@functools.cache
def torchvision() -> ModuleType:
    """The torchvision package, imported on first use: it takes a second."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"this needs torchvision: {install_command('client')}")
    if not _compiled_library_loads(Path(spec.origin).parent):
        _declare_missing_operators()
    return import_module("torchvision")


def _compiled_library_loads(package: Path) -> bool:
    for library in (package / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES):
        if not library.exists():
            continue
        try:
            torch.ops.load_library(str(library))
        except OSError:
            return False
    return _is_declared("nms")


def _declare_missing_operators() -> None:
    for name, schema in _SCHEMAS.items():
        if not _is_declared(name):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(schema)
            _declared.append(library)


def _is_declared(operator: str) -> bool:
    return hasattr(torch.ops.torchvision, operator)
