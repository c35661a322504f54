"""A demo with secure sums makes its certificates itself, and says at its end what the server saw."""

from __future__ import annotations

import json
from pathlib import Path

from processes import federation


def test_a_demo_with_secure_sums_shows_what_the_server_saw_and_what_not(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        run = ("--secure-sums", "--privacy", "careful", "--clients", 5, "--rounds", 2, "--local-epochs", 1)
        machine = ("--processes", 1, "--out", "run", "--device", "cpu")
        demo = running.start("feddbp_lab.cli", "demo", *run, *machine, name="demo")
        demo.expect_exit(0)
    shown = " ".join(demo.log.split())
    assert "privacy secure sums: the server sees nothing of uploads but their sum over clients" in shown
    assert "careful: prototypes of fewer than 5 samples stay with their client, and no Fisher scores are sent" in shown
    assert shown.endswith(
        "no client's own upload, and neither its classes nor how many training samples of each it has."
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["outcome"] == "finished"
    assert summary["prototypes_sha256"]  # a sum was opened
    assert all(client["classes_held"] == client["train_samples"] == 0 for client in summary["per_client"])
    assert not list(tmp_path.rglob("ca.key"))
    assert {path.name for path in (tmp_path / "run" / "certs" / "server").glob("*.key")} == {"server.key"}
