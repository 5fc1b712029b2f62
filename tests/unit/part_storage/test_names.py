"""Names: of parts in UUIDs, of files that come from peers, of partitions; and settings that nobody sees."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SqlError
from engine.names import TableName
from engine.part_storage import (
    HIDDEN_SETTINGS,
    ChdbPartStore,
    settings_of,
    with_hidden_settings,
    with_settings,
    without_hidden_settings,
)
from engine.part_storage.disk import Durability
from engine.part_storage.part_files import is_file_name
from engine.part_storage.part_uuid import part_of, part_of_text, uuid_of
from engine.replication.part_name import PartName
from engine.replication.part_store import DetachedPart, MergeOptions
from tests.unit.part_storage.support import add, named, opened, rows, texts

pytestmark = pytest.mark.slow

NUMBERS = st.integers(min_value=0, max_value=2**30 - 1)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.text("0123456789abcdefXYZ-", min_size=1, max_size=32))
def test_a_name_comes_back(a: int, b: int, level: int, mutation: int, partition: str) -> None:
    name = PartName(partition, min(a, b), max(a, b), level, mutation)
    assert part_of(partition, uuid_of(name)) == name
    assert part_of_text(partition, f"{uuid_of(name)}\n") == name


@given(st.uuids(version=4))
def test_a_uuid_that_somebody_else_made_is_no_name(value: uuid.UUID) -> None:
    """Of random UUIDs none has our mark with the version and variant bits of version 4 in a valid name."""
    name = part_of("all", value)
    assert name is None or uuid_of(name) == value


def test_numbers_that_do_not_fit_and_texts_that_are_no_uuid_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        uuid_of(PartName("all", 0, 2**30, 0))
    for text in ("", "x", str(uuid.UUID(int=0)), "0c" * 40):
        assert part_of_text("all", text) is None
    backwards = uuid.UUID(int=0x0C << 120 | 5 << 90 | 4 << 60)
    assert part_of("all", backwards) is None


@pytest.mark.parametrize(
    "name",
    ["data.bin", "a%2Eb.cmrk4", "p.proj/data.bin", "skp_idx_i.idx2", "x@y.bin", "v.Tuple(x Int8).bin",
     "nach größe.proj/data.bin", "x" * 255, "..bin", "a\\b", "\udcff.proj/data.bin"],
)  # fmt: skip
def test_names_of_files(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc/passwd", "a/b", "p.proj/../x", "p.proj/q.proj/x", "p.proj/",
     "p.proj", "a\0b", "a\nb", "\x7f", "p.proj//x", "x" * 256, "ä" * 128, "..proj/x/y"],
)  # fmt: skip
def test_names_that_could_lead_elsewhere(name: str) -> None:
    assert not is_file_name(name)


def test_hidden_settings_are_put_in_and_taken_out() -> None:
    plain = (
        "CREATE TABLE t (`a` UInt8) ENGINE = MergeTree ORDER BY a SETTINGS index_granularity = 1 COMMENT 'x'"
    )
    hidden = with_hidden_settings(plain)
    assert settings_of(hidden) == {"index_granularity": "1", **HIDDEN_SETTINGS}
    assert hidden.endswith(" COMMENT 'x'")
    assert without_hidden_settings(hidden) == plain
    short = plain.replace("index_granularity = 1", "a, b = 2, c")
    assert settings_of(with_hidden_settings(short)) == {"a": "1", "b": "2", "c": "1", **HIDDEN_SETTINGS}
    bare = "CREATE TABLE t (`SETTINGS` UInt8 DEFAULT 1) ENGINE = ReplacingMergeTree(a) ORDER BY tuple()"
    assert without_hidden_settings(with_hidden_settings(bare)) == bare
    assert with_settings(bare + " AS SELECT 1", {"a": "'x, y'"}) == bare + " SETTINGS a = 'x, y' AS SELECT 1"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("toYYYYMM(d)", ("202001", "'202001'")),
        ("d", ("'2020-01-02'", "18263")),
        ("(k % 2, s)", ("(0, 'a')", "tuple(0, 'a')")),
        ("s", ("'a'", "tuple('a')")),
    ],
)
async def test_a_partition_is_named_by_its_value(tmp_path: Path, key: str, values: tuple[str, ...]) -> None:
    create = f"CREATE TABLE t (k UInt64, s String, d Date) ENGINE = MergeTree PARTITION BY {key} ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        async with store.insert_stage() as stage:
            await pool.query(f"INSERT INTO {stage.table.quoted} VALUES (2, 'a', '2020-01-02')")
            (new,) = await stage.collect()
        for value in values:
            assert await store.partition_ids(value) == [new.partition_id]
        assert await store.partition_ids("ID 'abc'") == ["abc"]
        assert await store.partition_ids("ALL") == []
        for wrong in ("ID '../x'", "(1, 2, 3, 4)", "'no such date'", "tuple(", "1; DROP TABLE t"):
            if key == "s" and wrong == "'no such date'":
                continue
            with pytest.raises(SqlError) as caught:
                await store.partition_ids(wrong)
            assert caught.value.code in (248, 62, 53, 38)


@pytest.mark.parametrize("wrong", ["202001", "20200102", "(65536)", "-1"])
async def test_a_number_that_is_no_day_names_no_partition(tmp_path: Path, wrong: str) -> None:
    create = "CREATE TABLE t (d Date) ENGINE = MergeTree PARTITION BY d ORDER BY d"
    async with opened(tmp_path, create) as (_, store):
        await store.load()
        with pytest.raises(SqlError) as caught:
            await store.partition_ids(wrong)
        assert caught.value.code == 69


@pytest.mark.parametrize("key", ["k % 2", "d", "(d, s)", "n", "m", "tuple()"])
async def test_what_is_no_value_of_the_key_is_refused_with_the_code_that_chdb_has(
    tmp_path: Path, key: str
) -> None:
    columns = "k UInt64, d Date, s String, n Nullable(Int8), m Nullable(Date)"
    create = f"CREATE TABLE t ({columns}) ENGINE = MergeTree PARTITION BY {key} ORDER BY k"
    create += " SETTINGS allow_nullable_key = 1"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        refused = 0
        for value in ("'abc'", "''", "-1", "1.5", "300", "NULL", "('x', 'y')", "(1, 2, 3)", "[1]", "202001"):
            try:
                await pool.query(f"ALTER TABLE t DROP PARTITION {value}")
            except SqlError as error:
                refused += 1
                with pytest.raises(SqlError) as caught:
                    await store.partition_ids(value)
                assert (value, caught.value.code) == (value, error.code)
        assert refused


async def test_a_partition_is_named_by_a_floating_point_value(tmp_path: Path) -> None:
    create = (
        "CREATE TABLE t (f Float64) ENGINE = MergeTree PARTITION BY f ORDER BY tuple() "
        "SETTINGS allow_floating_point_partition_key = 1"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        async with store.insert_stage() as stage:
            await pool.query(f"INSERT INTO {stage.table.quoted} VALUES (1.5)")
            (new,) = await stage.collect()
        assert await store.partition_ids("1.5") == [new.partition_id]
        assert await store.partition_ids("2") != [new.partition_id]


async def test_a_table_without_key_is_one_partition(tmp_path: Path) -> None:
    async with opened(tmp_path, "CREATE TABLE t (k UInt64) ENGINE = MergeTree ORDER BY k") as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1", "all_0_0_0")
        assert await store.partition_ids("tuple()") == ["all"] == await store.partition_ids("ALL")
        with pytest.raises(SqlError):
            await store.partition_ids("5")


@pytest.mark.parametrize(
    ("directory", "prefix", "part"),
    [
        ("all_0_0_0", "", "all_0_0_0"),
        ("all_0_0_1_7", "", "all_0_0_1_7"),  # and not 0_0_1_7 behind a prefix "all"
        ("all_0_1_1_5", "", "all_0_1_1_5"),
        ("restoring_1_4_9_1", "restoring", "1_4_9_1"),  # and no part of a partition "restoring"
        ("broken-on-start_all_0_1_1_5", "broken-on-start", "all_0_1_1_5"),
        ("ignored_all_3_3_0_try2", "ignored", "all_3_3_0"),
        ("all_3_3_0_try1", "", "all_3_3_0"),
        ("mine_all_3_3_0", "mine", "all_3_3_0"),
    ],
)
def test_what_the_name_of_a_detached_directory_says(directory: str, prefix: str, part: str) -> None:
    assert DetachedPart.of(directory) == DetachedPart(directory, prefix, PartName.parse(part))


def test_a_detached_directory_without_a_part_in_its_name_has_none() -> None:
    for directory in ("", "x", "broken_x", "broken_all_5", "_try1"):
        assert DetachedPart.of(directory).name is None


def test_what_is_published_while_tables_exchange_their_names_comes_to_its_own_table(tmp_path: Path) -> None:
    """1. chDB exchanges the names of two tables. 2. A merge of one is published. 3. Its store learns its new
    name."""

    async def main() -> None:
        async with opened(tmp_path, "CREATE TABLE t (k UInt64) ENGINE = MergeTree ORDER BY k") as (
            pool,
            store,
        ):
            await pool.query(with_hidden_settings("CREATE TABLE u (k UInt64) ENGINE = MergeTree ORDER BY k"))
            other = TableName("default", "u")
            await pool.query("INSERT INTO u VALUES (7)")
            await store.load()
            await add(pool, store, "VALUES (1)", "all_0_0_0")
            await add(pool, store, "VALUES (2)", "all_1_1_0")
            sources, merged = named("all_0_0_0", "all_1_1_0"), PartName.parse("all_0_1_1")
            await store.merge(sources, merged, MergeOptions())
            async with store.renaming():
                await pool.query("EXCHANGE TABLES t AND u")
                publishing = asyncio.create_task(store.publish([merged], sources))
                definition = asyncio.create_task(store.definition())
                store.renamed(other)
            await asyncio.gather(publishing, definition)
            assert await rows(pool) == "7"
            assert (await pool.query("SELECT k FROM u ORDER BY k")).text.split() == ["1", "2"]
            assert texts(store.active) == [str(merged)]

    asyncio.run(main())


async def test_names_of_any_bytes(tmp_path: Path) -> None:
    """Such a table was made, stayed without a store, and kept its node from starting."""
    table = TableName("default", "t\udcff")
    async with opened(tmp_path, "CREATE TABLE t (k UInt8) ENGINE = MergeTree ORDER BY k") as (pool, _):
        await pool.query(
            with_hidden_settings(
                f"CREATE TABLE {table.quoted} (`c\udcfe` UInt8) ENGINE = MergeTree ORDER BY ()"
            )
        )
        uuid_text = (
            await pool.query("SELECT uuid FROM system.tables WHERE database = 'default' AND name != 't'")
        ).text.strip()
        store = await ChdbPartStore.open(pool, table, uuid_text, durability=Durability.PROCESS)
        try:
            assert not (await store.load()).active
            assert list((await store.definition()).columns.by_name) == ["c\udcfe"]
            empty = await store.stage_empty(PartName.parse("all_0_0_0"))
            await store.publish([empty.name])
            await store.verify(empty.name)
        finally:
            await store.close()
