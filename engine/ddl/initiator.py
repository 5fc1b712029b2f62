"""From a statement with ON CLUSTER to the entry that is put into the queue. Pure: no input, no output.

The checks stand in ClickHouse's order, with its codes. Rights are the caller's affair.

`/* oncluster token=… */` opens the query text of every entry: ClickHouse of any version reads past it, and
with it an entry can be told from every other for ever. From version 5 on the token is the initial query
id, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from engine.config.model import Cluster, DistributedDdl, Topology
from engine.ddl.backups import refuse_backups
from engine.ddl.entry import (
    DEFAULT_VERSION,
    INITIAL_QUERY_ID_VERSION,
    INITIATOR_USER_VERSION,
    MAX_ENTRY_BYTES,
    MAX_VERSION,
    NORMALIZE_CREATE_VERSION,
    OLDEST_VERSION,
    SETTINGS_VERSION,
    DDLLogEntry,
    Setting,
    Tracing,
)
from engine.errors import Code, Refused, SqlError
from engine.names import HostId
from engine.sql import (
    Statement,
    StatementKind,
    before_on_cluster,
    expand_macros,
    mentions_empty_database,
    one_line,
    output_settings,
    parse_statement,
    require_one_statement,
    tokenize,
    with_current_database,
    with_default_database,
    with_on_cluster,
    without_output_clauses,
)
from engine.sql.edit import Edit, apply_edits
from engine.sql.engine_clause import behind_engine, string_arguments
from engine.sql.inner_uuid import inner_uuid_at
from engine.sql.parse import draft_of

_TOKEN = re.compile(r"[A-Za-z0-9_.:@+~=/-]{1,200}")
_TOKEN_COMMENT = re.compile(r"/\* oncluster token=([A-Za-z0-9_.:@+~=/-]{1,200}) \*/ ")
_HAVE_UUID = frozenset(
    {
        StatementKind.CREATE_TABLE,
        StatementKind.CREATE_VIEW,
        StatementKind.CREATE_MATERIALIZED_VIEW,
        StatementKind.CREATE_DICTIONARY,
        StatementKind.CREATE_DATABASE,
    }
)


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement that has passed every check and is ready to be put into the queue under `token`."""

    entry: DDLLogEntry
    token: str
    cluster: str
    data: bytes

    @property
    def statement(self) -> Statement:
        """As it stands in the entry; read anew each time."""
        return parse_statement(self.entry.query)

    @property
    def hosts(self) -> tuple[HostId, ...]:
        return self.entry.hosts


def check_token(token: str) -> str:
    """The token itself. Raises Refused 36 for one that could not stand in a comment."""
    if not _TOKEN.fullmatch(token):
        raise Refused(
            f"Submission token {token[:60]!r} cannot be used.",
            hint="1 to 200 characters of A-Z a-z 0-9 _ . : @ + ~ = / -",
        )
    return token


def token_of(entry: DDLLogEntry) -> str | None:
    """The token an entry was submitted with; None for an entry of anybody else."""
    match = _TOKEN_COMMENT.match(entry.query)
    return match.group(1) if match else None


def without_token(query: str) -> str:
    """The query text for showing."""
    return _TOKEN_COMMENT.sub("", query, count=1)


def prepare(
    sql: str,
    *,
    topology: Topology,
    queue: DistributedDdl,
    token: str,
    current_database: str = "default",
    settings: Mapping[str, str] | None = None,
    initiator: HostId | None = None,
    entry_version: int = DEFAULT_VERSION,
    on_cluster: str | None = None,
    shared_uuid: UUID | None = None,
    tracing: Tracing | None = None,
    allow_distributed_ddl: bool = True,
    replicated_ddl_enabled: bool = True,
    initiator_user: str = "",
    initiator_roles: tuple[str, ...] = (),
) -> PreparedStatement:
    """Check and rewrite one statement.

    - `on_cluster` adds the clause to a statement that has none.
    - `settings` are the changed settings of the session; with those that stand behind the statement's FORMAT
      they travel with the entry from version 2 on.
    - `shared_uuid` gives a CREATE of a table, view, dictionary or database the same UUID on every host.
      Leave it out where a target does not know UUIDs (18.16, entry version 1, never gets one).
    - `entry_version` 3 means what it means as ClickHouse's setting: the entry is written as version 2.

    Raises SqlError: 62 text that cannot be read, or several statements · 48 no ON CLUSTER for this statement
    or ALTER command, or a mixture of default databases · 392 prohibited · 701 unknown cluster · 49 no hosts ·
    80 Replicated engine without a path of its own in a cross-replicated cluster · 287 entry version · 36
    entry over 1 MiB · 115 a setting whose name is none. Refused 36: token.
    """
    check_token(token)
    version = _version_of(entry_version)
    require_one_statement(sql)
    if on_cluster is not None:
        sql = with_on_cluster(sql, on_cluster)
    settings = {**(settings or {}), **output_settings(sql)}
    sql = without_output_clauses(sql)
    statement = parse_statement(sql)
    _check_kind(statement)
    if not allow_distributed_ddl or settings.get("allow_distributed_ddl", "1") in ("0", "false"):
        raise SqlError(Code.QUERY_IS_PROHIBITED, "Distributed DDL queries are prohibited for the user")
    if not replicated_ddl_enabled and statement.kind is not StatementKind.SYSTEM:
        raise SqlError(Code.QUERY_IS_PROHIBITED, "Replicated DDL queries are disabled")
    if not statement.alter_is_allowed_on_cluster:
        raise SqlError(Code.NOT_IMPLEMENTED, "Unsupported type of ALTER query")
    cluster = _find_cluster(statement, topology, queue)
    sql = _fill_in_cluster_name(sql, statement, cluster.name)
    sql = fill_in_database(sql, cluster, current_database)
    if cluster.is_circular:
        _check_replicated_path(statement, sql)
    if shared_uuid is not None and version > OLDEST_VERSION:
        sql = _fill_in_uuid(sql, statement, shared_uuid)
    full = DDLLogEntry(
        version=version,
        query=f"/* oncluster token={token} */ {one_line(sql)}",
        hosts=cluster.host_ids,
        initiator="" if initiator is None else str(initiator),
        settings=tuple(Setting.of(name, value) for name, value in sorted(settings.items())),
        tracing=tracing or Tracing(),
        initial_query_id=token,
        initiator_user=initiator_user,
        initiator_roles=initiator_roles,
    )
    entry = _of_its_version(full)
    return PreparedStatement(entry, token, cluster.name, _data_of(entry))


def _version_of(setting: int) -> int:
    """The version of an entry that `distributed_ddl_entry_format_version` asks for."""
    if setting not in range(OLDEST_VERSION, MAX_VERSION + 1):
        raise SqlError(
            Code.UNKNOWN_FORMAT_VERSION,
            f"Unknown distributed_ddl_entry_format_version: {setting}.Maximum supported version is "
            f"{MAX_VERSION}",
        )
    return SETTINGS_VERSION if setting == NORMALIZE_CREATE_VERSION else setting


def _data_of(entry: DDLLogEntry) -> bytes:
    data = entry.to_bytes()
    if len(data) > MAX_ENTRY_BYTES:
        raise SqlError(
            Code.BAD_ARGUMENTS, f"The statement takes {len(data)} bytes in the queue, {MAX_ENTRY_BYTES} fit"
        )
    return data


def _of_its_version(entry: DDLLogEntry) -> DDLLogEntry:
    """Without what its version has no lines for."""
    if entry.version < INITIATOR_USER_VERSION:
        entry = replace(entry, initiator_user="", initiator_roles=())
    if entry.version < INITIAL_QUERY_ID_VERSION:
        entry = replace(entry, initial_query_id="")
    return entry if entry.version >= SETTINGS_VERSION else replace(entry, settings=())


def _check_kind(statement: Statement) -> None:
    if statement.temporary and statement.kind in (StatementKind.CREATE_TABLE, StatementKind.CREATE_VIEW):
        raise SqlError(
            Code.INCORRECT_QUERY,
            "Temporary tables and views cannot be created ON CLUSTER: they belong to one session",
        )
    if not statement.supports_on_cluster:
        raise SqlError(Code.NOT_IMPLEMENTED, "Distributed execution is not supported for such DDL queries")
    if statement.on_cluster is None:
        raise SqlError(Code.BAD_ARGUMENTS, "The statement has no ON CLUSTER", hint="Name a cluster.")
    refuse_backups(statement)


def _find_cluster(statement: Statement, topology: Topology, queue: DistributedDdl) -> Cluster:
    name = expand_macros(statement.on_cluster or "", topology.macros)
    cluster = topology.cluster(name)
    if not cluster.allow_distributed_ddl_queries:
        raise SqlError(Code.QUERY_IS_PROHIBITED, "Distributed DDL queries are prohibited for the cluster")
    if queue.clusters and name not in queue.clusters:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            f"Cluster '{name}' does not use the queue '{queue.name}'",
            hint=f"That queue serves {', '.join(queue.clusters)}.",
        )
    if not cluster.host_ids:
        raise SqlError(Code.LOGICAL_ERROR, "Empty host list in a distributed DDL task")
    return cluster


def _fill_in_cluster_name(sql: str, statement: Statement, name: str) -> str:
    """Macros are those of the initiator; a host with other macros must see the same cluster."""
    return sql if statement.on_cluster == name else with_on_cluster(sql, name)


def fill_in_database(sql: str, cluster: Cluster, current_database: str) -> str:
    """`sql` as the queue gets it: with a database for every table that has none. Raises SqlError."""
    if not mentions_empty_database(sql):
        return sql
    has_default = {bool(replica.default_database) for replica in cluster.replicas}
    if len(has_default) > 1:
        raise SqlError(Code.NOT_IMPLEMENTED, "Mixed local default DB and shard default DB in DDL query")
    if has_default == {True}:
        # Tables get the default_database of the executing host's own address, over there.
        return with_current_database(sql, current_database)
    return with_default_database(sql, current_database)


def _check_replicated_path(statement: Statement, sql: str) -> None:
    """One server holds several replicas of such a cluster: a path made of the table's UUID would be one
    path."""
    makes_table = statement.kind in (StatementKind.CREATE_TABLE, StatementKind.CREATE_MATERIALIZED_VIEW)
    if not makes_table or not (statement.engine or "").startswith("Replicated"):
        return
    arguments = string_arguments(behind_engine(tokenize(sql), statement.engine or ""))
    if not arguments or "{uuid}" in arguments[0]:
        raise SqlError(
            Code.INCORRECT_QUERY,
            "Seems like cluster is configured for cross-replication, but zookeeper_path for "
            "ReplicatedMergeTree is not specified or contains {uuid} macro. It's not supported for cross "
            "replication, because tables must have different UUIDs. Please specify unique zookeeper_path "
            "explicitly.",
        )


def _fill_in_uuid(sql: str, statement: Statement, uuid: UUID) -> str:
    """`CREATE TABLE db.t UUID '…' ON CLUSTER c …`, and of a view's own table; what the user wrote stays."""
    if statement.kind not in _HAVE_UUID:
        return sql
    d = draft_of(sql)
    at = inner_uuid_at(d)
    if at is not None:
        sql = apply_edits(sql, [Edit(at, at, f" TO INNER UUID '{uuid5(uuid, 'inner')}'")])
    return sql if statement.uuid is not None else before_on_cluster(sql, f"UUID '{uuid}' ")
