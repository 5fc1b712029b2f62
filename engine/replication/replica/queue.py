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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import MalformedEntry
from engine.replication.log_actions import (
    AttachPart,
    DropRange,
    GetPart,
    MergeParts,
    MutatePart,
    ReplaceRange,
)
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.paths import sequence_number
from engine.replication.replica import queue_rules
from engine.replication.replica.mutation_book import MutationBook, MutationState

__all__ = ["Limits", "MutationState", "QueuedEntry", "ReplicaQueue"]


@dataclass(slots=True, eq=False)
class QueuedEntry:
    """An entry and what became of it so far. `name` is the znode's in `queue/`, `raw` its bytes; times are
    Unix seconds. Tries and postponements are kept in memory only, as in ClickHouse."""

    name: str
    entry: LogEntry
    raw: bytes
    is_executing: bool = False
    num_tries: int = 0
    last_error: str = ""
    last_error_s: float = 0.0
    last_attempt_s: float = 0.0
    num_postponed: int = 0
    postpone_reason: str = ""
    last_postpone_s: float = 0.0
    not_before_s: float = 0.0
    """Back-off after a failure, on the monotonic clock."""
    pause_s: float = 0.0
    """How long it pauses if its executor postpones it; for less than a moment if 0."""
    actual_part: PartName | None = None
    """What is really being made: a part that covers the one asked for."""
    wanted_part: PartName | None = None
    """What it would make instead, as soon as nobody makes anything inside it any more."""
    has_just_wanted: bool = False
    """In the execution under way, or the one that ended last."""
    is_made: bool = False
    """Its result is staged, and waits for Keeper and to be shown to readers: no more work than that."""
    is_given_up: bool = False
    """Executed, and what it was to make will never be: its quorum was not reached."""
    on_finished: list[Callable[[], None]] = field(default_factory=list)
    """Called once when it does not execute any more."""

    @property
    def number(self) -> int:
        """Its place in the order of the log."""
        return sequence_number(self.name) or 0

    @property
    def new_parts(self) -> tuple[PartName, ...]:
        """The parts it is making, or would make."""
        made = self.entry.new_parts
        return made if self.actual_part is None else (*made, self.actual_part)

    @property
    def dropped_range(self) -> PartName | None:
        """The range, or the part, that it takes away."""
        action = self.entry.action
        if isinstance(action, DropRange) or (isinstance(action, ReplaceRange) and action.drops):
            return action.range
        return None

    @property
    def sources(self) -> tuple[PartName, ...]:
        """The parts it makes its result of."""
        match self.entry.action:
            case MergeParts(sources):
                return sources
            case MutatePart(source):
                return (source,)
            case _:
                return ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the runner may start now."""

    now_monotonic_s: float = 0.0
    merges_stopped: bool = False
    fetches_stopped: bool = False
    free_fetches: int = 8
    free_merges: int = 4


class ReplicaQueue:
    """Entries in order; `virtual_parts` is what the replica will have when all are done."""

    def __init__(self) -> None:
        self.virtual_parts: ActivePartSet = ActivePartSet()
        self.current_parts: ActivePartSet = ActivePartSet()
        self._entries: list[QueuedEntry] = []
        self._mutations = MutationBook()
        self.mutation_pointer = -1
        """The last mutation up to which this replica has done all, as Keeper has it; -1 for none."""

    # -- filled by loader and puller -------------------------------------------------------------------------

    def reset(self, parts: Iterable[PartName]) -> None:
        """Forget everything; `parts` are those of the replica in Keeper. Raises PartsIntersect."""
        self.current_parts = ActivePartSet(parts)
        self.virtual_parts = self.current_parts.copy()
        self._entries = []
        self._mutations.clear()
        self.mutation_pointer = -1

    def add(self, queued: QueuedEntry) -> None:
        """Append (a DROP_RANGE or REPLACE_RANGE goes to the front) and add what it makes to
        `virtual_parts`. Raises PartsIntersect."""
        if queued.dropped_range is not None:
            self.virtual_parts.add(queued.dropped_range)
            self._entries.insert(0, queued)
        else:
            self._entries.append(queued)
        for part in queued.entry.new_parts:
            self.virtual_parts.add(part)

    def add_virtual(self, part: PartName) -> None:
        """A part that appeared without an entry: the replica has committed it to Keeper itself."""
        self.virtual_parts.add(part)
        self.current_parts.add(part)

    def forget(self, part: PartName) -> None:
        """A part that the replica has no more, and will not have, without an entry saying so."""
        self.current_parts.remove(part)
        if not any(part in queued.entry.new_parts for queued in self._entries):
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

        An entry that had its chance goes to the end, so that one that fails again and again is in nobody's
        way.
        """
        around = queue_rules.Surroundings.of(self._entries)
        for queued in self._entries:
            if queued.is_executing:
                continue
            reason = queue_rules.reason_to_wait(queued, around, self._mutations, limits)
            if not reason:
                queued.is_executing = True
                queued.last_attempt_s = now_s
                self._entries.remove(queued)
                self._entries.append(queued)
                return queued
            queued.num_postponed += 1
            queued.postpone_reason = reason
            queued.last_postpone_s = now_s
        return None

    def claim(self, queued: QueuedEntry, part: PartName) -> str:
        """Before an executing entry makes `part`, which covers what was asked for, instead of that.

        Returns the reason if it must not: somebody else is at it, or it is to be dropped. Empty: it may.
        """
        around = queue_rules.Surroundings.of(self._entries)
        reason = queue_rules.reason_against(part, queued, around)
        queued.wanted_part, queued.has_just_wanted = None, False
        if not reason:
            queued.actual_part = part
        elif queue_rules.is_being_made(part, queued, around):
            queued.wanted_part, queued.has_just_wanted = part, True
        return reason

    def finished(self, queued: QueuedEntry) -> None:
        """It does not execute any more (whatever came of it)."""
        queued.is_executing = queued.is_made = False
        queued.actual_part = None
        if not queued.has_just_wanted:
            queued.wanted_part = None
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
            for queued in self._entries
            if queued is not besides
            and queued.is_executing
            and any(part.intersects(span) for part in queued.new_parts)
        ]

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Sequence[QueuedEntry]:
        return tuple(self._entries)

    def is_in_production(self, part: PartName) -> bool:
        """Whether an executing entry makes `part`, something inside it, or something that contains it."""
        return any(
            made.contains(part) or part.contains(made)
            for queued in self._entries
            if queued.is_executing
            for made in queued.new_parts
        )

    def producer_of(self, part: PartName) -> QueuedEntry | None:
        """An entry that makes exactly this part."""
        return next((queued for queued in self._entries if part in queued.entry.new_parts), None)

    def is_to_be_dropped(self, part: PartName) -> bool:
        """Whether an entry waits or runs that takes `part` away."""
        return any(
            queued.dropped_range is not None and queued.dropped_range.contains(part)
            for queued in self._entries
        )

    def count(self, *kinds: type) -> int:
        """Entries whose action is of one of these classes of `log_actions`."""
        return sum(isinstance(queued.entry.action, kinds) for queued in self._entries)

    def count_executing(self, *kinds: type) -> int:
        """As `count`, of those that execute."""
        return sum(isinstance(queued.entry.action, kinds) for queued in self._entries if queued.is_executing)

    def count_making(self, *kinds: type) -> int:
        """As `count_executing`, without those whose result is made."""
        return sum(
            isinstance(queued.entry.action, kinds)
            for queued in self._entries
            if queued.is_executing and not queued.is_made
        )

    def oldest_insert(self, *, besides: Collection[QueuedEntry] = ()) -> str:
        """The least create time of the inserts that are not here yet; empty if there are none."""
        return min(
            (
                queued.entry.create_time
                for queued in self._entries
                if isinstance(queued.entry.action, GetPart | AttachPart)
                and queued.entry.create_time
                and queued not in besides
            ),
            default="",
        )

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
