"""The server's options: address, state directory, rounds, limits, and the run itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, PlainSerializer, field_validator, model_validator

from feddbp_common.config.dry_run import FORMAT_HELP, DryRunFormat
from feddbp_common.config.run import RunConfig
from feddbp_common.config.types import Duration, FrozenModel, format_duration, format_size, parse_duration
from feddbp_common.errors import ConfigurationError
from feddbp_common.logs import LogFile
from feddbp_common.rpc.credentials import DEFAULT_PORT, check_listening
from feddbp_common.rpc.keepalive import DEFAULT_LEASE
from feddbp_server.reporting.event_command import command_words
from feddbp_server.run.admission.limits import DEFAULT_LIMITS, Limits
from feddbp_server.run.state_machine.state import RoundPolicy

FOREVER: Final = timedelta.max


def _parse_window(value: Any) -> Any:
    try:
        return FOREVER if value == "forever" else parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or give forever") from None


def _format_window(window: timedelta) -> str:
    return "forever" if window == FOREVER else format_duration(window)


JoinWindow = Annotated[timedelta, BeforeValidator(_parse_window), PlainSerializer(_format_window, when_used="json")]


class ListenConfig(FrozenModel):
    """Server: address, credentials and state directory."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; anything but loopback needs --certs or --insecure"
    )
    port: int = Field(DEFAULT_PORT, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    certs: Path | None = Field(
        None,
        description="directory made by `feddbp certs`: TLS, and clients need certificates",
        json_schema_extra={"metavar": "DIR"},
    )
    token_file: Path | None = Field(
        None, description="file with lines of NAME TOKEN; tokens replace client certificates"
    )
    insecure: bool = Field(False, description="listen without TLS on an address other machines can reach")
    state_dir: Path = Field(
        Path("feddbp-state/server"),
        description="database, metrics.jsonl and summary.json; alone it resumes the run in it",
    )
    reopen: bool = Field(
        False, description="continue a run that was stopped, has failed or ended by --stop-after; see also --rounds"
    )
    linger: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        description="after the end, how long to wait for clients that have not received it",
    )
    reflection: bool = Field(False, description="offer gRPC server reflection")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="serve Prometheus metrics on this port, 0 takes a free one; off by default"
    )
    metrics_host: str = Field(
        "127.0.0.1", description="address for metrics; without --metrics-tls anyone who can connect can read them"
    )
    metrics_tls: bool = Field(
        False, description="serve metrics over TLS, to the operator's and the probe's certificate alone; needs --certs"
    )
    share_prototypes_with_operators: bool = Field(
        False, description="let operators read global prototypes, for the dashboard; they tell something of the data"
    )
    dry_run: bool = Field(False, description="print the resolved configuration and exit")
    dry_run_format: DryRunFormat = Field("json", description=FORMAT_HELP, json_schema_extra={"flag": "--format"})
    json_output: bool = Field(False, description="logs and output as JSON lines", json_schema_extra={"flag": "--json"})
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")

    @model_validator(mode="after")
    def _exposed_only_on_purpose(self) -> Self:
        check_listening(self.host, certs=self.certs, insecure=self.insecure)
        if self.metrics_tls and (self.certs is None or self.metrics_port is None):
            raise ConfigurationError("--metrics-tls needs --certs and --metrics-port")
        return self


class RoundsConfig(FrozenModel):
    """Rounds: when they open and close."""

    min_clients: int = Field(
        1, ge=1, description="clients without which no round opens, and without whose uploads none closes"
    )
    join_window: JoinWindow = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        description="how long after the last join a run begins without the missing clients; forever waits for all",
    )
    round_deadline: Duration = Field(
        timedelta(minutes=30),
        ge=timedelta(0),
        description="longest time for a round; 0 waits for every client without limit",
    )
    max_extensions: int = Field(
        3, ge=0, description="times a round without enough uploads is extended before the run fails"
    )
    max_missed: int = Field(
        3,
        ge=0,
        description="rounds a client may miss in a row before rounds wait for it no longer; 0 always waits",
    )
    lease: Duration | None = Field(
        None,
        gt=timedelta(0),
        description="how long an id stays reserved without a connection (default: 30s, or a round's shorter deadline)",
    )

    @model_validator(mode="after")
    def _lost_clients_are_noticed_in_time(self) -> Self:
        if self.lease is not None and self.round_deadline and self.lease > self.round_deadline:
            raise ConfigurationError(
                f"--lease is {format_duration(self.lease)} and --round-deadline {format_duration(self.round_deadline)}:"
                " a round would close before lost clients are noticed"
            )
        return self

    @property
    def lease_in_force(self) -> timedelta:
        return self.lease or min(DEFAULT_LEASE, self.round_deadline or DEFAULT_LEASE)


class OperationsConfig(FrozenModel):
    """Operations: a log file, and a command for events that need attention."""

    on_event: str = Field(
        "",
        description="command that is started when the run ends or fails, a client is lost or the disk is full; it gets "
        "JSON on its standard input",
        json_schema_extra={"metavar": "COMMAND"},
    )
    lost_after: Duration = Field(
        timedelta(minutes=5),
        gt=timedelta(0),
        description="how long a client is disconnected before --on-event is started",
    )
    log_file: Path | None = Field(None, description="write the log to this file, too")
    log_file_size: ByteSize = Field(
        ByteSize(10_000_000), ge=1000, description="size at which the log file is renamed to FILE.1 and begun anew"
    )
    log_files: int = Field(5, ge=0, le=1000, description="renamed log files that are kept")

    @property
    def log_target(self) -> LogFile | None:
        if self.log_file is None:
            return None
        return LogFile(path=self.log_file, size=int(self.log_file_size), kept=self.log_files)

    @field_validator("on_event")
    @classmethod
    def _is_command_line(cls, text: str) -> str:
        command_words(text)
        return text


class LimitsConfig(FrozenModel):
    """Limits: resources that uploads may take."""

    max_upload_bytes: ByteSize = Field(
        ByteSize(DEFAULT_LIMITS.upload_bytes), ge=1, description="largest upload that is admitted"
    )
    max_bytes_in_flight: ByteSize = Field(
        ByteSize(DEFAULT_LIMITS.bytes_in_flight),
        ge=1,
        description="bytes of all uploads that are being received; they take up to three times as much memory",
    )
    max_samples: int = Field(
        DEFAULT_LIMITS.samples,
        ge=1,
        le=DEFAULT_LIMITS.samples,
        description="most training or test samples that a client may declare; they weigh averages and accuracies",
    )
    header_wait: Duration = Field(
        DEFAULT_LIMITS.header_wait, gt=timedelta(0), description="longest wait for a request, or an upload's header"
    )
    chunk_wait: Duration = Field(
        DEFAULT_LIMITS.chunk_wait, gt=timedelta(0), description="longest wait for an upload's next chunk"
    )

    sum_wait: Duration = Field(
        DEFAULT_LIMITS.sum_wait,
        gt=timedelta(0),
        description="longest wait for clients that are silent in a step of a secure sum",
    )

    @model_validator(mode="after")
    def _largest_upload_finds_room(self) -> Self:
        if self.max_bytes_in_flight < self.max_upload_bytes:
            raise ConfigurationError(
                f"--max-bytes-in-flight is {format_size(self.max_bytes_in_flight)} and --max-upload-bytes "
                f"{format_size(self.max_upload_bytes)}: the largest uploads would always be refused; raise "
                "--max-bytes-in-flight"
            )
        return self

    @property
    def in_force(self) -> Limits:
        """All limits of the server, those that are options among them."""
        return Limits(
            upload_bytes=int(self.max_upload_bytes),
            bytes_in_flight=int(self.max_bytes_in_flight),
            samples=self.max_samples,
            header_wait=self.header_wait,
            chunk_wait=self.chunk_wait,
            sum_wait=self.sum_wait,
        )


class ServerConfig(FrozenModel):
    """All options of `feddbp-server`."""

    listen: ListenConfig = ListenConfig()
    rounds: RoundsConfig = RoundsConfig()
    limits: LimitsConfig = LimitsConfig()
    operations: OperationsConfig = OperationsConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Self:
        if self.rounds.min_clients > self.run.clients:
            raise ConfigurationError(
                f"--min-clients is {self.rounds.min_clients}, but the run has only {self.run.clients} clients"
            )
        return self

    @model_validator(mode="after")
    def _sums_have_signatures(self) -> Self:
        if self.run.privacy.secure_sums and (self.listen.certs is None or self.listen.token_file is not None):
            raise ConfigurationError(
                "--secure-sums: clients sign with the keys of their certificates, which tokens do not have; "
                "give --certs, and no --token-file"
            )
        return self

    @property
    def policy(self) -> RoundPolicy:
        return RoundPolicy(
            rounds=self.run.rounds,
            min_clients=self.rounds.min_clients,
            deadline=self.rounds.round_deadline or None,
            participation=self.run.participation,
            max_extensions=self.rounds.max_extensions,
            max_missed=self.rounds.max_missed,
            seed=self.run.seed,
            newcomers=frozenset(range(self.run.clients - self.run.newcomers, self.run.clients)),
            newcomer_rounds=self.run.newcomer_rounds,
            clients=self.run.clients,
            stop_after=self.run.stop_after,
            closes_without_result=self.run.privacy.secure_sums,
            least_members=self.run.least_summed if self.run.privacy.secure_sums else 0,
            join_window=None if self.rounds.join_window == FOREVER else self.rounds.join_window,
        )
