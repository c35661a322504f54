"""A client's directory carries its format: earlier ones are upgraded, later ones refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from earlier_versions import VERSION_0_1_0, restore

from feddbp_client.training.client_directory import ClientDirectory
from feddbp_common.artifacts import CLIENT_FORMAT_NAME
from feddbp_common.errors import ConfigurationError
from feddbp_common.version import VERSION

RUN = "4080fea6-a7ee9529"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The client directories of a run that version 0.1.0 began."""
    restore(VERSION_0_1_0 / "state" / "clients", tmp_path)
    return tmp_path


def mark_of(state_dir: Path, client_id: int = 0) -> Path:
    return state_dir / RUN / f"client-{client_id}" / CLIENT_FORMAT_NAME


def test_a_new_directory_is_marked(tmp_path: Path) -> None:
    ClientDirectory(tmp_path, RUN, 0).close()
    assert json.loads(mark_of(tmp_path).read_text()) == {"format": 2, "software_version": VERSION}


def test_a_directory_of_version_0_1_0_is_upgraded_and_keeps_what_it_holds(earlier: Path) -> None:
    directory = ClientDirectory(earlier, RUN, 0)
    checkpoint = directory.load()
    assert checkpoint is not None
    assert (checkpoint.run_id, checkpoint.client_id) == (RUN, 0)
    assert directory.session()
    directory.close()
    assert json.loads(mark_of(earlier).read_text())["format"] == 2


def test_a_directory_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    ClientDirectory(tmp_path, RUN, 0).close()
    later = json.dumps({"format": 9, "software_version": "9.9.0"})
    mark_of(tmp_path).write_text(later)
    for _ in range(2):  # the refusal also releases the directory's lock
        with pytest.raises(ConfigurationError, match=rf"feddbp 9\.9\.0 \(format 9\); this is feddbp {VERSION}"):
            ClientDirectory(tmp_path, RUN, 0)
    assert mark_of(tmp_path).read_text() == later


@pytest.mark.parametrize("content", ["", "[]", '{"format": "x"}', '{"format": null}', "\x00"])
def test_a_damaged_mark_is_refused(tmp_path: Path, content: str) -> None:
    ClientDirectory(tmp_path, RUN, 0).close()
    mark_of(tmp_path).write_text(content)
    with pytest.raises(ConfigurationError, match=r"format\.json cannot be read"):
        ClientDirectory(tmp_path, RUN, 0)
