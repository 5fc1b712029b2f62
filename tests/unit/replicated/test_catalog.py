"""The catalog of a node's replicated tables: what a crash leaves, and what cannot be read."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Corrupt
from engine.names import TableName
from engine.node.replicated.running.catalog import TableCatalog, TableRecord, TableState
from engine.node.replicated.running.name_locks import NameLocks
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable

RECORD = TableRecord(
    uuid=UUID(int=7),
    name=TableName("d", "t"),
    zookeeper_path="/p/01",
    replica="r1",
    shown_path="/p/{shard}",
    shown_replica="{replica}",
    state=TableState.CREATING,
    user_settings={"a": "1"},
)


def test_a_record_outlives_its_process(tmp_path: Path) -> None:
    catalog = TableCatalog(tmp_path / "replicated")
    assert catalog.load() == ()
    catalog.put(RECORD)
    catalog.put(replace(RECORD, state=TableState.ATTACHED))
    again = TableCatalog(tmp_path / "replicated")
    assert again.load() == (replace(RECORD, state=TableState.ATTACHED),)
    again.remove(RECORD.uuid)
    again.remove(RECORD.uuid)
    assert TableCatalog(tmp_path / "replicated").load() == ()


def test_a_crash_before_the_rename_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = TableCatalog(tmp_path)
    catalog.load()
    catalog.put(RECORD)

    def crash(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        catalog.put(replace(RECORD, state=TableState.DROPPING))
    assert TableCatalog(tmp_path).load() == (RECORD,)


def test_a_table_that_is_being_dropped_has_lost_its_name_and_keeps_its_replica(tmp_path: Path) -> None:
    catalog = TableCatalog(tmp_path)
    catalog.load()
    catalog.put(RECORD)
    assert catalog.named(RECORD.name) == RECORD
    dropping = replace(RECORD, state=TableState.DROPPING)
    catalog.put(dropping)
    assert catalog.named(RECORD.name) is None
    assert catalog.at(RECORD.me) == dropping


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"uuid": 1}', RECORD.to_bytes()[:-20]])
def test_a_damaged_record_stops_the_start_and_says_which(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / f"{RECORD.uuid}.json"
    file.write_bytes(damage)
    with pytest.raises(Corrupt, match=str(file)):
        TableCatalog(tmp_path).load()


@given(
    name=st.text(min_size=1, max_size=8),
    path=st.text(max_size=8),
    settings=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    state=st.sampled_from(TableState),
)
def test_every_record_is_read_as_it_was_written(
    name: str, path: str, settings: dict[str, str], state: TableState
) -> None:
    record = replace(RECORD, name=TableName("d", name), shown_path=path, user_settings=settings, state=state)
    assert TableRecord.from_bytes(record.to_bytes()) == record


def test_two_changes_of_one_name_wait_for_each_other_and_crossing_ones_end() -> None:
    async def main() -> list[str]:
        locks = NameLocks()
        a, b = TableName("d", "a"), TableName("d", "b")
        seen: list[str] = []

        async def change(label: str, *names: TableName) -> None:
            async with locks.hold(names):
                seen.append(f"{label} in")
                for _ in range(3):
                    await asyncio.sleep(0)
                seen.append(f"{label} out")

        async with asyncio.timeout(60):
            await asyncio.gather(change("1", a, b), change("2", b, a), change("3", b))
        assert not locks._locks and not locks._inside
        return seen

    seen = asyncio.run(main())
    assert [text.split()[0] for text in seen[::2]] == [text.split()[0] for text in seen[1::2]]


def test_a_database_waits_for_all_that_is_under_way_in_it_and_keeps_out_what_comes_then() -> None:
    async def main() -> list[str]:
        locks = NameLocks()
        a, b, c, d = (TableName(*name) for name in ("da", "db", "ec", "ed"))
        seen: list[str] = []

        async def create(name: TableName, within: TableName) -> None:
            async with locks.hold([name]):
                await asyncio.sleep(0)
                async with locks.hold([within]):  # as CREATE OR REPLACE does
                    seen.append(f"{name} made")

        async def drop(*databases: str) -> None:
            async with locks.hold_databases(databases):
                seen.append(f"{databases[0]} going")
                for _ in range(5):
                    await asyncio.sleep(0)
                seen.append(f"{databases[0]} gone")

        async with asyncio.timeout(60):
            first = asyncio.create_task(create(a, b))
            await asyncio.sleep(0)
            dropping = asyncio.create_task(drop("d"))
            await first
            await asyncio.gather(dropping, create(b, a), create(c, d), drop("e", "d"))
        assert not locks._locks and not locks._inside and not locks._whole
        return seen

    seen = asyncio.run(main())
    assert seen.index("d.a made") < seen.index("d going") < seen.index("d gone") < seen.index("d.b made")


def test_the_registry_follows_names_also_when_two_tables_exchange_theirs() -> None:
    def table(number: int, name: TableName) -> RunningTable:
        record = replace(RECORD, uuid=UUID(int=number), name=name, replica=f"r{number}")
        part: Any = SimpleNamespace(name=name)
        return RunningTable(record, part, part, part)

    tables = ReplicatedTables()
    assert not tables
    a, b = TableName("d", "a"), TableName("d", "b")
    first, second = table(1, a), table(2, b)
    tables.add(first)
    tables.add(second)
    tables.rename(first, b)
    tables.rename(second, a)
    assert (tables.find(a), tables.find(b)) == (second, first)
    assert tables.by_replica_path("/p/01/replicas/r1") is first
    tables.discard(first)
    tables.discard(first)
    assert (tables.find(a), tables.find(b), len(tables)) == (second, None, 1)
    assert tables.by_replica_path("/p/01/replicas/r1") is None
