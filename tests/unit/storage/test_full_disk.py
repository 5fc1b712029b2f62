"""A full disk and what chDB keeps of tables: a definition is written whole, or the statement is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.ddl.executor import Execution
from engine.errors import Code, SqlError
from engine.storage import ChdbPool
from engine.storage.disk_reserve import SIZE_BYTES, DiskReserve
from engine.storage.layout import KEPT_BYTES, private_directory
from engine.storage.local_executor import ChdbExecutor
from tests.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.slow

DEFINING = (
    "CREATE TABLE new (k UInt64) ENGINE = MergeTree ORDER BY k",
    "/* a; */ -- b\n create view v AS SELECT 1",
    "CREATE DATABASE d",
    "ALTER TABLE t ADD COLUMN c UInt8",
    "ALTER TABLE t MODIFY COMMENT 'x'",
    "ALTER TABLE t UPDATE v = 'b' WHERE 1 SETTINGS mutations_sync = 0",
    "CREATE FUNCTION f AS (x) -> x + 1",
)


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[tuple[ChdbPool, SmallDisk]]:
    """A table `t`, and a disk on which the reserve is all the room that there is."""
    with small_disk(tmp_path) as disk:
        pool = await ChdbPool.open(disk.place / "data", max_running=2)
        try:
            await pool.query(
                "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree ORDER BY k PARTITION BY k"
            )
            await pool.query("INSERT INTO t VALUES (1, 'a'), (2, 'a')")
            disk.fill()
            yield pool, disk
        finally:
            await pool.close()


def texts(pool: ChdbPool) -> dict[str, bytes]:
    """Of all definitions and mutations."""
    places = (*pool.path.rglob("*.sql"), *pool.path.rglob("mutation_*.txt"))
    return {str(file.relative_to(pool.path)): file.read_bytes() for file in places}


async def test_a_definition_takes_the_reserve_and_without_it_is_refused(
    full: tuple[ChdbPool, SmallDisk],
) -> None:
    pool, disk = full
    before = texts(pool)
    reserve = private_directory(pool.path) / "reserve"
    reserve.unlink()
    disk.fill()
    for sql in DEFINING:
        with pytest.raises(SqlError, match="space") as refused:
            await pool.query(sql)
        assert refused.value.code == Code.NOT_ENOUGH_SPACE
    executor = ChdbExecutor(pool)
    with pytest.raises(SqlError, match="space"):
        await executor.execute(Execution(DEFINING[0]))
    await executor.close()
    assert texts(pool) == before
    disk.fill(but_for=SIZE_BYTES)
    pool.disk_reserve.take()
    for sql in DEFINING:
        await pool.query(sql)
        assert SIZE_BYTES * 3 // 4 < reserve.stat().st_size <= SIZE_BYTES
    after = texts(pool)
    assert all(text.endswith(b"\n") for text in after.values()) and len(after) >= len(before) + 4


async def test_rows_leave_the_room_for_definitions(full: tuple[ChdbPool, SmallDisk]) -> None:
    pool, disk = full
    disk.fill(but_for=KEPT_BYTES + (1 << 19))
    with pytest.raises(SqlError) as refused:
        await pool.query("INSERT INTO t VALUES (3, 'a')")
    assert refused.value.code == Code.NOT_ENOUGH_SPACE
    disk.fill(but_for=KEPT_BYTES + (2 << 20))
    await pool.query("INSERT INTO t VALUES (3, 'a')")


async def test_what_makes_room_needs_none(full: tuple[ChdbPool, SmallDisk]) -> None:
    pool, _ = full
    await pool.query("ALTER TABLE t DROP PARTITION 1")
    await pool.query("TRUNCATE TABLE t")
    await pool.query("DROP TABLE t SYNC")
    reserve = DiskReserve(pool.path)
    with reserve.lent(), reserve.lent():
        pass
    assert (private_directory(pool.path) / "reserve").stat().st_size == SIZE_BYTES


async def test_the_reserve_comes_back_when_the_last_borrower_has_ended(tmp_path: Path) -> None:
    private_directory(tmp_path).mkdir()
    file = private_directory(tmp_path) / "reserve"
    reserve = DiskReserve(tmp_path)
    first, second = reserve.lent(), reserve.lent()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not file.exists()
    second.__exit__(None, None, None)
    assert file.stat().st_size == SIZE_BYTES


async def test_a_start_and_what_is_in_memory_need_no_room(full: tuple[ChdbPool, SmallDisk]) -> None:
    """A full disk keeps nobody from reading."""
    pool, disk = full
    disk.empty()
    await pool.query("CREATE DATABASE `_oncluster` ENGINE = Memory")
    await pool.close()
    (private_directory(pool.path) / "reserve").unlink()
    disk.fill()
    again = await ChdbPool.open(pool.path, max_running=2)
    for sql in (
        "CREATE DATABASE IF NOT EXISTS `_oncluster` ENGINE = Memory",
        "CREATE VIEW IF NOT EXISTS `_oncluster`.`v` AS SELECT 1",
        "CREATE VIEW IF NOT EXISTS `system`.`v` AS SELECT 1",
        "CREATE TEMPORARY TABLE x (k UInt64)",
    ):
        await again.query(sql)
    assert (await again.query("SELECT count() FROM t")).text == "2\n"
    with pytest.raises(SqlError, match="space"):
        await again.query("CREATE VIEW v AS SELECT * FROM `_oncluster`.`v`")
    await again.close()
