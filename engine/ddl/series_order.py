"""In which order the statements of a series run, so that many of them share one forced record. Pure.

Statements in one group are about different objects and are recorded together. Of the queue `CREATE a, DROP a,
CREATE b, DROP b` two groups are made, `CREATE a, CREATE b` and `DROP a, DROP b`, and two records are forced
where the queue's own order takes three, and ten where there are eight such pairs.

Safety argument. Only statements that *commute* change places: whichever runs first, both have the same
outcome and leave the same.

1. Statements about one object never change places.
2. Neither do two DROPs: the second table may be what the first one needs.
3. A CREATE that stands alone commutes with any other such CREATE and with DROP of another table. It stands
   alone if its engine keeps its own data and its text has no word by which it could need another object, so
   that it fails or succeeds by itself; and what it makes can be needed by nothing that is there already. (The
   executor takes nothing in series while user-defined functions could hide such a word.)
   DROP … SYNC is not changed for anything: it gives back at once what another table may take, its UUID.

A crash in the middle leaves what the queue's order would not have left, `b` made and `a` not yet dropped. The
next process goes on in the queue's order, learns from the intents what has happened, and ends where both
orders end.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.ddl.task import Task
from engine.names import TableName
from engine.sql import StatementKind

_OWN_DATA = frozenset({"Log", "Memory", "Null", "StripeLog", "TinyLog"})
_MAY_NEED_OTHERS = re.compile(r"dict|joinGet|hasColumnInTable|\b(?:IN|SELECT)\b", re.IGNORECASE)
_AT_ONCE = re.compile(r"\b(?:SYNC|DELAY)\b", re.IGNORECASE)


class _Kind(enum.Enum):
    CREATES_ALONE = "a CREATE that stands alone"
    DROPS = "DROP"
    KEEPS_ITS_PLACE = "anything else"


_COMMUTE = {
    _Kind.CREATES_ALONE: frozenset({_Kind.CREATES_ALONE, _Kind.DROPS}),
    _Kind.DROPS: frozenset({_Kind.CREATES_ALONE}),
    _Kind.KEEPS_ITS_PLACE: frozenset[_Kind](),
}
"""With which kinds one may change places, if the objects are different."""


@dataclass(slots=True)
class _Group:
    tasks: list[Task] = field(default_factory=list)
    objects: set[TableName] = field(default_factory=set)
    kinds: set[_Kind] = field(default_factory=set)


def in_groups(tasks: Sequence[Task]) -> list[list[Task]]:
    """CREATE and DROP of tables, given in queue order: groups to be run one after the other.

    A task is in the first group that it can reach. The queue's first task stays the first.
    """
    groups: list[_Group] = []
    for task in tasks:
        objects, kind = set(task.tables), _kind_of(task)
        at = len(groups)
        while at and objects.isdisjoint(groups[at - 1].objects):
            at -= 1
            if not groups[at].kinds <= _COMMUTE[kind]:
                break  # behind those of this group, and no further
        if at == len(groups):
            groups.append(_Group())
        groups[at].tasks.append(task)
        groups[at].objects |= objects
        groups[at].kinds.add(kind)
    return [group.tasks for group in groups]


def _kind_of(task: Task) -> _Kind:
    statement = task.statement
    if statement.kind is StatementKind.DROP_TABLE:
        return _Kind.KEEPS_ITS_PLACE if _AT_ONCE.search(task.query) else _Kind.DROPS
    engine = statement.engine or ""
    has_own_data = engine in _OWN_DATA or engine.endswith("MergeTree")
    if statement.kind is StatementKind.CREATE_TABLE and has_own_data:
        return _Kind.KEEPS_ITS_PLACE if _MAY_NEED_OTHERS.search(task.query) else _Kind.CREATES_ALONE
    return _Kind.KEEPS_ITS_PLACE
