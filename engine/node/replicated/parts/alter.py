"""ALTER TABLE, DELETE, UPDATE, TRUNCATE and the statements about indexes, on replicated tables.

One statement may have several sub-commands. They are carried out as ClickHouse 26.9 does, in the order of the
text; neighbours of one family together: changes of the metadata at once, mutations as one, commands about
partitions one by one. Each of these steps is a transaction of its own; when one fails, what came before it
stays, and what stands behind it is not done.

What goes into Keeper has to stand by itself there: chDB writes the text anew on one line, without comments.

Source: ClickHouse's InterpreterAlterQuery, InterpreterDeleteQuery and InterpreterUpdateQuery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from engine.errors import Code, SqlError
from engine.keeper.base import Op
from engine.names import TableName, quote_string
from engine.node.replicated.parts.index_sql import index_command
from engine.node.replicated.parts.local_alter import settings_commands, take_out
from engine.node.replicated.parts.mutation_checks import MutationChecks
from engine.node.replicated.parts.partition_commands import OpenPlain, PartitionCommands
from engine.node.replicated.parts.partition_sql import (
    AlterPiece,
    Family,
    alter_pieces,
    column_drops,
    family_of,
    partition_command,
    partition_of_mutation,
)
from engine.node.replicated.running.catalog import TableCatalog
from engine.node.replicated.running.drop_limits import check_table
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.running.statements import done
from engine.node.replicated.running.table_readonly import refuse_table_readonly
from engine.node.replicated.running.waiting import sync_of, wait_for_inactive_s
from engine.node.statements.asked_settings import flag, number, settings_of
from engine.node.statements.statement import Answer, Asked
from engine.part_storage import HIDDEN_SETTINGS
from engine.part_storage.dropping import dropped_columns
from engine.part_storage.workers import ASKED_IN_PLANS
from engine.replication.commands.alter import alter_table
from engine.replication.commands.mutate import check_waiting, create_mutation, wait_for_mutation
from engine.replication.commands.partitions import truncate
from engine.replication.commands.uninterrupted import uninterrupted
from engine.replication.commands.waiting import Sync
from engine.replication.idle_settings import note_idle
from engine.replication.renamed_columns import renamed_columns
from engine.replication.replica.context import ReplicaContext
from engine.sql import AlterCommand, Statement, StatementKind, with_default_database
from engine.sql.cursor import Cursor
from engine.sql.dictionary_names import with_dictionary_database
from engine.sql.parse import draft_of
from engine.sql.unsorted import unsorted_engine

_KINDS = frozenset(
    {
        StatementKind.ALTER_TABLE,
        StatementKind.DELETE,
        StatementKind.UPDATE,
        StatementKind.TRUNCATE_TABLE,
        StatementKind.CREATE_INDEX,
        StatementKind.DROP_INDEX,
    }
)
_PLACE = "oncluster.place"


class CheckDrops(Protocol):
    async def __call__(self, table: TableName, drops: Sequence[str], *, engine: str) -> None:
        """Raises SqlError 524 where a view reads a column of `table` that one of the sub-commands drops."""
        ...


Committed = Callable[[], Awaitable[None]]


async def _nothing_else() -> None: ...


class AlterStatements:
    """Implements ReplicatedStatements."""

    def __init__(
        self,
        tables: ReplicatedTables,
        catalog: TableCatalog,
        open_plain: OpenPlain,
        local: LocalTables,
        check_drops: CheckDrops,
    ) -> None:
        self._tables = tables
        self._catalog = catalog
        self._local = local
        self._partitions = PartitionCommands(tables, open_plain)
        self._checks = MutationChecks()
        self._check_drops = check_drops

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind not in _KINDS or not statement.tables:
            return None
        table = self._tables.find_for(asked, statement.tables[0])
        if table is None:
            self._refuse_move_into_replicated(asked, statement)
            return None
        if statement.temporary:
            return None
        ctx = table.ctx
        if statement.kind is StatementKind.ALTER_TABLE:
            await self._alter_table(table, asked)
            return done(asked)
        match statement.kind:
            case StatementKind.TRUNCATE_TABLE:
                check_table(ctx, asked)
                await truncate(
                    ctx,
                    sync=sync_of(asked),
                    inactive_timeout_s=wait_for_inactive_s(asked),
                    fence_of=asked.fence.step,
                )
            case StatementKind.DELETE:
                _check_switch(asked, "enable_lightweight_delete", "DELETE")
                await self._delete(ctx, asked)
            case StatementKind.UPDATE:
                _check_switch(asked, "enable_lightweight_update", "UPDATE")
                text = f"UPDATE {_behind_table(asked.sql, skipping='SET')}"
                await self._alter(ctx, _as_alter(asked, text), least=Sync.OWN)
            case StatementKind.CREATE_INDEX | StatementKind.DROP_INDEX:
                await asked.check_syntax()
                command = index_command(asked, statement, _behind_table(asked.sql))
                if command is not None:
                    await self._alter(ctx, _as_alter(asked, command))
            case _:
                raise AssertionError(statement.kind)
        return done(asked)

    async def _alter_table(self, table: RunningTable, asked: Asked) -> None:
        """What concerns all replicas first: it may be refused. What is local may be done again, and does not
        wait for the others: it is done also where the waiting fails, or is cancelled."""
        await asked.check_syntax()
        taken = take_out(alter_pieces(asked.sql), HIDDEN_SETTINGS)
        ctx = table.ctx
        refuse_table_readonly({n: v for n, v in taken.settings.items() if v is not None})
        commands = settings_commands(taken.settings)
        wanted = {**taken.settings, **taken.hidden}
        ctx.settings.altered(wanted)  # may be refused
        if commands:
            await ctx.store.plan_alter(commands)
        hidden = await self._local.settings_as_written(
            {n: v for n, v in taken.hidden.items() if v is not None}, asked.params
        )
        if commands or taken.hidden or taken.comment is not None:
            asked.fence.keep_open()

        async def change_here() -> None:
            if commands:
                await ctx.store.apply_settings(taken.settings)
            if taken.hidden:
                others = {n: v for n, v in table.record.user_settings.items() if n not in taken.hidden}
                table.record = replace(table.record, user_settings={**others, **hidden})
                self._catalog.put(table.record)
            if wanted:
                note_idle(ctx.name, [name for name, value in wanted.items() if value is not None])
                ctx.settings = ctx.settings.altered(wanted)  # by others, too, meanwhile
                for signal in (ctx.merge_wanted, ctx.queue_changed):
                    signal.set()
            if taken.comment is not None:
                await ctx.store.apply_comment(taken.comment)

        if taken.pieces:
            await self._alter(ctx, asked, pieces=taken.pieces, committed=lambda: uninterrupted(change_here()))
        else:
            await uninterrupted(change_here())

    # -- families ------------------------------------------------------------------------------------------

    async def _alter(
        self,
        ctx: ReplicaContext,
        asked: Asked,
        *,
        pieces: Sequence[AlterPiece] | None = None,
        sync_setting: str = "mutations_sync",
        default_sync: int = 1,
        least: Sync = Sync.NONE,
        committed: Committed = _nothing_else,
    ) -> None:
        """`committed` is called when all is certain to happen: of what is changed last it is not waited for
        before, unless that are partitions."""
        pieces = alter_pieces(asked.sql) if pieces is None else pieces
        families = [(family, list(run)) for family, run in groupby(pieces, family_of)]
        runs = [
            (family, part)
            for family, run in families
            for part in (_parts_without_namesakes(run) if family is Family.METADATA else [run])
        ]
        commands = [
            [partition_command(piece) for piece in run] if family is Family.PARTITION else []
            for family, run in runs
        ]
        if len(runs) > 1 and asked.fence.is_there:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "An ALTER that runs once per shard cannot mix changes of data, partitions and metadata, or "
                "give a column the name of one that it drops",
                hint="Write one statement for each.",
            )
        for at, ((family, run), partitions) in enumerate(zip(runs, commands, strict=True), start=1):
            is_followed = at < len(runs) and runs[at][0] is family
            then = committed if at == len(runs) else _nothing_else
            if family is Family.PARTITION:  # they count their steps themselves
                await self._partitions.run_all(ctx, asked, partitions)
                await then()
            elif (fence := asked.fence.whole()) is None:
                await then()
            elif family is Family.MUTATION:
                sync = _sync(number(settings_of(asked), sync_setting, default_sync))
                sync = max(sync, least, key=_strength)
                await self._mutate(ctx, asked, run, sync, sync_setting, fence, then)
            else:
                await self._check_drops(ctx.name, column_drops(run), engine=unsorted_engine())
                await alter_table(
                    ctx,
                    await _written_anew(asked, run, ctx.name.database),
                    sync=max(sync_of(asked), Sync.OWN if is_followed else Sync.NONE, key=_strength),
                    inactive_timeout_s=wait_for_inactive_s(asked),
                    allowed=[
                        name
                        for name, usual in ASKED_IN_PLANS.items()
                        if flag(settings_of(asked), name, usual)
                    ],
                    may_rewrite=flag(settings_of(asked), "allow_non_metadata_alters", True),
                    fence=fence,
                    committed=then,
                )

    async def _mutate(
        self,
        ctx: ReplicaContext,
        asked: Asked,
        pieces: Sequence[AlterPiece],
        sync: Sync,
        sync_setting: str,
        fence: Sequence[Op],
        committed: Committed,
    ) -> None:
        ctx.session()  # readonly is said before anything else is looked at
        check_waiting(ctx, sync, sync_setting)
        await self._checks.check(asked, pieces, (await ctx.store.definition()).columns.by_name)
        text = await _written_anew(asked, pieces, ctx.name.database)
        await ctx.store.plan_alter(text)
        partitions = [partition_of_mutation(piece.text) for piece in pieces]
        ids: list[str] | None = None
        if all(expression is not None for expression in partitions):
            found: dict[str, None] = {}
            for expression in partitions:
                found |= dict.fromkeys(await ctx.store.partition_ids(expression or ""))
            ids = list(found)
        most = int(number(settings_of(asked), "number_of_mutations_to_throw", 0))
        mutation = await create_mutation(ctx, text, partition_ids=ids, fence=fence, most_unfinished=most)
        await committed()
        await wait_for_mutation(ctx, mutation, sync=sync, inactive_timeout_s=wait_for_inactive_s(asked))

    async def _delete(self, ctx: ReplicaContext, asked: Asked) -> None:
        """Lightweight: rows are marked as gone."""
        text = _behind_table(asked.sql)
        if not Cursor(text).skip_to("WHERE"):
            raise SqlError(
                Code.SYNTAX_ERROR, "Syntax error: DELETE FROM needs WHERE (WHERE true for all rows)"
            )
        definition = await ctx.store.definition()
        mode = dict(definition.settings).get("lightweight_mutation_projection_mode", "throw").strip("'")
        if definition.metadata.projections and mode.lower() == "throw":
            raise SqlError(
                Code.SUPPORT_IS_DISABLED,
                f"DELETE query is not allowed for table {ctx.name} because as it has projections and setting "
                "lightweight_mutation_projection_mode is set to THROW. User should change "
                "lightweight_mutation_projection_mode OR drop all the projections manually before running "
                "the query",
            )
        await self._alter(
            ctx,
            _as_alter(asked, f"UPDATE _row_exists = 0 {text}"),
            sync_setting="lightweight_deletes_sync",
            default_sync=2,
        )

    # -- what is refused -----------------------------------------------------------------------------------

    def _refuse_move_into_replicated(self, asked: Asked, statement: Statement) -> None:
        """A plain table's parts would get into a replicated one behind replication's back."""
        if AlterCommand.MOVE_PARTITION_TO_TABLE not in statement.alter_commands:
            return
        for target in statement.targets:
            if (found := self._tables.find_for(asked, target)) is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"Table {found.name} is replicated: parts of a table that is not cannot be moved to it",
                    hint="ALTER TABLE … ATTACH PARTITION … FROM copies them.",
                )


def _check_switch(asked: Asked, setting: str, word: str) -> None:
    settings = settings_of(asked)
    older = setting.replace("enable_", "allow_experimental_")
    if not flag(settings, older if older in settings else setting, True):
        raise SqlError(
            Code.SUPPORT_IS_DISABLED,
            f"{word} is disabled: {setting} = 0",
            hint=f"Set {setting} = 1, or write ALTER TABLE … {word}.",
        )


# -- texts ---------------------------------------------------------------------------------------------------


def _as_alter(asked: Asked, command: str) -> Asked:
    """The same request, with its statement written as ALTER TABLE."""
    return replace(asked, sql=f"ALTER TABLE {_PLACE} {command}")


def _behind_table(sql: str, *, skipping: str = "") -> str:
    """What stands behind the table's name (and ON CLUSTER)."""
    d = draft_of(sql)
    end = max(d.refs[0].end, d.cluster_span[1] if d.cluster_span else 0)
    rest = Cursor(sql[end:])
    if skipping and not rest.accept(skipping):
        raise SqlError(Code.SYNTAX_ERROR, f"Syntax error: {skipping} is expected behind the table's name")
    return sql[end:][rest.token.start :].rstrip("; \t\r\n") if not rest.at_end else ""


def _parts_without_namesakes(run: Sequence[AlterPiece]) -> list[list[AlterPiece]]:
    """Changes of metadata in several ALTERs, where a column gets the name of one that is dropped before it:
    a part that has yet to follow both would have two columns of that name."""
    parts: list[list[AlterPiece]] = [[]]
    dropped: set[str] = set()
    for piece in run:
        if dropped.intersection(renamed_columns(piece.text).values()):
            parts.append([])
            dropped.clear()
        dropped.update(dropped_columns([piece.text]))
        parts[-1].append(piece)
    return parts


async def _written_anew(asked: Asked, pieces: Sequence[AlterPiece], database: str) -> str:
    """The sub-commands on one line, as chDB writes them, each without parentheses: all versions read that.

    Tables in subqueries that have no database get that of the table, and dictionaries the current one, as in
    ClickHouse.
    """
    prefix = f"ALTER TABLE {_PLACE} "
    whole = [
        with_dictionary_database(with_default_database(prefix + piece.text, database), asked.current_database)
        for piece in pieces
    ]
    columns = ", ".join(
        f"formatQuerySingleLine({quote_string(sql)}) AS c{index}" for index, sql in enumerate(whole)
    )
    sql = f"SELECT {columns} FORMAT TSVRaw"
    result = await asked.session.clone(for_text=sql).query(sql, format="TSVRaw")
    written = []
    for text in result.text.rstrip("\n").split("\t"):
        command = text.removeprefix(prefix)
        if command.startswith("(") and command.endswith(")"):
            command = command[1:-1]
        written.append(
            command.replace("UPDATE  ", "UPDATE ", 1) if command.startswith("UPDATE  ") else command
        )
    return ", ".join(written)


def _sync(value: float) -> Sync:
    return {0: Sync.NONE, 1: Sync.OWN}.get(int(value), Sync.ALL)


def _strength(sync: Sync) -> int:
    return sync.value
