"""Memory or descriptors run out in the middle of a step: nothing is called broken for it, and what is kept in
memory is what chDB has."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import Code, SqlError
from engine.node.replicated.parts.check import CheckStatements
from engine.part_storage import ChdbPartStore
from engine.part_storage.part_files import files_of, hash_of_part, name_in, read_part
from engine.part_storage.part_sizes import check_files
from engine.part_storage.part_ttl import ttl_in
from engine.part_storage.workers import SCRATCH_DATABASE, Workers
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions
from engine.sql import parse_statement
from engine.storage import ChdbPool
from engine.testing.failing_chdb import Faults, Knob, Moment
from tests.unit.chdb_support import failing_chdb, without_descriptors
from tests.unit.part_storage.support import add, check_sent, insert, named, opened, rows, texts

CREATE = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 1 ORDER BY k"
CREATE_TTL = (
    "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 1 ORDER BY k "
    "TTL toDate('2100-01-01') + k"
)
FIRST = PartName.parse("0_0_0_0")


@asynccontextmanager
async def two_parts(
    directory: Path, create: str = CREATE
) -> AsyncIterator[tuple[ChdbPool, ChdbPartStore, Knob]]:
    with failing_chdb(directory) as knob:
        async with opened(directory / "data", create) as (pool, store):
            await store.load()
            for number in range(2):
                await add(pool, store, f"SELECT {number}, 'text'", f"0_{number}_{number}_0")
            try:
                yield pool, store, knob
            finally:
                knob.write(None)


@pytest.mark.parametrize("of", ["ATTACH PART", "CHECK TABLE", "CREATE TABLE|ATTACH TABLE"])
async def test_a_part_is_not_broken_because_the_check_found_no_memory(tmp_path: Path, of: str) -> None:
    async with two_parts(tmp_path) as (_, store, knob):
        knob.write(Faults(rate=1, of=of, moments=(Moment.BEFORE,), most=1))
        with pytest.raises(SqlError) as said:
            await store.verify(FIRST)
        assert said.value.code == Code.MEMORY_LIMIT_EXCEEDED
        await store.verify(FIRST)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.BEHIND])
async def test_parts_that_were_attached_are_known_whatever_chdb_says(tmp_path: Path, moment: Moment) -> None:
    async with two_parts(tmp_path) as (pool, store, knob):
        await insert(pool, store, "SELECT 2, 'text'", "0_2_2_0")
        knob.write(Faults(rate=1, of="ATTACH PART", moments=(moment,), most=1))
        if moment is Moment.BEFORE:
            with pytest.raises(SqlError):
                await store.publish(named("0_2_2_0"))
            assert texts(store.staged) == ["0_2_2_0"]
        await store.publish(named("0_2_2_0"))
        assert await rows(pool) == "0 1 2"
        assert texts(store.active) == ["0_0_0_0", "0_1_1_0", "0_2_2_0"] and not store.staged


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.BEHIND])
@pytest.mark.parametrize("of", ["ATTACH", "DETACH"])
async def test_views_of_a_dropped_column_are_there_again_though_memory_ran_out(
    tmp_path: Path, of: str, moment: Moment
) -> None:
    """They are away while chDB drops the column."""
    async with two_parts(tmp_path) as (pool, store, knob):
        await pool.query("CREATE TABLE target (v String) ENGINE = MergeTree ORDER BY v")
        for view in ("a", "b"):
            await pool.query(f"CREATE MATERIALIZED VIEW {view} TO target AS SELECT v FROM t")
        plan = await store.plan_alter("DROP COLUMN v")
        most = 1 if of == "DETACH" else 2
        knob.write(Faults(rate=1, of=f"^{of} TABLE .*default", moments=(moment,), most=most))
        with pytest.raises(SqlError) if of == "DETACH" else nullcontext():
            await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})
        knob.write(None)
        views = await pool.query(
            "SELECT name FROM system.tables WHERE engine = 'MaterializedView' ORDER BY name"
        )
        assert views.text.split() == ["a", "b"]


async def test_a_swap_is_known_though_chdb_has_no_memory_to_tell_of_it(tmp_path: Path) -> None:
    """1. REPLACE PARTITION takes effect and fails. 2. So do the next three looks at what there is."""
    async with two_parts(tmp_path) as (pool, store, knob):
        await insert(pool, store, "SELECT 7, 'merged'", "0_0_1_1")
        look = "REPLACE PARTITION|SELECT name FROM system.parts WHERE active"
        knob.write(Faults(rate=1, of=look, moments=(Moment.BEHIND,), most=4))
        await store.publish(named("0_0_1_1"), named("0_0_0_0", "0_1_1_0"))
        assert await rows(pool) == "7" and texts(store.active) == ["0_0_1_1"]
        await add(pool, store, "SELECT 8, 'text'", "0_2_2_0")
        assert await rows(pool) == "7 8"


@pytest.mark.parametrize(
    ("of", "going"),
    [("default.*ATTACH PART", ()), ("REPLACE PARTITION", ("0_1_1_0",))],
    ids=["attach", "swap"],
)
async def test_a_part_with_a_columns_old_name_keeps_its_own_bytes_though_it_is_shown_at_the_second_attempt(
    tmp_path: Path, of: str, going: tuple[str, ...]
) -> None:
    """Readers see another form of it, and peers get what Keeper knows."""
    async with two_parts(tmp_path) as (pool, store, knob):
        [late] = await insert(pool, store, "SELECT 2, 'late'", "0_2_2_0")
        plan = await store.plan_alter("RENAME COLUMN v TO w")
        await store.apply_alter(plan.definition.columns, plan.definition.metadata, {"v": "w"})
        knob.write(Faults(rate=1, of=of, moments=(Moment.BEFORE,), most=1))
        with pytest.raises(SqlError):
            await store.publish([late.name], named(*going))
        assert texts(store.staged) == ["0_2_2_0"]
        await store.publish([late.name], named(*going))
        assert (await rows(pool, "k, w")).endswith("2\tlate")
        await check_sent(store, late)


async def test_a_merge_that_found_no_memory_leaves_nothing_and_is_made_again(tmp_path: Path) -> None:
    async with two_parts(tmp_path) as (pool, store, knob):
        result, sources = PartName.parse("0_0_1_1"), named("0_0_0_0", "0_1_1_0")
        knob.write(Faults(rate=1, of="OPTIMIZE|DROP TABLE", moments=(Moment.BEFORE,), most=3))
        with pytest.raises(SqlError) as said:
            await store.merge(sources, result, MergeOptions())
        assert said.value.code == Code.MEMORY_LIMIT_EXCEEDED
        left = (
            f"SELECT count() FROM system.tables WHERE database = '{SCRATCH_DATABASE}' AND name LIKE 'merge%'"
        )
        while (await pool.query(left)).text != "0\n":  # also the drop is tried again
            await asyncio.sleep(0.02)
        await store.merge(sources, result, MergeOptions())
        await store.publish([result], sources)
        assert await rows(pool) == "0 1"


async def test_check_table_says_nothing_of_a_part_that_was_merged_since_it_was_listed(tmp_path: Path) -> None:
    async with two_parts(tmp_path) as (pool, store, _knob):
        result, sources = PartName.parse("0_0_1_1"), named("0_0_0_0", "0_1_1_0")
        verify, checked = store.verify, []

        async def merges_before_the_second(name: PartName) -> None:
            if checked:
                await store.merge(sources, result, MergeOptions())
                await store.publish([result], sources)
            checked.append(str(name))
            await verify(name)

        store.verify = merges_before_the_second  # type: ignore[method-assign]
        to_check: list[PartName] = []
        running: Any = SimpleNamespace(
            name="t", store=store, ctx=SimpleNamespace(check_later=to_check.append)
        )
        tables: Any = SimpleNamespace(find_for=lambda *_: running)
        async with pool.use() as session:
            sql = "CHECK TABLE t"
            asked: Any = SimpleNamespace(sql=sql, session=session, settings={}, format="TabSeparated")
            answer = await CheckStatements(tables).run(asked, parse_statement(sql))
        assert answer is not None and (await answer.finish()).data == b"0_0_0_0\t1\t\n"
        assert checked == ["0_0_0_0", "0_1_1_0"] and not to_check


async def test_the_partition_of_a_value_is_not_refused_for_want_of_memory(tmp_path: Path) -> None:
    async with two_parts(tmp_path) as (_, store, knob):
        knob.write(Faults(rate=1, of="toTypeName", moments=(Moment.BEFORE,), most=1))
        with pytest.raises(SqlError) as said:
            await store.partition_ids("0")
        assert said.value.code == Code.MEMORY_LIMIT_EXCEEDED
        assert await store.partition_ids("0") == ["0"]


async def test_settings_of_one_statement_do_not_stay_with_the_connection(tmp_path: Path) -> None:
    async with two_parts(tmp_path) as (_, store, knob):

        def under_others(connection: object) -> list[list[object]]:
            assert hasattr(connection, "execute_with") and hasattr(connection, "rows")
            knob.write(Faults(rate=1, of="flatten_nested` = '0'", moments=(Moment.BEFORE,), most=1))
            connection.execute_with({"flatten_nested": "1"}, "SELECT 1")
            found: list[list[object]] = connection.rows("SELECT getSetting('flatten_nested')")
            return found

        assert await store._workers.run(under_others) == [[False]]


async def test_the_scratch_database_is_made_though_the_first_attempt_found_no_memory(tmp_path: Path) -> None:
    with failing_chdb(tmp_path) as knob:
        pool = await ChdbPool.open(tmp_path / "data", max_running=2)
        workers = Workers.of(pool)
        knob.write(Faults(rate=1, of="CREATE DATABASE", moments=(Moment.BEFORE,), most=1))
        with pytest.raises(SqlError):
            await workers.run(lambda connection: connection.execute("SELECT 1"))
        make = f"CREATE TABLE {SCRATCH_DATABASE}.t (a UInt8) ENGINE = Memory"
        await workers.run(lambda connection: connection.execute(make))
        await workers.release()
        await pool.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda directory: check_files(directory, "part"),
        lambda directory: read_part(directory, FIRST),
        lambda directory: name_in(directory, "0"),
        hash_of_part,
        ttl_in,
    ],
)
async def test_a_file_that_cannot_be_opened_now_is_neither_missing_nor_damaged(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    async with two_parts(tmp_path, CREATE_TTL) as (_, store, _knob):
        directory = store.state.active[FIRST].visible
        assert files_of(directory)
        usual = read(directory)
        with without_descriptors(), pytest.raises(OSError) as said:
            read(directory)
        assert said.value.errno == errno.EMFILE
        assert read(directory) == usual


async def test_a_check_without_descriptors_says_so_and_nothing_of_the_part(tmp_path: Path) -> None:
    async with two_parts(tmp_path) as (_, store, _knob):

        def verify(connection: object) -> None:
            with without_descriptors():
                check_files(store.state.active[FIRST].visible, str(FIRST))

        with pytest.raises(SqlError) as said:
            await store._workers.run(verify)
        assert said.value.code == Code.CANNOT_OPEN_FILE and said.value.errno == errno.EMFILE
        assert "LimitNOFILE" in said.value.hint
