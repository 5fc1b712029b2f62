"""The sections `users` and `profiles`: who may log in from where, and with which settings."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping

from engine.config import reading
from engine.config.element import Element
from engine.config.model import User
from engine.config.user_limits import check_rights, limits_not_kept
from engine.errors import ConfigError

_DEFAULT = "default"
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


def default_profile(root: Element) -> str:
    """The profile whose settings hold for everybody. Raises ConfigError where there are profiles, and it is
    none of them; who only operates a cluster reads none."""
    element = root.first("default_profile")
    if element is None or element.text in ("", _DEFAULT):
        return _DEFAULT
    sections = root.all("profiles")
    if sections and not any(section.first(element.text) for section in sections):
        names = sorted(child.name for section in sections for child in section.children)
        raise ConfigError(
            f"{element.source}: <default_profile> is '{element.text}', which does not exist",
            hint=f"Profiles are: {', '.join(names)}.",
        )
    return element.text


def read_profiles(root: Element) -> dict[str, Mapping[str, str]]:
    """Settings of each profile, those of its parents (`<profile>`) below its own, and those of the default
    profile below them all. Raises ConfigError."""
    elements = {e.name: e for section in root.all("profiles") for e in section.children}
    default = default_profile(root)
    usual = _profile(default, elements, ()) if default in elements else {}
    return {name: {**usual, **_profile(name, elements, ())} for name in elements}


def _profile(name: str, elements: Mapping[str, Element], within: tuple[str, ...]) -> dict[str, str]:
    element = elements[name]
    if name in within:
        raise ConfigError(f"{element.source}: profile '{name}' inherits from itself")
    settings: dict[str, str] = {}
    for child in element.children:
        if child.name == "profile":
            if child.text not in elements:
                raise ConfigError(
                    f"{child.source}: there is no profile '{child.text}'",
                    hint=f"Profiles are: {', '.join(sorted(elements))}.",
                )
            settings.update(_profile(child.text, elements, (*within, name)))
    settings.update(
        (child.name, child.text) for child in element.children if child.name not in ("profile", "constraints")
    )
    return settings


def read_users(root: Element, profiles: Mapping[str, Mapping[str, str]]) -> dict[str, User]:
    """Every user. Without any, one called `default` with no password, who may come from this machine only.

    Raises ConfigError, also for ways to authenticate and for rights that are not supported: a user is never
    let in because its password was not understood, nor shown what it must not see.
    """
    users: dict[str, User] = {}
    default = default_profile(root)
    for section in root.all("users"):
        for element in section.children:
            if element.name in users:
                raise ConfigError(f"{element.source}: user <{element.name}> is given twice")
            users[element.name] = _user(element, profiles, default, limits_not_kept(root, element))
    return users or {"default": User("default", profile=default, networks=_LOOPBACK)}


def _user(
    element: Element,
    profiles: Mapping[str, Mapping[str, str]],
    default: str,
    limits_not_kept: tuple[str, ...],
) -> User:
    for child in element.children:
        reason = _UNSUPPORTED.get(child.name)
        if reason is not None:
            raise ConfigError(
                f"{child.source}: <{child.name}> of user '{element.name}' is not supported: {reason}",
                hint=f"Use one of {', '.join(_CREDENTIALS)}.",
            )
    check_rights(element)
    profile = reading.text(element, "profile") or default
    if profile != _DEFAULT and profile not in profiles:
        raise ConfigError(
            f"{element.source}: user '{element.name}' has the profile '{profile}', which does not exist",
            hint=f"Profiles are: {', '.join(sorted({_DEFAULT, *profiles}))}.",
        )
    allow = profiles.get(profile, {}).get("allow_distributed_ddl", "1")
    return User(
        name=element.name,
        password_sha256_hex=_digest(element),
        profile=profile,
        networks=_networks(element),
        allow_distributed_ddl=allow.lower() not in ("0", "false"),
        limits_not_kept=limits_not_kept,
    )


def _digest(element: Element) -> str:
    given = [name for name in _CREDENTIALS if element.first(name) is not None]
    if len(given) != 1:
        what = "no password" if not given else " and ".join(f"<{name}>" for name in given)
        raise ConfigError(
            f"{element.source}: user '{element.name}' has {what}",
            hint=f"Give exactly one of {', '.join(_CREDENTIALS)}; an empty <password/> asks for none.",
        )
    value = reading.text(element, given[0])
    if given[0] == "password_sha256_hex":
        digest = value.lower()
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ConfigError(
                f"{element.source}: <password_sha256_hex> of user '{element.name}' is not 64 hex digits"
            )
        return digest
    return hashlib.sha256(value.encode()).hexdigest() if given[0] == "password" and value else ""


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
