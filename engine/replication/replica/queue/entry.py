"""An entry of the replica's queue in memory, and what may be started of such entries.

Source: ClickHouse's ReplicatedMergeTreeLogEntry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.replication.log_actions import (
    AttachPart,
    ClonePartFromShard,
    DropRange,
    GetPart,
    MergeParts,
    MutatePart,
    ReplaceRange,
)
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.paths import sequence_number


class Place(enum.Enum):
    """What an entry takes while it executes; there are so many of each."""

    FETCH = "fetch"
    MERGE = "merge"
    NONE = "none"


@dataclass(slots=True, eq=False)
class QueuedEntry:
    """An entry and what became of it so far. `name` is the znode's in `queue/`, `raw` its bytes; times are
    Unix seconds. Tries and postponements are kept in memory only, as in ClickHouse."""

    name: str
    entry: LogEntry
    raw: bytes
    is_executing: bool = False
    """Kept by the queue (`entries`), as its place in the order is."""
    turn: int = 0
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
    def place(self) -> Place:
        match self.entry.action:
            case GetPart() | AttachPart() | ClonePartFromShard():
                return Place.FETCH
            case MergeParts() | MutatePart():
                return Place.MERGE
            case _:
                return Place.NONE

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
