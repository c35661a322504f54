"""Rules for the rounds of a run without exchange, with fine-tuning and with newcomers: which of them go together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from feddbp_common.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from feddbp_common.config.run import RunConfig
    from feddbp_common.methods.contract import MethodSettings


def check_own_state(run: RunConfig) -> None:
    """Raises if no round is left with exchange, or one without gives the method too little."""
    if run.finetune_rounds >= run.rounds and run.finetune_rounds:
        raise ConfigurationError(
            f"finetune_rounds is {run.finetune_rounds}, but the run has {run.rounds} rounds; it must be less"
        )
    fine_tunes_alone = run.finetune_rounds > 0 and run.finetune_state == "own"
    alone = run.exchange == "off" or fine_tunes_alone or run.newcomers > 0
    if alone and run.method_spec.has_history(run.settings):
        method = _method_under(run, run.method_spec.has_history)
        only_fine_tunes = run.exchange == "on" and not run.newcomers
        keeps_last = only_fine_tunes and not run.method_spec.exchanges_weights(run.settings)
        raise ConfigurationError(
            f"{method} has no rounds without exchange: its server keeps a state that no single upload gives"
            + ("; in fine-tuning, finetune_state = last keeps it" if keeps_last else "")
        )


def check_last_state(run: RunConfig) -> None:
    """Raises unless the state after the last exchange, where it is kept, is of use in fine-tuning."""
    if run.finetune_state == "own":
        return
    if not run.finetune_rounds:
        raise ConfigurationError("finetune_state is last, but the run has no finetune_rounds")
    if run.exchange == "off" or run.newcomers:
        other = "newcomers" if run.newcomers else "exchange = off"
        raise ConfigurationError(f"finetune_state = last needs a state that all clients share; leave out {other}")
    if run.method_spec.exchanges_weights(run.settings):
        method = _method_under(run, run.method_spec.exchanges_weights)
        raise ConfigurationError(
            f"with finetune_state = last clients of {method} would begin each round of fine-tuning with the weights of "
            "the last exchange, and lose what they have tuned; leave finetune_state at own"
        )
    if run.method_spec.subtracts_own_upload(run.settings):
        method = _method_under(run, run.method_spec.subtracts_own_upload)
        # the server keeps a client's newest upload alone, which is not the one in the state
        raise ConfigurationError(
            f"with finetune_state = last the server of {method} could not take a client's own share out "
            "of the last state once it has uploaded again; leave finetune_state at own"
        )


def _method_under(run: RunConfig, rule: Callable[[MethodSettings], bool]) -> str:
    """Returns the method's name and the settings without which a rule would not hold: `feddbp with guided = true`.

    Of a rule that holds by default no settings are named.
    """
    settings = run.settings
    defaults = {name: field.default for name, field in type(settings).model_fields.items() if not field.is_required()}
    decisive = [name for name in defaults if not rule(settings.model_copy(update={name: defaults[name]}))]
    shown = " and ".join(f"{name} = {json.dumps(getattr(settings, name), default=str)}" for name in decisive)
    return f"{run.method} with {shown}" if shown else run.method


def check_stopping(run: RunConfig) -> None:
    """Raises if the run may end before its last rounds."""
    if run.stop_after and (run.finetune_rounds or run.newcomers):
        raise ConfigurationError(
            "stop_after may end the run before its last rounds, which finetune_rounds and newcomers need"
        )


def check_newcomers(run: RunConfig) -> None:
    """Raises unless newcomers have rounds of their own, after others, in which they receive something."""
    if bool(run.newcomers) != bool(run.newcomer_rounds):
        raise ConfigurationError("newcomers need both a number of them and rounds of their own")
    if run.newcomer_samples and not run.newcomers:
        raise ConfigurationError("newcomer_samples is given, but the run has no newcomers")
    if not run.newcomers:
        return
    if run.newcomers >= run.clients:
        raise ConfigurationError(f"{run.newcomers} of {run.clients} clients are newcomers; some must not be")
    if run.newcomer_rounds >= run.rounds:
        raise ConfigurationError(
            f"newcomer_rounds is {run.newcomer_rounds}, but the run has {run.rounds} rounds; it must be less"
        )
    if run.finetune_rounds >= run.newcomer_rounds:
        raise ConfigurationError(
            f"newcomer_rounds is {run.newcomer_rounds} and finetune_rounds {run.finetune_rounds}: "
            "no round is left in which newcomers receive anything"
        )
