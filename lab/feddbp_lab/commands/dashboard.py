"""`feddbp dashboard`: serves a page of a live run, of a finished one, or of a folder of runs."""

from __future__ import annotations

import asyncio
import socket
import ssl
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic import Field, model_validator

from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import join_address
from feddbp_common.optional_deps import DASHBOARD_MODULES, require
from feddbp_common.rpc.credentials import DEFAULT_ADDRESS, is_loopback, read_token
from feddbp_lab.commands.options import OperatorConfig
from feddbp_lab.control_client import get_status

if TYPE_CHECKING:
    from feddbp_lab.dashboard.library import Library
    from feddbp_lab.dashboard.live import LiveRun

PROG: Final = "feddbp dashboard"


class DashboardSourceConfig(OperatorConfig):
    """Server: the run to show, unless a directory is given."""

    server: str = Field(
        "",
        description=f"address of a server, HOST:PORT (default without DIR: {DEFAULT_ADDRESS})",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    baseline: Path | None = Field(
        None,
        description="directory of a `local` run of the same seed, to compare with",
        json_schema_extra={"metavar": "DIR"},
    )

    def _check_server(self) -> None:
        if self.server:
            super()._check_server()


class PageConfig(FrozenModel):
    """Page: where it is served."""

    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs TLS")
    port: int = Field(8060, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    tls_cert: Path | None = Field(
        None, description="certificate of the page, PEM", json_schema_extra={"metavar": "FILE"}
    )
    tls_key: Path | None = Field(None, description="its key, PEM", json_schema_extra={"metavar": "FILE"})
    key_file: Path | None = Field(
        None, description="file with the key that opens the page; by default one is made and printed"
    )
    browser: bool = Field(False, description="open the page in a browser")

    @model_validator(mode="after")
    def _encrypted_beyond_loopback(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError("--tls-cert and --tls-key belong together")
        if self.tls_cert is None and not is_loopback(self.host):
            raise ConfigurationError(
                f"{self.host} is reachable from other machines: give --tls-cert and --tls-key, "
                "or keep to loopback and use a tunnel such as ssh -L"
            )
        return self


class DashboardConfig(FrozenModel):
    """All options of `feddbp dashboard`."""

    source: DashboardSourceConfig = DashboardSourceConfig()
    page: PageConfig = PageConfig()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Serves a page of a run: live from its server, or from the files of finished runs.", DashboardConfig
    )
    parser.usage = f"{PROG} [DIR] [options]"
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="a server's --state-dir, a demo's directory, or a folder of runs, such as an experiment's",
    )
    flags = parser.parse_args(argv)
    config = settings_from(DashboardConfig, flags)
    require("the dashboard", DASHBOARD_MODULES, extra="dashboard")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(config, flags.directory))
    return ExitCode.OK


async def _serve(config: DashboardConfig, directory: Path | None) -> None:
    # not before the options were checked: they take a moment to import
    import uvicorn

    from feddbp_lab.dashboard.access import Access, allowed_hosts
    from feddbp_lab.dashboard.live import LiveRun
    from feddbp_lab.dashboard.web import build_app

    page = config.page
    library = await _open_library(config.source, directory)
    listener = _listen(page)
    port = listener.getsockname()[1]
    local = is_loopback(page.host)
    key = {} if page.key_file is None else {"key": read_token(page.key_file)}
    access = Access(open_to_view=local, **key)
    app = build_app(
        library, access, hosts=allowed_hosts(page.host, port) if local else None, secure=page.tls_cert is not None
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=1,
            ssl_certfile=page.tls_cert,
            ssl_keyfile=page.tls_key,
            server_header=False,
        )
    )
    address = _address(page, port)
    print(f"{PROG}: {address}/?key={access.key}" if page.key_file is None else f"{PROG}: {address}/", flush=True)
    if page.browser:
        webbrowser.open(f"{address}/?key={access.key}")
    following = asyncio.create_task(library.single.follow()) if isinstance(library.single, LiveRun) else None
    try:
        await server.serve(sockets=[listener])
    finally:
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def _open_library(source: DashboardSourceConfig, directory: Path | None) -> Library:
    from feddbp_lab.dashboard.library import Library, read_baseline
    from feddbp_lab.dashboard.stored import StoredRun
    from feddbp_lab.results.run_files import RunFiles, find_runs

    if directory is None or source.server:
        live = await _open_live(source, directory)
        if source.baseline is not None:
            live.baseline = read_baseline(source.baseline, None if directory is None else RunFiles(directory))
        return Library(single=live)
    runs = find_runs(directory)
    if runs != [directory]:
        if source.baseline is not None:
            raise ConfigurationError(
                f"--baseline is for one run; {directory} is a folder of runs, each of which is compared with the "
                "`local` run of the same clients"
            )
        return Library(folder=directory, runs=runs)
    stored = StoredRun(RunFiles(directory))
    if source.baseline is not None:
        stored.baseline = read_baseline(source.baseline, stored.files)
    return Library(single=stored)


async def _open_live(source: DashboardSourceConfig, directory: Path | None) -> LiveRun:
    from feddbp_lab.dashboard.live import LiveRun
    from feddbp_lab.results.run_files import RunFiles

    address = source.server or DEFAULT_ADDRESS
    # a first call: a mistake in the address or the credentials is an error here, and not on a page
    await get_status(address, source.credentials)
    return LiveRun(address, source.credentials, None if directory is None else RunFiles(directory))


def _listen(page: PageConfig) -> socket.socket:
    host = page.host.strip("[]")
    try:
        if page.tls_cert is not None and page.tls_key is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(page.tls_cert, page.tls_key)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, page.port), family=family)
    except ssl.SSLError as error:
        raise ConfigurationError(f"--tls-cert {page.tls_cert}: {error.reason or error}") from None
    except OSError as error:
        what = error.filename or f"cannot listen on {page.host}:{page.port}"
        raise ConfigurationError(f"{what}: {error.strerror}; another --port or --host may be free") from None


def _address(page: PageConfig, port: int) -> str:
    return f"{'http' if page.tls_cert is None else 'https'}://{join_address(page.host, port)}"
