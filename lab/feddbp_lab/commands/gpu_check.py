"""`feddbp gpu-check`: measures this machine's GPU, or its CPU, in a few minutes and prints what to report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from pydantic import Field

from feddbp_client.config import DEVICE_HELP
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.cpu_cores import let_waiting_threads_sleep
from feddbp_common.errors import ExitCode
from feddbp_lab.processes.local_federation import require_client
from feddbp_lab.terminal.format import terminal

PROG: Final = "feddbp gpu-check"


class CheckConfig(FrozenModel):
    """Check: which device, and what is trained on it."""

    device: str = Field("auto", description=DEVICE_HELP)
    model: str = Field("resnet18", description="architecture that is trained")
    image_size: int = Field(32, ge=8, description="side of the images in pixels")
    batch_size: int = Field(32, ge=4, description="images per step")
    steps: int = Field(30, ge=2, description="steps per measured round")
    json_output: bool = Field(False, description="print the findings as JSON", json_schema_extra={"flag": "--json"})


class GpuCheckConfig(FrozenModel):
    """All options of `feddbp gpu-check`."""

    check: CheckConfig = CheckConfig()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Measures this machine's GPU, or its CPU, and prints what to report.", GpuCheckConfig
    )
    config = settings_from(GpuCheckConfig, parser.parse_args(argv)).check
    require_client("the check")
    let_waiting_threads_sleep()  # those of the processes, too, as in clients
    # torch takes a second to import: errors in the flags are reported before that
    from feddbp_client.compute.devices import choose_device
    from feddbp_client.compute.hardware import TorchHardware
    from feddbp_lab.device_check.checks import DeviceCheck, Finding, Workload, hardware_findings
    from feddbp_lab.device_check.probe import run_probe

    hardware = TorchHardware()
    device = choose_device(config.device, hardware)
    workload = Workload(
        architecture=config.model, image_size=config.image_size, batch_size=config.batch_size, steps=config.steps
    )
    console = terminal(quiet=config.json_output, soft_wrap=True, highlight=False)
    findings: list[Finding] = []

    def show(finding: Finding) -> None:
        findings.append(finding)
        mark = {None: "", True: "ok: ", False: "FAILED: "}[finding.holds]
        console.print(f"{finding.question:<46}{mark}{finding.answer}", markup=False)

    for finding in hardware_findings(device, hardware):
        show(finding)
    console.print(f"FedDBP, {config.model}, batches of {config.batch_size} images of {config.image_size} pixels")
    for finding in DeviceCheck(device, workload, run_probe).findings():
        show(finding)
    if config.json_output:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return ExitCode.FAILURE if any(finding.holds is False for finding in findings) else ExitCode.OK
