"""`feddbp certs`: certificates and tokens for a federation across machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import TOKENS_NAME
from feddbp_common.config.command_line import Parser
from feddbp_common.config.types import parse_duration, parse_ids
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.rpc.credentials import OPERATOR, PROBE, SERVER, client_subject
from feddbp_lab.pki.certificates import PARTY_LIFETIME, Authority, new_token, write_secret
from feddbp_lab.pki.parties import make_parties

_LOOPBACK: Final = ("localhost", "127.0.0.1")
"""Hosts of every server's certificate: an operator on its machine need not know its name."""


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


def _server(directory: Path, host: list[str], lifetime: timedelta, replace: bool) -> list[Path]:
    _check_new(_pairs(directory, [SERVER]), replace=replace)
    hosts = list(dict.fromkeys((*host, *_LOOPBACK)))
    return _with_keys([Authority.load(directory).issue_server(hosts, lifetime=lifetime)])


def _client(directory: Path, ids: str, lifetime: timedelta, replace: bool) -> list[Path]:
    return _issue(directory, [client_subject(number) for number in parse_ids(ids)], lifetime, replace)


def _operator(directory: Path, lifetime: timedelta, replace: bool) -> list[Path]:
    return _issue(directory, [OPERATOR], lifetime, replace)


def _probe(directory: Path, lifetime: timedelta, replace: bool) -> list[Path]:
    return _issue(directory, [PROBE], lifetime, replace)


def _issue(directory: Path, subjects: Sequence[str], lifetime: timedelta, replace: bool) -> list[Path]:
    _check_new(_pairs(directory, subjects), replace=replace)
    authority = Authority.load(directory)
    return _with_keys([authority.issue_party(subject, lifetime=lifetime) for subject in subjects])


def _with_keys(certificates: Sequence[Path]) -> list[Path]:
    """Every certificate, and its key in the file beside it."""
    return [path for certificate in certificates for path in (certificate, certificate.with_suffix(".key"))]


def _pairs(directory: Path, subjects: Sequence[str]) -> list[Path]:
    return [directory / f"{subject}.{kind}" for subject in subjects for kind in ("key", "pem")]


def _check_new(paths: Sequence[Path], *, replace: bool) -> None:
    """Raises ConfigurationError before anything is written: a key that somebody uses cannot be made again."""
    existing = [path for path in paths if path.exists()]
    if existing and not replace:
        more = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        raise ConfigurationError(f"{existing[0]} exists already{more}; give --replace to make new ones instead")


def _parties(directory: Path, host: list[str], ids: str, lifetime: timedelta, owner: int | None) -> list[Path]:
    return _with_keys(make_parties(directory, hosts=host, ids=parse_ids(ids), lifetime=lifetime, owner=owner))


def _tokens(directory: Path, ids: str, replace: bool) -> list[Path]:
    """The server's list of tokens, and a file with its own token for each party."""
    names = [*map(client_subject, parse_ids(ids)), OPERATOR]
    listed, own = directory / TOKENS_NAME, {name: directory / f"{name}.token" for name in names}
    _check_new([listed, *own.values()], replace=replace)
    tokens = {name: new_token() for name in names}
    write_secret(listed, "".join(f"{name} {token}\n" for name, token in tokens.items()).encode())
    for name, token in tokens.items():
        write_secret(own[name], f"{token}\n".encode())
    return [listed, *own.values()]


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
    server = kind("server", "create the server's certificate, also valid on its own machine as localhost", _server)
    client = kind("client", "create certificates for clients", _client)
    operator = kind(
        "operator", "create the operator's certificate, for `feddbp status`, `pause`, `resume` and `stop`", _operator
    )
    probe = kind("probe", "create a certificate for `feddbp health`, valid for nothing else", _probe)
    parties = kind("parties", "create what is missing for all parties, a directory each", _parties)
    parties.add_argument(
        "--owner", type=int, metavar="UID", help="user who becomes the owner of the keys (default: the current user)"
    )
    tokens = kind("tokens", "create tokens, the lighter alternative", _tokens, expires=False)
    for keeps_files in (server, client, operator, probe, tokens):
        keeps_files.add_argument("--replace", action="store_true", help="replace keys that exist already")
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
