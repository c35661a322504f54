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
def test_the_command_chooses_before_it_loads_numpy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from feddbp_client.cli import main\n"
        "print('numpy' in sys.modules)\n"
        "main(['--id=0', '--server=127.0.0.1:1', '--patience=0s', '--reproducible'])\n"
        "from threadpoolctl import threadpool_info\n"
        "print({pool['architecture'] for pool in threadpool_info() if pool['internal_api'] == 'openblas'})\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    clean["FEDDBP_STATE_DIR"] = str(tmp_path)
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=clean)
    assert shown.stdout == "False\n{'Haswell'}\n"


@is_x86
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_cpu_without_avx2_and_a_loaded_library_are_refused(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t: fpu sse sse2 avx\n")
    with pytest.raises(ConfigurationError, match="needs a CPU with AVX2"):
        restrict_instructions(cpu_info=tmp_path / "cpuinfo")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("torch", "numpy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, sys)
    with pytest.raises(ConfigurationError, match=f"{library} is loaded already"):
        restrict_instructions()


def test_it_is_for_the_cpu() -> None:
    assert ComputeConfig(reproducible=True).chosen_device == "cpu"
    with pytest.raises(ConfigurationError, match="--reproducible is for the CPU"):
        ComputeConfig(reproducible=True, gpu=(0,))
