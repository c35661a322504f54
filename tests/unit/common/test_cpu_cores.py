"""The cores a process may use, with control groups as Linux presents them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from feddbp_common.cpu_cores import let_waiting_threads_sleep, processor, usable_cores


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


def machine(root: Path, groups: str, **limits: str) -> Path:
    """A file system whose process is in these control groups; a limit is the content of a file, __ for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in limits.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_", "cpu.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def test_without_control_groups_all_cores_of_the_process_are_usable(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 16


def test_a_container_may_use_as_much_time_as_its_limit_says(tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path, "0::/\n", cpu_max="400000 100000")) == 4


def test_a_limit_is_rounded_down_to_whole_cores_but_never_to_none(tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path / "a", "0::/\n", cpu_max="250000 100000")) == 2
    assert usable_cores(machine(tmp_path / "b", "0::/\n", cpu_max="50000 100000")) == 1


def test_no_limit_and_one_above_the_cores_change_nothing(tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path / "a", "0::/\n", cpu_max="max 100000")) == 16
    assert usable_cores(machine(tmp_path / "b", "0::/\n", cpu_max="6400000 100000")) == 16


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/user/session\n",
        user__session__cpu_max="800000 100000",
        user__cpu_max="300000 100000",
        cpu_max="max 100000",
    )
    assert usable_cores(root) == 3


def test_the_first_version_of_control_groups_is_understood(tmp_path: Path) -> None:
    limits = {"cpu,cpuacct__cpu_cfs_quota_us": "200000", "cpu,cpuacct__cpu_cfs_period_us": "100000"}
    # the path is that of the host, of which a container sees only its own part
    root = machine(tmp_path, "5:memory:/\n4:cpu,cpuacct:/docker/1f2e\n0::/\n", **limits)
    assert usable_cores(root) == 2


def test_a_process_that_is_bound_to_some_cores_uses_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cores(machine(tmp_path, "0::/\n", cpu_max="400000 100000")) == 2


def test_waiting_threads_sleep_unless_the_user_wants_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # undone after the test, also what is set below
    monkeypatch.delenv("OMP_WAIT_POLICY")
    let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "active"


XEON = "processor\t: {}\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R)\n"
ARM = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n"


@pytest.mark.parametrize(
    ("core", "kind"),
    [
        (XEON, "Intel(R) Xeon(R), family 6, model 207"),
        (f"processor\t: {{}}\n{ARM}", "aarch64, implementer 0x41, part 0xd0c, variant 0x3"),
        (
            f"processor\t: {{}}\nmodel name\t: ARMv7 Processor rev 4 (v7l)\n{ARM}",
            "ARMv7 Processor rev 4 (v7l), implementer 0x41, part 0xd0c, variant 0x3",
        ),
        ("processor\t: {}\nmodel name\t: unheard of\n", "unheard of"),
    ],
)
def test_the_kind_of_cpu_is_told_from_others_of_the_same_name(
    core: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("\n".join(core.format(number) for number in range(2)))
    assert processor(tmp_path) == kind


def test_without_a_list_of_cpus_the_platform_names_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    for named, kind in (("arm", "arm"), ("", "arm64")):
        monkeypatch.setattr(platform, "processor", named.__str__)
        assert processor(tmp_path) == kind
