"""What has to have happened before a statement may be sent. Pure; `engine.migrations.runner` asks.

A replicated table is changed once per shard. A replica that makes it after that, because its host was off
line when it was created, is refused by ClickHouse (122 INCOMPATIBLE_COLUMNS): the columns of its CREATE are
not the table's any more. So who goes on without hosts that are off line stops before changing a table that
one of them has still to make.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from engine.config.model import Cluster
from engine.migrations.decide import describe
from engine.migrations.errors import MigrationRefused, TableNotMade
from engine.migrations.files import ScriptStatement
from engine.migrations.model import Progress, Run, RunRequest, StatementRef
from engine.migrations.statements import qualified
from engine.migrations.states import CellState
from engine.migrations.verdict import Verdict
from engine.names import TableName
from engine.sql import AlterCommand, StatementKind, parse_statement

_A = AlterCommand
_LEAVE_THE_DEFINITION = frozenset(
    {
        *(_A.CLEAR_COLUMN, _A.MATERIALIZE_COLUMN, _A.MATERIALIZE_TTL, _A.CLEAR_INDEX, _A.MATERIALIZE_INDEX),
        *(_A.CLEAR_STATISTICS, _A.MATERIALIZE_STATISTICS, _A.CLEAR_PROJECTION, _A.MATERIALIZE_PROJECTION),
        *(_A.MODIFY_SETTING, _A.RESET_SETTING, _A.REFRESH),
        *(command for command in _A if "PARTITION" in command),
        *(_A.FREEZE, _A.UNFREEZE, _A.UNLOCK_SNAPSHOT),
        *(_A.DELETE, _A.UPDATE, _A.APPLY_DELETED_MASK, _A.APPLY_PATCHES, _A.REWRITE_PARTS),
    }
)


_MAKES_OR_RENAMES = re.compile("CREATE|RENAME|EXCHANGE", re.IGNORECASE)


def check_order(
    run: Run, ref: StatementRef, standing: Callable[[StatementRef], Progress], *, looks_at_all: bool
) -> None:
    """The statement before `ref` was sent (and so those before it), and none has failed since.

    `looks_at_all`: something has failed, here or elsewhere. Raises MigrationRefused.
    """
    earlier = run.refs[: run.refs.index(ref)]
    for suspect in earlier if looks_at_all else earlier[-1:]:
        progress = standing(suspect)
        if progress.failures or (not progress.rows and progress.verdict is not Verdict.DONE):
            raise MigrationRefused(
                f"{ref} cannot be sent: {suspect} comes before it and {describe(progress)}."
            )


def creations_before(
    statement: ScriptStatement, earlier: Callable[[], Sequence[ScriptStatement]], request: RunRequest
) -> list[int]:
    """Where in `earlier` the replicated tables are made whose definition `statement` changes.

    A table is followed through its renames. What cannot be about it is not parsed: a folder may be long.
    """
    table = _changed_by(statement, request)
    if table is None:
        return []
    found = []
    candidates = list(enumerate(earlier()))
    for number, each in reversed(candidates):
        if table.table not in each.sql or not _MAKES_OR_RENAMES.search(each.sql):
            continue
        parsed = parse_statement(each.sql)
        tables = qualified(parsed, each, request)
        match parsed.kind:
            case StatementKind.CREATE_TABLE if (parsed.engine or "").startswith("Replicated"):
                if tables[:1] == [table]:
                    found.append(number)
            case StatementKind.RENAME_TABLE | StatementKind.EXCHANGE_TABLES:
                table = _before_rename(
                    table, tables, is_exchange=parsed.kind is not StatementKind.RENAME_TABLE
                )
            case _:
                pass
    return found


def require_made(ref: StatementRef, creation: StatementRef, progress: Progress, cluster: Cluster) -> None:
    """Raises TableNotMade when a replica has still to carry out `creation`, where another may have."""
    of_several = {
        replica.host_id for shard in cluster.shards if len(shard.replicas) > 1 for replica in shard.replicas
    }
    lacking = [
        row.host for row in progress.rows if row.state is not CellState.DONE and row.host in of_several
    ]
    if lacking:
        hosts = ", ".join(host.readable for host in lacking)
        raise TableNotMade(
            f"{ref} is not sent: it changes a replicated table that {hosts} has still to make ({creation}), "
            "and could not make after that.",
            hint="Repeat the command when the host is back; what was sent goes on.",
        )


def _changed_by(statement: ScriptStatement, request: RunRequest) -> TableName | None:
    parsed = parse_statement(statement.sql)
    match parsed.kind:
        case StatementKind.CREATE_INDEX | StatementKind.DROP_INDEX:
            pass
        case StatementKind.ALTER_TABLE if not _LEAVE_THE_DEFINITION.issuperset(parsed.alter_commands):
            pass
        case _:
            return None
    return next(iter(qualified(parsed, statement, request)), None)


def _before_rename(table: TableName, tables: Sequence[TableName], *, is_exchange: bool) -> TableName:
    """What the table was called before the tables were renamed, in pairs, or had changed places."""
    for old, new in reversed(list(zip(tables[::2], tables[1::2], strict=False))):
        if new == table:
            table = old
        elif is_exchange and old == table:
            table = new
    return table
