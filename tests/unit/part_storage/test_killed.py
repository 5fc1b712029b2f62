"""What is on the disk when a process is killed at once after a change, and what the next one shows of it."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.part_storage import ChdbPartStore
from engine.part_storage.workers import Connection
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, MergeOptions
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, check_sent, insert, named, opened, rows, texts

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE t (k UInt64) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
EVEN = ["0_0_0_0", "0_1_1_0"]

Change = Callable[[ChdbPool, ChdbPartStore], Awaitable[None]]


async def merged(pool: ChdbPool, store: ChdbPartStore) -> None:
    """The only part of its partition: its own scratch table is taken."""
    result = PartName("0", 0, 1, 1)
    await store.merge(named(*EVEN), result, MergeOptions())
    await store.publish([result], named(*EVEN))


async def merged_beside_others(pool: ChdbPool, store: ChdbPartStore) -> None:
    await add(pool, store, "SELECT 6", "0_2_2_0")
    await merged(pool, store)


async def replaced(pool: ChdbPool, store: ChdbPartStore) -> None:
    await insert(pool, store, "SELECT 8", "0_3_3_0")
    await store.publish(named("0_3_3_0"), named(*EVEN))


async def dropped(pool: ChdbPool, store: ChdbPartStore) -> None:
    await store.remove(named(*EVEN))


async def dropped_in_part(pool: ChdbPool, store: ChdbPartStore) -> None:
    await store.remove(named(EVEN[0]))


async def detached(pool: ChdbPool, store: ChdbPartStore) -> None:
    await store.remove(named(*EVEN), fate=Fate.DETACH)


async def one_partition_after_the_other(pool: ChdbPool, store: ChdbPartStore) -> None:
    await dropped(pool, store)
    await insert(pool, store, "SELECT 3", "1_1_1_0")
    await store.publish(named("1_1_1_0"), named("1_0_0_0"))


CHANGES = [
    merged,
    merged_beside_others,
    replaced,
    dropped,
    dropped_in_part,
    detached,
    one_partition_after_the_other,
]


@pytest.mark.parametrize("is_covered", [True, False], ids=["covered", "not covered"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_put_aside_does_not_come_back(
    tmp_path: Path, change: Change, is_covered: bool
) -> None:
    """chDB makes an empty part that covers what a swap has put aside, where the disk has room for it."""
    there, kept = tmp_path / "data", tmp_path / "kept"
    async with opened(there, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 2", EVEN[0])
        await add(pool, store, "SELECT 4", EVEN[1])
        await add(pool, store, "SELECT 1", "1_0_0_0")
        await change(pool, store)
        shown, active = await rows(pool), texts(store.active)
        empty = await pool.query(
            "SELECT name FROM system.parts WHERE table = 't' AND NOT active AND rows = 0"
        )
        aside = await pool.query(
            "SELECT name FROM system.parts WHERE table = 't' AND NOT active AND rows > 0"
        )
        assert empty.text and all((store.state.data / name).is_dir() for name in aside.text.split())
        shutil.copytree(there, kept, symlinks=True)
        if not is_covered:
            for name in empty.text.split():
                shutil.rmtree(kept / store.state.data.relative_to(there) / name)
    # Nothing is in the copy of what chDB does when it is closed.
    shutil.rmtree(there)
    kept.rename(there)
    for _ in range(2):
        async with opened(there) as (pool, store):
            found = await store.load()
            assert (texts(part.name for part in found.active), found.broken) == (active, ())
            assert await rows(pool) == shown


@pytest.mark.parametrize("is_behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("step", "going"), [("ATTACH PART", []), ("REPLACE PARTITION", ["0_1_1_0"])], ids=["attach", "swap"]
)
async def test_a_part_with_a_columns_old_name_has_its_own_bytes_when_it_was_to_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, going: list[str], is_behind: bool
) -> None:
    """Readers are to see another form of it, and peers what Keeper knows."""
    there, kept = tmp_path / "data", tmp_path / "kept"
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 1 ORDER BY k"
    async with opened(there, create) as (pool, store):
        await store.load()
        for number in range(2):
            await add(pool, store, f"SELECT {number}, 'text'", f"0_{number}_{number}_0")
        [late] = await insert(pool, store, "SELECT 2, 'late'", "0_2_2_0")
        plan = await store.plan_alter("RENAME COLUMN v TO w")
        await store.apply_alter(plan.definition.columns, plan.definition.metadata, {"v": "w"})
        execute, beginning = Connection.execute, f"ALTER TABLE {store.table.quoted} {step} "

        def watched(self: Connection, statement: str) -> None:
            if is_behind:
                execute(self, statement)
            if statement.startswith(beginning):
                shutil.copytree(there, kept, symlinks=True)
            if not is_behind:
                execute(self, statement)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "execute", watched)
            await store.publish([late.name], named(*going))
    shutil.rmtree(there)
    kept.rename(there)
    async with opened(there) as (pool, store):
        await store.load()
        if late.name in store.staged:
            await store.publish([late.name], named(*going))
        assert (await rows(pool, "k, w")).endswith("2\tlate")
        await check_sent(store, late)
