"""What a run promises of the privacy of its clients' samples, in words: for status, summary, report and dashboard."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from feddbp_common.config.exchange import CAREFUL_SAMPLES, FisherForm
from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.methods.sums import MIN_HOLDERS

if TYPE_CHECKING:
    from feddbp_common.config.run import RunConfig


def privacy_sentences(run: RunConfig) -> list[str]:
    """A sentence for every promise; noise that promises nothing says so."""
    sentences, privacy = [], run.privacy
    if privacy.secure_sums and privacy.dp == "off":
        sentences.append(
            "secure sums: the server sees nothing of uploads but their sum over clients; prototypes of a class are "
            f"shared once {MIN_HOLDERS} of them are counted that have it"
        )
    if _is_careful(run):
        others = "" if privacy.secure_sums else "; the server sees all other prototypes"
        sentences.append(f"careful: {_joined(_held_back(run))}{others}")
    if privacy.dp != "off":
        whose = "one release" if not privacy.secure_sums else "one release, of which only the sum over clients is seen"
        sentences.append(
            f"differential privacy: every client makes {whose}, with epsilon {privacy.epsilon:g} at delta "
            f"{privacy.delta:g} (noise multiplier {noise_for(privacy.epsilon, privacy.delta):.4g})"
        )
        sentences.append(
            "meaning: adding or removing one training sample of a client makes nothing that others see more than "
            f"{_factor(privacy.epsilon)} times as likely, but for a probability of {privacy.delta:g}; its test samples "
            "are not covered"
        )
        if privacy.secure_sums:
            sentences.append("the noise is shared: members that work with the server take their part of it away")
    if privacy.noise_multiplier:
        sentences.append(
            f"noise: prototypes of norm {privacy.clip_bound:g} at most, with Gaussian noise of "
            f"{privacy.noise_multiplier * privacy.clip_bound:g} on each channel; this is no differential privacy"
        )
    return sentences


def server_view(run: RunConfig) -> str:
    """What the server of a run that holds something back got to see, and what not; empty for other runs."""
    privacy, reports = run.privacy, "architecture, accuracies, losses, times and number of test samples"
    if privacy.dp != "off":
        whose = "the sum of the clients' releases" if privacy.secure_sums else "one release of each client"
        single = "no client's own release, and " if privacy.secure_sums else ""
        return (
            f"The server saw {whose}, with noise, and each client's architecture and accuracy on test samples; {single}"
            "nothing else that depends on training samples."
        )
    if privacy.secure_sums:
        return (
            f"The server saw sums over clients, and each client's {reports}; no client's own upload, and neither its "
            "classes nor how many training samples of each it has."
        )
    if not _is_careful(run):
        return ""
    fuses = run.method_spec.fuses
    channels = " the indices of their top channels," if fuses and privacy.fusion == "server" else ""
    return (
        f"The server saw each client's prototypes of classes of {privacy.min_class_samples} or more samples,{channels} "
        f"samples per class as powers of two, its {reports}; no prototype of a smaller class"
        f"{', no Fisher scores' if fuses else ''}, and no exact number of training samples of a class."
    )


def _is_careful(run: RunConfig) -> bool:
    """By its settings: a run that was resumed, and a client's copy of it, do not have the preset's name."""
    privacy = run.privacy
    sends_scores = run.method_spec.fuses and privacy.fusion == "server" and run.wire.fisher is FisherForm.SCORES
    return privacy.min_class_samples >= CAREFUL_SAMPLES and privacy.counts == "buckets" and not sends_scores


def _held_back(run: RunConfig) -> list[str]:
    """What a careful run rounds or leaves out."""
    found = [f"prototypes of fewer than {run.privacy.min_class_samples} samples stay with their client"]
    if run.method_spec.fuses and run.privacy.fusion == "client":
        found.append("no Fisher scores are sent")
    elif run.method_spec.fuses:
        found.append("of Fisher scores only the indices of top channels are sent")
    if run.privacy.declares_counts:
        found.append("samples per class are declared as powers of two")
    return found


def _joined(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])}, and {clauses[-1]}"


def _factor(epsilon: float) -> str:
    factor = math.exp(epsilon)
    return f"{factor:.3g}" if factor < 1000 else f"{factor:.1e}"
