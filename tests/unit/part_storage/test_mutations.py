"""Merges and mutations in scratch tables: what they make, and that equal sources give equal bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.part_storage.workers import Connection
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions
from tests.unit.part_storage.support import add, named, opened, rows

pytestmark = pytest.mark.slow

CREATE = (
    "CREATE TABLE t (k UInt64, v String STATISTICS(uniq), m UInt64 MATERIALIZED k * 10,"
    " d DateTime DEFAULT toDateTime('2020-01-01'), INDEX i v TYPE minmax, PROJECTION p (SELECT v ORDER BY v))"
    " ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
)
SOURCE = PartName.parse("0_3_3_0")


@pytest.mark.parametrize(
    ("commands", "shown", "what"),
    [
        ("DELETE WHERE k >= 4", "k, v", "0\ta 2\ta"),
        ("UPDATE v = concat(v, 'x', toString(k)) WHERE k > 2", "v", "a a ax4"),
        ("(UPDATE v = 'b', d = d + 1 WHERE 1), (DELETE WHERE k = 0)", "k, v", "2\tb 4\tb"),
        ("UPDATE _row_exists = 0 WHERE k = 2", "k", "0 4"),
        ("CLEAR COLUMN v IN PARTITION ID '0'", "k, v", "0\t 2\t 4\t"),
        ("MATERIALIZE COLUMN m, MATERIALIZE INDEX i", "m", "0 20 40"),
        ("CLEAR INDEX i", "k", "0 2 4"),
        ("MATERIALIZE PROJECTION p", "v", "a a a"),
        ("MATERIALIZE STATISTICS v, UPDATE v = 'c' WHERE k = 2, MATERIALIZE STATISTICS v", "v", "a a c"),
        ("DELETE WHERE 1", "k", ""),
        ("DROP COLUMN nosuch", "k", "0 2 4"),
        ("DROP INDEX nosuch", "k", "0 2 4"),
        ("DELETE WHERE k IN (SELECT 2)", "k", "0 4"),
    ],
)
async def test_what_a_mutation_makes(tmp_path: Path, commands: str, shown: str, what: str) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "(k, v) SELECT 2 * number, 'a' FROM numbers(3)", str(SOURCE))
        result, twin = PartName.parse("0_3_3_0_9"), PartName.parse("0_3_3_0_10")
        part = await store.mutate(SOURCE, result, commands)
        again = await store.mutate(SOURCE, twin, commands)
        assert part.digest == again.digest
        await store.publish([result], [SOURCE])
        assert await rows(pool, shown) == what.strip()
        await store.verify(result)


async def test_a_mutation_that_fails_leaves_nothing_but_its_reason(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "(k, v) SELECT 2, 'a'", str(SOURCE))
        for commands in ("UPDATE nosuch = 1 WHERE 1", "no command"):
            with pytest.raises(SqlError):
                await store.mutate(SOURCE, PartName.parse("0_3_3_0_9"), commands)
        with pytest.raises(SqlError) as failed:
            await store.mutate(SOURCE, PartName.parse("0_3_3_0_9"), "UPDATE v = throwIf(1, 'so') WHERE 1")
        assert failed.value.name == "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"
        assert failed.value.message.startswith("so: while executing")
        assert "\n" not in failed.value.message
        with pytest.raises(SqlError) as caught:
            await store.mutate(PartName.parse("0_8_8_0"), PartName.parse("0_8_8_0_9"), "DELETE WHERE 1")
        assert caught.value.code == 232
        assert dict(store.staged) == {}
        assert await rows(pool) == "2"


@pytest.mark.parametrize(
    ("engine", "options", "what"),
    [
        ("MergeTree", MergeOptions(deduplicate=True), "1\ta 1\tb 2\tz"),
        ("MergeTree", MergeOptions(deduplicate=True, deduplicate_by_columns=("k",)), "1\ta 2\tz"),
        ("ReplacingMergeTree", MergeOptions(), "1\tb 2\tz"),
        ("MergeTree", MergeOptions(), "1\ta 1\ta 1\tb 2\tz"),
    ],
)
async def test_a_merge_goes_by_blocks_and_by_its_options(
    tmp_path: Path, engine: str, options: MergeOptions, what: str
) -> None:
    create = f"CREATE TABLE t (k UInt64, v String) ENGINE = {engine} ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        names = named("all_1_1_0", "all_2_2_0", "all_5_5_0")
        for name, select in reversed(
            list(zip(names, ("SELECT 1, 'a'", "VALUES (1, 'a'), (2, 'z')", "SELECT 1, 'b'"), strict=True))
        ):
            await add(pool, store, select, str(name))  # the last block comes first
        part = await store.merge(names, PartName.parse("all_1_5_1"), options)
        again = await store.merge(names, PartName.parse("all_1_5_2"), options)
        assert part.digest == again.digest
        await store.publish([part.name], names)
        assert await rows(pool, "k, v") == what


async def test_the_same_inserts_give_the_same_bytes_and_the_same_identity(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        seen = []
        for select in ("SELECT number, 'x' FROM numbers(6)",) * 2 + ("SELECT number, 'y' FROM numbers(6)",):
            async with store.insert_stage() as stage:
                await pool.query(f"INSERT INTO {stage.table.quoted} {select}")
                new = sorted(await stage.collect(), key=lambda each: each.partition_id)
                seen.append([(each.partition_id, each.data_hash, each.rows) for each in new])
                shown = await pool.query(
                    f"SELECT k FROM {stage.table.quoted} WHERE _part = '{stage.part_in_table(new[1])}'"
                    " ORDER BY k"
                )
                assert shown.text == "1\n3\n5\n"
        assert seen[0] == seen[1] != seen[2]
        assert seen[0][0][1] != seen[0][1][1]


PLAIN = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
OF_ITS_PART = {
    "DELETE WHERE _part = '0_7_9_2_11'": "",
    "DELETE WHERE _part = '0_1_1_0'": "0\ta 2\ta",
    "UPDATE _row_exists = 0 WHERE _part != '0_7_9_2_11' OR k = 2": "0\ta",
    "UPDATE v = _part WHERE 1": "0\t0_7_9_2_11 2\t0_7_9_2_11",
    "(UPDATE v = `_part` WHERE 1), (DELETE WHERE _part = '0_1_1_0')": "0\t0_7_9_2_11 2\t0_7_9_2_11",
    "UPDATE v = concat(_partition_id, '/', toString(_part_data_version)) WHERE 1": "0\t0/11 2\t0/11",
    "UPDATE v = toString((_block_number, _part_offset, _part_index)) WHERE k = 2": "0\ta 2\t(7,1,0)",
    "UPDATE v = toString((_partition_value, _part_starting_offset)) WHERE 1": "0\t((0),0) 2\t((0),0)",
    "UPDATE v = toString((_block_offset, toUInt128(_part_uuid))) WHERE 1": "0\t(0,0) 2\t(1,0)",
    "UPDATE v = named_part(k) WHERE 1": "0\t0 0_7_9_2_11 2\t2 0_7_9_2_11",
    "MODIFY COLUMN v LowCardinality(String), UPDATE v = _part WHERE k = 2": "0\ta 2\t0_7_9_2_11",
    "DROP COLUMN gone, UPDATE v = _part WHERE k = 2": "0\ta 2\t0_7_9_2_11",
    "CLEAR COLUMN v, DROP INDEX i, UPDATE v = _part WHERE k = 2": "0\t 2\t0_7_9_2_11",
    "DELETE WHERE k IN (SELECT if(_partition_id = '0', 2, 0) FROM default.t)": "0\ta",
    "UPDATE v = '(SELECT _part)' WHERE v = '_database'": "0\ta 2\ta",
}
NOT_TOLD = (
    "UPDATE v = `_database` WHERE k = 2",
    "DELETE WHERE _table = 't'",
    "UPDATE _row_exists = 0 WHERE its_database() = 'default'",
    "DELETE WHERE k IN (SELECT k FROM default.t WHERE _part = '0_7_9_2_11')",
    "DELETE WHERE k IN ((WITH 1 AS x SELECT k FROM default.t WHERE (t._part_uuid AS u) != u))",
)


async def test_a_mutation_that_asks_for_the_part_is_told_its_replicated_name(tmp_path: Path) -> None:
    source, result = PartName.parse("0_7_9_2_11"), PartName.parse("0_7_9_2_12")
    async with opened(tmp_path, PLAIN) as (pool, store):
        await store.load()
        await pool.query("CREATE FUNCTION named_part AS x -> concat(toString(x), ' ', its_part())")
        await pool.query("CREATE FUNCTION its_part AS () -> _part")
        await pool.query("CREATE FUNCTION its_database AS () -> _database")
        came_out = {}
        for commands in OF_ITS_PART:
            await add(pool, store, "SELECT 2 * number, 'a' FROM numbers(2)", str(source))
            await store.mutate(source, result, commands)
            await store.publish([result], [source])
            came_out[commands] = await rows(pool, "k, v")
            await store.verify(result)
            await store.remove([result])
        assert came_out == OF_ITS_PART
        await add(pool, store, "SELECT 2 * number, 'a' FROM numbers(2)", str(source))
        for commands in NOT_TOLD:
            with pytest.raises(SqlError) as refused:
                await store.mutate(source, result, commands)
            assert refused.value.code == 48
        assert dict(store.staged) == {}


async def test_merged_and_mutated_parts_keep_the_numbers_of_their_blocks(tmp_path: Path) -> None:
    create = (
        "CREATE TABLE t (k UInt64) ENGINE = MergeTree ORDER BY () SETTINGS enable_block_number_column = 1"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        names = named("all_4_4_0", "all_7_7_0_9", "all_12_12_0")
        for number, name in enumerate(names):
            await add(pool, store, f"SELECT {number}", str(name))
        mutated = PartName.parse("all_4_4_0_9")
        await store.mutate(names[0], mutated, "UPDATE k = k + 10 WHERE 1")
        await store.publish([mutated], [names[0]])
        sources = [mutated, *names[1:]]
        merged = PartName.parse("all_4_12_1_9")
        await store.merge(sources, merged, MergeOptions())
        await store.publish([merged], sources)
        alone = PartName.parse("all_4_12_2_9")
        await store.merge([merged], alone, MergeOptions())
        await store.publish([alone], [merged])
        # What a SELECT sees of them chDB makes anew whenever it takes a part.
        for block, left in ((7, "2 10"), (5, "2 10"), (4, "2")):
            (before,) = store.active
            result = before.mutated(before.data_version + 1)
            await store.mutate(before, result, f"DELETE WHERE _block_number = {block}")
            await store.publish([result], [before])
            assert await rows(pool) == left
            await store.verify(result)


async def test_what_an_alter_does_to_many_columns_is_done_to_a_part_at_once(tmp_path: Path) -> None:
    """1. A part is here. 2. An ALTER changes, drops and adds columns. 3. Its mutation reaches the part."""
    columns = ", ".join(f"c{number} UInt8 DEFAULT {number}" for number in range(9))
    create = f"CREATE TABLE t (k UInt64, {columns}) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
    modify = [f"MODIFY COLUMN c{number} String" for number in range(6)]
    again = "MODIFY COLUMN c0 LowCardinality(String)"
    drop = [f"DROP COLUMN c{number}" for number in (6, 7)]
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "(k) SELECT 2", str(SOURCE))
        for commands in ([*modify, *drop], [again]):
            plan = await store.plan_alter(", ".join(commands))
            await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})
        runs: list[str] = []
        commented = Connection.commented

        def noted(connection: Connection, sql: str, comment: str) -> None:
            runs.append(sql)
            commented(connection, sql, comment)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "commented", noted)
            result = PartName.parse("0_3_3_0_9")
            await store.mutate(SOURCE, result, ", ".join([*modify, *drop, again]))
        assert [run.count(" COLUMN ") for run in runs] == [6, 2, 1]
        await store.publish([result], [SOURCE])
        assert await rows(pool, "* EXCEPT k") == "0\t1\t2\t3\t4\t5\t8"
