"""Who asks. Names and passwords stand in headers, in the Authorization header, or in the URL."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.model import EMPTY_PASSWORD_SHA256, User
from engine.ddl.text import encode_bytes
from engine.errors import Code, SqlError

DEFAULT_USER = "default"
_NOBODY_SHA256 = "0" * 64


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client sent; an empty password is a password."""

    user: str = DEFAULT_USER
    password: str = field(default="", repr=False)


def credentials_of(headers: Mapping[str, str], parameters: Mapping[str, str]) -> Credentials:
    """Of one request. Raises SqlError 516 when they stand in two places, as ClickHouse does."""
    in_headers = "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers
    in_basic = "Authorization" in headers
    in_url = "user" in parameters or "password" in parameters
    if in_headers + in_basic + in_url > 1:
        raise SqlError(
            Code.AUTHENTICATION_FAILED,
            "Invalid authentication: it is not allowed to use X-ClickHouse HTTP headers, the Authorization "
            "HTTP header and URL parameters simultaneously",
        )
    if in_headers:
        return Credentials(
            headers.get("X-ClickHouse-User") or DEFAULT_USER, headers.get("X-ClickHouse-Key", "")
        )
    if in_basic:
        return _basic(headers["Authorization"])
    return Credentials(parameters.get("user") or DEFAULT_USER, parameters.get("password", ""))


def _basic(header: str) -> Credentials:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        raise SqlError(
            Code.AUTHENTICATION_FAILED,
            f"Invalid authentication: '{scheme}' HTTP Authorization scheme is not supported",
        )
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise SqlError(Code.AUTHENTICATION_FAILED, "Invalid authentication: not base64") from None
    user, _, password = text.partition(":")
    return Credentials(user or DEFAULT_USER, password)


def authenticate(users: Mapping[str, User], credentials: Credentials, address: str) -> User:
    """The user, or SqlError 516 that does not say what was wrong. Compares in constant time.

    Without any configured user there is `default` with an empty password, as in ClickHouse's own
    configuration.
    """
    known = users or {DEFAULT_USER: User(DEFAULT_USER, EMPTY_PASSWORD_SHA256)}
    user = known.get(credentials.user)
    digest = hashlib.sha256(encode_bytes(credentials.password)).hexdigest()
    expected = user.password_sha256_hex.lower() if user is not None else _NOBODY_SHA256
    is_right = hmac.compare_digest(digest, expected or digest)
    if user is None or not is_right or not may_come_from(user, address):
        raise no_such_login(credentials.user)
    return user


def no_such_login(user: str) -> SqlError:
    """Does not say what was wrong."""
    return SqlError(
        Code.AUTHENTICATION_FAILED,
        f"{user}: Authentication failed: password is incorrect, or there is no user with such name.",
    )


def may_come_from(user: User, address: str) -> bool:
    """Whether the user's `networks` have this address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    as_ipv4 = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    for text in user.networks:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue
        if network.version == 6 and network.prefixlen == 0:  # `::/0` is anywhere
            return True
        if ip in network or (as_ipv4 is not None and as_ipv4 in network):
            return True
    return False
