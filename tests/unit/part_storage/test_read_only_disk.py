"""A disk that turns read-only under a running node, as after an error of its file system: really mounted."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.part_storage import ChdbPartStore
from engine.replication.part_store import Fate, MergeOptions
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, named, opened, rows

CREATE = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree ORDER BY k"


def mounted(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, but for the file that chDB keeps open for writing: beside such a file it
    could not be made read-only."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system can be mounted by root only")
    place, status = tmp_path / "disk", tmp_path / "status"
    place.mkdir()
    status.touch()
    mounted("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place))
    try:
        (place / "status").touch()
        mounted("--bind", str(status), str(place / "status"))
        yield place
    finally:
        subprocess.run(["umount", "-lR", str(place)], check=False)


@pytest.fixture
async def made(disk: Path) -> AsyncIterator[tuple[ChdbPool, ChdbPartStore]]:
    async with opened(disk, CREATE) as (pool, store):
        await store.load()
        for key in range(2):
            await add(pool, store, f"SELECT {key}, 'a'", f"all_{key}_{key}_0")
        yield pool, store


async def test_it_is_read_on_nothing_is_half_done_and_all_goes_on_when_it_can_be_written_to(
    disk: Path, made: tuple[ChdbPool, ChdbPartStore]
) -> None:
    pool, store = made
    merged = named("all_0_1_1")[0]
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: add(pool, store, "SELECT 2, 'b'", "all_2_2_0"),
        lambda: store.merge(named("all_0_0_0", "all_1_1_0"), merged, MergeOptions()),
        lambda: store.mutate(named("all_0_0_0")[0], named("all_0_0_0_5")[0], "UPDATE v = 'z' WHERE 1"),
        lambda: store.remove(named("all_1_1_0"), fate=Fate.DETACH, prefix="x"),
        lambda: store.freeze(None, "backup"),
    ]
    mounted("-o", "remount,ro", str(disk))
    for attempt in attempts:
        with pytest.raises((OSError, SqlError)) as failed:
            await attempt()
        is_told = isinstance(failed.value, OSError) and failed.value.errno == errno.EROFS
        assert is_told or "Read-only file system" in str(failed.value)
    assert sorted(store.active) == named("all_0_0_0", "all_1_1_0") and not store.staged
    assert await rows(pool) == "0 1"
    mounted("-o", "remount,rw", str(disk))
    await add(pool, store, "SELECT 2, 'b'", "all_2_2_0")
    await store.merge(named("all_0_0_0", "all_1_1_0"), merged, MergeOptions())
    await store.publish([merged], remove=named("all_0_0_0", "all_1_1_0"))
    assert await rows(pool) == "0 1 2"
    assert sorted(store.active) == named("all_0_1_1", "all_2_2_0")
