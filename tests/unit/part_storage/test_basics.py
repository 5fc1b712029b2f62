"""Parts of a replicated table on chDB: inserted, staged, published, taken away, found again."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.part_storage.live_marks import write_marks
from engine.part_storage.part_uuid import UUID_FILE
from engine.part_storage.workers import Connection
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, MergeOptions
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, insert, named, opened, rows, texts

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE t (k UInt64, v String DEFAULT 'x') ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"


async def test_an_insert_is_staged_then_published_then_found_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        assert (await store.load()).active == ()
        staged = await insert(pool, store, "SELECT number, 'a' FROM numbers(10)", "0_7_7_0", "1_5_5_0")
        assert await rows(pool, "count()") == "0"
        assert texts(store.staged) == ["0_7_7_0", "1_5_5_0"]
        await store.publish(named("0_7_7_0"))
        assert await rows(pool) == "0 2 4 6 8"
        assert (texts(store.staged), texts(store.active)) == (["1_5_5_0"], ["0_7_7_0"])
        await store.publish(named("0_7_7_0"))
        assert staged[0].rows == 5
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert [(part.name, part.digest, part.rows) for part in (*found.active, *found.staged)] == [
            (part.name, part.digest, part.rows) for part in staged
        ]
        assert found.broken == ()
        await store.publish(named("1_5_5_0"))
        assert await rows(pool, "count()") == "10"


async def test_final_takes_rows_of_equal_key_apart_in_parts_that_were_not_merged(tmp_path: Path) -> None:
    """A part's level tells FINAL whether it has to look."""
    create = "CREATE TABLE t (k UInt64, v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        async with store.insert_stage() as stage:
            for flag in (0, 1):
                await pool.query(
                    f"INSERT INTO {stage.table.quoted} SETTINGS optimize_on_insert = {flag} "
                    "SELECT 1, number FROM numbers(3)"
                )
            unmerged, merged = await stage.collect()
            assert [(part.rows, part.level) for part in (unmerged, merged)] == [(3, 0), (1, 1)]
            await store.stage_inserted(unmerged, PartName.parse("all_0_0_0"))
            await store.stage_inserted(merged, PartName.parse("all_1_1_1"))
        await store.publish(named("all_0_0_0"))
        found = await pool.query("SELECT v FROM t FINAL")
        assert (await rows(pool, "v"), found.text) == ("0 1 2", "2\n")
        await store.publish(named("all_1_1_1"))
        await store.remove(named("all_0_0_0", "all_1_1_1"), fate=Fate.DETACH)
        assert [(part.directory, part.level) for part in await store.detached()] == [
            ("all_0_0_0", 0),
            ("all_1_1_1", 1),
        ]


async def test_detached_parts_are_found_by_what_their_lists_of_files_say(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number in range(3):
            await add(pool, store, f"SELECT 2 * {number}, 'a'", f"0_{number}_{number}_0")
        hashes = {str(part.name): part.digest.hash_text for part in store.active.values()}
        await store.remove(named("0_0_0_0", "0_1_1_0"), fate=Fate.DETACH)

        async def found(name: str) -> list[str]:
            return [part.directory for part in await store.detached_with(hashes[name])]

        assert [await found(name) for name in sorted(hashes)] == [["0_0_0_0"], ["0_1_1_0"], []]
        lies = store.state.data / "detached"
        (lies / "0_0_0_0").rename(lies / "broken_0_0_0_0")
        (lies / "0_1_1_0/checksums.txt").unlink()
        (lies / "0_1_1_0").rename(lies / "0_0_0_0")  # another one, under a name that is known
        (lies / "0_9_9_0").mkdir()
        await store.remove(named("0_2_2_0"), fate=Fate.DETACH)
        assert [await found(name) for name in sorted(hashes)] == [["broken_0_0_0_0"], [], ["0_2_2_0"]]


async def test_a_part_that_chdb_does_not_take_stays_staged(tmp_path: Path) -> None:
    """Its directory passes through `detached/`, and must not be left there."""
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await insert(pool, store, "SELECT 1, 'a'", "1_3_3_0")
        await add(pool, store, "SELECT 3, 'b'", "1_5_5_0")
        columns = store.state.staged_directory(PartName.parse("1_3_3_0")) / "columns.txt"
        good = columns.read_bytes()
        columns.chmod(0o644)
        columns.write_bytes(b"no columns")
        with pytest.raises(SqlError):
            await store.publish(named("1_3_3_0"))
        assert (texts(store.staged), texts(store.active)) == (["1_3_3_0"], ["1_5_5_0"])
        assert await rows(pool) == "3"
        assert list(await store.detached()) == []
        columns.write_bytes(good)
        await store.publish(named("1_3_3_0"))
        assert await rows(pool) == "1 3"


async def test_merged_parts_take_the_place_of_their_sources(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number in range(4):
            await add(pool, store, f"SELECT 2 * {number}, 'a'", f"0_{number}_{number}_0")
        sources, result = named("0_1_1_0", "0_2_2_0"), PartName.parse("0_1_2_1")
        part = await store.merge(sources, result, MergeOptions())
        assert part.rows == 2
        assert await rows(pool) == "0 2 4 6"
        await store.publish([result], sources)
        assert texts(store.active) == ["0_0_0_0", "0_1_2_1", "0_3_3_0"]
        assert await rows(pool) == "0 2 4 6"
        await store.remove(named("0_0_0_0", "0_3_3_0"))
        assert await rows(pool) == "2 4"
        await store.remove(named("0_1_2_1"), fate=Fate.DETACH)
        assert await rows(pool) == ""
        assert [part.directory for part in await store.detached()] == ["0_1_2_1"]
        await store.relabel_detached("0_1_2_1", "restoring")
        await store.relabel_detached("not there", "")
        assert [part.directory for part in await store.detached()] == ["restoring_0_1_2_1"]
        await store.relabel_detached("restoring_0_1_2_1", "")
        assert [part.directory for part in await store.detached()] == ["0_1_2_1"]
        await add(pool, store, "SELECT 100, 'a'", "0_9_9_0")
    async with opened(tmp_path) as (pool, store):
        found = await store.load()
        assert texts(part.name for part in found.active) == ["0_9_9_0"]
        assert await rows(pool) == "100"


async def test_a_part_is_sent_and_received(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        (part,) = await insert(pool, store, "SELECT 1, 'a'", "1_0_0_0")
        copy = PartName.parse("1_8_8_0")
        async with store.send(part.name) as outgoing, store.receive(copy) as incoming:
            await store.publish([part.name])
            for file in outgoing.files:
                await incoming.write(file, outgoing.read(file))
            received = await incoming.finish(part.header)
        assert received.digest == part.digest
        await store.publish([copy])
        assert await rows(pool) == "1 1"
        with pytest.raises(SqlError) as caught:
            async with store.send(PartName.parse("1_99_99_0")):
                pass
        assert caught.value.code == 232


async def test_a_stage_that_merges_nothing_is_used_again_and_tells_its_inserts_apart(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v UInt64) ENGINE = ReplacingMergeTree PARTITION BY k % 2 ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        tables = set()
        for values, seen in (
            ("(1, 1), (1, 2), (2, 3)", "1\t1\n1\t2\n2\t3\n"),
            ("(1, 4), (1, 5)", "1\t4\n1\t5\n"),
        ):
            async with store.unmerged_stage() as stage:
                await pool.query(f"INSERT INTO {stage.table.quoted} VALUES {values}")
                names = ", ".join(f"'{stage.part_in_table(new)}'" for new in await stage.collect())
                rows_of = f"SELECT k, v FROM {stage.table.quoted} WHERE _part IN ({names}) ORDER BY ALL"
                assert (await pool.query(rows_of)).text == seen
                tables.add(stage.table)
        assert len(tables) == 1
        await store.apply_settings({"merge_with_ttl_timeout": "7200"})
        async with store.unmerged_stage() as stage:
            assert stage.table not in tables


async def test_changes_that_wait_for_one_another_are_made_together_and_fail_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        names = [f"0_{number}_{number}_0" for number in range(6)]
        for number, name in enumerate(names):
            await insert(pool, store, f"SELECT 2 * {number}, 'a'", name)
        results = await asyncio.gather(
            *(store.publish(named(name)) for name in names[:4]),
            store.publish(named("0_77_77_0")),
            store.publish(named(names[4]), named(names[0])),
            store.publish(named(names[5])),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [*[type(None)] * 4, SqlError, type(None), type(None)]
        assert texts(store.active) == names[1:]
        assert await rows(pool) == "2 4 6 8 10"
        waiting = asyncio.ensure_future(store.publish([], named(names[1])))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert names[1] in texts(store.active) or await rows(pool) == "4 6 8 10"


async def test_a_defect_is_told_to_whoever_waits_for_the_change_and_holds_up_nobody_else(
    tmp_path: Path,
) -> None:
    """An INSERT waits for its part to be shown, and holds the part's name until then."""
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 2, 'a'", "0_0_0_0")
        await insert(pool, store, "SELECT 4, 'a'", "0_1_1_0")
        await insert(pool, store, "SELECT 1, 'a'", "1_0_0_0")
        (store.state.staged_root / "live.json").write_text("[]")  # nothing that the code reckons with
        swap, attach = await asyncio.gather(
            store.publish(named("0_1_1_0"), named("0_0_0_0")),
            store.publish(named("1_0_0_0")),
            return_exceptions=True,
        )
        assert isinstance(swap, AttributeError)
        assert attach is None and "1_0_0_0" in texts(store.active)


async def test_readers_never_see_a_swap_half_done(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        for number in range(8):
            await add(pool, store, f"SELECT 2 * {number}, 'a'", f"0_{number}_{number}_0")
        seen = set()

        async def read() -> None:
            while not done.is_set():
                seen.add((await pool.query("SELECT count(), sum(k) FROM t")).text)

        done = asyncio.Event()
        reader = asyncio.ensure_future(read())
        for first, last, level in ((0, 3, 1), (4, 7, 1), (0, 7, 2)):
            result = PartName("0", first, last, level)
            sources = sorted(name for name in store.active if result.contains(name))
            await store.merge(sources, result, MergeOptions())
            await store.publish([result], sources)
        done.set()
        await reader
        assert seen == {"8\t56\n"}
        assert texts(store.active) == ["0_0_7_2"]


async def test_what_chdb_puts_over_dropped_parts_is_left_alone_by_every_start(tmp_path: Path) -> None:
    """Dropping such an empty part would only make another one."""
    shown: list[str] = []
    for start in range(3):
        async with opened(tmp_path, "" if start else CREATE) as (pool, store):
            if not start:
                await store.load()
                await add(pool, store, "SELECT 2, 'a'", "0_1_1_0")
                await add(pool, store, "SELECT 4, 'a'", "0_2_2_0")
                local = store.state.active[PartName.parse("0_1_1_0")].visible.name
                write_marks(store.state, {"0": 2})
                await pool.query(f"ALTER TABLE t DROP PART '{local}'")
            found = await store.load()
            assert (texts(part.name for part in found.active), found.broken) == (["0_2_2_0"], ())
            parts = await pool.query(
                "SELECT name FROM system.parts WHERE table = 't' AND active ORDER BY name"
            )
            shown.append(parts.text)
    assert shown[0] == shown[1] == shown[2]


async def test_a_part_whose_detaching_was_cut_is_kept_once(tmp_path: Path) -> None:
    """Killed after the copy was kept, before chDB let go of the part: the next process detaches it again."""
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 2, 'x'", "0_0_0_0")
        (part,) = named("0_0_0_0")
        source = store.state.active[part].directory
        kept = store.state.detached / "0_0_0_0"
        kept.mkdir()
        for file in sorted(source.iterdir()):
            if file.name != UUID_FILE:
                (kept / file.name).hardlink_to(file)
        await store.remove([part], fate=Fate.DETACH)
        assert [each.directory for each in await store.detached()] == ["0_0_0_0"]
        assert not store.active


async def test_partitions_that_are_emptied_together_need_one_table_and_stay_empty(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64) ENGINE = MergeTree PARTITION BY k ORDER BY k"
    names = [f"{number}_0_0_0" for number in range(10)]
    async with opened(tmp_path, create) as (pool, store):
        await add(pool, store, "SELECT number FROM numbers(10)", *names)
        first = store._workers.next_number()
        await store.remove(named(*names[:8]))
        assert store._workers.next_number() - first == 2, "one table, and this number"
        assert await rows(pool) == "8 9" and texts(store.active) == names[8:]
        await store.remove(named(names[8]), fate=Fate.DETACH)
        assert await rows(pool) == "9"
    async with opened(tmp_path) as (pool, store):
        assert [str(part.name) for part in (await store.load()).active] == names[9:]
        assert await rows(pool) == "9"
        await add(pool, store, "SELECT number FROM numbers(2)", "0_1_1_0", "1_1_1_0")
        assert await rows(pool) == "0 1 9"


async def test_of_partitions_that_are_emptied_together_one_that_fails_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = "CREATE TABLE t (k UInt64) ENGINE = MergeTree PARTITION BY k ORDER BY k"
    names = [f"{number}_0_0_0" for number in range(5)]
    execute = Connection.execute

    def broken(connection: Connection, sql: str) -> None:
        if "REPLACE PARTITION ID '2'" in sql:
            raise SqlError(76, "Input/output error")
        execute(connection, sql)

    async with opened(tmp_path, create) as (pool, store):
        await add(pool, store, "SELECT number FROM numbers(5)", *names)
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "execute", broken)
            gone = await asyncio.gather(
                *(store.remove(named(each)) for each in names), return_exceptions=True
            )
        assert [isinstance(each, SqlError) for each in gone] == [False, False, True, False, False]
        assert await rows(pool) == "2" and texts(store.active) == ["2_0_0_0"]
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "execute", broken)
            await add(pool, store, "SELECT number FROM numbers(2)", "0_1_1_0", "1_1_1_0")
            with pytest.raises(SqlError):
                await store.remove(named("0_1_1_0", "1_1_1_0", "2_0_0_0"))
        assert await rows(pool) == "2", "those before it are done"
    async with opened(tmp_path) as (pool, store):
        assert [str(part.name) for part in (await store.load()).active] == ["2_0_0_0"]
        assert await rows(pool) == "2"


async def test_what_a_failed_statement_had_written_is_in_no_other_answer(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path / "data", max_running=2)
    try:

        def ask() -> list[list[object]]:
            with closing(pool.connect()) as chdb:
                connection = Connection(chdb, pool.disk_reserve)
                with pytest.raises(SqlError):
                    connection.rows(
                        "SELECT number, throwIf(number = 70000) FROM numbers(80000) "
                        "SETTINGS max_block_size = 99"
                    )
                return connection.rows("SELECT 1")

        assert await pool.call(ask) == [[1]]
    finally:
        await pool.close()
