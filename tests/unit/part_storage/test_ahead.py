"""A part may come from a replica that has applied ALTERs which this one has not: whatever chDB does to parts
when the table follows, readers see in the end what the other replica's readers see, in the same bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest

from engine.names import TableName
from engine.part_storage import ChdbPartStore, Durability, with_hidden_settings
from engine.part_storage.publishing import Publisher
from engine.replication.part_name import PartName
from engine.replication.part_store import AlterPlan, MergeOptions
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, named, opened, rows, uuid_of

pytestmark = pytest.mark.slow

OTHER = TableName("default", "other")
FORMS = pytest.mark.parametrize("is_wide", [False, True], ids=["compact", "wide"])


def create(name: str, *, is_wide: bool) -> str:
    wide = " SETTINGS min_bytes_for_wide_part = 0" if is_wide else ""
    engine = "MergeTree PARTITION BY k % 2 ORDER BY k"
    return f"CREATE TABLE {name} (k UInt64, v String, c UInt8) ENGINE = {engine}{wide}"


class Ahead:
    """The other replica's table: its ALTERs, each with the mutation that all its parts then have."""

    def __init__(self, store: ChdbPartStore) -> None:
        self.store = store
        self.plans: list[tuple[AlterPlan, Mapping[str, str], int]] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, pool: ChdbPool, *, is_wide: bool) -> AsyncIterator[Self]:
        await pool.query(with_hidden_settings(create("other", is_wide=is_wide)))
        uuid = await uuid_of(pool, OTHER)
        store = await ChdbPartStore.open(pool, OTHER, uuid, durability=Durability.PROCESS)
        try:
            await store.load()
            yield cls(store)
        finally:
            await store.close()

    async def alter(self, commands: str, *, number: int = 0, **renames: str) -> None:
        plan = await self.store.plan_alter(commands)
        self.plans.append((plan, renames, number))
        await apply(self.store, plan, renames, number)
        if plan.mutation:
            await self.mutate(plan.mutation, number=number)

    async def mutate(self, commands: str, *, number: int) -> None:
        for part in list(self.store.active):
            result = part.mutated(number)
            await self.store.mutate(part, result, commands)
            await self.store.publish([result], [part])

    async def send_all(self, store: ChdbPartStore) -> None:
        parts = list(self.store.active)
        for part in parts:
            await store.stage_copy(self.store, part, part)
        await store.publish(parts)

    async def follow(self, store: ChdbPartStore) -> None:
        """The table gets what this one has, ALTER by ALTER."""
        for plan, renames, number in self.plans:
            await apply(store, plan, renames, number)


async def apply(store: ChdbPartStore, plan: AlterPlan, renames: Mapping[str, str], number: int) -> None:
    mutation = {"0": number, "1": number} if plan.mutation else {}
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, renames, mutation)


async def hashes(pool: ChdbPool, table: str) -> list[str]:
    """Of what readers see."""
    found = await pool.query(
        f"SELECT hash_of_all_files FROM system.parts WHERE active AND table = '{table}' "
        "ORDER BY partition_id, min_block_number FORMAT TSVRaw"
    )
    return found.text.split()


@FORMS
async def test_parts_that_have_altered_columns_already_stay_as_they_are(
    tmp_path: Path, is_wide: bool
) -> None:
    async with (
        opened(tmp_path, create("t", is_wide=is_wide)) as (pool, store),
        Ahead.opened(pool, is_wide=is_wide) as ahead,
    ):
        await store.load()
        await add(pool, ahead.store, "SELECT 1, 'a', 3", "1_0_0_0")
        await ahead.alter("ADD COLUMN d UInt8 DEFAULT 1")
        await add(pool, ahead.store, "SELECT 2, 'b', 3, 20", "0_1_1_0")
        await ahead.mutate("UPDATE d = 7 WHERE k = 1", number=2)
        await ahead.alter("DROP COLUMN c", number=3)
        await ahead.alter("MODIFY COLUMN d String", number=4)
        await ahead.alter("RENAME COLUMN d TO e", number=5, d="e")
        await ahead.alter("ADD COLUMN f UInt8 DEFAULT 5")
        await add(pool, ahead.store, "SELECT 3, 'c', '30', 6", "1_6_6_0")
        await ahead.send_all(store)
        known = dict(store.active)
        await ahead.follow(store)
        assert await rows(pool, "*") == "1\ta\t7\t5 2\tb\t20\t5 3\tc\t30\t6"
        assert await hashes(pool, "t") == await hashes(pool, "other")
        assert dict(store.active) == known
        assert not list(store.state.originals_root.iterdir())


@FORMS
async def test_a_column_that_is_there_again_keeps_the_values_of_parts_that_have_it_already(
    tmp_path: Path, is_wide: bool
) -> None:
    async with (
        opened(tmp_path, create("t", is_wide=is_wide)) as (pool, store),
        Ahead.opened(pool, is_wide=is_wide) as ahead,
    ):
        await store.load()
        await add(pool, store, "SELECT 1, 'a', 3", "1_0_0_0")
        await ahead.alter("DROP COLUMN c", number=1)
        await ahead.alter("ADD COLUMN c UInt8 DEFAULT 9")
        await add(pool, ahead.store, "SELECT 2, 'b', 4", "0_2_2_0")
        await ahead.send_all(store)
        await ahead.follow(store)
        assert await rows(pool, "*") == "1\ta\t9 2\tb\t4"
        mutated = named("1_0_0_0_1")
        await store.mutate(PartName.parse("1_0_0_0"), mutated[0], "DROP COLUMN c")
        await store.publish(mutated, named("1_0_0_0"))
        assert await rows(pool, "*") == "1\ta\t9 2\tb\t4"
        assert (await hashes(pool, "t"))[:1] == await hashes(pool, "other")


async def test_a_start_shows_the_own_bytes_of_parts_that_an_alter_rewrote_before_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. chDB has rewritten a part that came ahead. 2. The process is killed. 3. The next one loads it."""
    async with (
        opened(tmp_path, create("t", is_wide=False)) as (pool, store),
        Ahead.opened(pool, is_wide=False) as ahead,
    ):
        await store.load()
        await add(pool, ahead.store, "SELECT 1, 'a', 3", "1_0_0_0")
        await ahead.alter("RENAME COLUMN c TO d", number=1, c="d")
        await ahead.send_all(store)
        known = dict(store.active)
        with monkeypatch.context() as killed:
            killed.setattr(Publisher, "show_own_bytes", lambda *_: None)
            await ahead.follow(store)
        assert await rows(pool, "*") == "1\ta\t0"
    async with opened(tmp_path) as (pool, store):
        await store.load()
        assert await rows(pool, "*") == "1\ta\t3"
        assert dict(store.active) == known


async def test_a_merge_in_the_middle_of_an_alter_takes_parts_as_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. chDB has rewritten parts that came ahead. 2. They are merged. 3. They would be shown as they are."""
    async with (
        opened(tmp_path, create("t", is_wide=False)) as (pool, store),
        Ahead.opened(pool, is_wide=False) as ahead,
    ):
        await store.load()
        sources = named("1_0_0_0_2", "1_1_1_0_2")
        await add(pool, ahead.store, "SELECT 1, 'a', 3", "1_0_0_0")
        await add(pool, ahead.store, "SELECT 3, 'c', 4", "1_1_1_0")
        await ahead.alter("RENAME COLUMN c TO d", number=2, c="d")
        await ahead.send_all(store)
        monkeypatch.setattr(Publisher, "show_own_bytes", lambda *_: None)
        await ahead.follow(store)
        result = named("1_0_1_1_2")
        part = await store.merge(sources, result[0], MergeOptions())
        assert part.digest == (await ahead.store.merge(sources, result[0], MergeOptions())).digest
        await store.publish(result, sources)
        assert await rows(pool, "*") == "1\ta\t3 3\tc\t4"
