"""The entries of the replica's queue, in the order in which they have their chance.

What is asked at every step (who executes, who drops, who makes a part, how many there are of a kind) is kept
while entries come and go: it costs the same however long the queue is.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

from engine.replication.log_actions import AlterMetadata, AttachPart, DropRange, GetPart, ReplaceRange
from engine.replication.part_name import PartName
from engine.replication.replica.queue.entry import Place, QueuedEntry
from engine.replication.replica.queue.rules import Surroundings

_TURN = attrgetter("turn")
_Key = TypeVar("_Key")


class QueueEntries:
    """Each entry once. Iterating is in order, and over a moment's entries."""

    def __init__(self) -> None:
        self._ordered: OrderedDict[QueuedEntry, None] = OrderedDict()
        self._waiting: dict[Place, OrderedDict[QueuedEntry, None]] = {place: OrderedDict() for place in Place}
        self._executing: dict[QueuedEntry, None] = {}
        self._wanting: dict[QueuedEntry, None] = {}
        self._dropping: dict[str, dict[QueuedEntry, None]] = {}
        self._alters: dict[QueuedEntry, AlterMetadata] = {}
        self._makers: dict[PartName, dict[QueuedEntry, None]] = {}
        self._kinds: Counter[type] = Counter()
        self._inserts: list[tuple[str, int, QueuedEntry]] = []
        """A heap by create time; may hold some that are gone."""
        self._first_turn = self._last_turn = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[QueuedEntry]:
        return iter(tuple(self._ordered))

    def __contains__(self, queued: QueuedEntry) -> bool:
        return queued in self._ordered

    # -- coming and going ------------------------------------------------------------------------------------

    def append(self, queued: QueuedEntry) -> None:
        """To the end."""
        self._last_turn += 1
        queued.turn = self._last_turn
        self._put(queued, is_last=True)

    def prepend(self, queued: QueuedEntry) -> None:
        """To the front."""
        self._first_turn -= 1
        queued.turn = self._first_turn
        self._put(queued, is_last=False)

    def _put(self, queued: QueuedEntry, *, is_last: bool) -> None:
        for order in (self._ordered, self._waiting[queued.place]):
            order[queued] = None
            order.move_to_end(queued, last=is_last)
        action = queued.entry.action
        self._kinds[type(action)] += 1
        for part in queued.entry.new_parts:
            self._makers.setdefault(part, {})[queued] = None
        match action:
            case DropRange() | ReplaceRange():
                self._dropping.setdefault(action.range.partition_id, {})[queued] = None
            case AlterMetadata():
                self._alters[queued] = action
            case GetPart() | AttachPart() if queued.entry.create_time:
                heapq.heappush(self._inserts, (queued.entry.create_time, id(queued), queued))

    def remove(self, queued: QueuedEntry) -> None:
        """Raises KeyError if it is not there."""
        del self._ordered[queued]
        self._waiting[queued.place].pop(queued, None)
        self._executing.pop(queued, None)
        self._wanting.pop(queued, None)
        self._alters.pop(queued, None)
        action = queued.entry.action
        self._kinds[type(action)] -= 1
        for part in queued.entry.new_parts:
            _discard(self._makers, part, queued)
        if isinstance(action, DropRange | ReplaceRange):
            _discard(self._dropping, action.range.partition_id, queued)

    def execute(self, queued: QueuedEntry) -> None:
        """It goes to the end: one that fails again and again is in nobody's way."""
        queued.is_executing = True
        del self._waiting[queued.place][queued]
        self._executing[queued] = None
        self._to_end(queued)

    def finish(self, queued: QueuedEntry) -> None:
        """It does not execute any more. It may be gone already."""
        queued.is_executing = False
        if queued in self._executing:
            del self._executing[queued]
            self._waiting[queued.place][queued] = None
            self._to_end(queued)

    def _to_end(self, queued: QueuedEntry) -> None:
        self._last_turn += 1
        queued.turn = self._last_turn
        self._ordered.move_to_end(queued)

    def want(self, queued: QueuedEntry, part: PartName | None) -> None:
        """What `queued` would make instead of what it was asked for; None: nothing."""
        queued.wanted_part = part
        if part is None:
            self._wanting.pop(queued, None)
        elif queued in self._ordered:
            self._wanting[queued] = None

    # -- looking ---------------------------------------------------------------------------------------------

    def waiting(self, places: Iterable[Place]) -> Iterator[QueuedEntry]:
        """Those that do not execute and need one of these places, in order. Ends when something changes."""
        return heapq.merge(*(self._waiting[place] for place in places), key=_TURN)

    def first_waiting(self, place: Place) -> QueuedEntry | None:
        return next(iter(self._waiting[place]), None)

    @property
    def executing(self) -> Collection[QueuedEntry]:
        return self._executing.keys()

    def dropping(self, partition_id: str) -> Collection[QueuedEntry]:
        """Those that drop or replace in the partition."""
        return self._dropping.get(partition_id, {}).keys()

    def makers(self, part: PartName) -> Collection[QueuedEntry]:
        """Those that were asked to make exactly `part`."""
        return self._makers.get(part, {}).keys()

    def count(self, *kinds: type) -> int:
        """Entries whose action is of one of these classes of `log_actions`."""
        return sum(self._kinds[kind] for kind in kinds)

    def surroundings(self) -> Surroundings:
        """Whom others have to wait for, until something changes."""
        wanting: dict[PartName, QueuedEntry] = {}
        for queued in self._wanting:
            assert queued.wanted_part is not None
            first = wanting.setdefault(queued.wanted_part, queued)
            if queued.number < first.number:
                wanting[queued.wanted_part] = queued
        return Surroundings(self._executing, self._dropping, self._alters.values(), wanting.values())

    def oldest_insert(self, *, besides: Collection[QueuedEntry] = ()) -> str:
        """The least create time of the inserts that are not here yet; empty if there are none."""
        left_out = []
        oldest = ""
        while self._inserts:
            first = self._inserts[0]
            if first[2] in besides:
                left_out.append(first)
            elif first[2] in self._ordered:
                oldest = first[0]
                break
            heapq.heappop(self._inserts)
        for each in left_out:
            if each[2] in self._ordered:
                heapq.heappush(self._inserts, each)
        return oldest


def _discard(index: dict[_Key, dict[QueuedEntry, None]], key: _Key, queued: QueuedEntry) -> None:
    found = index.get(key, {})
    found.pop(queued, None)
    if not found:
        index.pop(key, None)
