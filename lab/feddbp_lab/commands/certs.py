"""`feddbp certs`: certificates and tokens for a federation across machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from feddbp_common.artifacts import TOKENS_NAME
from feddbp_common.config.command_line import Parser
from feddbp_common.config.types import parse_duration, parse_ids
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.rpc.credentials import OPERATOR, PROBE, client_subject
from feddbp_lab.pki.certificates import PARTY_LIFETIME, Authority, new_token, write_secret
from feddbp_lab.pki.parties import make_parties


def command(argv: Sequence[str]) -> int:
    flags = _parser().parse_args(argv)
    create: Callable[..., list[Path]] = flags.create
    options = {name: value for name, value in vars(flags).items() if name not in ("create", "directory")}
    for path in create(flags.directory, **options):
        print(path)
    return ExitCode.OK


def _init(directory: Path) -> list[Path]:
    Authority.create(directory)
    return [directory / "ca.pem", directory / "ca.key"]


def _server(directory: Path, host: list[str], lifetime: timedelta) -> list[Path]:
    return [Authority.load(directory).issue_server(host, lifetime=lifetime)]


def _client(directory: Path, ids: str, lifetime: timedelta) -> list[Path]:
    authority = Authority.load(directory)
    return [authority.issue_party(client_subject(number), lifetime=lifetime) for number in parse_ids(ids)]


def _operator(directory: Path, lifetime: timedelta) -> list[Path]:
    return [Authority.load(directory).issue_party(OPERATOR, lifetime=lifetime)]


def _probe(directory: Path, lifetime: timedelta) -> list[Path]:
    return [Authority.load(directory).issue_party(PROBE, lifetime=lifetime)]


def _parties(directory: Path, host: list[str], ids: str, lifetime: timedelta, owner: int | None) -> list[Path]:
    return make_parties(directory, hosts=host, ids=parse_ids(ids), lifetime=lifetime, owner=owner)


def _tokens(directory: Path, ids: str) -> list[Path]:
    """The server's list of tokens, and a file with its own token for each party."""
    names = [*map(client_subject, parse_ids(ids)), OPERATOR]
    tokens = {name: new_token() for name in names}
    lines = "".join(f"{name} {token}\n" for name, token in tokens.items())
    written = [directory / TOKENS_NAME]
    write_secret(written[0], lines.encode())
    for name, token in tokens.items():
        written.append(directory / f"{name}.token")
        write_secret(written[-1], f"{token}\n".encode())
    return written


def _parser() -> Parser:
    parser = Parser(prog="feddbp certs", description="Creates certificates (or tokens) for a federation.")
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)

    def kind(name: str, summary: str, create: Callable[..., list[Path]], *, expires: bool = True) -> Parser:
        added: Parser = kinds.add_parser(name, help=summary, description=summary)
        added.add_argument("directory", type=Path, metavar="DIR", help="where certificates and keys are kept")
        added.set_defaults(create=create)
        if expires:
            added.add_argument(
                "--lifetime", type=_lifetime, default=PARTY_LIFETIME, help="how long it is valid (default: 365d)"
            )
        return added

    kind("init", "create the certificate authority all parties trust", _init, expires=False)
    server = kind("server", "create the server's certificate", _server)
    client = kind("client", "create certificates for clients", _client)
    kind("operator", "create the operator's certificate, for `feddbp status`, `pause`, `resume` and `stop`", _operator)
    kind("probe", "create a certificate for `feddbp health`, valid for nothing else", _probe)
    parties = kind("parties", "create what is missing for all parties, a directory each", _parties)
    parties.add_argument(
        "--owner", type=int, metavar="UID", help="user who becomes the owner of the keys (default: the current user)"
    )
    tokens = kind("tokens", "create tokens, the lighter alternative", _tokens, expires=False)
    for needs_hosts in (server, parties):
        needs_hosts.add_argument(
            "--host",
            action="append",
            required=True,
            help="name or address under which clients reach the server; may be repeated",
        )
    for needs_ids in (client, parties, tokens):
        needs_ids.add_argument("--id", "--ids", dest="ids", required=True, help="client ids, e.g. 3 or 0-19")
    return parser


def _lifetime(text: str) -> timedelta:
    try:
        parsed = parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"--lifetime: {error}") from None
    assert isinstance(parsed, timedelta)
    return parsed
