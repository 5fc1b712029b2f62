"""`max_rows_to_read_leaf` and `max_bytes_to_read_leaf` hold for each shard, not for who puts shards together.

chDB compares everything that a statement reads with them, and the answers of other shards are read, too. So a
statement with such a limit reads this node's own shard as it reads the others, by a request of its own that
has the limit, and the statement around it has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.node.statements.asked_settings import number
from engine.node.statements.statement import Asked
from engine.sql.cursor import Cursor
from engine.sql.edit import apply_edits
from engine.sql.settings_clauses import settings_in

_LIMITS = ("max_rows_to_read_leaf", "max_bytes_to_read_leaf")


def has_leaf_limits(settings: Mapping[str, str]) -> bool:
    """Raises SqlError 36 for a limit that is no number."""
    return any(number(settings, name, 0) for name in _LIMITS)


def without_leaf_limits(asked: Asked) -> Asked:
    """The request whose text reads shards by their addresses; their requests keep what is taken from it."""
    sql = asked.sql
    if any(name in sql for name in _LIMITS):
        found = [setting.set_to("0") for setting in settings_in(Cursor(sql)) if setting.name in _LIMITS]
        sql = apply_edits(sql, found)
    given = {**asked.session.settings, **asked.settings}
    if asked.session.is_readonly or not has_leaf_limits(given):
        return replace(asked, sql=sql)
    zeros = {name: "0" for name in _LIMITS if name in given}
    return replace(asked, sql=sql, settings={**asked.settings, **zeros})
