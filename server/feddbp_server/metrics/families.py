"""The metric families, made of the run and the call meter at the moment of a scrape. Call on the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from feddbp_common.version import VERSION
from feddbp_server.metrics.calls import RECEIVED, SENT, MethodCalls
from feddbp_server.rpc.status_reply import ACTIVITY_NAMES
from feddbp_server.run.admission.refusals import REASON_NAMES
from feddbp_server.run.durations import Durations
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.run.view import RunView

NAMESPACE: Final = "feddbp"
_UPLOAD: Final = "Upload"


def run_families(run: RunView) -> Iterator[Metric]:
    """The state of the run. No metric is per client: there may be a hundred thousand, and the status lists each."""
    state, policy = run.state, run.policy
    info = {"run_id": run.run_id, "method": run.method, "version": VERSION}
    yield InfoMetricFamily("feddbp_run", "The run and the software that runs it.", info)
    yield GaugeMetricFamily(
        "feddbp_round", "The open round counted from 0, or the number of completed ones when none is open.", state.round
    )
    yield GaugeMetricFamily("feddbp_rounds", "Rounds in all.", policy.rounds)
    yield _labelled(
        GaugeMetricFamily("feddbp_phase", "1 for the phase the run is in, 0 for the others.", labels=["phase"]),
        {(phase.value,): float(phase is state.phase) for phase in Phase},
    )
    yield GaugeMetricFamily(
        "feddbp_phase_age_seconds",
        "Seconds in the present phase, since this server's start at most.",
        run.phase_times.age,
    )
    activities = Counter(run.activity_of(session) for session in run.sessions())
    yield _labelled(
        GaugeMetricFamily("feddbp_clients", "Clients that ever joined, by activity.", labels=["state"]),
        {(name,): activities[activity] for activity, name in ACTIVITY_NAMES.items()},
    )
    yield GaugeMetricFamily("feddbp_clients_missing", "Clients the phase still waits for.", len(run.missing))
    accuracy = GaugeMetricFamily(
        "feddbp_mean_accuracy",
        "Accuracy over all test samples, in the newest evaluation of every client after its first training, 0 to 1.",
    )
    newest = run.accuracy()
    if newest is not None:
        accuracy.add_metric([], newest.accuracy)
    yield accuracy
    yield GaugeMetricFamily(
        "feddbp_mean_accuracy_clients",
        "Clients that feddbp_mean_accuracy is over.",
        0 if newest is None else newest.clients,
    )
    yield CounterMetricFamily(
        "feddbp_bytes_up", "Bytes of uploads since the run began, as clients report them.", run.traffic.up
    )
    yield CounterMetricFamily(
        "feddbp_bytes_down", "Bytes of downloads since the run began, as clients report them.", run.traffic.down
    )
    yield GaugeMetricFamily(
        "feddbp_storage_trouble",
        "1 while the state directory cannot be used.",
        float(bool(run.storage_trouble)),
    )
    yield from _event_families(run)


def _event_families(run: RunView) -> Iterator[Metric]:
    """Events since this server started."""
    yield CounterMetricFamily("feddbp_uploads_accepted", "Uploads that were made durable.", run.audited("accepted"))
    # also reasons that did not occur: a rate needs a sample of 0 before the first increase
    known = {(_UPLOAD, reason) for reason in REASON_NAMES} | run.refused_calls.keys()
    yield _labelled(
        CounterMetricFamily("feddbp_calls_refused", "Calls that were refused.", labels=["method", "reason"]),
        {labels: run.refused_calls[labels] for labels in sorted(known)},
    )
    yield CounterMetricFamily(
        "feddbp_client_failures", "Rounds in which a client reported a failure.", run.audited("failed")
    )
    yield _durations(
        HistogramMetricFamily("feddbp_phase_seconds", "Seconds a phase lasted, once it is over.", labels=["phase"]),
        {(phase.value,): times for phase, times in run.phase_times.by_phase.items() if not phase.is_final},
    )
    yield _durations(
        HistogramMetricFamily("feddbp_aggregation_seconds", "Seconds to aggregate a round.", labels=[]),
        {(): run.aggregation_times},
    )


def call_families(methods: Mapping[str, MethodCalls]) -> Iterator[Metric]:
    """Calls over gRPC since this server started."""
    calls = {_service_and_method(name): counts for name, counts in methods.items()}
    labels = ["service", "method"]
    yield _labelled(
        CounterMetricFamily("feddbp_grpc_calls_started", "Calls whose handler was entered.", labels=labels),
        {name: counts.started for name, counts in calls.items()},
    )
    yield _labelled(
        CounterMetricFamily("feddbp_grpc_calls_handled", "Calls that have ended.", labels=[*labels, "code"]),
        {(*name, code): times for name, counts in calls.items() for code, times in counts.handled.items()},
    )
    yield _durations(
        HistogramMetricFamily("feddbp_grpc_call_seconds", "Seconds from a call's start to its end.", labels=labels),
        {name: counts.seconds for name, counts in calls.items()},
    )
    yield _labelled(
        CounterMetricFamily("feddbp_grpc_messages_received", "Messages callers sent.", labels=labels),
        {name: counts.messages[RECEIVED] for name, counts in calls.items()},
    )
    yield _labelled(
        CounterMetricFamily("feddbp_grpc_messages_sent", "Messages that were sent to callers.", labels=labels),
        {name: counts.messages[SENT] for name, counts in calls.items()},
    )


def _service_and_method(full_name: str) -> tuple[str, ...]:
    service, _, method = full_name.removeprefix("/").rpartition("/")
    return service, method


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[tuple[str, ...], float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _durations(family: HistogramMetricFamily, times: Mapping[tuple[str, ...], Durations]) -> Metric:
    for labels, durations in times.items():
        bounds = [*map(floatToGoString, durations.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, durations.cumulative, strict=True)), durations.seconds)
    return family
