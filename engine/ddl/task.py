"""An entry as one host understands it: what to run here, where it stands, what it touches. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.backups import refuse_backups
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Execution
from engine.ddl.identity import Resolver
from engine.ddl.matching import ClusterPlace, find_place
from engine.ddl.text import storable
from engine.errors import Code, SqlError
from engine.names import HostId, TableName
from engine.sql import (
    Statement,
    StatementKind,
    expand_macros,
    mentions_as,
    mentions_empty_database,
    parse_and_strip,
    require_one_statement,
    with_default_database,
)

_K = StatementKind
DEFAULT_DATABASE = "default"
_ALONE = frozenset(
    {
        _K.ALTER_TABLE,
        _K.DROP_TABLE,
        _K.TRUNCATE_TABLE,
        _K.OPTIMIZE,
        _K.DELETE,
        _K.UPDATE,
        _K.CREATE_INDEX,
        _K.DROP_INDEX,
    }
)
"""Statements about a table that need nothing but this table."""


@dataclass(frozen=True, slots=True)
class Task:
    """One entry that this host has to execute. `query` is what runs: without ON CLUSTER, database filled
    in."""

    name: str
    czxid: int
    entry: DDLLogEntry
    entry_digest: str
    host: HostId
    statement: Statement
    query: str
    place: ClusterPlace

    @property
    def database(self) -> str:
        """What an unqualified name means here."""
        return self.place.replica.default_database or DEFAULT_DATABASE

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The objects acted on, qualified."""
        return tuple(t.within(self.database) for t in self.statement.tables)

    @property
    def executed_text(self) -> str:
        """What reaches the local server; the comment is how its query log names the entry."""
        return f"/* ddl_entry={self.name} */ {self.query}"

    @property
    def object_text(self) -> str:
        """For records and logs, which take no bytes that are no UTF-8; names may have such."""
        names = ", ".join(map(str, self.tables)) or self.statement.database or self.statement.name or ""
        return storable(names)


def digest_of(data: bytes) -> str:
    """Tells entries of one name apart."""
    return hashlib.sha256(data).hexdigest()


def check_initiator(entry: DDLLogEntry, users: Collection[str]) -> None:
    """Raises SqlError 192 and 511 for an entry in the name of a user, or of roles, that this node does not
    have; its users have no roles."""
    if entry.initiator_user and entry.initiator_user not in users:
        raise SqlError(
            Code.UNKNOWN_USER, f"There is no user `{entry.initiator_user}`, who wants this statement, here"
        )
    if entry.initiator_user and entry.initiator_roles:
        raise SqlError(Code.UNKNOWN_ROLE, f"There is no role `{entry.initiator_roles[0]}` here")


async def interpret(
    name: str,
    czxid: int,
    data: bytes,
    entry: DDLLogEntry,
    *,
    host: HostId,
    topology: Topology,
    resolver: Resolver,
    ports: frozenset[int],
) -> Task:
    """Raises SqlError: 62 text · 48 BACKUP and RESTORE · 78 no statement for a cluster · 371 the cluster, or
    this host in it, is not known here."""
    require_one_statement(entry.query)
    statement, query = parse_and_strip(entry.query)
    refuse_backups(statement)
    if not statement.takes_on_cluster:
        raise SqlError(Code.UNKNOWN_TYPE_OF_QUERY, "Received unknown DDL query")
    cluster_name = expand_macros(statement.on_cluster or "", topology.macros)
    database = next((t.database for t in statement.tables), statement.database or "")
    place = await find_place(
        topology.clusters.get(cluster_name),
        host,
        task=name,
        cluster_name=cluster_name,
        query_database=database,
        resolver=resolver,
        ports=ports,
    )
    if place.replica.default_database and mentions_empty_database(query):
        query = with_default_database(query, place.replica.default_database)
    return Task(name, czxid, entry, digest_of(data), host, statement, query, place)


def interpret_without_cluster(
    name: str, czxid: int, data: bytes, entry: DDLLogEntry, host: HostId
) -> Task | None:
    """The task of a cluster that is not known here any more, enough to find out whether it ran; None if even
    its text makes no sense."""
    try:
        statement, query = parse_and_strip(entry.query)
    except SqlError:
        return None
    replica = Replica(host.host, host.port)
    shard = Shard(1, (replica,))
    place = ClusterPlace(Cluster(statement.on_cluster or "", (shard,)), shard, replica)
    return Task(name, czxid, entry, digest_of(data), host, statement, query, place)


def settings_of(entry: DDLLogEntry, profile: Mapping[str, str]) -> dict[str, str]:
    """What a statement is executed with; `profile` is the queue's."""
    settings = {**profile, **entry.setting_values}
    settings.pop("implicit_transaction", None)
    return settings


def execution_of(task: Task, settings: Mapping[str, str], *, query_id: str) -> Execution:
    """What the executor gets of a task."""
    return Execution(
        task.executed_text,
        settings=settings,
        query_id=query_id,
        initial_query_id=task.entry.initial_query_id or query_id,
        user=task.entry.initiator_user or "default",
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What must not run at the same time. `is_barrier`: with nothing at all.

    Statements of one object take effect in queue order on each host; a statement that may read other
    objects (a view, CREATE … AS) waits for all before it.
    """

    tables: frozenset[TableName] = frozenset()
    is_barrier: bool = False

    def conflicts_with(self, other: Footprint) -> bool:
        return self.is_barrier or other.is_barrier or bool(self.tables & other.tables)


def footprint_of(task: Task) -> Footprint:
    statement = task.statement
    stands_alone = statement.kind in _ALONE or (
        statement.kind is _K.CREATE_TABLE and not mentions_as(task.query)
    )
    if not stands_alone or not statement.tables or statement.targets:
        return Footprint(is_barrier=True)
    return Footprint(frozenset(task.tables))
