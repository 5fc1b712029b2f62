"""The intent record on disk."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.ddl.intents import Intent, IntentKey, SqliteIntentStore
from engine.ddl.status import ExecutionStatus
from engine.errors import Code, Corrupt, Unavailable
from tests.small_disk import small_disk

KEY = IntentKey("/queue", "query-0000000001", 17)
INTENT = Intent(KEY, "h:9000", "abc", "d.t", '{"objects":[]}')


async def reopened(path: Path, queue: str = "/queue") -> dict[IntentKey, Intent]:
    store = SqliteIntentStore(path)
    try:
        return dict(await store.load(queue))
    finally:
        await store.close()


async def test_what_was_begun_is_there_after_a_restart(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    await store.begin(INTENT)
    await store.close()
    assert await reopened(tmp_path / "i.db") == {KEY: INTENT}


async def test_what_was_begun_is_on_disk_before_begin_returns(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    await store.begin(INTENT)
    # Another connection, as after kill -9: the store was not closed.
    with sqlite3.connect(tmp_path / "i.db") as other:
        assert other.execute("SELECT entry, czxid FROM intent").fetchall() == [(KEY.entry, KEY.czxid)]
    await store.close()


async def test_an_outcome_is_kept_with_its_text(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    status = ExecutionStatus(57, "it's \n\x00 \udcff there")
    await store.begin(INTENT)
    await store.finish(KEY, status)
    await store.close()
    assert await reopened(tmp_path / "i.db") == {KEY: replace(INTENT, status=status)}


async def test_a_further_try_begins_without_outcome(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    await store.begin(INTENT)
    await store.finish(KEY, ExecutionStatus())
    again = replace(INTENT, digest_before="other")
    await store.begin(again)
    assert await store.load("/queue") == {KEY: again}
    await store.close()


async def test_entries_of_one_name_and_queues_are_told_apart(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    keys = [KEY, replace(KEY, czxid=18), replace(KEY, queue="/other")]
    for key in keys:
        await store.begin(replace(INTENT, key=key))
    assert set(await store.load("/queue")) == set(keys[:2])
    await store.forget([keys[0]])
    assert set(await store.load("/queue")) == {keys[1]}
    assert set(await store.load("/other")) == {keys[2]}
    await store.close()


async def test_many_at_once_all_arrive(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    intents = [replace(INTENT, key=replace(KEY, czxid=number)) for number in range(100)]
    await asyncio.gather(*(store.begin(intent) for intent in intents))
    assert len(await store.load("/queue")) == 100
    await store.close()


async def test_a_file_that_is_no_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "i.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(Corrupt) as refusal:
        SqliteIntentStore(tmp_path / "i.db")
    assert "i.db" in str(refusal.value) and refusal.value.hint


async def test_a_disk_that_does_not_let_the_record_be_opened_is_no_broken_record(tmp_path: Path) -> None:
    """Nobody is told to move a record away that is as it should be."""
    (tmp_path / "i.db").mkdir()
    with pytest.raises(Unavailable) as refusal:
        SqliteIntentStore(tmp_path / "i.db")
    assert "disk" in str(refusal.value.hint)


async def test_an_outcome_that_can_wait_is_written_although_nothing_else_is(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    await store.begin(INTENT)
    with sqlite3.connect(tmp_path / "i.db") as other:
        for code in (57, 60):
            store.finish_soon(KEY, ExecutionStatus(code, "x"))
            async with asyncio.timeout(60):
                while other.execute("SELECT code FROM intent").fetchall() != [(code,)]:
                    await asyncio.sleep(0.01)
    await store.close()


async def test_an_outcome_that_a_failed_write_took_along_is_written_by_the_next(tmp_path: Path) -> None:
    """1. An outcome waits to be written. 2. The record cannot be written: `begin` fails. 3. It can again."""
    store = SqliteIntentStore(tmp_path / "i.db")
    later = replace(INTENT, key=replace(KEY, entry="query-0000000002"))
    await store.begin(INTENT)
    with sqlite3.connect(tmp_path / "i.db") as other:
        other.execute("ALTER TABLE intent RENAME TO moved")
    store.finish_soon(KEY, ExecutionStatus())
    with pytest.raises(Corrupt, match="no such table"):
        await store.begin(later)
    with pytest.raises(Corrupt, match="no such table"):
        store.begin_now(later)
    with sqlite3.connect(tmp_path / "i.db") as other:
        other.execute("ALTER TABLE moved RENAME TO intent")
    await store.begin(later)
    expected = {KEY: replace(INTENT, status=ExecutionStatus()), later.key: later}
    assert await store.load("/queue") == expected
    await store.close()


async def test_whoever_waits_for_a_write_is_told_of_any_error(tmp_path: Path) -> None:
    store = SqliteIntentStore(tmp_path / "i.db")
    with pytest.raises(UnicodeEncodeError):  # which is no error of SQLite's
        await asyncio.wait_for(store.begin(replace(INTENT, host="\udcff")), 60)
    await store.begin(INTENT)
    await store.close()
    assert await reopened(tmp_path / "i.db") == {KEY: INTENT}


@pytest.mark.slow
async def test_a_full_disk_lets_nothing_begin_and_keeps_outcomes_for_later(tmp_path: Path) -> None:
    """1. `begin`. 2. The disk is full: `begin` of another is refused; an outcome, and what is to be
    forgotten, wait. 3. There is room: the next `begin` takes them along."""
    first, other, later = (replace(INTENT, key=replace(KEY, entry=f"query-{n:010}")) for n in range(3))
    with small_disk(tmp_path) as disk:
        store = SqliteIntentStore(disk.place / "i.db")
        await store.begin(first)
        await store.begin(other)
        disk.fill()
        await fill_the_log(store)
        with pytest.raises(Unavailable) as refused:
            await store.begin(later)
        assert refused.value.code == Code.NOT_ENOUGH_SPACE and refused.value.hint
        with pytest.raises(Unavailable):
            store.begin_now(later)
        await store.finish(first.key, ExecutionStatus())
        await store.forget([other.key])
        assert await store.load("/queue") == {first.key: first, other.key: other}
        disk.empty()
        store.begin_now(later)
        assert await store.load("/queue") == {
            first.key: replace(first, status=ExecutionStatus()),
            later.key: later,
        }
        await store.close()


async def fill_the_log(store: SqliteIntentStore) -> None:
    """Until SQLite has no room left in the files that it has."""
    with contextlib.suppress(Unavailable):
        for number in itertools.count():
            await store.begin(replace(INTENT, key=replace(KEY, queue="/other", czxid=number)))


@pytest.mark.slow
async def test_a_full_disk_with_a_spare_lets_statements_begin(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        lent = 0

        @contextlib.contextmanager
        def spare() -> Iterator[None]:
            nonlocal lent
            lent += 1
            disk.fill(but_for=1 << 20)
            yield
            disk.fill()

        store = SqliteIntentStore(disk.place / "i.db", spare=spare)
        disk.fill()
        begun = 0
        while lent < 2:
            await store.begin(replace(INTENT, key=replace(KEY, czxid=begun)))
            begun += 1
        assert len(await store.load("/queue")) == begun
        await store.close()
