"""--reproducible: one instruction set on every x86-64 CPU, so that the same run has the same bits on another one.

Libraries choose their kernels by the CPU they find, and kernels of another width sum in another order. They read these
variables when they are loaded: AVX2 is what every x86-64 server and laptop of the last decade has.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Final

from feddbp_common.errors import ConfigurationError

VARIABLES: Final = MappingProxyType(
    {
        "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # convolutions
        "MKL_CBWR": "AVX2",  # matrix products, where torch is built with MKL
        "OPENBLAS_CORETYPE": "Haswell",  # matrix products of numpy
    }
)
_CPU_INFO: Final = Path("/proc/cpuinfo")


def restrict_instructions(*, cpu_info: Path = _CPU_INFO) -> None:
    """Restricts torch and numpy to AVX2; to be called before either is imported."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ConfigurationError(f"--reproducible is for x86-64; this is {platform.machine()}")
    if cpu_info.exists() and "avx2" not in cpu_info.read_text().split():
        raise ConfigurationError("--reproducible needs a CPU with AVX2, which this one has not")
    is_set = all(os.environ.get(name) == value for name, value in VARIABLES.items())
    loaded = [library for library in ("torch", "numpy") if library in sys.modules]
    if loaded and not is_set:
        raise ConfigurationError(f"--reproducible: {loaded[0]} is loaded already; set {', '.join(VARIABLES)} before")
    os.environ.update(VARIABLES)
