"""Settings of INSERTs on which a load depends, whatever the profiles of its user say.

Servers refuse settings that they do not know, so each is asked once by each process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from spark_apps.clickhouse_cluster.http import Server

_AT_ONCE = "async_insert"
_DEDUPLICATED = "deduplicate_insert"
"""It comes before `insert_deduplicate`."""


@functools.lru_cache(maxsize=256)
def _known(server: Server) -> frozenset[str]:
    names = f"('{_AT_ONCE}', '{_DEDUPLICATED}')"
    return frozenset(server.text(f"SELECT name FROM system.settings WHERE name IN {names}").split())


def at_once(server: Server) -> Mapping[str, str]:
    """The rows are there when the answer is. Raises NodeUnavailable, ReplyLost."""
    return {_AT_ONCE: "0"} if _AT_ONCE in _known(server) else {}


def deduplicated(server: Server) -> Mapping[str, str]:
    """No block is stored again whose token the table knows. Raises NodeUnavailable, ReplyLost."""
    return {"insert_deduplicate": "1"} | (
        {_DEDUPLICATED: "enable"} if _DEDUPLICATED in _known(server) else {}
    )
