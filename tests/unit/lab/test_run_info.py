"""The facts of a run, for pages and reports."""

from __future__ import annotations

from typing import Any

import pytest

from feddbp_common.config.identity import canonical
from feddbp_common.config.run import RunConfig
from feddbp_lab.results.run_info import exchange_text, run_info


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, ""),
        ({"finetune_rounds": 1}, "no exchange in the last round"),
        ({"finetune_rounds": 8}, "no exchange in the last 8 rounds"),
        (
            {"finetune_rounds": 8, "finetune_state": "last"},
            "no exchange in the last 8 rounds, with the state after the last exchange",
        ),
        ({"exchange": "off"}, "no exchange"),
        ({"exchange": "off", "finetune_rounds": 8}, "no exchange"),
    ],
)
def test_a_run_that_does_not_exchange_in_every_round_says_so(options: dict[str, Any], text: str) -> None:
    run = RunConfig.model_validate(options)
    assert run_info(run, run_id="", shares_prototypes=False)["exchange"] == text
    assert exchange_text(canonical(run)) == text  # as in a summary, without what is at its default
