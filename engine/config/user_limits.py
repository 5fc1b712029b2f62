"""What configuration allows a user, as far as a node can hold to it.

Behind all users of a node stands one user of chDB, who may do everything in every database. A user who is to
see some of them only would see all, so such a configuration is refused. Limits of work are not kept either;
they keep nobody's data from anybody, and are named, so that the log can say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.config import reading
from engine.config.element import Element
from engine.errors import ConfigError

_RIGHTS = ("allow_databases", "allow_dictionaries", "databases", "grants")
_ALL = re.compile(r"\s*GRANT\s+ALL\s+ON\s+\*\s*\.\s*\*(?:\s+WITH\s+GRANT\s+OPTION)?\s*;?\s*", re.IGNORECASE)
_DEFAULT = "default"


def check_rights(user: Element) -> None:
    """Raises ConfigError for a user who may not read everything."""
    for child in user.children:
        if child.name in _RIGHTS and child.children and not _is_everything(child):
            raise ConfigError(
                f"{child.source}: <{child.name}> of user '{user.name}' is not supported: "
                "every user of a node reads all of its databases",
                hint="Take it out if the user may do so. Whom data has to be kept from needs another node.",
            )


def limits_not_kept(root: Element, user: Element) -> tuple[str, ...]:
    """The quotas and the constraints of profiles that are the user's and have no effect."""
    profile = reading.text(user, "profile") or _DEFAULT
    quota = reading.text(user, "quota") or _DEFAULT
    constrained = [name for name in _with_parents(root, profile, ()) if _has_constraints(root, name)]
    limited = any(map(_is_limit, _named(root, "quotas", quota)))
    return (
        *(f"constraints of profile {name}" for name in constrained),
        *((f"quota {quota}",) if limited else ()),
    )


def _is_everything(grants: Element) -> bool:
    """GRANT ALL ON *.*, and nothing is taken away from it."""
    queries = [child.text for child in grants.children]
    return any(map(_ALL.fullmatch, queries)) and not any("REVOKE" in query.upper() for query in queries)


def _named(root: Element, section: str, name: str) -> Iterator[Element]:
    for each in root.all(section):
        yield from each.all(name)


def _with_parents(root: Element, profile: str, within: tuple[str, ...]) -> list[str]:
    if profile in within:
        return []
    names = [profile]
    for element in _named(root, "profiles", profile):
        for parent in element.all("profile"):
            names += _with_parents(root, parent.text, (*within, profile))
    return names


def _has_constraints(root: Element, profile: str) -> bool:
    return any(
        section.children for e in _named(root, "profiles", profile) for section in e.all("constraints")
    )


def _is_limit(quota: Element) -> bool:
    return any(
        child.name != "duration" and child.text not in ("", "0")
        for interval in quota.all("interval")
        for child in interval.children
        if child.name != "randomize"
    )
