"""Malformed uploads of weights: as those of prototypes, they change nothing, and the run ends as without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.light_client import LightClient
from fuzzed_server import CLIENTS, fuzzed_server, send_malformed_calls
from member_uploads import member
from processes import Federation, Outcome, federation

from feddbp_common.wire import Encoded, encode

SETTINGS: dict[str, tuple[object, ...]] = {
    "fedkd": (),
    "fedkd:update": ("--set", "target=update"),
    "fedmrl": ("--set", "small_dim=4"),
    "fedavg": ("--guide", "guide_small"),
}
MEMORY_BOUND = 192e6
"""Resident bytes of the server; uploads are of 0.4 MB, from sixteen clients at once."""


class WeightsClient(LightClient):
    """Uploads the weights that its method exchanges, near one."""

    def encoded_upload(self, round_number: int) -> Encoded:
        config = self._joined()
        return encode(member(config, self.client_id, number=round_number).payload, real_type=config.wire_type)


def run_of(name: str) -> tuple[object, ...]:
    return (
        *("--method", name.partition(":")[0], *SETTINGS[name], "--image-size", 16),
        *("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", 3, "--round-deadline", 0, "--lease", "1h"),
        *("--dataset", "custom", "--classes", 5, "--feature-dim", 8),
    )


async def outcome_of(running: Federation, name: str, calls: int) -> Outcome:
    """Of a run that gets malformed calls in its second round."""
    async with fuzzed_server(running, run_of(name), WeightsClient) as target:
        if calls:
            before = await target.digest()
            tally = await send_malformed_calls(target, calls=calls, seed=31)
            print(f"\n{name}\n{tally.table()}")
            assert not tally.violations, "\n".join(found[:500] for found in tally.violations)
            assert await target.digest() == before
            assert max(tally.memory) < MEMORY_BOUND
            assert "Traceback" not in target.server.log
        await target.finish()
    return running.outcome()


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("fedkd", 120),
        ("fedavg", 120),
        *(pytest.param(name, 5_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)]) for name in SETTINGS),
    ],
)
async def test_malformed_uploads_of_weights_change_nothing(
    method: str, calls: int, running_federation: Federation, tmp_path: Path
) -> None:
    with federation(tmp_path / "undisturbed") as undisturbed:
        expected = await outcome_of(undisturbed, method, 0)
    assert await outcome_of(running_federation, method, calls) == expected
