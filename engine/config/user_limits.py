"""What configuration allows a user, as far as a node can hold to it.

Behind all users of a node stands one user of chDB, who may do everything in every database. A user who is to
see some of them only would see all, so such a configuration is refused. What else is not kept keeps nobody's
data from anybody, and is named, so that the log can say so.
"""

from __future__ import annotations

import re

from engine.config import reading
from engine.config.element import Element
from engine.config.quotas import Quota
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


def limits_not_kept(user: Element, quota: Quota | None) -> tuple[str, ...]:
    """What of its quota a node does not keep. One that does not exist limits nothing, as in ClickHouse."""
    name = reading.text(user, "quota")
    if quota is not None:
        return tuple(f"quota {name}: {limit}" for limit in quota.not_kept)
    return () if name in ("", _DEFAULT) else (f"quota {name}, which does not exist",)


def _is_everything(grants: Element) -> bool:
    """GRANT ALL ON *.*, and nothing is taken away from it."""
    queries = [child.text for child in grants.children]
    return any(map(_ALL.fullmatch, queries)) and not any("REVOKE" in query.upper() for query in queries)
