"""The replica's queue as a state machine: what it will have, what it may do next, and why not something else.

Pure: no I/O, no clock. The log puller and the loader add entries, the runner takes and returns them, merge
selection reads. Mirrors `queue/` of the replica and `mutations/` of the table; nothing here is ever ahead of
Keeper.

Source: ClickHouse's ReplicatedMergeTreeQueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet


@dataclass(slots=True, eq=False)
class QueuedEntry:
    """An entry and what became of it so far. `name` is the znode's in `queue/`, `raw` its bytes; times are
    Unix
    seconds. Tries and postponements are kept in memory only, as in ClickHouse."""

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


@dataclass(slots=True)
class MutationState:
    """A mutation as this replica sees it. `number` is that of its znode (its id has ten digits)."""

    number: int
    entry: MutationEntry
    is_done: bool = False
    latest_failed_part: str = ""
    latest_fail_s: float = 0.0
    latest_fail_reason: str = ""


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
        self._entries: list[QueuedEntry] = []
        self._mutations: dict[int, MutationState] = {}

    # -- filled by loader and puller -------------------------------------------------------------------------

    def reset(self, parts: Iterable[PartName]) -> None:
        """Forget everything; `parts` are those of the replica in Keeper."""
        raise NotImplementedError

    def add(self, queued: QueuedEntry) -> None:
        """Append (a DROP_RANGE or REPLACE_RANGE goes to the front) and add what it makes to
        `virtual_parts`."""
        raise NotImplementedError

    def add_virtual(self, part: PartName) -> None:
        """A part that appeared without an entry (committed by this replica itself)."""
        raise NotImplementedError

    def remove(self, queued: QueuedEntry, *, is_done: bool) -> None:
        """Its znode is gone. Not done means given up: what it would have made is no virtual part any more."""
        raise NotImplementedError

    # -- the runner ----------------------------------------------------------------------------------------

    def choose(self, limits: Limits, *, now_s: float) -> QueuedEntry | None:
        """The first entry that may run, marked as executing; the reason is noted on each one passed over."""
        raise NotImplementedError

    def finished(self, queued: QueuedEntry) -> None:
        """It does not execute any more (whatever came of it)."""
        raise NotImplementedError

    def covered_by(self, drop_range: PartName, *, before: QueuedEntry) -> Sequence[QueuedEntry]:
        """Entries that make parts inside `drop_range`; those executing have to be waited for."""
        raise NotImplementedError

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Sequence[QueuedEntry]:
        return tuple(self._entries)

    def is_in_production(self, part: PartName) -> bool:
        """Whether an executing entry makes `part`, something inside it, or something that contains it."""
        raise NotImplementedError

    def producer_of(self, part: PartName) -> QueuedEntry | None:
        """An entry that makes exactly this part."""
        raise NotImplementedError

    def count(self, *kinds: type) -> int:
        """Entries whose action is of one of these classes of `log_actions`."""
        raise NotImplementedError

    # -- mutations -----------------------------------------------------------------------------------------

    @property
    def mutations(self) -> Mapping[int, MutationState]:
        """By number, ascending."""
        return dict(sorted(self._mutations.items()))

    def set_mutations(self, present: Mapping[int, MutationEntry]) -> Sequence[int]:
        """What is in `mutations/` now; returns the numbers that were there before and are gone (killed)."""
        raise NotImplementedError

    def mutation_commands(self, source: PartName, target_version: int) -> Sequence[MutationState]:
        """The mutations that make the part of data version `target_version` out of `source`, in order."""
        raise NotImplementedError

    def target_version(self, part: PartName) -> int | None:
        """To which version `part` can be mutated next: the largest, but not past the first unfinished ALTER.
        None if nothing is to be done."""
        raise NotImplementedError

    def parts_to_do(self, number: int) -> Sequence[PartName]:
        """Virtual parts that the mutation still applies to."""
        raise NotImplementedError
