"""A client's journal of secure sums: answered once, whatever the server shows and however often it is killed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from feddbp_client.daemon.sum_journal import SumJournal
from feddbp_common.artifacts import SUM_JOURNAL_NAME
from feddbp_common.errors import ConfigurationError, ProtocolViolationError

STATE, OTHER = bytes(32), bytes([1]) * 32


def test_a_round_keeps_its_secret_and_another_round_has_another(tmp_path: Path) -> None:
    first = SumJournal(tmp_path).begin(3, STATE)
    assert SumJournal(tmp_path).begin(3, STATE) == first
    assert SumJournal(tmp_path).begin(4, STATE) != first


def test_the_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    SumJournal(tmp_path).begin(0, STATE)
    assert stat.S_IMODE((tmp_path / SUM_JOURNAL_NAME).stat().st_mode) == 0o600


def test_secrets_of_earlier_rounds_are_gone(tmp_path: Path) -> None:
    journal = SumJournal(tmp_path)
    first = journal.begin(0, STATE)
    journal.begin(1, STATE)
    assert first.hex() not in (tmp_path / SUM_JOURNAL_NAME).read_text()


def test_no_round_is_summed_again(tmp_path: Path) -> None:
    SumJournal(tmp_path).begin(4, STATE)
    with pytest.raises(ProtocolViolationError, match="a sum of round 4 again, after one of round 5"):
        SumJournal(tmp_path).begin(3, STATE)


def test_a_second_state_of_a_round_is_refused(tmp_path: Path) -> None:
    SumJournal(tmp_path).begin(3, STATE)
    with pytest.raises(ProtocolViolationError, match="two states of round 4"):
        SumJournal(tmp_path).begin(3, OTHER)


def test_a_second_roster_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    journal = SumJournal(tmp_path)
    journal.begin(3, STATE)
    journal.agree_roster(STATE)
    journal.agree_roster(STATE)
    again = SumJournal(tmp_path)
    with pytest.raises(ProtocolViolationError, match="two rosters"):
        again.agree_roster(OTHER)


def test_a_second_term_under_the_same_masks_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    journal = SumJournal(tmp_path)
    journal.begin(3, STATE)
    journal.agree_upload(STATE)
    again = SumJournal(tmp_path)
    again.agree_upload(STATE)
    with pytest.raises(ProtocolViolationError, match="another term was sent under the masks of this round"):
        again.agree_upload(OTHER)


def test_a_second_set_of_survivors_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    journal = SumJournal(tmp_path)
    journal.begin(3, STATE)
    journal.agree_survivors(frozenset({0, 1, 2}))
    again = SumJournal(tmp_path)
    again.agree_survivors(frozenset({2, 1, 0}))
    with pytest.raises(ProtocolViolationError, match="two sets of survivors"):
        again.agree_survivors(frozenset({0, 1}))


def test_a_damaged_journal_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    (tmp_path / SUM_JOURNAL_NAME).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        SumJournal(tmp_path)
