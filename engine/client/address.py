"""Where a server's HTTP interface is, as people write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from engine.errors import ConfigError

_HINT = "Write http://host:port or https://host:port; a login goes before the host: user:password@host."


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """`url` has no login in it, so that messages may show it. `user` is empty where there is none."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)


def server_address(text: str) -> ServerAddress:
    """Raises ConfigError, which shows nothing of a login."""
    try:
        parts = urlsplit(text.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:  # not shown: it quotes what stands where the port is expected
        raise ConfigError(f"{_shown(text)} is no address of a server.", hint=_HINT) from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"{_shown(text)} is no address of a server.", hint=_HINT)
    place = parts.netloc.rpartition("@")[2]
    return ServerAddress(
        f"{parts.scheme}://{place}{parts.path.rstrip('/')}",
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


def _shown(text: str) -> str:
    """Whatever stands before an `@` may be a password."""
    before, at, behind = text.rpartition("@")
    scheme, separator, _ = before.partition("://")
    return repr(f"{scheme if separator else ''}{separator}***@{behind}" if at else text)
