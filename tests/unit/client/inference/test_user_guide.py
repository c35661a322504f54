"""The user guide's example of own data and an own model, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import files_on

from feddbp_client.data import load_private_data
from feddbp_client.models import build_backbone

NAMES = ("zero", "one", "two")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in files_on("user-guide.md").items():
        (tmp_path / name).write_text(code)
    exec((tmp_path / "make_pictures.py").read_text(), {})
    return tmp_path


def test_both_data_formats_and_the_model_can_be_used(example: Path) -> None:
    for source, shape in (("pictures", (3, 32, 32)), ("scans.npz", (1, 32, 32))):
        data = load_private_data(example / source, classes=3, class_names=NAMES).train
        assert (data.images.shape[3], *data.images.shape[1:3]) == shape
        assert set(data.labels.tolist()) == {0, 1, 2}
        build_backbone("my_models:tiny_net", shape)
    assert {path.name for path in example.glob("new-*.png")} == {f"new-{name}.png" for name in NAMES}
