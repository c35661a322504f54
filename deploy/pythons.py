"""Installs the server with other versions of Python, where they are on this machine, and starts it with each.

python deploy/pythons.py 3.12 3.13

Packages are downloaded. Clients are not tried: torch has builds of its own for every version.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from feddbp_common.artifacts import ENDPOINT_NAME

CHECKOUT = Path(__file__).parents[1]
PATIENCE = 60.0


def interpreter(version: str) -> Path | None:
    """The interpreter of a version: on the path, or one of pyenv's."""
    found = shutil.which(f"python{version}")
    if found is not None and _runs(Path(found)):
        return Path(found)
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return installed[-1] if installed else None


def try_version(python: Path, directory: Path) -> None:
    """Raises CalledProcessError or TimeoutError unless the server installs, starts and answers."""
    home = directory / "venv"
    subprocess.run([python, "-m", "venv", home], check=True)
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", str(CHECKOUT)]
    subprocess.run(pip, check=True, cwd=directory)
    state = directory / "state"
    server = subprocess.Popen([home / "bin" / "feddbp-server", "--port", "0", "--state-dir", state], cwd=directory)
    try:
        address = _address(state / ENDPOINT_NAME, server)
        subprocess.run([home / "bin" / "feddbp", "health", "--server", address], check=True, cwd=directory)
        subprocess.run([home / "bin" / "feddbp", "status", "--server", address], check=True, cwd=directory)
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _address(endpoint: Path, server: subprocess.Popen[bytes]) -> str:
    started = time.monotonic()
    while not endpoint.exists():
        if server.poll() is not None or time.monotonic() - started > PATIENCE:
            raise TimeoutError("the server did not start")
        time.sleep(0.1)
    found = json.loads(endpoint.read_text())
    return f"{found['host']}:{found['port']}"


def _runs(python: Path) -> bool:
    """Whether it is an interpreter: pyenv has a command of this name for versions that are not chosen, too."""
    return subprocess.run([python, "--version"], capture_output=True).returncode == 0


def main(versions: list[str]) -> int:
    failed = []
    for version in versions:
        python = interpreter(version)
        if python is None:
            print(f"python {version}: not tried, there is no interpreter on this machine", flush=True)
            continue
        with tempfile.TemporaryDirectory() as directory:
            try:
                try_version(python, Path(directory))
            except (subprocess.CalledProcessError, TimeoutError) as error:
                failed.append(version)
                print(f"python {version}: failed: {error}", flush=True)
            else:
                print(f"python {version}: the server installs, starts and answers", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
