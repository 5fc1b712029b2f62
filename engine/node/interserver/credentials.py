"""Who may fetch parts: the `interserver_http_credentials` of the configuration.

Source: ClickHouse's InterserverCredentials.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and its password; the empty pair stands for a request without any."""

    user: str = ""
    password: str = field(default="", repr=False)

    def to_header(self) -> str:
        pair = f"{self.user}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")


@dataclass(frozen=True, slots=True)
class InterserverCredentials:
    """`current` is what this node shows and accepts; `old` are accepted, too, while a password is changed
    everywhere; with `allow_empty` also requests without credentials."""

    current: Credentials
    old: tuple[Credentials, ...] = ()
    allow_empty: bool = False

    def refusal(self, given: Credentials) -> str:
        """Why a request is refused, as ClickHouse words it; empty if it is accepted."""
        # All are compared, and each in constant time: an answer's delay says nothing about a password.
        matches = [_is_same(given, known) for known in (self.current, *self.old)]
        if any(matches) or (self.allow_empty and not given.user and not given.password):
            return ""
        if not given.user:
            return "Server requires HTTP Basic authentication, but client doesn't provide it"
        return f"Incorrect user or password in HTTP basic authentication: {given.user}"


NOT_BASIC = "Server requires HTTP Basic authentication but client provides another method"
NOT_EXPECTED = "Client requires HTTP Basic authentication, but server doesn't provide it"


def refusal_of(header: str | None, expected: InterserverCredentials | None) -> str:
    """Why a request with this `Authorization` header is refused; empty if it is not."""
    if expected is None:
        return NOT_EXPECTED if header else ""
    if not header:
        return expected.refusal(Credentials())
    scheme, _, info = header.partition(" ")
    if scheme.lower() != "basic":
        return NOT_BASIC
    try:
        user, _, password = base64.b64decode(info.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return NOT_BASIC
    return expected.refusal(Credentials(user, password))


def _is_same(one: Credentials, other: Credentials) -> bool:
    return hmac.compare_digest(
        f"{one.user}\0{one.password}".encode(), f"{other.user}\0{other.password}".encode()
    )
