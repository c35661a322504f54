"""How the clients of a process share its devices: places, slots, threads, and the options for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from fake_hardware import APPLE, FOUR_2080_TI, GIB, NO_GPU, ONE_A100, FakeHardware

from feddbp_client.compute.plan import ComputePlan, plan_compute
from feddbp_client.compute.slots import TrainingSlots
from feddbp_client.config import ClientConfig, ComputeConfig
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.errors import ConfigurationError

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def plan(
    hardware: FakeHardware, clients: int = 4, environ: dict[str, str] | None = None, **options: Any
) -> ComputePlan:
    return plan_compute(ComputeConfig(**options), range(clients), hardware, environ or {})


def parsed(*arguments: str) -> ComputeConfig:
    parser = settings_parser("feddbp-client", "", ClientConfig)
    return settings_from(ClientConfig, parser.parse_args(["--id", "3", *arguments])).compute


def test_every_client_has_a_card_of_its_own_if_there_are_enough() -> None:
    planned = plan(FOUR_2080_TI, gpu=(0, 1, 2, 3), amp=True)
    assert [str(compute) for compute in planned.clients.values()] == [
        f"cuda:{index} (NVIDIA GeForce RTX 2080 Ti)" for index in range(4)
    ]
    assert {compute.precision.half for compute in planned.clients.values()} == {torch.float16}
    assert not any(compute.shared for compute in planned.clients.values())


def test_idle_clients_leave_a_card_that_several_share() -> None:
    assert all(compute.shared for compute in plan(ONE_A100, gpu="auto").clients.values())
    assert not any(compute.shared for compute in plan(ONE_A100, clients=1, gpu="auto").clients.values())
    assert not any(compute.shared for compute in plan(NO_GPU).clients.values())


def test_the_clients_of_a_card_share_one_budget_for_images() -> None:
    planned = plan(FOUR_2080_TI, clients=8, gpu="auto")
    budgets = {id(compute.image_budget): compute.image_budget.limit for compute in planned.clients.values()}
    assert list(budgets.values()) == [11 * GIB // 4] * 4
    assert plan(FOUR_2080_TI, gpu=(1,), image_memory="4GiB").clients[0].image_budget.limit == 4 * GIB
    assert plan(NO_GPU, image_memory="4GiB").clients[0].image_budget.limit == 0


def test_the_log_says_who_trains_where() -> None:
    assert list(plan(FOUR_2080_TI, clients=5, gpu=(0, 3), amp=True).lines()) == [
        "cuda:0 (NVIDIA GeForce RTX 2080 Ti): clients 0, 2, 4, float16, 16 CPU threads, up to 2.8 GiB for images",
        "cuda:3 (NVIDIA GeForce RTX 2080 Ti): clients 1, 3, float16, 16 CPU threads, up to 2.8 GiB for images",
    ]
    assert list(plan(NO_GPU, clients=1, threads=1).lines()) == ["cpu: client 0, float32, 1 CPU thread"]


@pytest.mark.parametrize(
    ("hardware", "options", "environ", "threads"),
    [
        (NO_GPU, {}, {}, 2),
        (NO_GPU, {"threads": 1}, {}, 1),
        (APPLE, {}, {}, 10),
        (FOUR_2080_TI, {"gpu": "auto"}, {}, 8),
        (FOUR_2080_TI, {"gpu": (2,)}, {}, 32),
        (FOUR_2080_TI, {"gpu": "auto", "deterministic": True}, {}, 32),
        (FakeHardware(gpus=FOUR_2080_TI.gpus, cpu_cores=2), {"gpu": "auto"}, {}, 1),
        (FOUR_2080_TI, {"device": "cpu"}, {"OMP_NUM_THREADS": "4"}, 4),
        (FOUR_2080_TI, {"device": "cpu"}, {"OMP_NUM_THREADS": "64,2"}, 32),
        (FOUR_2080_TI, {"device": "cpu"}, {"OMP_NUM_THREADS": "many"}, 32),
        (FOUR_2080_TI, {"device": "cpu", "threads": 8}, {"OMP_NUM_THREADS": "4"}, 8),
    ],
)
def test_trainings_at_the_same_time_share_the_cores(
    hardware: FakeHardware, options: dict[str, Any], environ: dict[str, str], threads: int
) -> None:
    assert plan(hardware, environ=environ, **options).threads == threads


def test_so_many_clients_train_at_the_same_time_on_each_card() -> None:
    assert plan(FOUR_2080_TI, clients=8, gpu="auto").slots.count == 4
    assert plan(NO_GPU, jobs_per_gpu=3).slots.count == 1
    assert plan(APPLE, jobs_per_gpu=3).slots.count == 1
    assert plan(FOUR_2080_TI, clients=8, gpu="auto", deterministic=True).slots.count == 1
    assert plan(FOUR_2080_TI, clients=8, gpu=(0, 1), jobs_per_gpu=3).slots.count == 6


async def test_a_busy_card_does_not_keep_another_one_waiting() -> None:
    slots = TrainingSlots({FIRST: 1, SECOND: 1})
    async with slots.on(FIRST):
        assert slots.on(FIRST).locked()
        async with asyncio.timeout(10), slots.on(SECOND):
            pass


async def test_a_deterministic_process_trains_one_client_at_a_time() -> None:
    slots = TrainingSlots({FIRST: 1, SECOND: 1}, one_at_a_time=True)
    async with slots.on(FIRST):
        assert slots.on(SECOND).locked()
    async with asyncio.timeout(10), slots.alone():
        assert slots.on(SECOND).locked()


async def test_nothing_else_happens_while_a_client_is_built() -> None:
    slots = TrainingSlots({FIRST: 2, SECOND: 1})
    events: list[str] = []
    may_end = asyncio.Event()

    async def train(device: torch.device) -> None:
        async with slots.on(device):
            events.append("trains")
            await may_end.wait()
            events.append("has trained")

    async def build() -> None:
        async with slots.alone():
            events.append("is built")
            assert slots.on(FIRST).locked()
            assert slots.on(SECOND).locked()
            await asyncio.sleep(0)
            events.append("was built")

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(train(FIRST))
        tasks.create_task(train(SECOND))
        await asyncio.sleep(0)
        tasks.create_task(build())
        tasks.create_task(build())
        await asyncio.sleep(0)
        tasks.create_task(train(FIRST))
        may_end.set()
    builds = [event for event in events if "built" in event]
    assert builds == ["is built", "was built"] * 2
    for place, event in enumerate(events):
        if event == "is built":
            assert events[place + 1] == "was built"
    assert not slots.on(FIRST).locked()
    assert not slots.on(SECOND).locked()


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ([], "gpu", None),
        (["--gpu", "1"], "gpu", (1,)),
        (["--gpu", "0,1,2,3"], "gpu", (0, 1, 2, 3)),
        (["--gpu", "auto"], "gpu", "auto"),
        ([], "threads", "auto"),
        (["--threads", "2"], "threads", 2),
        (["--image-memory", "4GiB"], "image_memory", 4 * GIB),
        (["--image-memory", "500MB"], "image_memory", 500_000_000),
        (["--image-memory", "0"], "image_memory", 0),
        (["--jobs-per-gpu", "2"], "jobs_per_gpu", 2),
    ],
)
def test_options_of_the_command(arguments: list[str], field: str, value: object) -> None:
    assert getattr(parsed(*arguments), field) == value


def test_a_number_in_a_file_is_a_card() -> None:
    assert ComputeConfig.model_validate({"gpu": 1}).gpu == (1,)
    assert ComputeConfig.model_validate({"gpu": [0, 1]}).gpu == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "one"], "--gpu: 'one' is not a list of numbers such as 0,1,2"),
        (["--gpu", "-1"], "--gpu: '-1' is not a list of numbers"),
        (["--gpu", "1,1"], "--gpu: a device is given twice in '1,1'"),
        (["--gpu", "1", "--device", "cpu"], "give --gpu or --device, not both"),
        (["--threads", "0"], "--threads: '0' is neither a number of threads nor auto"),
        (["--threads", "all"], "--threads: 'all' is neither a number of threads nor auto"),
        (["--jobs-per-gpu", "0"], "--jobs-per-gpu: input should be greater than or equal to 1"),
        (["--image-memory", "lots"], "--image-memory: could not parse value and unit from byte string"),
        (["--deterministic", "--fast"], "give --deterministic or --fast, not both"),
        (["--deterministic", "--jobs-per-gpu", "2"], "--deterministic trains one client at a time"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parsed(*arguments)
