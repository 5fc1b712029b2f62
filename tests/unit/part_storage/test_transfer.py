"""Parts from peers: believed only byte by byte. Parts in detached/, lost and broken ones."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.names import TableName
from engine.node.interserver.protocol import NEWEST_VERSION
from engine.node.interserver.sending import PartSender
from engine.part_storage import ChdbPartStore, open_plain, transfer
from engine.part_storage.part_uuid import UUID_FILE
from engine.part_storage.publishing import Publisher
from engine.part_storage.workers import Connection
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, MergeOptions, PartFile
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, insert, named, opened, rows, texts

pytestmark = pytest.mark.slow

CREATE = (
    "CREATE TABLE t (k UInt64, v String, PROJECTION p (SELECT v ORDER BY v), CONSTRAINT c CHECK k > 0)"
    " ENGINE = MergeTree ORDER BY k SETTINGS min_bytes_for_wide_part = 0"
)
NAME = PartName.parse("all_5_5_0")
Files = dict[str, bytes]
Made = tuple[ChdbPool, ChdbPartStore, Files, PartHeader]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        (part,) = await insert(pool, store, "SELECT number + 1, 'text' FROM numbers(500)", "all_0_0_0")
        files = {}
        async with store.send(part.name) as outgoing:
            for file in outgoing.files:
                files[file.name] = b"".join([chunk async for chunk in outgoing.read(file)])
        await store.publish([part.name])
        yield pool, store, files, part.header


async def content(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


async def receive(store: ChdbPartStore, files: Files, header: PartHeader | None) -> None:
    async with store.receive(NAME) as incoming:
        for name, data in files.items():
            await incoming.write(PartFile(name, len(data)), content(data))
        await incoming.finish(header)


async def test_a_part_with_a_projection_arrives_whole(made: Made) -> None:
    pool, store, files, header = made
    assert "p.proj/v.bin" in files
    assert UUID_FILE not in files
    await receive(store, files, header)
    await store.publish([NAME])
    assert await rows(pool, "count(), uniq(k)") == "1000\t500"
    await store.verify(NAME)


@pytest.mark.parametrize("value", ["'text'", "randomString(2000)"])
async def test_a_small_part_from_memory_is_the_same_on_the_wire_as_one_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    async def sent(version: int) -> bytes:
        async with store.send(part.name) as outgoing:
            sender = await PartSender.prepare(outgoing, version)
            body = b"".join([piece async for piece in sender.write()])
            assert len(body) == sender.size_bytes
            kinds.append(type(outgoing).__name__)
            return body

    kinds: list[str] = []
    plain = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree ORDER BY k"
    async with opened(tmp_path, plain) as (pool, store):
        await store.load()
        (part,) = await insert(pool, store, f"SELECT number, {value} FROM numbers(500)", "all_0_0_0")
        from_memory = [await sent(version) for version in range(NEWEST_VERSION + 1)]
        monkeypatch.setattr(transfer, "_MAX_HELD_BYTES", 0)
        assert [await sent(version) for version in range(NEWEST_VERSION + 1)] == from_memory
    assert set(kinds[:11]) == {"HeldOutgoing"} and set(kinds[11:]) == {"Outgoing"}


def flipped(name: str) -> Callable[[Files], None]:
    def damage(files: Files) -> None:
        data = bytearray(files[name])
        data[len(data) // 2] ^= 4
        files[name] = bytes(data)

    return damage


def truncated(name: str) -> Callable[[Files], None]:
    return lambda files: files.update({name: files[name][:-1]})


@pytest.mark.parametrize(
    "damage",
    [
        flipped("v.bin"),
        flipped("p.proj/v.bin"),
        flipped("primary.cidx"),
        flipped("count.txt"),
        flipped("columns.txt"),
        flipped("checksums.txt"),
        truncated("k.bin"),
        truncated("checksums.txt"),
        lambda files: files.pop("k.bin"),
        lambda files: files.pop("checksums.txt"),
        lambda files: files.pop("p.proj/v.bin"),
        lambda files: files.update({"other.bin": b"x"}),
        lambda files: files.update({"q.proj/other.bin": b"x"}),
        lambda files: files.update({"../outside": b"x"}),
    ],
)
async def test_a_damaged_part_is_refused_and_nothing_is_left(
    made: Made, damage: Callable[[Files], object]
) -> None:
    _, store, files, header = made
    damage(files)
    with pytest.raises(PartDiffers):
        await receive(store, files, header)
    assert texts(store.staged) == []
    assert [each.name for each in store.state.staged_root.iterdir() if "fetch" in each.name] == []


TINY = "SELECT 1, 'x'"
HELD = "SELECT number, randomString(15) FROM numbers(100000)"
"""Nearly as much as is held in memory: 1.6 MB."""
LARGE = "SELECT number, randomString(15) FROM numbers(300000)"
"""More than is hashed here."""


@pytest.mark.parametrize(
    ("select", "name"),
    [
        *((TINY, name) for name in ("data.bin", "data.cmrk4", "count.txt", "primary.cidx")),
        (TINY, "serialization.json"),
        (HELD, "data.bin"),
        (HELD, "data.cmrk4"),
        (LARGE, "data.bin"),
    ],
)
async def test_a_flipped_bit_is_found_however_large_the_part(tmp_path: Path, select: str, name: str) -> None:
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        (part,) = await insert(pool, store, select, "all_0_0_0")
        files = {}
        async with store.send(part.name) as outgoing:
            for file in outgoing.files:
                files[file.name] = b"".join([chunk async for chunk in outgoing.read(file)])
        good = dict(files)
        flipped(name)(files)
        with pytest.raises(PartDiffers):
            await receive(store, files, part.header)
        with pytest.raises(PartDiffers):
            await receive(store, files, None)
        await receive(store, good, part.header)
        assert store.staged[NAME].header == part.header
        await store.verify(NAME)


async def test_a_whole_part_that_is_not_the_one_in_keeper_is_refused(made: Made) -> None:
    _, store, files, header = made
    with pytest.raises(PartDiffers):
        await receive(store, files, PartHeader(bytes(16), header.digest))
    other = replace(header.digest, content_hash_of_compressed_files=bytes(16))
    with pytest.raises(PartDiffers):
        await receive(store, files, PartHeader(header.columns_hash, other))


async def test_sizes_are_what_was_declared_and_files_come_once(made: Made) -> None:
    _, store, files, _ = made
    data = files["k.bin"]
    for size in (len(data) - 1, len(data) + 1, -1):
        async with store.receive(NAME) as incoming:
            with pytest.raises(PartDiffers):
                await incoming.write(PartFile("k.bin", size), content(data))
    async with store.receive(NAME) as incoming:
        await incoming.write(PartFile("k.bin", len(data)), content(data))
        with pytest.raises(PartDiffers):
            await incoming.write(PartFile("k.bin", len(data)), content(data))


async def test_damage_on_the_disk_is_found(made: Made) -> None:
    _, store, _, _ = made
    part = PartName.parse("all_0_0_0")
    await store.verify(part)
    file = store.state.active[part].directory / "v.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(PartDiffers):
        await store.verify(part)


async def test_detached_parts_are_listed_checked_attached_and_removed(made: Made) -> None:
    pool, store, files, header = made
    part = PartName.parse("all_0_0_0")
    await store.remove([part], fate=Fate.DETACH)
    await add(pool, store, "SELECT 7, 'x'", "all_1_1_0")
    await store.remove(named("all_1_1_0"), fate=Fate.DETACH, prefix="unexpected")
    async with store.receive_detached(NAME) as incoming:
        for name, data in files.items():
            await incoming.write(PartFile(name, len(data)), content(data))
        await incoming.finish(header)
    listed = [(each.directory, each.prefix, str(each.name)) for each in await store.detached()]
    assert listed == [
        ("all_0_0_0", "", "all_0_0_0"),
        ("all_5_5_0", "", "all_5_5_0"),
        ("unexpected_all_1_1_0", "unexpected", "all_1_1_0"),
    ]
    assert await rows(pool, "count()") == "0"
    again = await store.stage_detached("all_0_0_0", PartName.parse("all_9_9_0"))
    assert again.header == header
    assert store.attaching == {"all_0_0_0": again.name}
    await store.rename_staged(again.name, PartName.parse("all_8_8_0"))
    unfinished = await store.stage_detached("unexpected_all_1_1_0", PartName.parse("all_10_10_0"))
    await store.discard(unfinished.name)
    await store.load()
    assert store.attaching == {"all_0_0_0": PartName.parse("all_8_8_0")}
    await store.publish([PartName.parse("all_8_8_0")])
    assert await rows(pool, "count()") == "500"
    for directory in ("all_0_0_0", "unexpected_all_1_1_0", "all_5_5_0", "nosuch", "../t"):
        await store.remove_detached(directory)
    assert await store.detached() == []
    assert not store.attaching
    for directory in ("nosuch", "..", "../detached/all_9_9_0", ""):
        with pytest.raises(SqlError) as caught:
            await store.stage_detached(directory, NAME)
        assert caught.value.code == 232


async def test_an_empty_part_takes_the_place_of_a_lost_one(made: Made) -> None:
    pool, store, _, _ = made
    part = await store.stage_empty(PartName.parse("all_7_7_0"))
    assert part.rows == 0
    await store.publish([part.name])
    await store.remove([name for name in store.active if name != part.name])
    last = await store.stage_empty(PartName.parse("all_8_8_0"))
    await store.remove([part.name])
    first = await store.stage_empty(PartName.parse("all_10_10_0"))
    assert (last.rows, first.rows) == (0, 0)
    assert first.digest == last.digest
    await store.publish([first.name])
    assert await rows(pool, "count()") == "0"


async def test_an_empty_part_is_made_of_nothing_where_the_partitions_value_is_known(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v String MATERIALIZED toString(k), CONSTRAINT c CHECK k > 5) "
    async with opened(tmp_path / "whole", f"{create} ENGINE = MergeTree ORDER BY k") as (pool, store):
        await store.load()
        assert (await store.stage_empty(PartName.parse("all_3_3_0"))).rows == 0
        await store.publish([PartName.parse("all_3_3_0")])
        assert await rows(pool, "count()") == "0"
        with pytest.raises(SqlError):
            await pool.query("INSERT INTO t VALUES (1)")
    key = "PARTITION BY (toYYYYMM(toDate(k)), toInt8(k), toDate(k), toString(k) = 'x')"
    async with opened(tmp_path / "parts", f"{create} ENGINE = MergeTree {key} ORDER BY k") as (pool, store):
        await store.load()
        assert (await store.stage_empty(PartName.parse("202001--7-20200131-0_3_3_0"))).rows == 0
        await store.publish(named("202001--7-20200131-0_3_3_0"))
        await store.verify(PartName.parse("202001--7-20200131-0_3_3_0"))
        assert await rows(pool, "count()") == "0"


async def test_the_value_of_a_partition_whose_id_is_a_hash_is_taken_from_what_is_detached(
    tmp_path: Path,
) -> None:
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY v ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        async with store.insert_stage() as stage:
            await pool.query(f"INSERT INTO {stage.table.quoted} SELECT 7, 'x'")
            (new,) = await stage.collect()
            name = PartName.parse(f"{new.partition_id}_3_3_0")
            await store.stage_inserted(new, name)
        await store.publish([name])
        await store.remove([name], fate=Fate.DETACH, prefix="broken")
        assert (await store.stage_empty(name)).rows == 0
        await store.discard(name)
        await store.remove_detached(f"broken_{name}")
        with pytest.raises(SqlError, match="its value cannot be told") as told:
            await store.stage_empty(name)
        assert told.value.code == 48 and "Drop the partition" in told.value.hint


async def test_a_part_without_rows_stays_until_it_is_taken_away(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'x'", "all_0_0_0")
        await add(pool, store, "SELECT 2, 'x'", "all_1_1_0")
        (source, mutated) = named("all_0_0_0", "all_0_0_0_5")
        await store.mutate(source, mutated, "DELETE WHERE 1")
        await store.publish([mutated], [source])
        await add(pool, store, "SELECT 3, 'x'", "all_2_2_0")
        await store.remove(named("all_1_1_0"))
        async with store.send(mutated) as outgoing:
            assert outgoing.part.rows == 0
    async with opened(tmp_path) as (pool, store):
        assert texts(part.name for part in (await store.load()).active) == ["all_0_0_0_5", "all_2_2_0"]
        await store.remove([mutated])
        assert await rows(pool) == "3"


async def test_a_merge_that_leaves_nothing_is_an_empty_part(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, s Int8) ENGINE = CollapsingMergeTree(s) ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 1", "all_0_0_0")
        await add(pool, store, "SELECT 1, -1", "all_1_1_0")
        result = PartName.parse("all_0_1_1")
        part = await store.merge(named("all_0_0_0", "all_1_1_0"), result, MergeOptions())
        assert part.rows == 0
        await store.publish([result], named("all_0_0_0", "all_1_1_0"))
        assert await rows(pool, "count()") == "0"


async def test_rows_of_equal_key_are_told_apart_by_the_order_of_blocks(tmp_path: Path) -> None:
    """A part that comes late has an earlier block: FINAL has to see it before those that came first."""
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = ReplacingMergeTree ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'new'", "all_2_2_0")
        await add(pool, store, "SELECT 1, 'old'", "all_1_1_0")
        assert (await pool.query("SELECT v FROM t FINAL")).text == "new\n"


async def test_parts_are_frozen_under_their_names(made: Made, tmp_path: Path) -> None:
    _, store, files, _ = made
    await store.freeze(None, "back/up")
    (directory,) = (tmp_path / "shadow").glob("*/store/*/*/all_0_0_0")
    assert (directory / "v.bin").read_bytes() == files["v.bin"]
    assert not (directory / UUID_FILE).exists()


async def test_a_backup_has_whole_parts_only_and_those_of_one_moment(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. FREEZE links the first of two parts. 2. The second one is about to be replaced by their merge.
    3. FREEZE goes on. At each step a kill would leave what lies in `shadow/` then."""
    pool, store, _, _ = made
    await add(pool, store, "SELECT 7, 'x'", "all_1_1_0")
    await store.merge(named("all_0_0_0", "all_1_1_0"), named("all_0_1_1")[0], MergeOptions())
    link, seen, begun, replaced = os.link, set[str](), threading.Event(), threading.Event()

    def names() -> list[str]:
        return sorted(each.name for each in tmp_path.glob("shadow/*/store/*/*/all*"))

    def watched(source: str | Path, target: str | Path) -> None:
        if "tmp_frozen" in str(target) or "shadow" in str(target):
            seen.update(each for each in names() if Path(target).parent.name == each)
            if not begun.is_set():
                begun.set()
                replaced.wait(0.3)
        link(source, target)

    monkeypatch.setattr(os, "link", watched)

    async def replace_both() -> None:
        await asyncio.to_thread(begun.wait)
        await store.publish(named("all_0_1_1"), named("all_0_0_0", "all_1_1_0"))
        replaced.set()

    await asyncio.gather(store.freeze(None, "backup"), replace_both())
    assert seen == set(), "a part is in the backup before all of it is"
    assert names() in (["all_0_0_0", "all_1_1_0"], ["all_0_1_1"])


async def test_what_chdb_took_for_broken_is_reported_and_set_aside(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'x'", "all_3_3_0")
        await add(pool, store, "SELECT 2, 'y'", "all_4_4_0")
        (store.state.active[PartName.parse("all_3_3_0")].directory / "k.bin").write_bytes(b"")
        await insert(pool, store, "SELECT 3, 'z'", "all_6_6_0")
        (store.state.staged_directory(PartName.parse("all_6_6_0")) / "checksums.txt").write_bytes(b"?")
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert texts(part.name for part in found.active) == ["all_4_4_0"]
        assert found.staged == ()
        assert len(found.broken) == 2
        assert found.broken_bytes > 100
        for directory in found.broken:
            await store.set_aside(directory, "broken")
        listed = [(each.prefix, str(each.name)) for each in await store.detached()]
        assert listed == [("broken", "all_3_3_0"), ("broken", "all_6_6_0")]
        assert (await store.load()).broken == ()
        assert await rows(pool) == "2"


async def test_a_broken_part_is_set_aside_also_behind_a_change_of_its_partition(tmp_path: Path) -> None:
    """The change has hidden it: it is no part of the table that chDB could drop any more."""
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number in range(1, 4):
            await add(pool, store, f"SELECT {number}, 'x'", f"all_{number}_{number}_0")
        (store.state.active[PartName.parse("all_2_2_0")].directory / UUID_FILE).unlink()
    async with opened(tmp_path) as (pool, store):
        (broken,) = (await store.load()).broken
        await store.remove(named("all_1_1_0"), fate=Fate.DETACH, prefix="ignored")
        for _ in range(2):
            await store.set_aside(broken, "broken-on-start")
        directories = [each.directory for each in await store.detached()]
        assert directories == [f"broken-on-start_{broken}", "ignored_all_1_1_0"]
        assert await rows(pool) == "3"


async def test_a_part_that_a_killed_process_has_kept_under_another_name_is_not_kept_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Another part of its name is kept. 2. A process keeps it beside that one, and is killed before it has
    taken it away. 3. The next one does so again."""
    name = PartName.parse("all_0_0_0")

    def killed(self: Publisher, connection: Connection, going: Sequence[PartName]) -> None:
        raise RuntimeError

    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'x'", str(name))
        await store.remove([name], fate=Fate.DETACH, prefix="restoring")
        await add(pool, store, "SELECT 2, 'x'", str(name))
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(Publisher, "_take_away", killed)
            await store.remove([name], fate=Fate.DETACH, prefix="restoring")
        assert await rows(pool) == "2"
    async with opened(tmp_path) as (pool, store):
        await store.load()
        await store.remove([name], fate=Fate.DETACH, prefix="restoring")
        directories = [each.directory for each in await store.detached()]
        assert directories == [f"restoring_{name}", f"restoring_{name}_try1"]


async def test_parts_of_a_plain_table_are_copied_while_it_goes_on(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await pool.query(create.replace("TABLE t", "TABLE plain"))
        await pool.query("INSERT INTO plain SELECT number, 'x' FROM numbers(10)")
        source = await open_plain(pool, TableName("default", "plain"))
        await pool.query("TRUNCATE TABLE plain")
        (name,) = [name for name in source.active if name.partition_id == "1"]
        copy = await store.stage_copy(source, name, PartName.parse("1_4_4_0"))
        assert (await source.definition()).columns == (await store.definition()).columns
        await source.close()
        await store.publish([copy.name])
        assert await rows(pool) == "1 3 5 7 9"
        await pool.query("INSERT INTO plain SELECT number, 'x' FROM numbers(10)")
        for wanted in (["1"], ["0", "1"], []):
            some = await open_plain(pool, TableName("default", "plain"), wanted)
            assert sorted(name.partition_id for name in some.active) == wanted
            await some.close()
        with pytest.raises(SqlError) as caught:
            await open_plain(pool, TableName("default", "nosuch"))
        assert caught.value.code == 60


async def test_any_number_of_broken_parts_is_reported_and_chdb_starts(tmp_path: Path) -> None:
    create = (
        "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree PARTITION BY k ORDER BY k "
        "SETTINGS min_bytes_for_wide_part = 0, max_suspicious_broken_parts = 1"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        for key in range(1, 5):
            await add(pool, store, f"SELECT {key}, 'x'", f"{key}_0_0_0")
        for local in store.state.active.values():
            (local.directory / "k.bin").write_bytes(b"")
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert (len(found.broken), found.active) == (4, ())
