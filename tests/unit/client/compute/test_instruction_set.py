"""--reproducible: one instruction set for every x86-64 CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from feddbp_client.compute.instruction_set import VARIABLES, restrict_instructions
from feddbp_client.config import ComputeConfig
from feddbp_common.errors import ConfigurationError

PRINT = (
    "from feddbp_client.compute.instruction_set import restrict_instructions as r; r(); "
    "import torch; print(torch.backends.cpu.get_cpu_capability())"
)
is_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="another kind of CPU")


@is_x86
def test_torch_uses_avx2_alone() -> None:
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    shown = subprocess.run([sys.executable, "-c", PRINT], check=True, capture_output=True, text=True, env=clean)
    assert shown.stdout == "AVX2\n"


@is_x86
def test_a_cpu_without_avx2_and_a_loaded_torch_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t: fpu sse sse2 avx\n")
    with pytest.raises(ConfigurationError, match="needs a CPU with AVX2"):
        restrict_instructions(cpu_info=tmp_path / "cpuinfo")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    with pytest.raises(ConfigurationError, match="torch is loaded already"):
        restrict_instructions()


def test_it_is_for_the_cpu() -> None:
    assert ComputeConfig(reproducible=True).chosen_device == "cpu"
    with pytest.raises(ConfigurationError, match="--reproducible is for the CPU"):
        ComputeConfig(reproducible=True, gpu=(0,))
