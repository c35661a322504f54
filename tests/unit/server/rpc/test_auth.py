"""The server's list of tokens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import AUTHORIZATION_KEY, BEARER
from feddbp_server.rpc.auth import TokenAuth


def caller(token: str) -> Any:
    return SimpleNamespace(invocation_metadata=lambda: ((AUTHORIZATION_KEY, f"{BEARER}{token}"),))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.txt"


def test_a_token_keeps_its_number_sign_and_comments_are_ignored(token_file: Path) -> None:
    token_file.write_text(
        "# tokens of the clients\n\nclient-0 abc#secretpart\nclient-1 def # of the north clinic\n  #client-2 ghi\n"
    )
    tokens = TokenAuth.from_file(token_file)
    assert tokens.is_client(caller("abc#secretpart"), 0)
    assert not tokens.is_client(caller("abc"), 0)
    assert tokens.is_client(caller("def"), 1)
    assert not tokens.is_client(caller("ghi"), 2)


@pytest.mark.parametrize("second", ["client-1 #abc", "client-1", "client-0 def", "client-1 d e"])
def test_a_line_without_a_new_name_and_its_token_is_named(second: str, token_file: Path) -> None:
    token_file.write_text(f"client-0 abc\n{second}\n")
    with pytest.raises(ConfigurationError, match="line 2 is not a NAME, new in this file, and its TOKEN"):
        TokenAuth.from_file(token_file)
