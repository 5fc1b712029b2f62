"""Several statements in one go: each recorded before its effect, in order, and the first failure ends it."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from engine.ddl.entry import DDLLogEntry, Setting
from engine.ddl.executor import Execution, Steps
from engine.ddl.failures import TryAgain
from engine.ddl.intents import SqliteIntentStore
from engine.ddl.runner import StatementRunner
from engine.ddl.series import Series, ToldSteps
from engine.ddl.status import SUCCESS
from engine.ddl.task import Task, interpret_without_cluster
from engine.env import SystemEnv
from engine.errors import Code, Corrupt, OnclusterError, SqlError
from engine.names import HostId, TableName
from engine.sql import Statement
from engine.storage.local_executor import ChdbExecutor
from tests.unit.chdb_support import running_executor

QUEUE = "/q"
HOST = HostId("node01", 9000)
COLUMNS = "(a UInt8) ENGINE = MergeTree ORDER BY a"


class Clock(SystemEnv):
    """Stands still, however long a statement takes on a busy machine."""

    now_monotonic_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_monotonic_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ChdbExecutor]:
    async with running_executor(tmp_path, lanes=1) as executor:
        yield executor


@pytest.fixture
async def intents(tmp_path: Path) -> AsyncIterator[SqliteIntentStore]:
    store = SqliteIntentStore(tmp_path / "intents.db")
    yield store
    await store.close()


@pytest.fixture
async def runner(executor: ChdbExecutor, intents: SqliteIntentStore, clock: Clock) -> StatementRunner:
    return StatementRunner(executor=executor, intents=intents, env=clock, queue=QUEUE, profile_settings=dict)


def _tasks(*statements: str, **settings: str) -> list[Task]:
    tasks = []
    for number, sql in enumerate(statements):
        changes = tuple(Setting.of(name, value) for name, value in settings.items())
        entry = DDLLogEntry(2 if changes else 1, sql, (HOST,), settings=changes)
        task = interpret_without_cluster(f"query-{number:010d}", number + 1, entry.to_bytes(), entry, HOST)
        assert task is not None
        tasks.append(task)
    return tasks


def _create(table: str) -> str:
    return f"CREATE TABLE default.{table} ON CLUSTER c {COLUMNS}"


def _create_over(table: str, other: str) -> str:
    """Needs the other one, so that it keeps its place in the queue."""
    return f"CREATE TABLE default.{table} ON CLUSTER c ENGINE = Merge('default', '{other}')"


def _drop(table: str) -> str:
    return f"DROP TABLE default.{table} ON CLUSTER c"


async def _run(runner: StatementRunner, tasks: list[Task]) -> list[tuple[str, int]]:
    series = await runner.start_series(tasks)
    assert series is not None
    assert await series.wait()
    return [(task.name[-1], status.code) for task, status in series.new_outcomes()]


async def test_all_of_them_run_those_of_one_table_in_order(
    runner: StatementRunner, executor: ChdbExecutor, tmp_path: Path
) -> None:
    tasks = _tasks(_create("x"), _create("y"), _drop("x"), _create("x"), _drop("y"))

    assert await _run(runner, tasks) == [("0", 0), ("1", 0), ("2", 0), ("4", 0), ("3", 0)]

    assert await executor.table_engine(TableName("default", "x")) == "MergeTree"
    assert await executor.table_engine(TableName("default", "y")) is None
    assert [runner.begun(task) is not None for task in tasks] == [True] * 5


async def test_what_an_attempt_has_left_of_a_table_does_not_stop_the_series(
    runner: StatementRunner, executor: ChdbExecutor, tmp_path: Path
) -> None:
    uuid = "12345678-0000-4000-8000-000000000000"
    (tmp_path / "data" / "store" / uuid[:3] / uuid / "detached").mkdir(parents=True)
    again = f"CREATE TABLE default.y UUID '{uuid}' ON CLUSTER c {COLUMNS}"

    assert await _run(runner, _tasks(_create("x"), again, _create("z"))) == [("0", 0), ("1", 0), ("2", 0)]

    assert await executor.table_engine(TableName("default", "y")) == "MergeTree"


async def test_an_outcome_is_on_disk_before_the_next_statement_on_its_table_begins(
    runner: StatementRunner, executor: ChdbExecutor, tmp_path: Path
) -> None:
    seen = []
    tasks = _tasks(_create("x"), _drop("x"))
    series = await runner.start_series(tasks)
    assert series is not None
    record = series.record

    def look(digests: list[str]) -> None:
        record(digests)
        other = SqliteIntentStore(
            tmp_path / "intents.db"
        )  # what a process that came after a crash would read
        seen.append({key.entry[-1]: i.status for key, i in asyncio.run(other.load(QUEUE)).items()})
        asyncio.run(other.close())

    series.record = look  # type: ignore[method-assign,assignment]
    assert await series.wait()

    assert seen == [{"0": None}, {"0": SUCCESS, "1": None}]


async def test_the_first_that_fails_ends_it(
    runner: StatementRunner, executor: ChdbExecutor, intents: SqliteIntentStore
) -> None:
    tasks = _tasks(_create("x"), _create("x"), _create_over("y", "x"), _create_over("z", "x"))

    assert await _run(runner, tasks) == [("0", 0), ("1", 57)]

    assert await executor.table_engine(TableName("default", "y")) is None
    await runner.drain()
    # Those recorded together with the one that failed are as if they had never been looked at.
    assert [runner.begun(task) for task in tasks[2:]] == [None, None]
    assert {key.entry[-1] for key in await intents.load(QUEUE)} == {"0", "1"}
    assert await runner.run(tasks[2]) == SUCCESS


async def test_what_is_stopped_begins_nothing_more(runner: StatementRunner, executor: ChdbExecutor) -> None:
    series = await runner.start_series(_tasks(_create("x"), _create("y")))
    assert series is not None
    series.stop()  # the thread may have taken the first already

    await series.wait()

    assert len(series.new_outcomes()) <= 1
    assert await executor.table_engine(TableName("default", "y")) is None


async def test_one_that_takes_long_begins_nothing_more(
    runner: StatementRunner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Series.done

    def late(self: Series) -> bool:
        clock.now_monotonic_s += 2 * self.longest_s
        return done(self)

    monkeypatch.setattr(Series, "done", late)

    assert await _run(runner, _tasks(_create("x"), _create("y"))) == [("0", 0)]


async def test_a_setting_that_nobody_knows_fails_no_other_way_than_singly(runner: StatementRunner) -> None:
    tasks = _tasks(_create("x"), _create("y"), no_such_setting="1")
    series = await runner.start_series(tasks)
    assert series is not None

    with pytest.raises(Exception, match="no_such_setting"):
        await series.wait()

    assert series.new_outcomes() == []
    assert (await runner.run(tasks[0])).code == 115


class FailsLate:
    """Of one executor, the series alone: its first statement goes on until `ends`, which makes its error."""

    def __init__(self, executor: ChdbExecutor) -> None:
        self.started = asyncio.Event()
        self.digest = executor.definition_digest
        self.ends: asyncio.Future[Callable[[], OnclusterError]] = asyncio.get_running_loop().create_future()
        executor.execute_series = self.execute_series  # type: ignore[method-assign]

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        steps.record([await self.digest(step.statement, step.database) for step in steps.take()])
        self.started.set()
        raise (await self.ends)()


async def _wait_until_the_session_ends(series: Series, series_fails: FailsLate) -> None:
    session = asyncio.create_task(series.wait())
    await series_fails.started.wait()
    session.cancel()
    await asyncio.gather(session, return_exceptions=True)


async def test_a_series_that_fails_after_its_session_is_run_by_the_next(
    runner: StatementRunner, executor: ChdbExecutor
) -> None:
    lost: list[Mapping[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    fails, tasks = FailsLate(executor), _tasks(_create("x"), _create("y"))
    series = await runner.start_series(tasks)
    assert series is not None

    # 1. The session ends while the series is at its first statement. 2. That one has to be tried again.
    await _wait_until_the_session_ends(series, fails)
    fails.ends.set_result(lambda: SqlError(Code.MEMORY_LIMIT_EXCEEDED, "Memory limit exceeded"))
    del series

    # 3. The next session runs it, and nothing of the failure is left over.
    assert await runner.run(tasks[0]) == SUCCESS
    gc.collect()
    assert lost == []


async def test_a_series_that_cannot_be_recorded_ends_the_next_session_where_its_own_has_ended(
    runner: StatementRunner, executor: ChdbExecutor
) -> None:
    fails, tasks = FailsLate(executor), _tasks(_create("x"), _create("y"))
    series = await runner.start_series(tasks)
    assert series is not None
    await _wait_until_the_session_ends(series, fails)
    fails.ends.set_result(lambda: Corrupt("The intent record cannot be written: disk is full."))
    await runner.drain()

    for ask in (runner.run(tasks[0]), runner.wait_for_earlier(tasks[0]), runner.start_series(tasks)):
        with pytest.raises(Corrupt, match="disk is full"):
            await ask
    assert await executor.table_engine(TableName("default", "x")) is None


@pytest.mark.parametrize(
    "statements",
    [
        [_create("x")],
        ["ALTER TABLE default.x ON CLUSTER c ADD COLUMN b UInt8", _create("y")],
        [_create("x"), "ALTER TABLE default.x ON CLUSTER c ADD COLUMN b UInt8"],
        [_create("x"), "CREATE TABLE default.y ON CLUSTER c ENGINE = Memory AS SELECT 1"],
        [_create("x"), "CREATE TABLE default.y ON CLUSTER c AS default.x"],
        [_create("x"), "RENAME TABLE default.x TO default.y ON CLUSTER c"],
    ],
)
async def test_less_than_two_simple_ones_at_the_front_are_no_series(
    runner: StatementRunner, statements: list[str]
) -> None:
    assert await runner.start_series(_tasks(*statements)) is None


async def test_what_cannot_be_looked_at_is_the_last_that_its_series_runs(
    runner: StatementRunner, executor: ChdbExecutor, intents: SqliteIntentStore
) -> None:
    """After a crash nobody could tell whether it happened: its outcome does not wait for a later intent."""
    execute_series = executor.execute_series

    async def blindly(steps: Steps, settings: Mapping[str, str]) -> None:
        class Blind:
            take, done = steps.take, steps.done

            def record(self, digests: Sequence[str]) -> None:
                steps.record([""] * len(digests))

        await execute_series(Blind(), settings)

    executor.execute_series = blindly  # type: ignore[method-assign]
    tasks = _tasks(_create("x"), _create("y"))

    assert await _run(runner, tasks) == [("0", 0)]

    assert await executor.table_engine(TableName("default", "y")) is None
    recorded = await intents.load(QUEUE)
    assert [(key.entry, intent.status) for key, intent in recorded.items()] == [(tasks[0].name, SUCCESS)]


@pytest.mark.parametrize(("sql", "code"), [(_create("x"), 0), (_drop("nowhere"), Code.UNKNOWN_TABLE)])
async def test_one_that_runs_singly_is_on_disk_before_its_effect_and_has_its_outcome_behind_it(
    runner: StatementRunner,
    executor: ChdbExecutor,
    tmp_path: Path,
    sql: str,
    code: int,
) -> None:
    execute_recorded, seen = executor.execute_recorded, []

    async def noted(
        execution: Execution, *, statement: Statement, database: str, record: Callable[[str], None]
    ) -> None:
        def and_look(digest: str) -> None:
            record(digest)
            with sqlite3.connect(tmp_path / "intents.db") as other:
                seen.extend(other.execute("SELECT entry, code FROM intent").fetchall())

        await execute_recorded(execution, statement=statement, database=database, record=and_look)

    executor.execute_recorded = noted  # type: ignore[method-assign]
    [task] = _tasks(sql)

    assert (await runner.run(task)).code == code

    assert seen == [(task.name, None)]
    begun = runner.begun(task)
    assert begun is not None and begun.status is not None and begun.status.code == code


async def test_one_that_runs_singly_and_reports_an_error_behind_its_effect_is_not_run_again(
    runner: StatementRunner, executor: ChdbExecutor
) -> None:
    """The next attempt compares with what was recorded before the first."""
    execute_recorded, runs = executor.execute_recorded, []

    async def answer_lost(
        execution: Execution, *, statement: Statement, database: str, record: Callable[[str], None]
    ) -> None:
        runs.append(execution.sql)
        await execute_recorded(execution, statement=statement, database=database, record=record)
        raise SqlError(Code.UNFINISHED, "Nobody knows.")

    executor.execute_recorded = answer_lost  # type: ignore[method-assign]
    [task] = _tasks(_create("x"))

    with pytest.raises(TryAgain):
        await runner.run(task)
    assert await runner.run(task) == SUCCESS

    assert len(runs) == 1


async def test_what_was_begun_before_takes_no_part(runner: StatementRunner) -> None:
    tasks = _tasks(_create("x"), _drop("x"), _create("y"))
    await runner.run(tasks[0])

    assert await runner.start_series(tasks) is None
    assert await _run(runner, tasks[1:]) == [("1", 0), ("2", 0)]


async def test_only_statements_about_different_tables_are_begun_together(
    runner: StatementRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = Series.take

    def counted(self: Series) -> object:
        steps = take(self)
        taken.append(len(steps))
        return steps

    monkeypatch.setattr(Series, "take", counted)
    await _run(runner, _tasks(_create("x"), _create("y"), _drop("x"), _create("z"), _drop("z")))

    assert taken == [3, 2, 0]


async def test_what_ran_ahead_of_a_failure_has_its_outcome_and_the_rest_runs_later(
    runner: StatementRunner, executor: ChdbExecutor
) -> None:
    tasks = _tasks(_create("x"), _drop("x"), _create("y"), _create("y"), _create("z"))

    # CREATE z stands alone and does not wait for the second CREATE y, which fails.
    assert await _run(runner, tasks) == [("0", 0), ("2", 0), ("4", 0), ("1", 0), ("3", 57)]

    assert await executor.table_engine(TableName("default", "z")) == "MergeTree"


async def test_functions_of_users_could_hide_what_a_statement_needs_so_that_there_is_no_series(
    runner: StatementRunner, executor: ChdbExecutor
) -> None:
    tasks = _tasks(_create("x"), _create("y"))
    await executor.execute(Execution("CREATE FUNCTION f AS (a) -> joinGet('default.t', 'b', a)"))
    assert await runner.start_series(tasks) is None

    await executor.execute(Execution("DROP FUNCTION f"))
    assert await _run(runner, tasks) == [("0", 0), ("1", 0)]


async def test_somebody_is_told_after_each(runner: StatementRunner, executor: ChdbExecutor) -> None:
    told: list[str] = []

    def tell(statement: Statement) -> None:
        told.append(statement.tables[0].table)

    series = await runner.start_series(_tasks(_create("x"), _create("y")))
    assert series is not None
    await series.wait()
    other = Series([series._tasks], SilentIntents(), SystemEnv())
    steps = ToldSteps(other, tell)

    assert len(steps.take()) == 2
    steps.record(["before", "before"])
    assert steps.done()
    await asyncio.sleep(0)
    assert told == ["x"]
    assert steps.done()
    await asyncio.sleep(0)

    assert told == ["x", "y"]
    assert steps.last is not None and steps.last.tables[0].table == "y"


async def test_none_is_left_out_where_somebody_is_told(
    runner: StatementRunner, executor: ChdbExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node with replicated and Distributed tables, which both listen."""
    execute_series, told = executor.execute_series, list[str]()

    async def execute_told(steps: Steps, settings: Mapping[str, str]) -> None:
        inner = ToldSteps(steps, lambda statement: told.append(statement.tables[0].table))
        await execute_series(ToldSteps(inner, lambda statement: None), settings)

    monkeypatch.setattr(executor, "execute_series", execute_told)
    names = ["x", "y", "z", "u", "v"]
    outcomes = await _run(runner, _tasks(*map(_create, names)))
    assert outcomes == [(str(number), 0) for number in range(5)]
    assert [await executor.table_engine(TableName("default", name)) for name in names] == ["MergeTree"] * 5

    assert len(await _run(runner, _tasks(*map(_create, names), *map(_drop, names))[5:])) == 5
    assert [await executor.table_engine(TableName("default", name)) for name in names] == [None] * 5
    assert told == [*names, *names]


class SilentIntents:
    """Keeps nothing."""

    def begin_now(self, *intents: object, ended: object = ()) -> None:
        """Nothing to do."""
