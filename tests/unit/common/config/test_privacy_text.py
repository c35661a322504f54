"""What a run promises of privacy, in words; noise without a guarantee has no epsilon."""

from __future__ import annotations

from typing import Any

import pytest

from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto


def sentences(privacy: dict[str, Any], **options: Any) -> list[str]:
    data = {"dataset": "digits", "image_size": 16}
    return privacy_sentences(RunConfig.model_validate({"data": data, "privacy": privacy, **options}))


@pytest.mark.parametrize("privacy", [{}, {"min_class_samples": 5}, {"counts": "buckets"}, {"fusion": "client"}])
def test_a_run_that_promises_nothing_says_nothing(privacy: dict[str, Any]) -> None:
    assert sentences(privacy) == []


CAREFUL = {"preset": "careful"}
FEW_STAY = "careful: prototypes of fewer than 5 samples stay with their client"
BUCKETS = "and samples per class are told as powers of two; the server sees all other prototypes"


@pytest.mark.parametrize(
    ("privacy", "options", "expected"),
    [
        (CAREFUL, {}, f"{FEW_STAY}, no Fisher scores are sent, {BUCKETS}"),
        (
            CAREFUL | {"fusion": "server"},
            {},
            f"{FEW_STAY}, of Fisher scores only the indices of top channels are sent, {BUCKETS}",
        ),
        (CAREFUL, {"method": "fedproto"}, f"{FEW_STAY}, {BUCKETS}"),
    ],
)
def test_a_careful_run_says_what_is_rounded_and_left_out(
    privacy: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    assert sentences(privacy, **options) == [expected]


def test_a_careful_run_with_secure_sums_tells_no_counts_at_all() -> None:
    secure, careful = sentences(CAREFUL | {"secure_sums": True})
    assert secure.startswith("secure sums: ")
    assert careful == f"{FEW_STAY}, and no Fisher scores are sent"


def test_a_client_says_of_a_careful_run_what_its_server_says() -> None:
    run = RunConfig.model_validate({"privacy": CAREFUL | {"min_class_samples": 8}})
    (sentence,) = privacy_sentences(run_from_proto(run_to_proto(run)))
    assert [sentence] == privacy_sentences(run)
    assert "prototypes of fewer than 8 samples" in sentence


def test_differential_privacy_has_its_epsilon_and_what_it_means() -> None:
    promise, meaning = sentences({"dp": "frozen", "epsilon": 2.0, "delta": 1e-6})
    assert "every client makes one release, with epsilon 2 at delta 1e-06 (noise multiplier 2.3" in promise
    assert "more than 7.39 times as likely, but for a probability of 1e-06; its test samples are not covered" in meaning


def test_shared_noise_says_whom_it_does_not_protect_from() -> None:
    promise, _, sharing = sentences({"dp": "frozen", "secure_sums": True}, rounds=1)
    assert "one release, of which only the sum over clients is seen, with epsilon 2 at delta 1e-05" in promise
    assert "members that work with the server take their part of it away" in sharing


def test_noise_on_trained_features_is_called_noise_and_has_no_epsilon() -> None:
    (sentence,) = sentences({"noise_multiplier": 0.5, "clip_bound": 4.0})
    assert sentence.startswith("noise: prototypes of norm 4 at most, with Gaussian noise of 2 on each channel")
    assert "no differential privacy" in sentence
    assert "epsilon" not in sentence
