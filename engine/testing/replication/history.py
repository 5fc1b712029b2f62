"""What happened in a simulation of replicated tables: Keeper's transactions, disks, users, and the end.

`engine.testing.replication.checkers` reads it; a test can also make one by hand. Everything has a moment
(`at`), which orders it among all else.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import MalformedEntry
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.paths import TablePaths
from engine.testing.keeper_history import Created, KeeperHistory, Removed
from engine.testing.replication.disk import StoredPart
from engine.testing.replication.rows import Row, Rows
from engine.testing.replication.store_events import Origin


class Outcome(enum.Enum):
    """How an operation ended for its user."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Insert:
    """One attempt to insert rows of one partition. `block` says which attempts are the same insert.

    `holders` are the replicas that had the rows on disk when a quorum insert was acknowledged. `no_keeper`:
    the replica could not reach Keeper at any moment of the attempt.
    """

    block: str
    replica: str
    partition_id: str
    rows: Rows
    started_at: int
    ended_at: int
    outcome: Outcome
    quorum: int = 0
    holders: frozenset[str] = frozenset()
    no_keeper: bool = False
    deduplicate: bool = True
    is_sequential: bool = False
    """With a quorum that does not run in parallel with others."""


@dataclass(frozen=True, slots=True)
class SeenStaged:
    at: int
    replica: str
    name: PartName
    origin: Origin
    content: StoredPart


@dataclass(frozen=True, slots=True)
class SeenVisible:
    """The parts of one partition that readers of a replica see changed."""

    at: int
    replica: str
    added: tuple[tuple[PartName, StoredPart], ...]
    removed: tuple[PartName, ...]
    active: tuple[PartName, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A SELECT. `rows` None: it failed, with `error`."""

    at: int
    replica: str
    rows: Counter[Row] | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SequentialRead:
    """A SELECT with `select_sequential_consistency` that was not refused: the parts that it read."""

    started_at: int
    ended_at: int
    replica: str
    parts: tuple[PartName, ...]


@dataclass(frozen=True, slots=True)
class Alter:
    """An ALTER of columns by a user."""

    commands: str
    started_at: int
    ended_at: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Definition:
    """What `columns` and `metadata` hold in Keeper."""

    columns: bytes
    metadata: bytes


@dataclass(frozen=True, slots=True)
class FinalReplica:
    """A replica when all is quiet. `in_keeper` are the children of its `parts/`; `damaged` active parts;
    `part_columns` what `columns.txt` of its parts says."""

    parts: dict[PartName, str]
    rows: Counter[Row]
    in_keeper: frozenset[PartName]
    is_readonly: bool = False
    queue: tuple[str, ...] = ()
    damaged: tuple[PartName, ...] = ()
    definition: Definition | None = None
    part_columns: dict[PartName, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LostReplica:
    """Keeper lost a replica's nodes; `rows` are what its readers saw then, `staged` what they may see yet of
    operations under way."""

    at: int
    replica: str
    rows: Counter[Row]
    staged: Counter[Row] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of the table's log, and when it was written."""

    at: int
    number: int
    entry: LogEntry


@dataclass(slots=True)
class History(KeeperHistory):
    """`wiped` are moments at which a replica lost its disk or its nodes in Keeper, or was dropped and made
    anew; `harmed` those at which a part on its disk was damaged."""

    paths: TablePaths = field(default_factory=lambda: TablePaths("/t"))
    staged: list[SeenStaged] = field(default_factory=list)
    visible: list[SeenVisible] = field(default_factory=list)
    inserts: list[Insert] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    sequential_reads: list[SequentialRead] = field(default_factory=list)
    alters: list[Alter] = field(default_factory=list)
    final: dict[str, FinalReplica] = field(default_factory=dict)
    definition: Definition | None = None
    """The table's, in Keeper, in the end."""
    lost: list[LostReplica] = field(default_factory=list)
    wiped: list[tuple[int, str]] = field(default_factory=list)
    harmed: list[tuple[int, str, PartName]] = field(default_factory=list)
    disks_lost: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def created_below(self, directory: str) -> Iterator[tuple[int, str, bytes]]:
        """(moment, name, value) of every node that was ever made in a directory."""
        prefix = directory + "/"
        for transaction in self.transactions:
            for event in transaction.events:
                if isinstance(event, Created) and event.path.startswith(prefix):
                    name = event.path[len(prefix) :]
                    if "/" not in name:
                        yield transaction.at, name, event.data

    def removed_below(self, directory: str) -> Iterator[tuple[int, str]]:
        prefix = directory + "/"
        for transaction in self.transactions:
            for event in transaction.events:
                if isinstance(event, Removed) and event.path.startswith(prefix):
                    yield transaction.at, event.path[len(prefix) :]

    def lost_since(self, at: int) -> list[LostReplica]:
        return [lost for lost in self.lost if lost.at > at]

    def is_absent(self, replica: str, at: int) -> bool:
        """Whether Keeper has lost the replica before that moment and does not have it again yet: what its
        readers see is nobody's promise until RESTORE REPLICA is done."""
        losses = [lost.at for lost in self.lost if lost.replica == replica and lost.at <= at]
        return bool(losses) and not any(
            losses[-1] < made <= at
            for made, name, _ in self.created_below(self.paths.replicas)
            if name == replica
        )

    def log(self) -> list[Logged]:
        """Every entry that the log ever had, in order, but for those that are none."""
        found = []
        for at, name, data in self.created_below(self.paths.log):
            with contextlib.suppress(MalformedEntry):
                found.append(Logged(at, int(name[-10:]), LogEntry.from_bytes(data, where=name)))
        return found

    def mutations(self) -> list[tuple[int, int, MutationEntry]]:
        """(moment, number of the znode, entry) of every mutation that ever was."""
        return [
            (at, int(name), MutationEntry.from_bytes(data, where=name))
            for at, name, data in self.created_below(self.paths.mutations)
        ]

    def failed_parts(self) -> frozenset[PartName]:
        names = [
            PartName.try_parse(name) for _, name, _ in self.created_below(self.paths.quorum_failed_parts)
        ]
        return frozenset(name for name in names if name is not None)
