"""Checks of what clients send, by the run's configuration, its state and the limits alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.features import describe_missing, missing_features
from feddbp_common.config.run import RunConfig
from feddbp_common.humanize import quantity
from feddbp_common.version import VERSION
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.state import Phase, RunState


def check_join(
    request: pb.JoinRequest,
    run_id: str,
    config: RunConfig,
    state: RunState,
    limits: Limits,
    *,
    required_features: Sequence[str],
) -> None:
    if state.phase.is_final:
        raise RefusedError(pb.REFUSAL_REASON_RUN_ENDED, f"the run is over: {state.reason}")
    if request.run_id != run_id:
        raise RefusedError(
            pb.REFUSAL_REASON_OTHER_RUN,
            f"this server holds run {run_id}, the client prepared for {request.run_id[:64]!r}; restart the client",
            field="run_id",
        )
    check_client_id(request.client_id, config)
    if not config.privacy.declares_counts:
        _check_no_counts(request)
    elif len(request.data.label_counts) != config.classes:
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST,
            f"label_counts has {len(request.data.label_counts)} entries for {config.classes} classes",
            field="label_counts",
        )
    elif not any(request.data.label_counts):
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST,
            "label_counts: a client without training samples cannot join",
            field="label_counts",
        )
    if sum(request.data.label_counts) > limits.samples:
        raise _invalid(
            "label_counts", f"add up to {sum(request.data.label_counts)} samples, at most {limits.samples} are admitted"
        )
    if request.data.test_samples > limits.samples:
        raise _invalid("test_samples", f"is {request.data.test_samples}, at most {limits.samples} are admitted")
    capabilities = request.capabilities
    _check_text("previous_session", request.previous_session, limits)
    _check_text("architecture", capabilities.architecture, limits)
    _check_text("device", capabilities.device, limits)
    _check_text("software_version", capabilities.software_version, limits)
    _check_text("name", capabilities.name, limits)
    lacking = missing_features(required_features, request.features)
    if lacking:
        raise RefusedError(
            pb.REFUSAL_REASON_MISSING_FEATURE,
            describe_missing(lacking, client=capabilities.software_version, server=VERSION),
            field="features",
        )


def _check_no_counts(request: pb.JoinRequest) -> None:
    """With secure sums or differential privacy the server is not told which classes a client has."""
    if request.data.label_counts:
        raise _invalid("label_counts", "clients of this run do not declare them")


def check_images(request: pb.JoinRequest, config: RunConfig, sessions: Iterable[Session]) -> None:
    """Refuses images that do not fit those of other clients, before a round is trained with them."""
    needed, shape = config.method_spec.equal_images(config.settings), tuple(request.data.image_shape)
    if needed == "nothing" or not shape:  # a client of 0.1.0 does not say; its upload is refused
        return
    if len(shape) != 3 or not all(shape):
        raise _invalid("image_shape", f"{list(shape[:8])} is not channels, height and width")
    for other in sessions:
        known = tuple(other.data.image_shape)
        if other.client_id == request.client_id or len(known) != 3:
            continue
        if shape[0] == known[0] and (needed == "channels" or shape == known):
            return  # as those of all that have joined before
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST,
            f"{config.method_spec.title} shares a network among all clients: images of client "
            f"{request.client_id} are {_image(shape)}, those of client {other.client_id} {_image(known)}; "
            + ("give them the same channels" if shape[0] != known[0] else "start the run with --image-size N"),
            field="image_shape",
        )


def _image(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{width}x{height} with {quantity(channels, 'channel')}"


def check_client_id(client_id: int, config: RunConfig) -> None:
    if client_id >= config.clients:
        raise RefusedError(
            pb.REFUSAL_REASON_UNKNOWN_CLIENT,
            f"client id {client_id} is not one of this run's 0 to {config.clients - 1}",
            field="client_id",
        )


def check_download(round_number: int, state: RunState) -> None:
    has_state_of_round = state.phase in (Phase.COLLECTING, Phase.EVALUATING, Phase.AGGREGATING, Phase.PAUSED)
    if not has_state_of_round or round_number != state.round:
        raise wrong_round(round_number, state)


def check_reported_round(round_number: int, state: RunState) -> None:
    """Admits reports on the open round and on earlier ones."""
    if round_number > state.round:
        raise wrong_round(round_number, state)


def check_report(
    round_number: int,
    metrics: pb.RoundMetrics,
    data: pb.DataSummary,
    state: RunState,
    limits: Limits,
    *,
    exact_counts: bool = True,
) -> None:
    """Checks a report, also against the data that the client declared when it joined."""
    check_reported_round(round_number, state)
    # at most half of the samples of a class are held out, and one more where their number is odd
    is_bounded = exact_counts and metrics.validation_samples
    most_held_out = sum(data.label_counts) + len(data.label_counts) if is_bounded else limits.samples
    for kind, samples, most, correct in (
        ("test", metrics.test_samples, data.test_samples, [entry.correct for entry in metrics.accuracies]),
        (
            "validation",
            metrics.validation_samples,
            most_held_out,
            [entry.validation_correct for entry in metrics.accuracies],
        ),
    ):
        if samples > most:
            raise _invalid(f"{kind}_samples", f"is {samples}, at most {most} fit what was declared at join")
        if max(correct, default=0) > samples:
            raise _invalid("accuracies", f"more correct samples than the {samples} {kind} samples")
    if metrics.rare_test_samples > metrics.test_samples:
        raise _invalid(
            "rare_test_samples", f"is {metrics.rare_test_samples}, more than the {metrics.test_samples} test samples"
        )
    if metrics.rare_correct > metrics.rare_test_samples:
        raise _invalid(
            "rare_correct", f"is {metrics.rare_correct}, more than the {metrics.rare_test_samples} rare test samples"
        )
    _check_names("accuracies", [entry.rule for entry in metrics.accuracies], limits)
    _check_names("losses", [term.name for term in metrics.losses], limits)
    _check_text("inference", metrics.inference, limits)
    if not all(isfinite(term.value) for term in metrics.losses):
        raise _invalid("losses", "a value is not finite")
    seconds = (metrics.seconds.evaluate, metrics.seconds.train, metrics.seconds.collect)
    longest = limits.reported_time.total_seconds()
    if not all(isfinite(taken) and 0 <= taken <= longest for taken in seconds):
        raise _invalid("seconds", f"a time is negative, not finite, or longer than {limits.reported_time.days} days")
    for field, count in (("bytes_down", metrics.bytes_down), ("bytes_up", metrics.bytes_up)):
        if count > limits.reported_bytes:
            raise _invalid(field, f"is {count}, at most {limits.reported_bytes} are admitted")


def check_progress(progress: pb.Progress) -> None:
    if progress.epochs_done > progress.epochs:
        raise _invalid("epochs_done", f"is {progress.epochs_done} of {progress.epochs}")


def wrong_round(asked: int, state: RunState) -> RefusedError:
    return RefusedError(
        pb.REFUSAL_REASON_RUN_ENDED if state.phase.is_final else pb.REFUSAL_REASON_WRONG_ROUND,
        f"round {asked + 1} is not open; {_where(state)}",
        field="round",
        current_round=state.round,
    )


def _where(state: RunState) -> str:
    """Where the run is; for people, rounds are counted from 1."""
    if state.phase.is_final:
        return f"the run is over: {state.reason}"
    if Phase.EVALUATING in (state.phase, state.held_phase):
        return "the run is in its final evaluation"
    return f"the run is {state.phase.value}, round {state.round + 1}"


def _check_names(field: str, names: Iterable[str], limits: Limits) -> None:
    seen: set[str] = set()
    for name in names:
        _check_text(field, name, limits)
        if not name:
            raise _invalid(field, "an entry has no name")
        if name in seen:
            raise _invalid(field, f"{name!r} occurs twice")
        seen.add(name)
        if len(seen) > limits.report_entries:
            raise _invalid(field, f"there are more than {limits.report_entries} entries")


def _check_text(field: str, text: str, limits: Limits) -> None:
    if len(text) > limits.name_characters:
        raise _invalid(field, f"has {len(text)} characters, at most {limits.name_characters} are admitted")
    if not text.isprintable():
        raise _invalid(field, f"{text[:64]!r} does not fit on one line")


def _invalid(field: str, reason: str) -> RefusedError:
    return RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, f"{field}: {reason}", field=field)
