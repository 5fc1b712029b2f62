"""What tests of part stores share: a chDB, a replicated table in it, inserts into it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from engine.names import TableName
from engine.part_storage import ChdbPartStore, Durability, with_hidden_settings
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.storage import ChdbPool

TABLE = TableName("default", "t")


async def uuid_of(pool: ChdbPool, table: TableName = TABLE) -> str:
    found = await pool.query(f"SELECT uuid FROM system.tables WHERE name = '{table.table}'")
    return found.text.strip()


@asynccontextmanager
async def opened(path: Path, create: str = "") -> AsyncIterator[tuple[ChdbPool, ChdbPartStore]]:
    pool = await ChdbPool.open(path, max_running=2)
    try:
        if create:
            await pool.query(with_hidden_settings(create))
        store = await ChdbPartStore.open(pool, TABLE, await uuid_of(pool), durability=Durability.PROCESS)
        try:
            yield pool, store
        finally:
            await store.close()
    finally:
        await pool.close()


async def insert(pool: ChdbPool, store: ChdbPartStore, select: str, *names: str) -> list[Part]:
    """Stage what an INSERT … `select` makes, as the parts `names`, in the order of partitions."""
    async with store.insert_stage() as stage:
        await pool.query(f"INSERT INTO {stage.table.quoted} {select}")
        parts = sorted(await stage.collect(), key=lambda new: new.partition_id)
        assert len(parts) == len(names)
        return [
            await store.stage_inserted(new, PartName.parse(name))
            for new, name in zip(parts, names, strict=True)
        ]


async def add(pool: ChdbPool, store: ChdbPartStore, select: str, *names: str) -> None:
    await insert(pool, store, select, *names)
    await store.publish(named(*names))


async def rows(pool: ChdbPool, what: str = "k") -> str:
    found = await pool.query(f"SELECT {what} FROM t ORDER BY ALL")
    return found.text.replace("\n", " ").strip()


def named(*names: str) -> list[PartName]:
    return [PartName.parse(name) for name in names]


def texts(names: Iterable[PartName]) -> list[str]:
    return sorted(str(name) for name in names)


async def check_sent(store: ChdbPartStore, part: Part) -> None:
    """Others are sent the part's own bytes, whatever readers see."""
    await store.verify(part.name)
    async with store.send(part.name) as outgoing:
        assert (outgoing.part.columns, outgoing.part.digest) == (part.columns, part.digest)
        [columns] = [file for file in outgoing.files if file.name == "columns.txt"]
        assert b"".join([chunk async for chunk in outgoing.read(columns)]) == part.columns
