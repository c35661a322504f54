"""Opens a run in the store, and extends or reopens one: with more rounds, or after it ended before them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Final

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.state import Phase, RunState
from feddbp_server.store import Store

log = logging.getLogger("feddbp.server")

_OVER_WHOLE_RUN: Final = {"fedkd": "its compression", "fedproc": "the weight of its losses"}
"""What methods change from the first round to the last."""


def open_run(store: Store, config: RunConfig, *, proposed: str, reopen: bool) -> str:
    """Begins a run, resumes the one in the store, or extends it; returns its id. One job of the store.

    Raises:
        RunMismatchError: the store holds another run.
        ConfigurationError: the run cannot be extended in this way.
    """
    stored, given = store.stored_config(), config.canonical_json()
    if stored is None or not _differs_in_rounds_alone(stored, given):
        return store.open_run(proposed, given)
    text = store.snapshot()
    snapshot = RunSnapshot.from_json(text) if text else RunSnapshot(state=RunState(), seconds=0.0)
    rounds_before = int(json.loads(stored)["rounds"])
    if not _is_extension(snapshot.state, rounds_before, config.rounds, reopen=reopen):
        return store.open_run(proposed, given)
    _check_extension(snapshot.state, rounds_before, config)
    run_id = store.open_run(proposed, stored)
    state = extended(snapshot.state)
    store.replace_config(given)
    if state is not snapshot.state:
        # of the final evaluation, and of a round that was open when the run ended: clients deliver it again
        store.forget_from(state.round)
        for record in store.clients():  # their daemons have ended: no id waits for a lease
            store.save_client(record._replace(session_sha256=b""))
        store.forget_new_members(store.new_members())
    store.save_snapshot(replace(snapshot, state=state).to_json())
    _log_extension(snapshot.state, rounds_before, config)
    return run_id


def extended(state: RunState) -> RunState:
    """The state from which a run continues: one that is over, or in its final evaluation, waits for clients again."""
    if state.phase.is_final or state.phase is Phase.EVALUATING:
        return _waiting(state)
    if state.held_phase is Phase.EVALUATING:
        return replace(_waiting(state), phase=Phase.PAUSED, held_phase=Phase.WAITING)
    return state


def _waiting(state: RunState) -> RunState:
    # clients have received the end: they have to be started again, and none is a member before it joins
    return RunState(round=state.round, began_with=state.began_with, blocked=state.blocked, left_out=state.left_out)


def _differs_in_rounds_alone(stored: str, given: str) -> bool:
    before, after = json.loads(stored), json.loads(given)
    return bool({**before, "rounds": after["rounds"]} == after)


def _is_extension(state: RunState, rounds_before: int, rounds: int, *, reopen: bool) -> bool:
    if rounds == rounds_before:
        ended_early = state.phase is Phase.FINISHED and state.round < rounds
        return reopen and (state.phase in (Phase.STOPPED, Phase.FAILED) or ended_early)
    # fewer rounds than a run was to have are another run, unless it has ended before
    return rounds > rounds_before or state.phase.is_final


def may_be_extended(state: RunState, rounds_before: int, config: RunConfig) -> bool:
    """Whether more rounds would follow those with exchange, and not rounds that are to be the last ones."""
    last_rounds = _last_rounds(config)
    return not last_rounds or state.round <= rounds_before - last_rounds


def _last_rounds(config: RunConfig) -> int:
    return max(config.finetune_rounds, config.newcomer_rounds)


def _check_extension(state: RunState, rounds_before: int, config: RunConfig) -> None:
    last_rounds = _last_rounds(config)
    if last_rounds and state.phase is Phase.FINISHED:
        kind = "newcomer" if config.newcomer_rounds else "fine-tuning"
        raise ConfigurationError(
            f"the run has finished with {last_rounds} {kind} rounds and cannot be extended; "
            "a longer one is a new run, with another --state-dir"
        )
    if config.rounds <= state.round:
        raise ConfigurationError(
            f"--rounds is {config.rounds}, but the run in the state directory has completed {state.round} rounds; "
            f"give more than that to extend it"
        )
    if not last_rounds or rounds_before == config.rounds:
        return
    if not may_be_extended(state, rounds_before, config):
        raise ConfigurationError(
            f"the run is in its last {last_rounds} rounds, which finetune_rounds or newcomer_rounds set apart; "
            "it can be extended only before them"
        )
    if state.round > config.rounds - last_rounds:
        raise ConfigurationError(
            f"--rounds is {config.rounds}, of which finetune_rounds or newcomer_rounds set the last {last_rounds} "
            f"apart, but the run in the state directory has completed {state.round} rounds before those; "
            f"give at least {state.round + last_rounds}"
        )


def _log_extension(state: RunState, rounds_before: int, config: RunConfig) -> None:
    was = f"the run {state.phase.value} after {state.round} of {rounds_before} rounds"
    log.info("%s; it is extended to %d rounds", was, config.rounds)
    over_run = [
        *(["the learning rate (--schedule cosine)"] if config.training.schedule == "cosine" else []),
        *([_OVER_WHOLE_RUN[config.method]] if config.method in _OVER_WHOLE_RUN else []),
    ]
    if over_run and rounds_before != config.rounds:
        log.warning(
            "%s changes over the whole run: from round %d on it is that of a run of %d rounds",
            " and ".join(over_run),
            state.round + 1,
            config.rounds,
        )
