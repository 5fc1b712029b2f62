"""Digest, intent and effect in one go: the intent is on disk before the effect, or there is no effect."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.ddl.executor import Execution
from engine.ddl.intents import BlockingIntentStore, Intent, IntentKey, SqliteIntentStore
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.errors import Code, Corrupt, SqlError
from engine.names import TableName
from engine.sql import parse_statement
from engine.storage.local_executor import ChdbExecutor
from engine.storage.metadata_files import definition_on_disk
from engine.testing.failing_chdb import Faults, Moment
from tests.unit.chdb_support import failing_chdb, running_executor, without_descriptors

QUEUE = "/q"


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ChdbExecutor]:
    async with running_executor(tmp_path, lanes=1) as executor:
        yield executor


async def _run(executor: ChdbExecutor, sql: str, record: list[str] | None = None, **settings: str) -> None:
    await executor.execute_recorded(
        Execution(sql, settings=settings),
        statement=parse_statement(sql),
        database="default",
        record=(record if record is not None else []).append,
    )


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE fresh (a UInt8) ENGINE = Memory",
        "CREATE TABLE default.t (a UInt8) ENGINE = Memory",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE t",
        "DROP TABLE IF EXISTS nobody",
        "CREATE DATABASE d",
        "ALTER TABLE t ADD COLUMN b UInt8",
        "TRUNCATE TABLE t",
        "RENAME TABLE t TO u",
    ],
)
async def test_what_is_recorded_is_the_digest_from_before(executor: ChdbExecutor, sql: str) -> None:
    await _run(executor, "CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
    before = await executor.definition_digest(parse_statement(sql), "default")
    recorded: list[str] = []

    try:
        await _run(executor, sql, recorded)
    except SqlError as error:
        assert error.code == 57  # a table of that name is there: the digest was recorded all the same

    assert recorded == [before]


async def test_nothing_is_executed_when_the_record_cannot_be_written(executor: ChdbExecutor) -> None:
    def refuse(_: str) -> None:
        raise Corrupt("The disk is full.")

    with pytest.raises(Corrupt):
        await executor.execute_recorded(
            Execution("CREATE TABLE t (a UInt8) ENGINE = Memory"),
            statement=parse_statement("CREATE TABLE t (a UInt8) ENGINE = Memory"),
            database="default",
            record=refuse,
        )

    assert await executor.table_engine(TableName("default", "t")) is None


@pytest.mark.parametrize(
    ("sql", "look"),
    [
        ("CREATE DATABASE d", "SHOW CREATE DATABASE"),
        ("DROP TABLE m.t", "SHOW CREATE TABLE"),
        ("TRUNCATE TABLE m.t", "FROM system.parts"),
    ],
)
async def test_a_statement_is_not_begun_without_a_digest_that_memory_lacked_for(
    tmp_path: Path, sql: str, look: str
) -> None:
    with failing_chdb(tmp_path) as knob:
        async with running_executor(tmp_path, lanes=1) as executor:
            await _run(executor, "CREATE DATABASE m ENGINE = Memory")
            await _run(executor, "CREATE TABLE m.t (a UInt8) ENGINE = MergeTree ORDER BY a")
            before = await executor.definition_digest(parse_statement(sql), "default")
            recorded: list[str] = []
            knob.write(Faults(rate=1, of=look, moments=(Moment.BEFORE,), most=1))
            with pytest.raises(SqlError) as said:
                await _run(executor, sql, recorded)
            assert said.value.code == Code.MEMORY_LIMIT_EXCEEDED and not recorded
            assert await executor.definition_digest(parse_statement(sql), "default") == before
            await _run(executor, sql, recorded)
            assert recorded == [before]


async def test_a_create_makes_way_for_itself_where_an_attempt_left_the_directory_of_its_data(
    executor: ChdbExecutor, tmp_path: Path
) -> None:
    uuids = [f"{number}2345678-0000-4000-8000-000000000000" for number in range(3)]
    store = tmp_path / "data" / "store"
    left = [store / uuid[:3] / uuid for uuid in uuids]
    for directory in left:
        directory.mkdir(parents=True)
    (left[0] / "format_version.txt").write_text("1")
    sql = "CREATE TABLE t{} UUID '{}' (a UInt8) ENGINE = MergeTree ORDER BY a"
    await _run(executor, sql.format(0, uuids[0]))
    await executor.execute(Execution(sql.format(1, uuids[1])))
    for number in range(2):
        assert await executor.table_engine(TableName("default", f"t{number}")) == "MergeTree"
    assert [each.name for each in (tmp_path / "data/oncluster/orphans").iterdir()] == [uuids[0]]

    # A table that is there keeps its data.
    with pytest.raises(SqlError) as said:
        await executor.execute(Execution(sql.format(2, uuids[1])))
    assert said.value.code == Code.TABLE_ALREADY_EXISTS
    assert (left[1] / "format_version.txt").exists()


async def test_a_digest_without_descriptors_is_none_rather_than_another_one(
    executor: ChdbExecutor, tmp_path: Path
) -> None:
    await _run(executor, "CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
    table, path = TableName("default", "t"), tmp_path / "data"
    digest = definition_on_disk(path, table)
    with without_descriptors(), pytest.raises(SqlError) as said:
        definition_on_disk(path, table)
    assert (said.value.code, said.value.errno) == (Code.CANNOT_OPEN_FILE, errno.EMFILE)
    assert digest and definition_on_disk(path, table) == digest


async def test_a_statement_that_must_not_run_here_is_refused(executor: ChdbExecutor) -> None:
    with pytest.raises(SqlError) as refused:
        await _run(executor, "CREATE TABLE f (a UInt8) ENGINE = File(CSV, '/etc/passwd')")

    assert refused.value.code == 497
    assert await executor.table_engine(TableName("default", "f")) is None


def _intent(entry: str) -> Intent:
    return Intent(IntentKey(QUEUE, entry, 7), "node01:9000", "entry digest", "default.t", "before")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteIntentStore]:
    store = SqliteIntentStore(tmp_path / "intents.db")
    assert isinstance(store, BlockingIntentStore)
    yield store
    await store.close()


async def test_an_intent_written_by_the_executing_thread_is_there(store: SqliteIntentStore) -> None:
    store.begin_now(_intent("query-1"))

    assert await store.load(QUEUE) == {_intent("query-1").key: _intent("query-1")}


async def test_an_end_that_can_wait_goes_along_with_the_next_intent(
    store: SqliteIntentStore, tmp_path: Path
) -> None:
    store.begin_now(_intent("query-1"))
    store.finish_soon(_intent("query-1").key, ExecutionStatus(57, "there"))
    store.begin_now(_intent("query-2"))

    other = SqliteIntentStore(tmp_path / "intents.db")  # what a process that came after a crash would read
    found = await other.load(QUEUE)
    await other.close()

    assert {key.entry: intent.status for key, intent in found.items()} == {
        "query-1": ExecutionStatus(57, "there"),
        "query-2": None,
    }


async def test_an_end_that_can_wait_is_not_forgotten_at_the_end(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "intents.db")
    store.begin_now(_intent("query-1"))
    store.finish_soon(_intent("query-1").key, SUCCESS)
    await store.close()

    other = SqliteIntentStore(tmp_path / "intents.db")
    found = await other.load(QUEUE)
    await other.close()

    assert [intent.status for intent in found.values()] == [SUCCESS]
