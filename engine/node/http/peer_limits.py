"""Limits of reading that another node passes on with its part of a statement.

A user whose profile has `readonly = 1` may change no setting. ClickHouse does not refuse what comes with a
secondary query, but clamps it. Here such a limit holds where it is stricter than the profile's: the part of a
statement on this node keeps within the statement's limits, and nobody gets more than the profile gives,
whoever writes the mark of a secondary query into a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.node.distributed.reading.chdb_request import DEPTH
from engine.node.http.query import HttpQuery

_NUMBERS = frozenset(
    {"max_rows_to_read", "max_bytes_to_read", "max_rows_to_read_leaf", "max_bytes_to_read_leaf"}
)
_MODES = frozenset({"read_overflow_mode", "read_overflow_mode_leaf"})


def with_peer_limits(query: HttpQuery, profile: Mapping[str, str]) -> tuple[HttpQuery, Mapping[str, str]]:
    """The request, and the profile of its session. What is left in the request is for chDB to refuse."""
    if profile.get("readonly") != "1" or query.session is not None or DEPTH.match(query.query) is None:
        return query, profile
    taken = {
        name: value
        for name, value in query.settings.items()
        if (name in _NUMBERS and value.isdigit()) or (name in _MODES and value in ("throw", "break"))
    }
    if not taken:
        return query, profile
    stricter = {name: value for name, value in taken.items() if _is_stricter(name, value, profile)}
    settings = {name: value for name, value in query.settings.items() if name not in taken}
    return replace(query, settings=settings), {**profile, **stricter}


def _is_stricter(name: str, value: str, profile: Mapping[str, str]) -> bool:
    given = profile.get(name, "")
    if name in _MODES:
        return not given
    return int(value) > 0 and (not given.isdigit() or int(given) == 0 or int(value) < int(given))
