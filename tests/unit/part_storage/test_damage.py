"""A part that is damaged on the disk while the node runs: it is found, and holds up nothing else."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import Code, SqlError
from engine.node.replicated.parts.broken_reads import check_what_cannot_be_read
from engine.part_storage import ChdbPartStore
from engine.part_storage.publishing import Change
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, MergeOptions, PartsBroken
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, insert, named, opened, rows, texts

CREATE = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 1 ORDER BY k"


def lose_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def lose_file(directory: Path) -> None:
    (directory / "data.bin").unlink()


def flip_bytes(directory: Path) -> None:
    file = directory / "data.bin"
    content = bytearray(file.read_bytes())
    content[20:] = bytes(byte ^ 0xFF for byte in content[20:])
    file.unlink()  # others may have links of it
    file.write_bytes(content)


async def three_parts(pool: ChdbPool, store: ChdbPartStore) -> Path:
    """The directory of the first of them."""
    await store.load()
    for number in range(3):
        await add(pool, store, f"SELECT {number}, 'text'", f"0_{number}_{number}_0")
    return store.state.active[PartName.parse("0_0_0_0")].visible


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lose_directory, lose_file])
async def test_what_happens_beside_a_part_that_is_gone_tells_of_it_and_goes_on_without_it(
    tmp_path: Path, damage: Any
) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        found: list[PartName] = []
        store.found_broken = found.append
        damage(await three_parts(pool, store))
        with pytest.raises(SqlError, match=r"0_0_0_0 of .* are broken"):
            await store.remove(named("0_2_2_0"))
        assert texts(found) == ["0_0_0_0"] and len(store.active) == 3
        with pytest.raises(PartDiffers):
            await store.verify(found[0])
        with pytest.raises((PartDiffers, SqlError)) as said:
            await store.merge(named("0_0_0_0", "0_1_1_0"), named("0_0_1_1")[0], MergeOptions())
        assert isinstance(said.value, PartDiffers) or said.value.code == Code.CHECKSUM_DOESNT_MATCH
        assert await store.gone(list(store.active)) == (found if damage is lose_directory else [])
        if damage is lose_directory:
            with pytest.raises(PartsBroken, match="0_0_0_0"):
                await store.freeze(None, "backup")
            assert not (tmp_path / "shadow").exists()
        await store.remove(found, fate=Fate.DETACH, prefix="broken")
        await store.remove(named("0_2_2_0"))
        assert await rows(pool) == "1"


@pytest.mark.slow
async def test_a_broken_part_among_those_that_join_together_goes_back_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    """chDB attaches one after the other, and stops at the broken one."""
    names = [f"0_{number}_{number}_0" for number in range(5)]
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number, name in enumerate(names):
            await insert(pool, store, f"SELECT {number}, 'text'", name)
        broken = PartName.parse(names[2])
        (store.state.staged_directory(broken) / "columns.txt").write_text("not columns")
        changes = [Change((name,)) for name in named(*names)]
        with pytest.raises(SqlError):
            await store._workers.run(lambda connection: store._publisher.publish(connection, changes))
        assert texts(store.active) == names[:2] and await rows(pool) == "0 1"
        assert texts(store.staged) == names[2:]
        results = await asyncio.gather(*map(store.publish, map(named, names)), return_exceptions=True)
        assert [isinstance(result, SqlError) for result in results] == [name == names[2] for name in names]
        assert await rows(pool) == "0 1 3 4"
        assert store.state.staged_directory(broken).is_dir() and not any(store.state.detached.iterdir())
    async with opened(tmp_path) as (pool, store):
        await store.load()
        assert texts(store.active) == [*names[:2], *names[3:]] and await rows(pool) == "0 1 3 4"


@pytest.mark.parametrize("damage", [lose_file, flip_bytes])
async def test_a_part_that_a_reader_could_not_read_is_checked(tmp_path: Path, damage: Any) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        damage(await three_parts(pool, store))
        to_check: list[PartName] = []
        running: Any = SimpleNamespace(
            name="t", store=store, ctx=SimpleNamespace(check_later=to_check.append)
        )
        tables: Any = SimpleNamespace(all=lambda: [running])
        with pytest.raises(SqlError) as said:
            await pool.query("SELECT sum(k), any(v) FROM t")
        check_what_cannot_be_read(tables, said.value)
        assert texts(to_check) == ["0_0_0_0"]
        check_what_cannot_be_read(tables, SqlError(Code.MEMORY_LIMIT_EXCEEDED, said.value.message))
        check_what_cannot_be_read(
            tables, SqlError(40, "while reading from part /elsewhere/0_1_1_0/ in table t")
        )
        assert len(to_check) == 1
        with pytest.raises(PartDiffers):
            await store.verify(to_check[0])
