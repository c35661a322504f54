"""Every method in real processes over the same protocol: three rounds improve the clients' accuracy."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from processes import Federation, federation

from feddbp_common.fault_injection import VARIABLE
from feddbp_common.methods import METHODS

RUN = (
    *("--clients", 3, "--min-clients", 3, "--rounds", 3, "--alpha", 1.0, "--local-epochs", 1),
    *("--learning-rate", 0.03, "--momentum", 0.5, "--feature-dim", 128),
)
STATEFUL = ("fedtgp", "fedgen", "fedkd", "fedmrl")
"""Methods whose server or clients keep state beside prototypes from round to round."""


def finish(running: Federation, *options: object) -> None:
    server = running.server(*RUN, *options)
    client = running.client("0-2")
    client.expect_exit(0)
    server.expect_exit(0)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_runs_and_improves_accuracy(method: str, running_federation: Federation) -> None:
    finish(running_federation, "--method", method)
    by_round = {
        number: fmean(line["accuracy"] for line in running_federation.metrics() if line["round"] == number)
        for number in range(4)
    }
    first = 0 if method == "frozen" else 1  # whose prototypes are those of the first round ever after
    assert by_round[3] > by_round[first], by_round
    assert by_round[3] > 0.5, by_round
    named = METHODS[method].all_loss_terms.keys()
    assert all(line["losses"].keys() <= named for line in running_federation.metrics())
    assert all(line["bytes_up"] > 0 for line in running_federation.metrics() if line["round"] < 3)


@pytest.mark.full
@pytest.mark.parametrize("method", STATEFUL)
@pytest.mark.parametrize(
    ("side", "point"), [("server", "server.close.committed@2"), ("client", "client.work.saved@5")], ids=str
)
def test_the_state_of_a_method_survives_a_kill(
    method: str, side: str, point: str, running_federation: Federation, tmp_path: Path
) -> None:
    with federation(tmp_path / "undisturbed") as undisturbed:
        finish(undisturbed, "--method", method)
        fault = {VARIABLE: point}
        server = running_federation.server(*RUN, "--method", method, env=fault if side == "server" else None)
        client = running_federation.client("0-2", env=fault if side == "client" else None)
        if side == "server":
            server.expect_killed()
            server = running_federation.server(*RUN, "--method", method)
        else:
            client.expect_killed()
            client = running_federation.client("0-2")
        client.expect_exit(0)
        server.expect_exit(0)
        assert running_federation.outcome() == undisturbed.outcome()
