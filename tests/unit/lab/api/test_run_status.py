"""The status of a run as plain values, also from a server of a later version."""

from __future__ import annotations

from typing import cast

from feddbp.v1 import federation_pb2 as pb
from feddbp_lab.api.run_status import RunStatus


def test_enums_are_words() -> None:
    status = RunStatus.from_message(
        pb.RunStatus(
            phase=pb.PHASE_PAUSED,
            held_phase=pb.PHASE_COLLECTING,
            clients=[pb.ClientStatus(activity=pb.CLIENT_ACTIVITY_UPLOADED)],
        )
    )
    assert (status.phase, status.held_phase, status.clients[0].activity) == ("paused", "collecting", "uploaded")


def test_values_that_only_a_later_server_knows_are_numbers() -> None:
    phase = cast(pb.Phase.ValueType, 99)
    activity = cast(pb.ClientActivity.ValueType, 98)
    status = RunStatus.from_message(
        pb.RunStatus(phase=phase, held_phase=phase, clients=[pb.ClientStatus(activity=activity)])
    )
    assert (status.phase, status.held_phase, status.clients[0].activity) == ("phase 99", "phase 99", "activity 98")
    assert not status.is_over
