"""A disk that is full to the last byte: what fails fails whole, and what makes room is possible."""

from __future__ import annotations

import resource
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import Code, SqlError
from engine.part_storage import ChdbPartStore
from engine.replication.part_store import MergeOptions, PartFile
from engine.storage import ChdbPool
from engine.storage.layout import KEPT_BYTES
from tests.small_disk import SmallDisk, small_disk
from tests.unit.part_storage.support import add, insert, named, opened, rows, texts

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE t (k UInt64, v String CODEC(NONE)) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
PAGE_BYTES = 4096
KEPT_PAGES = KEPT_BYTES // PAGE_BYTES


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as disk:
        yield disk


async def test_what_makes_room_is_possible_and_what_takes_room_says_so(disk: SmallDisk) -> None:
    async with opened(disk.place, CREATE) as (pool, store):
        await store.load()
        for number in range(2):
            select = f"SELECT number, randomPrintableASCII(1000000) FROM numbers({4 * number}, 4)"
            await add(pool, store, select, f"0_{number}_{number}_0", f"1_{number}_{number}_0")
        disk.fill(but_for=1 << 20)
        with pytest.raises(SqlError, match="space") as said:
            await store.merge(named("1_0_0_0", "1_1_1_0"), named("1_0_1_1")[0], MergeOptions())
        assert said.value.code == Code.NOT_ENOUGH_SPACE
        disk.fill()
        with pytest.raises(SqlError) as said:
            await insert(pool, store, "SELECT 100, 'x'", "0_2_2_0")
        assert said.value.code == Code.NOT_ENOUGH_SPACE
        assert await store.partition_ids("0") == ["0"]
        await store.remove(named("0_0_0_0", "0_1_1_0", "1_0_0_0"))
        assert await rows(pool) == "5 7"
        disk.empty()
        await store.merge(named("1_1_1_0"), named("1_1_1_1")[0], MergeOptions())
        await store.publish(named("1_1_1_1"), named("1_1_1_0"))
        await add(pool, store, "SELECT 100, 'x'", "0_2_2_0")
        assert await rows(pool) == "5 7 100"


async def test_of_a_part_that_does_not_fit_not_a_byte_is_received(disk: SmallDisk) -> None:
    async def content() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    async with opened(disk.place, CREATE) as (_, store):
        await store.load()
        async with store.receive(named("0_0_0_0")[0]) as incoming:
            incoming.have_room(1 << 20)
            for refused in (lambda: incoming.have_room(1 << 30), lambda: None):
                with pytest.raises(SqlError, match="are free") as said:
                    refused()
                    await incoming.write(PartFile("data.bin", 1 << 30), content())
                assert said.value.code == Code.NOT_ENOUGH_SPACE
        assert not store.staged


async def test_wherever_the_disk_ends_a_swap_is_made_or_has_changed_nothing(disk: SmallDisk) -> None:
    """Whatever was left half done could not be made good: chDB removes the parts of before at once. It also
    fails when it has made the swap, where it has no MiB for an empty part."""

    async def swap(pool: ChdbPool, store: ChdbPartStore, pages: int) -> bool:
        try:
            disk.fill(but_for=pages * PAGE_BYTES)
            await store.publish(named("0_0_1_1"), named("0_0_0_0", "0_1_1_0"))
        except (SqlError, OSError):
            return False
        finally:
            disk.empty()
            shown = await pool.query("SELECT count() FROM system.parts WHERE table = 't' AND active")
            assert int(shown.text) == len(store.active), f"{pages} pages"
        return True

    async with opened(disk.place, CREATE) as (pool, store):
        await store.load()
        for number in range(3):
            await add(pool, store, f"SELECT {2 * number}, 'x'", f"0_{number}_{number}_0")
        await store.merge(named("0_0_0_0", "0_1_1_0"), named("0_0_1_1")[0], MergeOptions())
        made = 0
        for pages in (
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            8,
            *range(KEPT_PAGES + 252, KEPT_PAGES + 270, 2),
        ):  # chDB wants a whole MiB
            if made := await swap(pool, store, pages):
                break
            assert texts(store.active) == ["0_0_0_0", "0_1_1_0", "0_2_2_0"], f"{pages} pages"
            assert await rows(pool) == "0 2 4"
        assert made
        assert texts(store.active) == ["0_0_1_1", "0_2_2_0"] and not store.staged
        await store.publish([], named("0_2_2_0"))
        assert await rows(pool) == "0 2"


async def test_what_a_swap_has_left_is_dropped_by_a_start_on_a_full_disk(disk: SmallDisk) -> None:
    """1. A part is there twice, as when a swap was cut. 2. The disk is full. 3. The table is loaded."""
    async with opened(disk.place / "data", CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 2, 'x'", "0_0_0_0")
        found = await pool.query("SELECT path FROM system.parts WHERE table = 't' AND active")
        part = Path(found.text.strip())
        shutil.copytree(part, part.parent / "detached" / "0_7_7_0")
        await pool.query("ALTER TABLE t ATTACH PART '0_7_7_0'")
        assert await rows(pool) == "2 2"
    disk.fill()
    async with opened(disk.place / "data") as (pool, store):
        await store.load()
        assert await rows(pool) == "2" and texts(store.active) == ["0_0_0_0"]


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """The disk takes no file that is longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_what_the_disk_has_not_taken_whole_becomes_no_part(tmp_path: Path) -> None:
    """chDB says that all is well: of an INSERT, a merge and a mutation."""
    select = "SELECT 2 * number, randomPrintableASCII(700000) FROM numbers({}, 1)"
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number in range(2):
            await add(pool, store, select.format(number), f"0_{number}_{number}_0")
        merged = named("0_0_1_1")[0]
        with files_end_at(1 << 20):
            for attempt in (
                insert(pool, store, "SELECT 10, randomPrintableASCII(1400000)", "0_2_2_0"),
                store.merge(list(store.active), merged, MergeOptions()),
                store.mutate(named("0_0_0_0")[0], named("0_0_0_0_5")[0], "UPDATE v = concat(v, v) WHERE 1"),
            ):
                with pytest.raises(SqlError, match="has not taken all of part") as said:
                    await attempt
                assert said.value.code == Code.NOT_ENOUGH_SPACE
        assert not store.staged
        await store.merge(list(store.active), merged, MergeOptions())
        await store.publish([merged], list(store.active))
        await store.verify(merged)
        assert await rows(pool) == "0 2"
