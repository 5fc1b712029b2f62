"""When a statement of the log is committed: before or behind its effect in chDB.

On the initiator the transaction in Keeper commits the statement for all replicas; chDB cannot be stopped
between its checks and its effect. So:

BEHIND   CREATE, ATTACH, RENAME, EXCHANGE: chDB first, which says whether it can be done and what the
         definition is. A commit that fails is followed by the opposite statement. CREATE OR REPLACE has an
         order of its own where chDB would drop rows (`replacement`).
BEFORE   DROP and DETACH: nothing brings back what is gone, so it goes only when that is decided.
PLANNED  ALTER of a definition: the text it leads to is found out on an empty table first (`planning`), and
         committed; then chDB's table is altered.
DATA     what changes rows only: chDB, then the commit. Of rows that are gone there is nothing to undo.
         UPDATE or DELETE of a replicated table and the commit are one transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from engine.names import TableName
from engine.node.databases.routing import changes_rows_only
from engine.sql import Statement, StatementKind, tokenize

_K = StatementKind
_CREATES = frozenset(
    {
        _K.CREATE_TABLE,
        _K.CREATE_VIEW,
        _K.CREATE_MATERIALIZED_VIEW,
        _K.CREATE_LIVE_VIEW,
        _K.CREATE_WINDOW_VIEW,
        _K.CREATE_DICTIONARY,
    }
)

DETACHES = frozenset({_K.DETACH_TABLE, _K.DETACH_VIEW, _K.DETACH_DICTIONARY})
"""The table that a view has for its own stays; with DROP it goes."""
_ATTACHES = frozenset({_K.ATTACH_TABLE, _K.ATTACH_VIEW, _K.ATTACH_DICTIONARY})


class Moment(enum.Enum):
    """See above."""

    BEHIND = "behind"
    BEFORE = "before"
    PLANNED = "planned"
    DATA = "data"


def moment_of(statement: Statement) -> Moment:
    if statement.kind.value.startswith(("DROP ", "DETACH ")) and statement.kind is not _K.DROP_INDEX:
        return Moment.BEFORE
    if statement.kind in (_K.TRUNCATE_TABLE, _K.DELETE, _K.UPDATE) or changes_rows_only(statement):
        return Moment.DATA
    if statement.kind in (_K.ALTER_TABLE, _K.CREATE_INDEX, _K.DROP_INDEX):
        return Moment.PLANNED
    return Moment.BEHIND


def renamed_back(statement: Statement, texts: Mapping[str, str]) -> Mapping[str, str] | None:
    """Definitions before a RENAME or EXCHANGE that `texts` are behind; None for other statements, and if they
    are not behind it."""
    before = dict(texts)
    match statement.kind:
        case _K.EXCHANGE_TABLES | _K.EXCHANGE_DICTIONARIES:
            one, other = (name.table for name in statement.tables)
            if one not in before or other not in before:
                return None
            before[one], before[other] = before[other], before[one]
            return before
        case _K.RENAME_TABLE | _K.RENAME_DICTIONARY:
            was, to = (name.table for name in statement.tables)
            if to not in before or was in before:
                return None
            before[was] = before.pop(to)
            return before
    return None


def detached_again(statement: Statement, texts: Mapping[str, str]) -> Mapping[str, str] | None:
    """Definitions before an ATTACH of what was detached, which `texts` are behind; None for others."""
    if statement.kind not in _ATTACHES or statement.uuid is not None:
        return None
    name = statement.tables[0].table
    return {other: text for other, text in texts.items() if other != name} if name in texts else None


def opposite_of(sql: str, statement: Statement, new: list[TableName]) -> list[str]:
    """Statements that undo one of BEHIND, where something does. `new` are the tables that it has made."""
    match statement.kind:
        case _K.RENAME_TABLE | _K.RENAME_DICTIONARY:
            what = "DICTIONARY" if statement.kind is _K.RENAME_DICTIONARY else "TABLE"
            was, to = statement.tables
            return [f"RENAME {what} {to.quoted} TO {was.quoted}"]
        case _K.EXCHANGE_TABLES | _K.EXCHANGE_DICTIONARIES:
            return [sql]
        case kind if kind in _ATTACHES and not _has_definition(sql):
            what = statement.kind.value.partition(" ")[2]
            return [f"DETACH {what} {statement.tables[0].quoted} PERMANENTLY"]
        case kind if kind in _CREATES and (not statement.or_replace or statement.tables[0] in new):
            what = "DICTIONARY" if kind is _K.CREATE_DICTIONARY else "TABLE"
            main = [name for name in new if name == statement.tables[0]]
            rest = [name for name in new if name != statement.tables[0]]
            return [
                *(f"DROP {what} IF EXISTS {name.quoted} SYNC" for name in main),
                *(f"DROP TABLE IF EXISTS {name.quoted} SYNC" for name in rest),
            ]
        case _:
            return []


def _has_definition(sql: str) -> bool:
    return any(token.text == "(" for token in tokenize(sql))
