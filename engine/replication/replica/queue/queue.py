"""The replica's queue as a state machine: what it will have, what it may do next, and why not something else.

Pure: no I/O, no clock. The log puller and the loader add entries, the runner takes and returns them, merge
selection reads. Mirrors `queue/` of the replica and `mutations/` of the table; nothing here is ever ahead of
Keeper.

Two sets of parts follow the queue. `current_parts` are those the replica has (`parts/` in Keeper).
`virtual_parts` are those it will have when every entry is done; a range that is to be dropped stands in it as
a part with the level of a range until it has been dropped.

Source: ClickHouse's ReplicatedMergeTreeQueue.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from engine.errors import MalformedEntry
from engine.replication.log_actions import DropRange, ReplaceRange
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.replica.merging.mutation_book import MutationBook, MutationState
from engine.replication.replica.queue import rules as queue_rules
from engine.replication.replica.queue.entries import QueueEntries
from engine.replication.replica.queue.entry import Limits, Place, QueuedEntry

__all__ = ["Limits", "MutationState", "Place", "QueuedEntry", "ReplicaQueue"]


class ReplicaQueue:
    """Entries in order; `virtual_parts` is what the replica will have when all are done."""

    def __init__(self) -> None:
        self.virtual_parts: ActivePartSet = ActivePartSet()
        self.current_parts: ActivePartSet = ActivePartSet()
        self._entries = QueueEntries()
        self._mutations = MutationBook()
        self.mutation_pointer = -1
        """The last mutation up to which this replica has done all, as Keeper has it; -1 for none."""

    # -- filled by loader and puller -------------------------------------------------------------------------

    def reset(self, parts: Iterable[PartName]) -> None:
        """Forget everything; `parts` are those of the replica in Keeper. Raises PartsIntersect."""
        self.current_parts = ActivePartSet(parts)
        self.virtual_parts = self.current_parts.copy()
        self._entries = QueueEntries()
        self._mutations.clear()
        self.mutation_pointer = -1

    def add(self, queued: QueuedEntry) -> None:
        """Append (a DROP_RANGE or REPLACE_RANGE goes to the front) and add what it makes to
        `virtual_parts`. Raises PartsIntersect; the entry is not in the queue then."""
        dropped = queued.dropped_range
        for part in (*([] if dropped is None else [dropped]), *queued.entry.new_parts):
            self.virtual_parts.add(part)
        if dropped is not None:
            self._entries.prepend(queued)
        else:
            self._entries.append(queued)

    def add_virtual(self, part: PartName) -> None:
        """A part that appeared without an entry: the replica has committed it to Keeper itself."""
        self.virtual_parts.add(part)
        self.current_parts.add(part)

    def forget(self, part: PartName) -> None:
        """A part that the replica has no more, and will not have, without an entry saying so."""
        self.current_parts.remove(part)
        if not self._entries.makers(part):
            self._remove_virtual(part)

    def remove(self, queued: QueuedEntry, *, is_done: bool) -> None:
        """Its znode is gone. Not done means given up: what it would have made is no virtual part any more."""
        if queued not in self._entries:
            return
        self._entries.remove(queued)
        if queued.dropped_range is not None:
            if is_done:
                self.current_parts.remove_covered_by(queued.dropped_range)
            self._remove_virtual(queued.dropped_range)
        for part in queued.entry.new_parts:
            if is_done:
                self.current_parts.add(part)
            else:
                self._remove_virtual(part)

    def _remove_virtual(self, part: PartName) -> None:
        """What it covered is there still, or is awaited still, and comes to light again."""
        if not self.virtual_parts.remove(part):
            return
        for other in self.current_parts.parts_covered_by(part):
            self.virtual_parts.add(other)
        for queued in self._entries:
            spans = (*queued.entry.new_parts, *([queued.dropped_range] if queued.dropped_range else []))
            for other in spans:
                if part.contains(other):
                    self.virtual_parts.add(other)

    # -- the runner ----------------------------------------------------------------------------------------

    def choose(self, limits: Limits, *, now_s: float) -> QueuedEntry | None:
        """The first entry that may run, marked as executing; the reason is noted on each one passed over.

        An entry that had its chance goes to the end. Of those that need a place of which none is left only
        the first is looked at: thousands may stand behind it.
        """
        around = self._entries.surroundings()
        full = queue_rules.full_places(limits)
        first = [queued for place in full if (queued := self._entries.first_waiting(place)) is not None]
        others = self._entries.waiting(place for place in Place if place not in full)
        for queued in itertools.chain(first, others):
            reason = queue_rules.reason_to_wait(queued, around, self._mutations, limits)
            if not reason:
                queued.last_attempt_s = now_s
                self._entries.execute(queued)
                return queued
            queued.num_postponed += 1
            queued.postpone_reason = reason
            queued.last_postpone_s = now_s
        return None

    def claim(self, queued: QueuedEntry, part: PartName) -> str:
        """Before an executing entry makes `part`, which covers what was asked for, instead of that.

        Returns the reason if it must not: somebody else is at it, or it is to be dropped. Empty: it may.
        """
        around = self._entries.surroundings()
        reason = queue_rules.reason_against(part, queued, around)
        queued.has_just_wanted = bool(reason) and queue_rules.is_being_made(part, queued, around)
        self._entries.want(queued, part if queued.has_just_wanted else None)
        if not reason:
            queued.actual_part = part
        return reason

    def finished(self, queued: QueuedEntry) -> None:
        """It does not execute any more (whatever came of it)."""
        self._entries.finish(queued)
        queued.is_made = False
        queued.actual_part = None
        if not queued.has_just_wanted:
            self._entries.want(queued, None)
        queued.has_just_wanted = False
        callbacks, queued.on_finished = queued.on_finished, []
        for callback in callbacks:
            callback()

    def covered_by(self, drop_range: PartName, *, before: QueuedEntry) -> Sequence[QueuedEntry]:
        """Entries that make parts inside `drop_range`; those executing have to be waited for.

        Entries behind `before`, which drops the range, belong to it too: what they make lies in the range, so
        they only repeat what came earlier. Of earlier replacements those are among them whose range lies
        inside, too.
        """
        return [
            queued
            for queued in self._entries
            if queued is not before
            and queued.entry.new_parts
            and all(drop_range.contains(part) for part in queued.entry.new_parts)
            and (
                not isinstance(queued.entry.action, ReplaceRange)
                or (
                    isinstance(before.entry.action, DropRange)
                    and queued.number < before.number
                    and (queued.dropped_range is None or drop_range.contains(queued.dropped_range))
                )
            )
        ]

    def executing_inside(self, span: PartName, *, besides: QueuedEntry) -> Sequence[QueuedEntry]:
        """Executing entries that make something with a block number of `span`'s."""
        return [
            queued
            for queued in self._entries.executing
            if queued is not besides and any(part.intersects(span) for part in queued.new_parts)
        ]

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Sequence[QueuedEntry]:
        """In the order in which they have their chance. A copy: for many entries ask for what is kept."""
        return tuple(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def executing(self) -> Collection[QueuedEntry]:
        return tuple(self._entries.executing)

    def is_in_production(self, part: PartName) -> bool:
        """Whether an executing entry makes `part`, something inside it, or something that contains it."""
        return any(
            made.contains(part) or part.contains(made)
            for queued in self._entries.executing
            for made in queued.new_parts
        )

    def producer_of(self, part: PartName) -> QueuedEntry | None:
        """An entry that makes exactly this part."""
        return next(iter(self._entries.makers(part)), None)

    def is_to_be_dropped(self, part: PartName) -> bool:
        """Whether an entry waits or runs that takes `part` away."""
        return any(
            queued.dropped_range is not None and queued.dropped_range.contains(part)
            for queued in self._entries.dropping(part.partition_id)
        )

    def count(self, *kinds: type) -> int:
        """Entries whose action is of one of these classes of `log_actions`."""
        return self._entries.count(*kinds)

    def count_executing(self, place: Place | None = None) -> int:
        """Those that execute; of one place, or all."""
        return sum(place is None or queued.place is place for queued in self._entries.executing)

    def count_making(self, place: Place) -> int:
        """As `count_executing`, without those whose result is made."""
        return sum(queued.place is place and not queued.is_made for queued in self._entries.executing)

    def oldest_insert(self, *, besides: Collection[QueuedEntry] = ()) -> str:
        """The least create time of the inserts that are not here yet; empty if there are none."""
        return self._entries.oldest_insert(besides=besides)

    # -- mutations -----------------------------------------------------------------------------------------

    @property
    def mutations(self) -> Mapping[int, MutationState]:
        """By number, ascending."""
        return self._mutations.states

    def set_mutations(
        self, present: Mapping[int, MutationEntry], unreadable: Mapping[int, MalformedEntry] | None = None
    ) -> Sequence[int]:
        """What is in `mutations/` now; returns the numbers that were there before and are gone (killed)."""
        self._mutations.unreadable = dict(sorted((unreadable or {}).items()))
        return self._mutations.set(present)

    @property
    def unreadable_mutations(self) -> Mapping[int, MalformedEntry]:
        """Those that are to be done and cannot be understood; see `MutationBook`."""
        return self._mutations.unreadable

    @property
    def why_no_merges(self) -> str:
        """Which mutation cannot be read, so that nothing may be merged; empty if all can."""
        return self._mutations.reason

    def why_mutations_unknown(self, result: PartName) -> str:
        """Why this replica cannot know what makes `result`; empty if it knows."""
        return self._mutations.why_unknown(result.partition_id, result.mutation)

    def mutation_commands(self, source: PartName, target_version: int) -> Sequence[MutationState]:
        """The mutations that make the part of data version `target_version` out of `source`, in order."""
        return self._mutations.commands(source, target_version)

    def mutation_version(self, part: PartName) -> int:
        """The block number of the last mutation that is already in `part`, 0 if none is."""
        return self._mutations.version_of(part)

    def target_version(self, part: PartName) -> int | None:
        """To which version `part` can be mutated next: the largest, but not past the first unfinished ALTER.
        None if nothing is to be done."""
        return self._mutations.target_version(part)

    def parts_to_do(self, number: int) -> Sequence[PartName]:
        """Parts that the mutation still applies to: those that are here, those that will be, and the sources
        of merges and mutations that are not done yet."""
        state = self._mutations.states.get(number)
        if state is None:
            return []
        parts = dict.fromkeys((*self.current_parts, *self.virtual_parts))
        for queued in self._entries:
            parts.update(dict.fromkeys((*queued.entry.new_parts, *queued.sources)))
        numbers = dict(state.entry.block_numbers)
        return sorted(
            part
            for part in parts
            if not part.is_range and part.data_version < numbers.get(part.partition_id, -1)
        )
