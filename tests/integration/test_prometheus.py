"""A real Prometheus scrapes a live run over TLS, and finds every series that the dashboard and the alerts ask for."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import Federation, federation, wait_until

from feddbp_common.artifacts import ENDPOINT_NAME
from feddbp_common.rpc.credentials import OPERATOR, PROBE, client_subject
from feddbp_lab.pki.certificates import Authority

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="prometheus and promtool are not installed (Debian's `prometheus`)"
)
RUN = ("--clients", 2, "--rounds", 500, "--local-epochs", 1, "--method", "fedproto")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    authority.issue_server(["127.0.0.1"])
    for subject in (client_subject(0), client_subject(1), OPERATOR, PROBE):
        authority.issue_party(subject)
    return directory


@pytest.fixture(scope="module")
def scraped_run(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A run that lasts, with metrics over TLS."""
    with federation(tmp_path_factory.mktemp("run")) as running:
        running.server(*RUN, "--certs", certs, "--metrics-port", 0, "--metrics-tls")
        running.client("0-1", "--certs", certs)
        yield running


def metrics_port(running: Federation) -> int:
    port: int = json.loads((running.state_dir / ENDPOINT_NAME).read_text())["metrics_port"]
    return port


def asked_for() -> set[str]:
    """The names of series in the dashboard and the alerts."""
    texts = [(MONITORING / name).read_text() for name in ("grafana-dashboard.json", "alerts.yml")]
    return {name for text in texts for name in re.findall(r"\bfeddbp_[a-z_]+", text)}


@contextmanager
def prometheus(directory: Path, target: int, certs: Path) -> Iterator[str]:
    """Prometheus with the configuration of deploy/, but for its target and interval; yields its address."""
    configuration: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    configuration["global"]["scrape_interval"] = "1s"
    (job,) = configuration["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
    job |= {
        "scheme": "https",
        "tls_config": {
            "ca_file": str(certs / "ca.pem"),
            "cert_file": str(certs / "probe.pem"),
            "key_file": str(certs / "probe.key"),
        },
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    shutil.copy(MONITORING / "alerts.yml", directory)
    assert PROMETHEUS is not None
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=output,
            stderr=output,
        )
    try:

        def address() -> str | None:
            assert process.poll() is None, log.read_text()
            found = re.search(r"[Ll]istening on\"? address=\"?(127\.0\.0\.1:\d+)", log.read_text())
            return None if found is None else f"http://{found[1]}"

        yield wait_until(address, "the start of Prometheus")
    finally:
        process.kill()
        process.wait()


def query(address: str, expression: str) -> list[Any]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            found: list[Any] = json.load(response)["data"]["result"]
    except OSError:  # it listens before it is ready to answer
        return []
    return found


@needs_prometheus
def test_prometheus_finds_every_series_that_dashboard_and_alerts_name(
    scraped_run: Federation, certs: Path, tmp_path: Path
) -> None:
    names = asked_for()
    assert len(names) > 15
    with prometheus(tmp_path, metrics_port(scraped_run), certs) as address:
        missing = set(names)

        def all_found() -> bool:
            missing.difference_update({name for name in missing if query(address, name)})
            return not missing

        try:
            wait_until(all_found, "every series")
        finally:
            assert not missing
        assert query(address, 'up{job="feddbp"}')[0]["value"][1] == "1"
        with urllib.request.urlopen(f"{address}/api/v1/rules", timeout=20) as response:
            groups = json.load(response)["data"]["groups"]
    assert [rule["health"] for group in groups for rule in group["rules"]].count("err") == 0


@needs_prometheus
@pytest.mark.parametrize("what", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_the_files_of_deploy(what: tuple[str, str]) -> None:
    kind, name = what
    checked = subprocess.run([str(PROMTOOL), "check", kind, name], cwd=MONITORING, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("subject", "accepted"), [(OPERATOR, True), (PROBE, True), (client_subject(0), False), (None, False)]
)
def test_metrics_over_tls_are_for_operator_and_probe_alone(
    scraped_run: Federation, certs: Path, subject: str | None, accepted: bool
) -> None:
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    if subject is not None:
        context.load_cert_chain(certs / f"{subject}.pem", certs / f"{subject}.key")
    url = f"https://127.0.0.1:{metrics_port(scraped_run)}/metrics"
    if accepted:
        with urllib.request.urlopen(url, timeout=20, context=context) as response:
            assert b"feddbp_round" in response.read()
        return
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(url, timeout=20, context=context).read()


def test_metrics_without_tls_are_refused_where_tls_was_asked_for(scraped_run: Federation) -> None:
    with pytest.raises((OSError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{metrics_port(scraped_run)}/metrics", timeout=20).read()
