"""What a run promises of privacy, in words; noise without a guarantee has no epsilon."""

from __future__ import annotations

from typing import Any

import pytest

from feddbp_common.config.privacy_text import privacy_sentences, server_view
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto


def run_with(privacy: dict[str, Any], **options: Any) -> RunConfig:
    data = {"dataset": "digits", "image_size": 16}
    return RunConfig.model_validate({"data": data, "privacy": privacy, **options})


def sentences(privacy: dict[str, Any], **options: Any) -> list[str]:
    return privacy_sentences(run_with(privacy, **options))


@pytest.mark.parametrize("privacy", [{}, {"min_class_samples": 5}, {"counts": "buckets"}, {"fusion": "client"}])
def test_a_run_that_promises_nothing_says_nothing(privacy: dict[str, Any]) -> None:
    assert sentences(privacy) == []


CAREFUL = {"preset": "careful"}
FEW_STAY = "careful: prototypes of fewer than 5 samples stay with their client"
BUCKETS = "and samples per class are declared as powers of two; the server sees all other prototypes"


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


@pytest.mark.parametrize(
    ("privacy", "saw", "not_seen"),
    [
        ({"secure_sums": True}, "saw sums over clients, and each client's", "no client's own upload"),
        (CAREFUL | {"secure_sums": True}, "saw sums over clients, and each client's", "no client's own upload"),
        (CAREFUL, "prototypes of classes of 5 or more samples, samples per class as", "class, no Fisher scores, and"),
        (CAREFUL | {"fusion": "server"}, "the indices of their top channels, samples per class", "no Fisher scores"),
        ({"dp": "frozen"}, "saw one release of each client, with noise, and", "nothing else that depends on"),
        ({"dp": "frozen", "secure_sums": True}, "saw the sum of the clients' releases", "no client's own release"),
    ],
)
def test_what_the_server_saw_and_what_not(privacy: dict[str, Any], saw: str, not_seen: str) -> None:
    seen, _, hidden = server_view(run_with(privacy, rounds=1)).partition("; ")
    assert saw in seen
    assert not_seen in hidden


@pytest.mark.parametrize("privacy", [{}, {"noise_multiplier": 0.5}, {"min_class_samples": 5}])
def test_of_other_runs_nothing_is_said_about_what_the_server_saw(privacy: dict[str, Any]) -> None:
    assert server_view(run_with(privacy)) == ""
