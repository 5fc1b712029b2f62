"""A classified statement: what it is, what it acts on, and what may be done with it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.names import TableName
from engine.sql.kinds import AlterCommand, StatementKind

_K = StatementKind


@dataclass(frozen=True, slots=True)
class Statement:
    """What `parse_statement` learnt from the text of one statement.

    Names are unquoted values; an empty database means the session's current one.

    - `on_cluster`: the name as written, macros not expanded; None without the clause.
    - `tables`: what is acted on, in order; both names of each pair of RENAME and EXCHANGE.
    - `targets`: what a materialized view writes to (`TO`), and the other table of REPLACE, ATTACH and MOVE
      PARTITION.
    - `database`: of statements about a database; the new name of RENAME DATABASE is `new_database`.
    - `name`: of functions, indexes, named collections and the like.
    - `engine`: of `ENGINE =`, without arguments.
    - `system_command`: the words behind SYSTEM, such as `STOP MERGES`.
    - `discards`: a clause discards what the kind alone would keep: DEDUPLICATE, TTL of a column, REFRESH into
      a table; or one of several statements does.
    """

    kind: StatementKind
    on_cluster: str | None = None
    tables: tuple[TableName, ...] = ()
    targets: tuple[TableName, ...] = ()
    database: str | None = None
    new_database: str | None = None
    name: str | None = None
    if_exists: bool = False
    if_not_exists: bool = False
    or_replace: bool = False
    temporary: bool = False
    uuid: str | None = None
    engine: str | None = None
    alter_commands: tuple[AlterCommand, ...] = ()
    system_command: str = ""
    format: str | None = None
    into_outfile: str | None = None
    takes_on_cluster: bool = False
    discards: bool = False

    @property
    def supports_on_cluster(self) -> bool:
        """ClickHouse accepts ON CLUSTER here; where it does not, the answer is NOT_IMPLEMENTED 48.

        Temporary objects live in one session, so they cannot be made on a cluster.
        """
        return self.takes_on_cluster and not self.temporary

    @property
    def alter_is_allowed_on_cluster(self) -> bool:
        """No sub-command is ATTACH PARTITION or FETCH PARTITION; True for anything but ALTER."""
        return all(command.is_allowed_on_cluster for command in self.alter_commands)

    @property
    def is_destructive(self) -> bool:
        """Data or definitions that were there are gone afterwards, or readers do not see them until somebody
        attaches them. A RENAME loses nothing: what is under the old name is under the new one."""
        return (
            self.or_replace
            or self.discards
            or self.kind in _DESTRUCTIVE
            or self.system_command in _DESTRUCTIVE_OF_SYSTEM
            or any(c.is_destructive for c in self.alter_commands)
        )

    @property
    def rewrites_data(self) -> bool:
        """Existing parts are written anew; the cost grows with the data."""
        return self.kind in _REWRITES or any(c.rewrites_data for c in self.alter_commands)

    @property
    def is_query(self) -> bool:
        """Reads only and changes nothing on the server."""
        return self.kind in _QUERIES


def runs_once_per_shard(statement: Statement) -> bool:
    """Whether one replica of each shard runs it, going by the statement alone.

    The caller adds: the table exists here, its engine replicates, and the cluster is not circular. Everything
    for which this is False runs on every host. (ddl-queue, 6.6)
    """
    match statement.kind:
        case _K.ALTER_TABLE:
            commands = set(statement.alter_commands)
            # ClickHouse asks for *pure* alters of one such type; a mixture goes the replicated way.
            return not (len(commands) == 1 and next(iter(commands)).is_replica_local)
        case _K.OPTIMIZE | _K.TRUNCATE_TABLE | _K.CREATE_INDEX | _K.DROP_INDEX:
            return True
        case _:
            return False


_DESTRUCTIVE = frozenset(
    {
        _K.DROP_TABLE,
        _K.DROP_VIEW,
        _K.DROP_DICTIONARY,
        _K.DROP_DATABASE,
        _K.DROP_FUNCTION,
        _K.DROP_NAMED_COLLECTION,
        _K.DROP_WORKLOAD,
        _K.DROP_RESOURCE,
        _K.DROP_USER,
        _K.DROP_ROLE,
        _K.DROP_QUOTA,
        _K.DROP_ROW_POLICY,
        _K.DROP_MASKING_POLICY,
        _K.DROP_SETTINGS_PROFILE,
        _K.DETACH_TABLE,
        _K.DETACH_VIEW,
        _K.DETACH_DICTIONARY,
        _K.DETACH_DATABASE,
        _K.TRUNCATE_TABLE,
        _K.TRUNCATE_DATABASE,
        _K.DELETE,
        _K.UPDATE,
        _K.RESTORE,
    }
)
_DESTRUCTIVE_OF_SYSTEM = frozenset(
    {
        *("DROP REPLICA", "DROP DATABASE REPLICA", "DROP BROKEN DISTRIBUTED FILES", "UNFREEZE"),
        # Nobody reads from a server that is not there.
        *("SHUTDOWN", "KILL"),
    }
)
_REWRITES = frozenset({_K.OPTIMIZE, _K.DELETE, _K.UPDATE, _K.DROP_INDEX})
_QUERIES = frozenset(
    {
        _K.SELECT,
        _K.SHOW,
        _K.DESCRIBE,
        _K.EXISTS,
        _K.EXPLAIN,
        _K.CHECK_TABLE,
        _K.CHECK_GRANT,
        _K.WATCH,
        _K.EMPTY,
    }
)
