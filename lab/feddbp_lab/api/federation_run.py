"""`feddbp.Federation`: a whole run on this machine, from a script or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddbp_common.artifacts import client_directory
from feddbp_common.config.catalog import CUSTOM_DATASET
from feddbp_common.config.run import RunConfig
from feddbp_common.cpu_cores import usable_cores
from feddbp_common.errors import ConfigurationError
from feddbp_common.optional_deps import require
from feddbp_lab.api.background_loop import BackgroundLoop
from feddbp_lab.api.run_status import RunStatus
from feddbp_lab.processes.federation_options import FederationOptions, clients_dir, server_dir
from feddbp_lab.processes.local_federation import LocalFederation, ProcessFailedError, require_client
from feddbp_lab.results.run_results import RunResults
from feddbp_server.store.interface import OTHER_RUN

if TYPE_CHECKING:
    from pandas import DataFrame

    from feddbp_client.inference.trained_client import TrainedClient

OnStatus = Callable[[RunStatus], None]


@dataclass(frozen=True, kw_only=True)
class FederationResult:
    """What a run left in its directory."""

    directory: Path
    summary: dict[str, Any]
    """`summary.json`."""
    metrics: list[dict[str, Any]]
    """`metrics.jsonl`: one entry per client and round, ordered by round and client."""

    @property
    def outcome(self) -> str:
        """finished, failed or stopped."""
        return str(self.summary["outcome"])

    @property
    def reason(self) -> str:
        """Why the run ended."""
        return str(self.summary["reason"])

    @property
    def accuracy(self) -> float | None:
        """After the last round, over the test samples of `accuracy_clients` clients; None if none evaluated."""
        last = self.summary["accuracy"]["last"]
        return None if last is None else float(last["weighted"])

    @property
    def accuracy_clients(self) -> int:
        """Clients that `accuracy` is over: those with test samples that have trained and evaluated."""
        last = self.summary["accuracy"]["last"]
        return 0 if last is None else int(last["clients"])

    @property
    def clients(self) -> list[int]:
        """Ids of the run's clients, for `client`."""
        return list(range(self.summary["clients"]))

    def frame(self) -> DataFrame:
        """The metrics as a pandas table: a row per client and round, a column per value and per term of the loss."""
        require("a table of metrics", ("pandas",), extra="notebook")
        from pandas import json_normalize

        return json_normalize(self.metrics)

    def pictures(self, directory: str | Path | None = None) -> dict[str, Path]:
        """Draws the pictures of `feddbp report`, by default into the run's directory; returns the PNG files by name."""
        require("pictures", ("matplotlib",), extra="lab")
        from feddbp_lab.results.pictures.figure import write_pictures
        from feddbp_lab.results.pictures.report import PICTURES_DIR
        from feddbp_lab.results.pictures.run_pictures import pictures_of
        from feddbp_lab.results.run_files import RunFiles

        results = RunResults(summary=self.summary, metrics=self.metrics)
        place = self.directory / PICTURES_DIR if directory is None else Path(directory)
        drawn = write_pictures(pictures_of(RunFiles(server_dir(self.directory)), results, {}), place, columns=2)
        return {name: png for name, (png, _) in drawn.items()}

    def client(self, client_id: int, *, device: str = "auto") -> TrainedClient:
        """The trained client, ready to predict."""
        from feddbp_client.inference.trained_client import TrainedClient

        path = client_directory(clients_dir(self.directory), self.summary["run_id"], client_id)
        return TrainedClient.load(path, device=device)


class Federation:
    """One server and all clients of a run as processes on this machine, connected over loopback.

    `directory` receives everything they write. If it holds the same run, that run is resumed, and one that has ended
    only returns its results; with more rounds it is extended to them. Another run, such as one of another seed, needs
    another directory. With `share_prototypes` the server keeps the global prototypes, for the pictures of classes.
    `frozen_weights` is the file with the weights of the method frozen's network.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        directory: str | Path,
        data_dir: str | Path = "data",
        device: str = "auto",
        processes: int | None = None,
        share_prototypes: bool = False,
        frozen_weights: str | Path | None = None,
    ) -> None:
        if run.data.dataset == CUSTOM_DATASET:
            raise ConfigurationError("a federation on one machine splits a public data set; name one of them")
        if processes is not None and processes < 1:
            raise ConfigurationError(f"processes is {processes}: give at least 1, or None for one per core")
        self._options = FederationOptions(
            run=run,
            directory=Path(directory),
            processes=usable_cores() if processes is None else processes,
            data_dir=Path(data_dir),
            device=device,
            share_prototypes=share_prototypes,
            frozen_weights=None if frozen_weights is None else Path(frozen_weights),
        )

    def run(self, on_status: OnStatus | None = None) -> FederationResult:
        """Runs to the end and returns the results; `on_status` is called at every change.

        Blocks, also where an event loop is running. `on_status` is called in another thread, the one that supervises
        the processes: while it blocks, no failure is noticed and no further status arrives. An exception, whether
        Ctrl-C here or any that `on_status` raises, stops every process and is raised to the caller.
        """
        loop = BackgroundLoop(closed="the federation was stopped: the interpreter is exiting")
        try:
            return loop.call(self.run_async(on_status))
        finally:
            loop.close()

    async def run_async(self, on_status: OnStatus | None = None) -> FederationResult:
        """The same for code that is async itself; `on_status` is called in the event loop and must not block it."""
        require_client("a federation")
        options = self._options
        try:
            async with LocalFederation(options) as federation, aclosing(federation.statuses()) as statuses:
                async for status in statuses:
                    if on_status is not None:
                        on_status(RunStatus.from_message(status))
        except ProcessFailedError as error:
            _refuse_other_run(error, options.directory)
            raise
        federation.summary()  # raises if the server was stopped before the run was over
        results = RunResults.read(options.server_dir)
        # as they arrived in the file; two runs of the same bits should give the same list
        metrics = sorted(results.metrics, key=lambda line: (line["round"], line["client"]))
        return FederationResult(directory=options.directory, summary=results.summary, metrics=metrics)


def _refuse_other_run(error: ProcessFailedError, directory: Path) -> None:
    """Raises ConfigurationError if the server ended because of the run that is in the directory."""
    if error.reason.startswith(OTHER_RUN):
        differences, _, _ = error.reason.removeprefix(OTHER_RUN).partition("; give --state-dir")
        raise ConfigurationError(
            f"directory={str(directory)!r} holds another run{differences}; give the same run to resume it, one with "
            "more rounds to extend it, or another directory"
        ) from None
