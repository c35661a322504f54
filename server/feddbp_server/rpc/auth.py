"""Authentication: by the certificate of a connection or the token of a call."""

from __future__ import annotations

import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import AUTHORIZATION_KEY, BEARER, OPERATOR, client_subject, is_party
from feddbp_server.run.admission.refusals import RefusedError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
"""A comment in a token file: a token may have a # in it, but does not begin with one."""


class Identity(Protocol):
    """Authenticates callers."""

    def check_client(self, context: Context, client_id: int) -> None:
        """Refuses a caller that may not act as this client."""

    def is_client(self, context: Context, client_id: int) -> bool:
        """Whether the caller is known to be this client, whatever it says."""

    def check_operator(self, context: Context) -> None:
        """Refuses a caller that is not the operator."""

    def check_party(self, context: Context) -> None:
        """Refuses a caller that is neither a client nor the operator."""

    def name_of(self, context: Context) -> str | None:
        """The name of a caller that has authenticated, empty if it has not; None where no caller does."""


class NoAuth:
    """No check: for loopback, and for --insecure."""

    def check_client(self, context: Context, client_id: int) -> None:
        pass

    def is_client(self, context: Context, client_id: int) -> bool:
        return False

    def check_operator(self, context: Context) -> None:
        pass

    def check_party(self, context: Context) -> None:
        pass

    def name_of(self, context: Context) -> str | None:
        return None


class _SubjectAuth(ABC):
    """Authenticates a caller by the name it acts under."""

    @abstractmethod
    def _check(self, context: Context, subject: str) -> None:
        """Refuses a caller that may not act as `subject`."""

    def check_client(self, context: Context, client_id: int) -> None:
        self._check(context, client_subject(client_id))

    def is_client(self, context: Context, client_id: int) -> bool:
        try:
            self.check_client(context, client_id)
        except RefusedError:
            return False
        return True

    def check_operator(self, context: Context) -> None:
        self._check(context, OPERATOR)


class CertificateAuth(_SubjectAuth):
    """Requires the subject of the caller's certificate to be the name it acts under."""

    def _check(self, context: Context, subject: str) -> None:
        names = _names_of(context)
        if names != [subject]:
            raise _not_authorised("certificate", f"{_shown(names)} may not act as {subject!r}")

    def check_party(self, context: Context) -> None:
        names = _names_of(context)
        if len(names) != 1 or not is_party(names[0]):
            raise _not_authorised("certificate", f"{_shown(names)} names neither a client nor the operator")

    def name_of(self, context: Context) -> str | None:
        names = _names_of(context)
        return names[0] if len(names) == 1 else ""


class TokenAuth(_SubjectAuth):
    """Requires the token of the name a caller acts under; the server has the list of all tokens."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = tokens

    @classmethod
    def from_file(cls, path: Path) -> TokenAuth:
        """Reads lines of `NAME TOKEN`, e.g. `client-3 6f1c...`; empty lines are ignored.

        So is what follows a # at the beginning of a line or after a space.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}") from None
        tokens: dict[str, str] = {}
        for number, line in enumerate(lines, start=1):
            words = _COMMENT.sub("", line).split()
            if words and (len(words) != 2 or words[0] in tokens):
                raise ConfigurationError(
                    f"--token-file {path}: line {number} is not a NAME, new in this file, and its TOKEN"
                )
            if words:
                tokens[words[0]] = words[1]
        if not tokens:
            raise ConfigurationError(f"--token-file {path}: holds no tokens")
        return cls(tokens)

    def _check(self, context: Context, subject: str) -> None:
        expected = self._tokens.get(subject)
        if expected is None or not hmac.compare_digest(_token_of(context), expected.encode()):
            raise _not_authorised("token", f"the token is not that of {subject!r}")

    def check_party(self, context: Context) -> None:
        token = _token_of(context)
        if not any(hmac.compare_digest(token, known.encode()) for known in self._tokens.values()):
            raise _not_authorised("token", "unknown token")

    def name_of(self, context: Context) -> str | None:
        token = _token_of(context)
        return next((name for name, known in self._tokens.items() if hmac.compare_digest(token, known.encode())), "")


def _names_of(context: Context) -> list[str]:
    return [name.decode(errors="replace") for name in context.auth_context().get("x509_common_name", ())]


def _shown(names: list[str]) -> str:
    return f"the certificate of {names[0][:64]!r}" if names else "a caller without a certificate"


def _token_of(context: Context) -> bytes:
    given = dict(context.invocation_metadata() or ()).get(AUTHORIZATION_KEY, "")
    return str(given).removeprefix(BEARER).encode()


def _not_authorised(field: str, message: str) -> RefusedError:
    return RefusedError(pb.REFUSAL_REASON_NOT_AUTHORISED, message, field=field)
