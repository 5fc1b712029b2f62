"""What a look at a cluster gathered, as values. Checks are functions of these and of nothing else.

Times are Unix seconds by the clock of whoever said them, 0 for none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.names import HostId, TableName


class Silence(enum.Enum):
    """Why a host gave no facts."""

    DOWN = "down"
    """It cannot be reached, or does not answer in time."""

    REFUSED = "refused"
    """It answers, and does not let us in."""

    FAILING = "failing"
    """It knows us, and answers with an error: a quota that is used up, too many queries, no memory."""

    GARBAGE = "garbage"
    """What answers there is no ClickHouse."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A row of `system.replicas`, without what it would ask Keeper for. `readonly_s` is None where it is not
    said; `readonly_reason` is empty of ClickHouse servers, which do not say it."""

    table: TableName
    path: str
    name: str
    keeper_name: str = ""
    is_readonly: bool = False
    is_session_expired: bool = False
    readonly_s: int | None = None
    readonly_reason: str = ""
    future_parts: int = 0
    parts_to_check: int = 0
    queue_size: int = 0
    inserts_in_queue: int = 0
    queue_oldest_s: int = 0
    absolute_delay_s: int = 0
    pull_error: str = ""

    @property
    def is_in_main_keeper(self) -> bool:
        """Not in an auxiliary one, to which we have no session."""
        return self.keeper_name in ("", "default")


@dataclass(frozen=True, slots=True)
class QueueEntryFacts:
    """A row of `system.replication_queue`."""

    table: TableName
    node_name: str
    type: str
    part: str
    created_s: int
    tries: int
    exception: str
    postpone_reason: str
    is_executing: bool


@dataclass(frozen=True, slots=True)
class MutationFacts:
    """A row of `system.mutations` that is not done. `parts_to_do` is −1 where it is not said."""

    table: TableName
    mutation_id: str
    command: str
    created_s: int
    parts_to_do: int = -1
    failed_part: str = ""
    fail_reason: str = ""


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """A row of `system.distribution_queue`."""

    table: TableName
    data_path: str
    files: int
    size_bytes: int
    broken_files: int
    errors: int
    exception: str
    is_blocked: bool


@dataclass(frozen=True, slots=True)
class DiskFacts:
    name: str
    path: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class DetachedFacts:
    """Parts of one table that its server set aside because they are broken."""

    table: TableName
    parts: int
    newest_s: int


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """A host's clock less ours, and how far off that may be."""

    offset_ms: float
    error_ms: float


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A table that was read whole, and could not be."""

    table: TableName
    error: str
    is_damage: bool
    """False: not damage, only no answer (time ran out, no permission)."""


class Gap(enum.Enum):
    """Why something was not said."""

    ABSENT = "absent"
    """An old server has no such thing: normal, and worth a note."""

    DENIED = "denied"
    """A permission lacks."""

    OVER_QUOTA = "over quota"
    """The quota of whoever asked was used up before it was asked for, and so was all that came behind it."""

    FAILED = "failed"
    """It was asked for, and there was no answer or a bad one."""


@dataclass(frozen=True, slots=True)
class NotSaid:
    """What was not said. `grant` is the permission that lacks, empty when it is something else."""

    what: str
    why: str
    gap: Gap
    grant: str = ""


@dataclass(frozen=True, slots=True)
class ConfigurationFacts:
    """What a host was configured with: the cluster's shards by number, none if it does not know the cluster,
    which of the cluster's hosts it takes itself for, and its macros. None where it did not say."""

    shards: Mapping[int, tuple[HostId, ...]] | None = None
    itself: frozenset[HostId] | None = None
    macros: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All that one host said. With `silence` there is nothing but `error`."""

    host: HostId
    silence: Silence | None = None
    error: str = ""
    version: tuple[int, ...] = ()
    replicas: tuple[ReplicaFacts, ...] = ()
    queue: tuple[QueueEntryFacts, ...] = ()
    mutations: tuple[MutationFacts, ...] = ()
    spools: tuple[SpoolFacts, ...] = ()
    disks: tuple[DiskFacts, ...] = ()
    detached: tuple[DetachedFacts, ...] = ()
    detached_tables: frozenset[TableName] = frozenset()
    """Of servers that say so: since 24.4."""
    clock: ClockFacts | None = None
    configuration: ConfigurationFacts = ConfigurationFacts()
    unreadable: tuple[Unreadable, ...] = ()
    not_said: tuple[NotSaid, ...] = ()
    knows_replicas: bool = True
    """False when `system.replicas` could not be read: that a table is not there is not known then."""

    @property
    def is_answering(self) -> bool:
        return self.silence is None

    def replica(self, table: TableName) -> ReplicaFacts | None:
        return next((replica for replica in self.replicas if replica.table == table), None)


@dataclass(frozen=True, slots=True)
class RegisteredReplica:
    """A replica as Keeper knows it. `host` is where it says it runs; None where that does not parse."""

    name: str
    is_active: bool
    is_lost: bool = False
    log_pointer: int = 0
    has_been_cloned: bool = True
    """Or was the first. One that was just made has no log pointer, and is lost until it has its parts."""
    host: HostId | None = None
    table: TableName = field(default_factory=lambda: TableName("", ""))
    active_data: str = ""


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A table path in Keeper."""

    path: str
    exists: bool
    log_max_index: int = 0
    replicas: Mapping[str, RegisteredReplica] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeeperServerFacts:
    """One Keeper server by four-letter words; `figures` is empty where it told none."""

    address: str
    is_answering: bool
    mode: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeeperFacts:
    """What Keeper said through our session. With `error` there is nothing else but the servers.
    `takes_no_writes` is its answer to a write where that was a no, though we have the right: a quota; with
    `error`, too, its answer to our asking for a session."""

    error: str = ""
    takes_no_writes: str = ""
    latency_ms: float = 0.0
    clock: ClockFacts | None = None
    tables: Mapping[str, RegisteredTable] = field(default_factory=dict)
    servers: tuple[KeeperServerFacts, ...] = ()
    not_said: tuple[NotSaid, ...] = ()

    @property
    def is_answering(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class WaitingHost:
    """A host that an entry of the DDL queue waits for. `is_running` says that it has begun."""

    host: HostId
    is_running: bool


@dataclass(frozen=True, slots=True)
class DdlFacts:
    """An entry of the DDL queue that is not done everywhere."""

    entry: str
    created_ms: int
    waiting: tuple[WaitingHost, ...]
    statement: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All that was gathered. `shards` are the hosts of each shard, by its number."""

    cluster: str
    now_ms: int
    hosts: Mapping[HostId, HostFacts]
    keeper: KeeperFacts
    shards: Mapping[int, tuple[HostId, ...]]
    ddl: tuple[DdlFacts, ...] = ()
    ddl_error: str = ""
    """Why the queue was not looked at."""
    notes: tuple[str, ...] = ()

    def replicas(self) -> Iterator[tuple[HostFacts, ReplicaFacts]]:
        """Every replica that a host has told of."""
        for host in self.hosts.values():
            for replica in host.replicas:
                yield host, replica

    def registered(self, replica: ReplicaFacts) -> RegisteredReplica | None:
        """The replica as Keeper knows it; None where Keeper does not, or was not asked."""
        table = self.keeper.tables.get(replica.path)
        return None if table is None else table.replicas.get(replica.name)

    def shard_of(self, host: HostId) -> int:
        """The number of the first shard that has the host; 0 if none has."""
        return next((number for number, hosts in self.shards.items() if host in hosts), 0)

    def told_of(self, path: str, name: str) -> ReplicaFacts | None:
        """What a host has told of this replica."""
        return next(
            (replica for _, replica in self.replicas() if (replica.path, replica.name) == (path, name)), None
        )
