"""What a run promises of the privacy of its clients' samples, in words: for status, summary and report."""

from __future__ import annotations

import math

from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.methods.sums import MIN_HOLDERS


def privacy_sentences(privacy: PrivacyConfig) -> list[str]:
    """A sentence for every promise; noise that promises nothing says so."""
    sentences = []
    if privacy.secure_sums and privacy.dp == "off":
        sentences.append(
            "secure sums: the server sees nothing of uploads but their sum over clients; prototypes of a class are "
            f"shared once {MIN_HOLDERS} of them are counted that have it"
        )
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


def _factor(epsilon: float) -> str:
    factor = math.exp(epsilon)
    return f"{factor:.3g}" if factor < 1000 else f"{factor:.1e}"
