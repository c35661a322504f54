from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from file_server import FileServer, running_file_server

from feddbp_client.data import clear_dataset_cache

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def empty_dataset_cache() -> Iterator[None]:
    clear_dataset_cache()
    yield
    clear_dataset_cache()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with running_file_server() as running:
        yield running
