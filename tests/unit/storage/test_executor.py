"""chDB under the DDL queue's worker: statements, and what tells whether they took effect."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.ddl.executor import Execution, Fingerprint
from engine.errors import SqlError
from engine.names import TableName
from engine.sql import parse_statement
from engine.storage.local_executor import ChdbExecutor
from tests.python_versions import keeps_texts_of_any_bytes
from tests.unit.chdb_support import running_executor

pytestmark = pytest.mark.slow


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ChdbExecutor]:
    async with running_executor(tmp_path, lanes=2) as executor:
        yield executor


async def run(executor: ChdbExecutor, sql: str, **settings: str) -> None:
    await executor.execute(Execution(sql, settings=settings))


async def digest(executor: ChdbExecutor, sql: str) -> str:
    return await executor.definition_digest(parse_statement(sql), "default")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE fresh (a UInt8) ENGINE = Memory",
        "CREATE DATABASE fresh",
        "CREATE VIEW fresh AS SELECT 1",
        "CREATE FUNCTION fresh AS x -> x + 1",
        "CREATE NAMED COLLECTION fresh AS a = 1",
        "CREATE DICTIONARY fresh (k UInt64) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)",
        "DROP TABLE t",
        "DETACH TABLE t",
        "DROP DATABASE d",
        "RENAME TABLE t TO t2",
        "EXCHANGE TABLES t AND u",
        "RENAME DATABASE d TO d2",
        "ALTER TABLE t ADD COLUMN b UInt8",
        "ALTER TABLE t MODIFY COMMENT 'x'",
        "ALTER TABLE t UPDATE v = v + 1 WHERE 1",
        "ALTER TABLE t DELETE WHERE a = 1",
        "DELETE FROM t WHERE a = 1",
        "ALTER TABLE t DROP PARTITION 1",
        "ALTER TABLE t DETACH PARTITION 1",
        "TRUNCATE TABLE t",
        "ALTER TABLE u REPLACE PARTITION 1 FROM t",
    ],
)
async def test_a_statement_changes_its_digest_and_nothing_else_does(executor: ChdbExecutor, sql: str) -> None:
    for setup in (
        "CREATE DATABASE d",
        "CREATE TABLE t (a UInt64, v UInt64) ENGINE = MergeTree PARTITION BY a ORDER BY tuple()",
        "CREATE TABLE u AS t",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
    ):
        await run(executor, setup)
    before = await digest(executor, sql)
    assert Fingerprint.from_text(before) is not None
    await run(executor, "CREATE TABLE bystander (a UInt8) ENGINE = Memory")
    assert await digest(executor, sql) == before
    await run(executor, sql, mutations_sync="1")
    assert await digest(executor, sql) != before


@pytest.mark.parametrize(
    "table",
    [
        "`odd.db-ü`.`t/1 ä`",
        "mem.t",
        "`default`.`.sql`",
        pytest.param("`b\udcff`.`t\udcfe`", marks=keeps_texts_of_any_bytes),
        pytest.param("`mem`.`t\udcfe`", marks=keeps_texts_of_any_bytes),
    ],
)
async def test_odd_names_and_other_database_engines_are_fingerprinted_too(
    executor: ChdbExecutor, table: str
) -> None:
    await run(executor, "CREATE DATABASE `odd.db-ü`")
    await run(executor, "CREATE DATABASE mem ENGINE = Memory")
    await run(executor, "CREATE DATABASE `b\udcff`")
    create = f"CREATE TABLE {table} (a UInt8) ENGINE = Memory"
    before = await digest(executor, create)
    await run(executor, create)
    made = await digest(executor, create)
    await run(executor, f"DROP TABLE {table}")
    assert (await digest(executor, create)) == before != made


@pytest.mark.parametrize("name", ["plain", "t\udcff", "a\\b", "it's\t\n`"])
async def test_an_engine_is_found_whatever_the_table_is_called(executor: ChdbExecutor, name: str) -> None:
    table = TableName("default", name)
    assert await executor.table_engine(table) is None
    await run(executor, f"CREATE TABLE {table.quoted} (a UInt8) ENGINE = Memory")
    assert await executor.table_engine(table) == "Memory"


async def test_repeatable_statements_need_no_digest(executor: ChdbExecutor) -> None:
    for sql in ("OPTIMIZE TABLE t FINAL", "SYSTEM RELOAD DICTIONARIES", "KILL QUERY WHERE 1"):
        assert await digest(executor, sql) == ""


async def test_a_statement_that_fails_raises_its_code_and_the_next_one_runs(executor: ChdbExecutor) -> None:
    with pytest.raises(SqlError) as caught:
        await run(executor, "DROP TABLE nosuch")
    assert caught.value.code == 60
    with pytest.raises(SqlError) as caught:
        await run(executor, "CREATE TABLE t (a UInt8) ENGINE = Memory", nosuch_setting="1")
    assert caught.value.code == 115
    await run(executor, "CREATE TABLE t (a UInt8) ENGINE = Memory")
    assert await executor.table_engine(TableName("", "t")) == "Memory"
    assert await executor.table_engine(TableName("default", "nosuch")) is None


async def test_settings_of_one_entry_do_not_reach_the_next(executor: ChdbExecutor) -> None:
    await run(executor, "CREATE TABLE t (a UInt64) ENGINE = Memory")
    await run(executor, "INSERT INTO t SELECT getSetting('max_threads')", max_threads="1")
    await run(executor, "INSERT INTO t SELECT getSetting('max_block_size')", max_block_size="77")
    await run(executor, "INSERT INTO t SELECT throwIf(getSetting('max_block_size') = 77)")


async def test_settings_may_be_any_bytes(executor: ChdbExecutor) -> None:
    await run(executor, "CREATE TABLE told (a String) ENGINE = Memory")
    select = "INSERT INTO told SELECT hex(getSetting('insert_deduplication_token'))"
    await run(executor, select, insert_deduplication_token="\udcff")
    await run(executor, "INSERT INTO told SELECT throwIf((SELECT max(a) FROM told) != 'FF')")


async def test_the_real_parser_judges(executor: ChdbExecutor) -> None:
    assert await executor.validate("drop table\n t on cluster c") == "DROP TABLE t ON CLUSTER c"
    with pytest.raises(SqlError) as caught:
        await executor.validate("drop tabel t")
    assert caught.value.code == 62


async def test_statements_that_would_harm_the_node_are_refused(executor: ChdbExecutor) -> None:
    for sql in ("SYSTEM SHUTDOWN", "CREATE TABLE f (a String) ENGINE = File(CSV, '/etc/passwd')"):
        with pytest.raises(SqlError):
            await run(executor, sql)


def test_engines_that_replicate_are_known_by_name(tmp_path: Path) -> None:
    supports = ChdbExecutor.supports_replication
    assert supports(None, "ReplicatedReplacingMergeTree")  # type: ignore[arg-type]
    assert not supports(None, "MergeTree")  # type: ignore[arg-type]
