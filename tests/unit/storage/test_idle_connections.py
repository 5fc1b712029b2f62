"""Connections that one INSERT or SELECT leaves to the next: nobody can tell them from fresh ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.errors import SqlError
from engine.storage import ChdbPool, Scope

pytestmark = pytest.mark.slow


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=4)
    await pool.query(
        "CREATE TABLE t (a Int32, db String DEFAULT currentDatabase(), threads UInt64 DEFAULT"
        " getSetting('max_threads'), comment String DEFAULT getSetting('log_comment'))"
        " ENGINE = MergeTree ORDER BY a"
    )
    yield pool
    await pool.close()


async def insert(
    pool: ChdbPool, row: bytes, *, database: str = "", settings: Mapping[str, str] | None = None, id_: str
) -> None:
    async def rows() -> AsyncIterator[bytes]:
        yield row

    session = pool.session(database=database, one_shot=True)
    scope = Scope(settings=settings or {}, query_id=id_)
    await session.insert("INSERT INTO default.t (a)", format="CSV", rows=rows(), scope=scope)


async def seen(pool: ChdbPool) -> list[str]:
    return (await pool.query("SELECT * FROM t ORDER BY a")).text.splitlines()


def idle(pool: ChdbPool) -> list[Any]:
    return [connection for _, connection in pool.idle._idle]


async def test_an_insert_has_the_settings_the_database_and_the_id_of_its_own_request(pool: ChdbPool) -> None:
    await pool.query("CREATE DATABASE other")
    await insert(pool, b"1\n", settings={"max_threads": "3"}, id_="first")
    await insert(pool, b"2\n", settings={"max_threads": "3"}, id_="second")
    assert len(idle(pool)) == 1, "it was used again"
    await insert(pool, b"3\n", settings={"max_threads": "5"}, id_="third")
    await insert(pool, b"4\n", database="other", settings={"max_threads": "3"}, id_="fourth")
    await insert(pool, b"5\n", settings={"max_threads": "3", "log_comment": "mine"}, id_="fifth")
    await insert(pool, b"6\n", settings={"max_threads": "3"}, id_="")
    assert await seen(pool) == [
        "1\tdefault\t3\tfirst",
        "2\tdefault\t3\tsecond",
        "3\tdefault\t5\tthird",
        "4\tother\t3\tfourth",
        "5\tdefault\t3\tmine",
        "6\tdefault\t3\t",
    ]
    assert len(idle(pool)) == 4, "what has no id takes none that ever had one"


async def test_inserts_with_different_tokens_share_a_connection_and_no_token(pool: ChdbPool) -> None:
    await pool.query(
        "CREATE TABLE once (a Int32) ENGINE = MergeTree ORDER BY a "
        "SETTINGS non_replicated_deduplication_window = 9"
    )

    async def insert_one(token: str | None, id_: str) -> None:
        settings = {} if token is None else {"insert_deduplication_token": token}
        session, scope = pool.session(one_shot=True), Scope(settings=settings, query_id=id_)
        await session.query("INSERT INTO once VALUES (1)", scope=scope, is_harmless=True)

    for token in ("one", "two", "one", ""):  # the third is a repetition, the last has no token
        await insert_one(token, "x")
    assert len(idle(pool)) == 1
    assert (await pool.query("SELECT count() FROM once")).text == "3\n"
    await insert_one(None, "y")  # and neither has this one: the same block as the fourth
    assert len(idle(pool)) == 2
    assert (await pool.query("SELECT count() FROM once")).text == "3\n"


async def test_an_insert_that_is_one_text_with_its_rows_takes_a_connection_that_is_there(
    pool: ChdbPool,
) -> None:
    await insert(pool, b"1\n", id_="first")
    (before,) = idle(pool)
    for sql in ("INSERT INTO t (a) VALUES (2)", "INSERT INTO t (a) SELECT 3"):
        scope = Scope(query_id="text")
        await pool.session(one_shot=True).query(sql, scope=scope, multi=False, is_harmless=True)
    assert idle(pool) == [before]
    assert [line.split("\t")[-1] for line in await seen(pool)] == ["first", "text", "text"]


async def test_a_connection_in_which_something_failed_is_not_used_again(pool: ChdbPool) -> None:
    await insert(pool, b"1\n", id_="a")
    (before,) = idle(pool)
    with pytest.raises(SqlError):
        await insert(pool, b"x\n", id_="b")
    assert not idle(pool)
    await insert(pool, b"2\n", id_="c")
    assert before not in idle(pool)
    assert [line.split("\t")[0] for line in await seen(pool)] == ["1", "2"]


async def test_few_connections_are_kept_and_those_used_last(pool: ChdbPool) -> None:
    for number in range(12):
        await insert(pool, b"%d\n" % number, settings={"max_threads": str(number + 1)}, id_="a")
    kept = idle(pool)
    assert len(kept) == 8
    await insert(pool, b"99\n", settings={"max_threads": "12"}, id_="a")
    assert idle(pool) == kept


async def test_a_small_select_takes_a_connection_that_is_there_and_leaves_it(pool: ChdbPool) -> None:
    await pool.query("CREATE TABLE small (k UInt64) ENGINE = MergeTree ORDER BY k AS SELECT 7 AS k")
    for query_id in ("one", "two"):
        session = pool.session(one_shot=True)
        sql = "SELECT sum(k), getSetting('log_comment') FROM small"
        result = await session.query(sql, format="TSV", scope=Scope(query_id=query_id), is_harmless=True)
        assert result.text == f"7\t{query_id}\n"
    assert len(idle(pool)) == 1
    await pool.query("DROP TABLE small SYNC")  # nobody holds it


async def test_a_small_select_that_fails_leaves_no_connection(pool: ChdbPool) -> None:
    for sql, code in (("SELECT nope", 47), ("SELECT 1; SET max_threads = 1", 62)):
        with pytest.raises(SqlError) as caught:
            await pool.session(one_shot=True).query(sql, multi=False, is_harmless=True)
        assert caught.value.code == code
        assert not idle(pool)


async def test_a_small_select_of_who_may_only_read_or_with_parameters_has_its_own(pool: ChdbPool) -> None:
    reader = pool.session(settings={"readonly": "1"}, one_shot=True)
    assert (await reader.query("SELECT 1", is_harmless=True)).text == "1\n"
    session = pool.session(one_shot=True)
    assert (await session.query("SELECT {a:UInt8}", params={"a": "3"}, is_harmless=True)).text == "3\n"
    with pytest.raises(SqlError):
        await pool.session(one_shot=True).query("SELECT {a:UInt8}", is_harmless=True)
    assert not idle(pool)


async def streamed(pool: ChdbPool, sql: str, id_: str) -> bytes:
    data = b""
    async with pool.session(one_shot=True).stream(sql, scope=Scope(query_id=id_)) as stream:
        while piece := await stream.read():
            data += piece
        await stream.finish()
    return data


async def test_a_streamed_select_takes_a_connection_that_is_there_and_leaves_it(pool: ChdbPool) -> None:
    sql = "SELECT getSetting('log_comment'), currentDatabase()"
    assert await streamed(pool, sql, "one") == b"one\tdefault\n"
    (before,) = idle(pool)
    assert await streamed(pool, sql, "two") == b"two\tdefault\n"
    assert idle(pool) == [before]
    with pytest.raises(SqlError):
        await streamed(pool, "SELECT throwIf(1)", "three")
    assert not idle(pool)


async def test_a_connection_whose_reader_has_left_early_is_not_used_again(pool: ChdbPool) -> None:
    sql = "SELECT number FROM system.numbers"
    async with pool.session(one_shot=True).stream(sql, scope=Scope(query_id="endless")) as stream:
        assert (await stream.read()).startswith(b"0\n1\n")
    await asyncio.wait(pool._unfinished)  # the statement is killed in the background
    assert not idle(pool)


async def test_what_holds_for_one_select_may_stand_behind_its_text(pool: ChdbPool) -> None:
    sql = "SELECT getSetting('log_comment'), getSetting('max_threads')"

    async def asked(id_: str, *, settings: Mapping[str, str], takes_settings: bool) -> str:
        scope = Scope(query_id=id_, settings=settings)
        session = pool.session(one_shot=True)
        return (await session.query(sql, scope=scope, is_harmless=True, takes_settings=takes_settings)).text

    three = {"max_threads": "3"}
    assert await asked("set", settings=three, takes_settings=False) == "set\t3\n"
    assert await asked("it's behind", settings=three, takes_settings=True) == "it\\'s behind\t3\n"
    mine = {**three, "log_comment": "mine"}
    assert await asked("behind", settings=mine, takes_settings=True) == "mine\t3\n"
    assert await asked("set again", settings=three, takes_settings=False) == "set again\t3\n"
    assert len(idle(pool)) == 1
    reader = pool.session(settings={"readonly": "1"}, one_shot=True)
    read = await reader.query(sql, scope=Scope(query_id="own"), is_harmless=True, takes_settings=True)
    assert read.text.startswith("own\t"), "who may only read has a connection of its own, and no clause"
    assert len(idle(pool)) == 1


async def test_a_select_that_is_streamed_keeps_what_its_own_text_sets(pool: ChdbPool) -> None:
    one = "getSetting('log_comment'), getSetting('max_threads')"
    for sql, seen_in_it in (
        (f"SELECT {one} SETTINGS max_threads = 3", b"id\t3\n"),
        (f"SELECT {one} SETTINGS max_threads = 3 FORMAT TSV", b"id\t3\n"),
        (f"SELECT {one} FORMAT TSV SETTINGS max_threads = 3", b"id\t3\n"),
        (f"SELECT {one} SETTINGS max_threads = 3, log_comment = 'own'", b"own\t3\n"),
        (f"SELECT {one} FORMAT TSV SETTINGS log_comment = 'own', max_threads = 3", b"own\t3\n"),
        (f"(SELECT * FROM (SELECT {one}) SETTINGS max_threads = 3)", b"id\t3\n"),
        (f"SELECT {one} UNION DISTINCT SELECT {one} SETTINGS max_threads = 3 -- end", b"id\t3\n"),
    ):
        assert await streamed(pool, sql, "id") == seen_in_it, sql
