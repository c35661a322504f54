"""The event a client receives, as a pure function of the run's state."""

from __future__ import annotations

from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.participants import when_the_run_begins
from feddbp_server.run.state_machine.state import Phase, RoundPolicy, RunState

_OUTCOMES: Final = {
    Phase.FINISHED: pb.RUN_OUTCOME_FINISHED,
    Phase.FAILED: pb.RUN_OUTCOME_FAILED,
    Phase.STOPPED: pb.RUN_OUTCOME_STOPPED,
}


def event_for(client_id: int, state: RunState, policy: RoundPolicy, *, draining: bool) -> pb.RoundEvent:
    if state.phase.is_final:
        return pb.RoundEvent(run_ended=run_ended(state))
    if draining:
        return pb.RoundEvent(server_draining=pb.ServerDraining())
    if state.phase is Phase.EVALUATING and client_id in state.observers:
        return pb.RoundEvent(final_evaluation=pb.FinalEvaluation(round=state.round))
    selected = client_id in state.selected
    # a round that is being closed stays open for clients: no event for a change that lasts a moment
    if state.phase in (Phase.COLLECTING, Phase.AGGREGATING) and (selected or client_id in state.observers):
        opened = pb.RoundOpened(round=state.round, selected=selected)
        if policy.deadline is not None:
            opened.deadline.FromTimedelta(policy.deadline)
        return pb.RoundEvent(round_opened=opened)
    return pb.RoundEvent(waiting=pb.Waiting(reason=_why_wait(state, policy)))


def run_ended(state: RunState) -> pb.RunEnded:
    """How a run that is over ended."""
    return pb.RunEnded(outcome=_OUTCOMES[state.phase], reason=state.reason)


def _why_wait(state: RunState, policy: RoundPolicy) -> str:
    if state.phase is Phase.WAITING:
        return when_the_run_begins(policy)
    if state.phase is Phase.PAUSED:
        return "the run is paused"
    if state.phase is Phase.EVALUATING:
        return "the final evaluation is in progress"
    return f"round {state.round + 1} is in progress"
