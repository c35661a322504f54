"""Who and what is admitted, judged by the run's state alone."""

from __future__ import annotations

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config import RunConfig
from feddbp_server.refusals import RefusedError
from feddbp_server.rounds import Phase, RunState


def check_join(request: pb.JoinRequest, run_id: str, config: RunConfig, state: RunState) -> None:
    if state.phase.is_final:
        raise RefusedError(pb.REFUSAL_REASON_RUN_ENDED, f"the run is over: {state.reason}")
    if request.run_id != run_id:
        raise RefusedError(
            pb.REFUSAL_REASON_OTHER_RUN,
            f"this server holds run {run_id}, the client prepared for {request.run_id[:64]!r}; start it again",
            field="run_id",
        )
    if request.client_id >= config.clients:
        raise RefusedError(
            pb.REFUSAL_REASON_UNKNOWN_CLIENT,
            f"client id {request.client_id} is not one of this run's 0 to {config.clients - 1}",
            field="client_id",
        )
    if len(request.data.label_counts) != config.classes:
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST,
            f"label_counts has {len(request.data.label_counts)} entries for {config.classes} classes",
            field="label_counts",
        )
    if not any(request.data.label_counts):
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST, "a client without training samples cannot join", field="label_counts"
        )


def check_download(round_number: int, state: RunState) -> None:
    has_state_of_round = state.phase in (Phase.COLLECTING, Phase.EVALUATING, Phase.AGGREGATING, Phase.PAUSED)
    if not has_state_of_round or round_number != state.round:
        raise wrong_round(round_number, state)


def check_upload(client_id: int, round_number: int, state: RunState) -> None:
    """Refuses on the header what has no chance: the wrong round, or a client that was not chosen."""
    if Phase.COLLECTING not in (state.phase, state.held_phase) or round_number != state.round:
        raise wrong_round(round_number, state)
    if client_id not in state.selected:
        raise RefusedError(
            pb.REFUSAL_REASON_NOT_SELECTED,
            f"client {client_id} was not chosen for round {round_number}",
            current_round=state.round,
        )


def check_report(round_number: int, metrics: pb.RoundMetrics, state: RunState) -> None:
    if round_number > state.round:
        raise wrong_round(round_number, state)
    if any(entry.correct > metrics.test_samples for entry in metrics.accuracies):
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST,
            f"more samples are right than the {metrics.test_samples} there are",
            field="accuracies",
        )


def wrong_round(asked: int, state: RunState) -> RefusedError:
    return RefusedError(
        pb.REFUSAL_REASON_RUN_ENDED if state.phase.is_final else pb.REFUSAL_REASON_WRONG_ROUND,
        f"round {asked} is not open; the run is {state.phase.value}, round {state.round}",
        field="round",
        current_round=state.round,
    )
