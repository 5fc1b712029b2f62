"""The section `users`: who may log in from where, and with which profile."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping

from engine.config import reading
from engine.config.element import Element
from engine.config.model import EMPTY_PASSWORD_SHA256, User
from engine.config.profiles import DEFAULT, Profiles
from engine.config.quotas import Quota, read_quotas
from engine.config.user_limits import check_rights, limits_not_kept
from engine.errors import ConfigError

_LOOPBACK = ("127.0.0.1/32", "::1/128")
_CREDENTIALS = ("password", "password_sha256_hex", "no_password")
_UNSUPPORTED = {
    "password_double_sha1_hex": "the HTTP interface checks SHA-256 digests only",
    "password_scram_sha256_hex": "the HTTP interface checks SHA-256 digests only",
    "ldap": "external authentication is not built in",
    "kerberos": "external authentication is not built in",
    "http_authentication": "external authentication is not built in",
    "ssl_certificates": "client certificates are not checked",
    "ssh_keys": "the HTTP interface has no SSH keys",
    "jwt": "external authentication is not built in",
    "auth_methods": "one method per user is supported",
}


def read_users(root: Element, profiles: Profiles) -> dict[str, User]:
    """Every user. Without any, one called `default` with an empty password, who may come from this machine
    only.

    Raises ConfigError, also for ways to authenticate and for rights that are not supported: a user is never
    let in because its password was not understood, nor shown what it must not see.
    """
    users: dict[str, User] = {}
    quotas = read_quotas(root)
    for section in root.all("users"):
        for element in section.children:
            if element.name in users:
                raise ConfigError(f"{element.source}: user <{element.name}> is given twice")
            users[element.name] = _user(element, profiles, quotas)
    if not users:
        users["default"] = User(
            "default", EMPTY_PASSWORD_SHA256, profile=profiles.default, networks=_LOOPBACK
        )
    return users


def _user(element: Element, profiles: Profiles, quotas: Mapping[str, Quota]) -> User:
    for child in element.children:
        reason = _UNSUPPORTED.get(child.name)
        if reason is not None:
            raise ConfigError(
                f"{child.source}: <{child.name}> of user '{element.name}' is not supported: {reason}",
                hint=f"Use one of {', '.join(_CREDENTIALS)}.",
            )
    check_rights(element)
    profile = reading.text(element, "profile") or profiles.default
    if profile != DEFAULT and profile not in profiles.settings:
        raise ConfigError(
            f"{element.source}: user '{element.name}' has the profile '{profile}', which does not exist",
            hint=f"Profiles are: {', '.join(sorted({DEFAULT, *profiles.settings}))}.",
        )
    quota = quotas.get(reading.text(element, "quota"))
    allow = profiles.settings.get(profile, {}).get("allow_distributed_ddl", "1")
    return User(
        name=element.name,
        password_sha256_hex=_digest(element),
        profile=profile,
        networks=_networks(element),
        allow_distributed_ddl=allow.lower() not in ("0", "false"),
        quota=quota,
        limits_not_kept=limits_not_kept(element, quota),
    )


def _digest(element: Element) -> str:
    given = [name for name in _CREDENTIALS if element.first(name) is not None]
    if len(given) != 1:
        what = "no password" if not given else " and ".join(f"<{name}>" for name in given)
        raise ConfigError(
            f"{element.source}: user '{element.name}' has {what}",
            hint=f"Give exactly one of {', '.join(_CREDENTIALS)}; with <no_password/> any is right.",
        )
    value = reading.text(element, given[0])
    if given[0] == "password_sha256_hex":
        digest = value.lower()
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ConfigError(
                f"{element.source}: <password_sha256_hex> of user '{element.name}' is not 64 hex digits"
            )
        return digest
    return hashlib.sha256(value.encode()).hexdigest() if given[0] == "password" else ""


def _networks(element: Element) -> tuple[str, ...]:
    section = element.first("networks")
    if section is None:
        return User("").networks
    networks: list[str] = []
    for child in section.children:
        if child.name != "ip":
            raise ConfigError(
                f"{child.source}: <{child.name}> in <networks> of user '{element.name}' is not supported",
                hint="Use <ip> with an address or a network such as 10.0.0.0/8; names are not resolved.",
            )
        try:
            networks.append(str(ipaddress.ip_network(child.text, strict=False)))
        except ValueError as error:
            raise ConfigError(f"{child.source}: <ip> is '{child.text}': {error}") from error
    return tuple(networks)
