"""Materialized views in front of and behind replicated tables.

chDB runs the views of its own inserts, but parts of a replicated table come by ATTACH, for which no view
runs. So the node runs them: after the commit each view's SELECT reads the rows of this INSERT from its
stage, in the place of the source table, and the result is inserted into the view's target like any other
INSERT. A target may be replicated, and may have views itself.

What happens on failure. The source's rows are committed before the first view runs, and stay. A view that
fails ends the INSERT with its error (with `materialized_views_ignore_errors` it is only logged), and the
views behind it do not run. One that does not find what it was to write to, because it was dropped or detached
or its target altered meanwhile, is passed over or run again. A client that repeats the INSERT is told apart
by deduplication: if all of it was committed before, views with replicated targets run again under a token
made of the blocks, so that each takes the rows once whatever happened the first time; views with plain
targets, which cannot tell, do not. If the node dies between commit and views, the same holds.

With `deduplicate_blocks_in_dependent_materialized_views = 0` duplicates never reach a view.

A plain table whose views write into a replicated one cannot be given to chDB, which would write past Keeper:
its rows are staged too, attached to the table (or thrown away, for engine Null), and its views run here.
So it is with views into a Distributed table, which chDB would give rows that it throws away. The views of a
Distributed table run behind its own INSERT, over that INSERT's rows.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from uuid import UUID

from engine.ddl.attempt import Fence
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.replicated.rows.insert_sql import InsertSql
from engine.node.replicated.rows.unmerged_rows import copy_rows, stored_columns, unmerged_rows
from engine.node.replicated.rows.view_sql import reading_from
from engine.node.replicated.running.runtime import InsertStage, ReplicatedTables, RunningTable
from engine.node.statements.asked_settings import flag
from engine.node.statements.staged_insert import Write
from engine.node.statements.statement import Asked
from engine.part_storage.workers import LIKE_ONE_THAT_IS_THERE, SCRATCH_DATABASE
from engine.replication.columns import DefaultKind
from engine.replication.commands.insert import Inserted, InsertOptions
from engine.replication.part_store import NewPart
from engine.storage import ChdbPool, QueryResult

log = logging.getLogger(__name__)

_running: ContextVar[tuple[TableName, ...]] = ContextVar(
    "views that run, each inside the one before", default=()
)

_COMPUTED = (DefaultKind.MATERIALIZED, DefaultKind.ALIAS)
_OF_OTHERS_THAN_KNOWN = (Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE, Code.NO_SUCH_COLUMN_IN_TABLE)

RunInsert = Callable[[Asked], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class View:
    """A materialized view: what it reads, what it writes to, which columns that takes, and which columns the
    view says that it has."""

    name: TableName
    uuid: UUID
    source: TableName
    target: TableName
    columns: tuple[str, ...]
    declared: tuple[str, ...]
    select: str


@dataclass(frozen=True, slots=True)
class _StagedRows:
    """What a view runs over: the rows of `stage` that meet the condition. With `computed`, the source's
    columns that are not stored. Its target knows them again by the token, if there is one."""

    stage: TableName
    condition: str = ""
    computed: Collection[str] = ()
    token: str = ""


class ViewFailed(SqlError):
    """The error of an INSERT whose own rows are in the table: a view could not write them on."""


@dataclass(frozen=True, slots=True)
class Feeder:
    """What writes into `target` inside chDB (`feeders`); of a streaming source that is the source itself."""

    name: TableName
    kind: str
    target: TableName

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Links:
    """What of this node's objects writes into other tables."""

    views: Sequence[View] = ()
    feeders: Sequence[Feeder] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an INSERT as views see them, which are parts of a stage: those that were inserted, or
    `unmerged`, where rows of equal key were merged for those."""

    stage: InsertStage
    unmerged: Sequence[NewPart] = ()

    @property
    def all(self) -> str:
        """A condition for the rows of `unmerged`."""
        return self._in(self.unmerged)

    def of(self, inserted: Sequence[Inserted]) -> str:
        """A condition for the rows of these parts, or those of their partitions."""
        if not self.unmerged:
            return self._in([each.new for each in inserted])
        partition_ids = {each.new.partition_id for each in inserted}
        return self._in([part for part in self.unmerged if part.partition_id in partition_ids])

    def _in(self, parts: Sequence[NewPart]) -> str:
        names = sorted(self.stage.part_in_table(part) for part in parts)
        return f"_part IN ({', '.join(map(quote_string, names))})"


class ViewGraph:
    """The views of this node by their source; read from chDB when it was changed since."""

    def __init__(self, read: Callable[[], Awaitable[Links]]) -> None:
        self._read = read
        self._views: dict[TableName, list[View]] = {}
        self._targets: dict[TableName, TableName] = {}
        self._feeders: Sequence[Feeder] = ()
        self._generation = 0
        self._known = -1
        """The generation that was read."""

    def changed(self) -> None:
        """Some definition may be another one now."""
        self._generation += 1

    async def of(self, source: TableName) -> Sequence[View]:
        """The views that run when rows are inserted into `source`."""
        if self._known != self._generation:
            # What changes while this is read is later than the question: where much is changed nobody would
            # ever have an answer otherwise.
            generation = self._generation
            views: dict[TableName, list[View]] = {}
            targets: dict[TableName, TableName] = {}
            links = await self._read()
            for view in links.views:
                views.setdefault(view.source, []).append(view)
                targets[view.name] = view.target
            if generation > self._known:
                self._views, self._targets, self._feeders = views, targets, links.feeders
                self._known = generation
        return self._views.get(source, ())

    async def now(self, view: View) -> View | None:
        """As it is by now, or None if it is gone. Asked anew: what changes it may not have said so yet."""
        views = (await self._read()).views
        return next((each for each in views if (each.uuid, each.source) == (view.uuid, view.source)), None)

    async def target_of(self, name: TableName) -> TableName | None:
        """What a materialized view of this name writes to; None if there is none."""
        await self.of(name)
        return self._targets.get(name)

    async def end_of(self, source: TableName, is_wanted: Callable[[TableName], bool]) -> TableName | None:
        """The first wanted table among `source` and all that rows inserted into it come to."""
        return next((table for table in await self.reached(source) if is_wanted(table)), None)

    async def reaches(self, source: TableName, is_wanted: Callable[[TableName], bool]) -> bool:
        """Whether rows inserted into `source` come, by way of others, to a table that is wanted."""
        return any(is_wanted(table) for table in (await self.reached(source))[1:])

    async def feeding(self, name: TableName) -> Feeder | None:
        """Something whose rows come to `name`."""
        await self.of(name)
        for feeder in self._feeders:
            if name in await self.reached(feeder.target):
                return feeder
        return None

    async def reached(self, source: TableName) -> Sequence[TableName]:
        """`source` and all that rows inserted into it come to."""
        reached = [source]
        for table in reached:
            next_ = [view.target for view in await self.of(table)]
            next_ += [feeder.target for feeder in self._feeders if feeder.name == table]
            if table in self._targets:
                next_.append(self._targets[table])
            reached += [each for each in dict.fromkeys(next_) if each not in reached]
        return reached


class ViewPush:
    """Runs views. `run_insert` is the node's way of running an INSERT."""

    def __init__(
        self,
        graph: ViewGraph,
        tables: ReplicatedTables,
        *,
        pool: ChdbPool,
        env: Env,
        run_insert: RunInsert,
    ) -> None:
        self._graph = graph
        self._tables = tables
        self._pool = pool
        self._env = env
        self._run_insert = run_insert
        self.distributed: Callable[[], Awaitable[Collection[TableName]]] = _none
        """The names of the node's Distributed tables."""

    def changed(self) -> None:
        """Some definition may be another one now."""
        self._graph.changed()

    async def target_of(self, name: TableName) -> TableName | None:
        """What a materialized view of this name writes to; None if there is none."""
        return await self._graph.target_of(name)

    async def read(self, source: TableName) -> bool:
        """Whether any view does."""
        return bool(await self._graph.of(source))

    def unmerged_rows(self, like: TableName) -> AbstractAsyncContextManager[TableName]:
        """See `unmerged_rows`."""
        return unmerged_rows(self._pool, self._env, like)

    async def push_distributed(
        self, asked: Asked, source: TableName, stage: TableName, settings: Mapping[str, str]
    ) -> None:
        """Run the views of a Distributed table over the rows of one INSERT. Raises the first view's error.

        With a token of the user's a view has one of its own, so that a repeated INSERT reaches targets that
        know tokens once; without one there is nothing to tell a repetition by.
        """
        token = settings.get("insert_deduplication_token", "")
        for view in await self._graph.of(source):
            own = f"{token}:{view.uuid}" if token else ""
            await self._run(asked, view, _StagedRows(stage, token=own), settings)

    async def push(
        self,
        asked: Asked,
        source: RunningTable,
        rows: Rows,
        inserted: Sequence[Inserted],
        settings: Mapping[str, str],
        options: InsertOptions,
    ) -> None:
        """Run the views of `source` over what was inserted. Raises the first view's error."""
        views = await self._graph.of(source.name)
        if not views or not inserted:
            return
        columns = (await source.store.definition()).columns.columns
        computed = [column.name for column in columns if column.default_kind in _COMPUTED]
        distributed = await self.distributed()
        fresh = [each for each in inserted if not each.is_duplicate]
        repeats = flag(settings, "deduplicate_blocks_in_dependent_materialized_views", True)
        for view in views:
            knows_tokens = self._tables.is_ours(view.target) or view.target in distributed
            if fresh:
                chosen = fresh
            elif knows_tokens and repeats:
                chosen = list(inserted)
            else:
                continue
            token = ""
            if knows_tokens and options.deduplicate and repeats:
                token = _token(view, chosen, options.token)
            which = rows.of(chosen)
            staged = _StagedRows(rows.stage.table, which, computed, token)
            await self._run(asked, view, staged, settings)

    async def written_by(self, name: TableName) -> TableName:
        """The table that an INSERT into `name` writes to: of a materialized view its target."""
        if not self._tables.has_any:
            return name
        return await self._graph.target_of(name) or name

    async def insert_plain(
        self, asked: Asked, name: TableName, text: InsertSql, write: Write
    ) -> QueryResult | None:
        """An INSERT into a plain table whose views come to a replicated or Distributed one; None for any
        other."""
        tables, distributed = self._tables, await self.distributed()
        if not tables.has_any and not distributed:
            return None
        if not await self._graph.reaches(name, lambda at: at in distributed or tables.is_ours(at)):
            return None
        engine = (
            await self._pool.query(
                "SELECT engine FROM system.tables "
                f"WHERE database = {quote_string(name.database)} AND name = {quote_string(name.table)}",
                format="TSVRaw",
            )
        ).text.strip()
        if engine != "Null" and not engine.endswith("MergeTree"):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Table {name} has engine {engine}, and its rows come to a replicated or Distributed table.",
                hint="INSERT INTO that table, or make this one a table of the MergeTree family or of engine "
                "Null.",
            )
        settings = {**asked.session.settings, **asked.settings, **text.settings}
        async with self.unmerged_rows(name) as rows:
            now = replace(asked, settings={**asked.settings, "async_insert": "0"})
            result = await write(now, text.into(rows))
            if engine != "Null":
                await self._attach(now, rows, name, text)
            for view in await self._graph.of(name):
                await self._run(asked, view, _StagedRows(rows), settings)
        return result

    async def _attach(self, asked: Asked, rows: TableName, name: TableName, text: InsertSql) -> None:
        """By way of a table of the same engine, whose partitions go over as they are: no view runs then."""
        stage = TableName(SCRATCH_DATABASE, f"views_{self._env.new_uuid().hex}")
        await self._pool.query(
            f"CREATE TABLE {stage.quoted} AS {name.quoted}", settings=LIKE_ONE_THAT_IS_THERE
        )
        try:
            columns = await stored_columns(self._pool, rows)
            await copy_rows(asked, rows, stage, {**asked.settings, **text.settings}, columns)
            await self._pool.query(f"ALTER TABLE {name.quoted} ATTACH PARTITION ALL FROM {stage.quoted}")
        finally:
            await self._pool.query(f"DROP TABLE IF EXISTS {stage.quoted} SYNC")

    async def _columns(self, view: View, stage: TableName) -> Sequence[str]:
        """What the view's SELECT gives, by its own names, and the target takes. The columns that the view
        declares may have other names, and come to no table; they have to do where chDB, which evaluates
        scalar subqueries to describe a SELECT, would read a Distributed table."""
        select = reading_from(view.select, view.source, stage)
        try:
            answer = await self._pool.query(f"DESCRIBE ({select})", format="JSONCompactColumns")
        except SqlError:
            given: Sequence[str] = view.declared
        else:
            given = json.loads(answer.text)[0]
        return [name for name in given if name in view.columns]

    async def _run(self, asked: Asked, view: View, rows: _StagedRows, settings: Mapping[str, str]) -> None:
        next_: View | None = view
        while next_ is not None:
            next_ = await self._attempt(asked, next_, rows, settings)

    async def _attempt(
        self, asked: Asked, view: View, rows: _StagedRows, settings: Mapping[str, str]
    ) -> View | None:
        """The view as it is by now, if it has to run again: its target has other columns. Nothing was written
        then."""
        chain = _running.get()
        if view.name in chain:
            raise SqlError(
                Code.TOO_DEEP_RECURSION,
                f"Materialized views write in a circle: {' → '.join(map(str, (*chain, view.name)))}",
            )
        names = await self._columns(view, rows.stage)
        if not names:
            if flag(settings, "ignore_materialized_views_with_dropped_target_table", False):
                log.warning("replicated.view_without_target view=%s target=%s", view.name, view.target)
                return None
            return await self._changed(
                view,
                SqlError(
                    Code.UNKNOWN_TABLE,
                    f"Target table '{view.target}' of view '{view.name}' doesn't exist, or has none of its "
                    f"columns; the rows are in {view.source}",
                    hint="The setting ignore_materialized_views_with_dropped_target_table passes over this "
                    "view.",
                ),
            )
        select = reading_from(view.select, view.source, rows.stage, rows.condition, rows.computed)
        columns = ", ".join(map(quote_identifier, names))
        sql = f"INSERT INTO {view.target.quoted} ({columns}) SELECT {columns} FROM ({select})"
        own = {n: v for n, v in asked.settings.items() if n != "insert_deduplication_token"}
        if view.target not in await self.distributed():
            own["insert_deduplication_token"] = rows.token
            own["insert_deduplicate"] = "1" if rows.token else "0"
            own["deduplicate_insert"] = "enable" if rows.token else "disable"
        elif rows.token:  # without one it makes its own, for its senders to repeat
            own["insert_deduplication_token"] = rows.token
        session = asked.session.clone()
        before = _running.set((*chain, view.name))
        try:
            await self._run_insert(
                replace(
                    asked, sql=sql, session=session, settings=own, params={}, is_stateless=True, fence=Fence()
                )
            )
        except OnclusterError as error:
            if flag(settings, "materialized_views_ignore_errors", False):
                log.warning("replicated.view_failed view=%s error=%s", view.name, error)
                return None
            failed = ViewFailed(
                error.code or Code.UNKNOWN_EXCEPTION,
                f"{error.message}: while pushing to view {view.name}; the rows are in {view.source}",
                hint=error.hint,
            )
            # A view behind this one has failed where this one's rows are in its target.
            if error.code in _OF_OTHERS_THAN_KNOWN and not isinstance(error, ViewFailed):
                return await self._changed(view, failed)
            raise failed from error
        finally:
            _running.reset(before)
            await session.close()
        return None

    async def _changed(self, view: View, error: SqlError) -> View | None:
        """What has become of a view that did not find what it was to write to: None, where it was dropped or
        detached since the INSERT has looked for views. Raises `error` where nothing has changed."""
        now = await self._graph.now(view)
        if now is None:
            log.info("replicated.view_gone view=%s source=%s", view.name, view.source)
        elif now.columns == view.columns:
            raise error
        return now


async def _none() -> Collection[TableName]:
    return ()


def _token(view: View, inserted: Sequence[Inserted], user_token: str) -> str:
    """The same for the same rows (or the same token of the user) and the same view."""
    if user_token:
        return f"{user_token}:{view.uuid}"
    blocks = sorted(f"{each.new.partition_id}:{each.new.data_hash.hex()}" for each in inserted)
    return f"{hashlib.sha256(','.join(blocks).encode()).hexdigest()}:{view.uuid}"
