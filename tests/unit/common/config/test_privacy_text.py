"""What a run promises of privacy, in words; noise without a guarantee has no epsilon."""

from __future__ import annotations

from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.config.privacy_text import privacy_sentences


def test_a_run_that_promises_nothing_says_nothing() -> None:
    assert privacy_sentences(PrivacyConfig(min_class_samples=5)) == []


def test_differential_privacy_has_its_epsilon_and_what_it_means() -> None:
    promise, meaning = privacy_sentences(PrivacyConfig(dp="frozen", epsilon=2.0, delta=1e-6))
    assert "every client makes one release, with epsilon 2 at delta 1e-06 (noise multiplier 2.3" in promise
    assert "more than 7.39 times as likely, but for a probability of 1e-06; its test samples are not covered" in meaning


def test_shared_noise_says_whom_it_does_not_protect_from() -> None:
    promise, _, sharing = privacy_sentences(PrivacyConfig(dp="frozen", secure_sums=True))
    assert "one release, of which only the sum over clients is seen, with epsilon 2 at delta 1e-05" in promise
    assert "members that work with the server take their part of it away" in sharing


def test_noise_on_trained_features_is_called_noise_and_has_no_epsilon() -> None:
    (sentence,) = privacy_sentences(PrivacyConfig(noise_multiplier=0.5, clip_bound=4.0))
    assert sentence.startswith("noise: prototypes of norm 4 at most, with Gaussian noise of 2 on each channel")
    assert "no differential privacy" in sentence
    assert "epsilon" not in sentence
