"""Two trees side by side: live or from a file, a few nodes of each at a time.

    tree A: records in order ─┐
                              ├─ merge ─ differences
    tree B: records in order ─┘

A live tree may change while it is read. So what differs is read again at the end from the live sides, and
what is equal then was only seen at two moments; it is counted, not reported.

Of bookkeeping only that is compared which servers rely on: the value's version (they write `if it is still
version n`, and a table's metadata version is one) and the number of the next sequential child (a number that
was used must not be given again). Transaction ids and times are Keeper's own.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from engine.operations.keeper_backup.facts import Phase, Progress, no_progress
from engine.operations.keeper_backup.live import LiveTree
from engine.operations.keeper_backup.record import NodeRecord

_LONGEST_REREAD = 2_000
LONGEST_LIST = 10_000
_TICK_NODES = 1000


class Aspect(enum.StrEnum):
    """In what two trees differ at a path."""

    MISSING = "missing"
    """In the second tree."""
    EXTRA = "extra"
    """Only in the second tree."""
    VALUE = "value"
    ACL = "acl"
    VERSION = "version"
    COUNTER_BEHIND = "counter behind"
    """The second tree would give sequence numbers again that the first one has used."""
    COUNTER_AHEAD = "counter ahead"
    """The second tree has used more: it never gives a number again."""
    UNREADABLE = "unreadable"
    """One of the two may not be read, or its ACL may not be seen."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`left` and `right` say what is there, in short."""

    path: str
    aspect: Aspect
    left: str = ""
    right: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "aspect": self.aspect.value, "left": self.left, "right": self.right}


class Ephemerals(enum.StrEnum):
    """What becomes of ephemeral nodes in a comparison."""

    LEFT_OUT = "left out"
    """They are counted; a copy never has those of its original."""
    COMPARED = "compared"


class TreeSource(Protocol):
    """A tree that can be read in order: a `BackupFile` or a `LiveTree`."""

    def records(self) -> AsyncIterator[NodeRecord]: ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """`differences` are the first 10,000 of `difference_count`. `changed_meanwhile` were equal when they were
    looked at again."""

    nodes: int
    ephemeral: int
    differences: tuple[Difference, ...]
    difference_count: int
    changed_meanwhile: int = 0

    @property
    def is_equal(self) -> bool:
        return not self.difference_count

    @property
    def is_restored(self) -> bool:
        """Whether the second tree may stand for the first: equal, or only ahead in counters."""
        return self.difference_count == len(self.differences) and all(
            difference.aspect is Aspect.COUNTER_AHEAD for difference in self.differences
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "is_equal": self.is_equal,
            "nodes": self.nodes,
            "ephemeral": self.ephemeral,
            "difference_count": self.difference_count,
            "changed_meanwhile": self.changed_meanwhile,
            "differences": [difference.to_json() for difference in self.differences],
        }


async def compare(
    left: TreeSource,
    right: TreeSource,
    *,
    ephemerals: Ephemerals = Ephemerals.LEFT_OUT,
    progress: Progress = no_progress,
) -> Comparison:
    """Every difference of the second tree from the first. Raises what reading them raises."""
    tally = _Tally()
    sides = (_counted(tree.records(), ephemerals, tally) for tree in (left, right))
    async for path, a, b in side_by_side(*sides):
        tally.nodes += 1
        if tally.nodes % _TICK_NODES == 0:
            progress(Phase.COMPARING, tally.nodes, 0)
        for difference in differences_of(path, a, b):
            tally.add(difference)
    return await _looked_at_again(left, right, ephemerals, tally)


def differences_of(path: str, a: NodeRecord | None, b: NodeRecord | None) -> list[Difference]:
    """What differs at one path."""
    if a is None or b is None:
        aspect = Aspect.MISSING if b is None else Aspect.EXTRA
        return [Difference(path, aspect, _short(a), _short(b))]
    if a.data is None or b.data is None:
        return [] if a.data is b.data else [Difference(path, Aspect.UNREADABLE, _short(a), _short(b))]
    found = []
    if a.data != b.data:
        found.append(Difference(path, Aspect.VALUE, _short(a), _short(b)))
    if set(a.acl) != set(b.acl):
        hidden = a.has_hidden_acl or b.has_hidden_acl
        aspect = Aspect.UNREADABLE if hidden else Aspect.ACL
        found.append(Difference(path, aspect, _acl_text(a), _acl_text(b)))
    if a.stat.version != b.stat.version:
        found.append(Difference(path, Aspect.VERSION, str(a.stat.version), str(b.stat.version)))
    if a.creations != b.creations:
        aspect = Aspect.COUNTER_BEHIND if b.creations < a.creations else Aspect.COUNTER_AHEAD
        found.append(Difference(path, aspect, f"{a.creations:010d}", f"{b.creations:010d}"))
    return found


class _Tally:
    """What was found so far."""

    def __init__(self) -> None:
        self.nodes = 0
        self.ephemeral = 0
        self.count = 0
        self.kept: list[Difference] = []

    def add(self, difference: Difference) -> None:
        self.count += 1
        if len(self.kept) < LONGEST_LIST:
            self.kept.append(difference)


async def side_by_side(
    left: AsyncIterator[NodeRecord], right: AsyncIterator[NodeRecord]
) -> AsyncIterator[tuple[str, NodeRecord | None, NodeRecord | None]]:
    """Both trees in one walk: each path with what either has there."""
    a, b = await _next(left), await _next(right)
    while a is not None or b is not None:
        if b is None or (a is not None and a.order < b.order):
            assert a is not None
            yield a.path, a, None
            a = await _next(left)
        elif a is None or b.order < a.order:
            yield b.path, None, b
            b = await _next(right)
        else:
            yield a.path, a, b
            a, b = await _next(left), await _next(right)


async def _next(records: AsyncIterator[NodeRecord]) -> NodeRecord | None:
    async for record in records:
        return record
    return None


async def _counted(
    records: AsyncIterator[NodeRecord], ephemerals: Ephemerals, tally: _Tally
) -> AsyncIterator[NodeRecord]:
    async for record in records:
        if ephemerals is Ephemerals.LEFT_OUT and record.is_ephemeral:
            tally.ephemeral += 1
        else:
            yield record


async def _looked_at_again(
    left: TreeSource, right: TreeSource, ephemerals: Ephemerals, tally: _Tally
) -> Comparison:
    """Of two files, and of trees with very many differences, the first look stands."""
    live = [tree for tree in (left, right) if isinstance(tree, LiveTree)]
    paths = list(dict.fromkeys(difference.path for difference in tally.kept))
    if not live or not paths or len(paths) > _LONGEST_REREAD or tally.count > len(tally.kept):
        return Comparison(tally.nodes, tally.ephemeral, tuple(tally.kept), tally.count)
    sides = [await _again(tree, paths) for tree in (left, right)]
    found: list[Difference] = []
    changed = 0
    for path in paths:
        a, b = (_unless_ephemeral(side.get(path), ephemerals) for side in sides)
        differences = [] if a is None and b is None else differences_of(path, a, b)
        changed += not differences
        found += differences
    return Comparison(tally.nodes, tally.ephemeral, tuple(found), len(found), changed)


async def _again(tree: TreeSource, paths: list[str]) -> dict[str, NodeRecord | None]:
    if isinstance(tree, LiveTree):
        return await tree.again(paths)
    wanted = set(paths)
    return {record.path: record async for record in tree.records() if record.path in wanted}


def _unless_ephemeral(record: NodeRecord | None, ephemerals: Ephemerals) -> NodeRecord | None:
    is_left_out = record is not None and record.is_ephemeral and ephemerals is Ephemerals.LEFT_OUT
    return None if is_left_out else record


def _short(record: NodeRecord | None) -> str:
    if record is None:
        return ""
    if record.data is None:
        return "(may not be read)"
    text = record.data[:60].decode("utf-8", "backslashreplace")
    return text if len(record.data) <= 60 else f"{text}… ({len(record.data)} bytes)"


def _acl_text(record: NodeRecord) -> str:
    return ", ".join(f"{entry.scheme}:{entry.id}={entry.perms}" for entry in record.acl)
