"""chDB behind an asynchronous pool: results, streams, inserts, sessions, cancellation."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Code, SqlError
from engine.storage import ChdbPool, QueryResult, Scope
from engine.storage.layout import SCRATCH_DATABASE

pytestmark = pytest.mark.slow


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChdbPool]:
    pool = await ChdbPool.open(tmp_path / "data", max_running=4)
    yield pool
    await pool.close()


async def rows(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_a_statement_returns_its_whole_result_and_what_it_cost(pool: ChdbPool) -> None:
    result = await pool.query("SELECT number FROM numbers(3)")
    assert (result.text, result.read_rows, result.result_rows) == ("0\n1\n2\n", 3, 3)


async def test_what_a_failed_statement_had_written_is_in_no_other_result(pool: ChdbPool) -> None:
    """chDB keeps it in the connection. Where settings are put back it goes with the answer to that."""
    async with pool.use(settings={"log_comment": "the session's own", "readonly": "2"}) as session:
        with pytest.raises(SqlError):
            await session.query(
                "SELECT number, throwIf(number = 70000) FROM numbers(90000) SETTINGS max_block_size = 1000"
            )
        assert (await session.query("SELECT 1")).text == "1\n"


@pytest.mark.parametrize(
    "hint", ["-- { serverError UNKNOWN_TABLE }", "/* { error 60 } */", "# { clientError 60 }"]
)
async def test_an_error_is_one_whatever_a_comment_expects(pool: ChdbPool, hint: str) -> None:
    with pytest.raises(SqlError) as caught:
        await pool.query(f"DROP TABLE nosuch {hint}")
    assert caught.value.code == 60


async def test_error_codes_have_clickhouses_names(pool: ChdbPool) -> None:
    numbers = ", ".join(str(int(code)) for code in Code)
    result = await pool.query(f"SELECT errorCodeToName(toInt32(arrayJoin([{numbers}])))", format="TSVRaw")
    assert result.text.splitlines() == [code.name for code in Code]


async def test_an_error_carries_clickhouses_code_name_and_bare_message(pool: ChdbPool) -> None:
    with pytest.raises(SqlError) as caught:
        await pool.query("SELECT * FROM nosuch")
    assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")
    assert caught.value.message.startswith("Unknown table expression identifier 'nosuch'")
    assert "Code:" not in caught.value.message
    assert not caught.value.message.endswith(")")


async def test_the_default_database_is_that_of_a_server_and_files_are_out_of_reach(pool: ChdbPool) -> None:
    assert (await pool.query("SELECT engine FROM system.databases WHERE name = 'default'")).text == "Atomic\n"
    for sql in (
        "SELECT * FROM file('/etc/passwd', LineAsString)",
        "INSERT INTO FUNCTION file('/tmp/x.csv') SELECT 1",
    ):
        with pytest.raises(SqlError) as caught:
            await pool.query(sql)
        assert caught.value.name == "ACCESS_DENIED"
    with pytest.raises(SqlError) as caught:
        await pool.query("SELECT * FROM `/etc/passwd`")
    assert caught.value.name == "UNKNOWN_TABLE"


async def test_fresh_sessions_do_not_see_each_others_settings_or_database(pool: ChdbPool) -> None:
    await pool.query("CREATE DATABASE other")
    async with pool.use(database="other", settings={"max_threads": "1"}) as session:
        one = await session.query("SELECT currentDatabase(), getSetting('max_threads')")
        assert one.text == "other\t1\n"
        with_setting = await session.query(
            "SELECT getSetting('max_threads')", scope=Scope(settings={"max_threads": "7"})
        )
        assert with_setting.text == "7\n"
        assert (await session.query("SELECT getSetting('max_threads')")).text == "1\n"
        await session.query("CREATE TEMPORARY TABLE t (a UInt8)")
        assert (await session.query("SELECT count() FROM t")).text == "0\n"
    assert (await pool.query("SELECT currentDatabase()")).text == "default\n"
    with pytest.raises(SqlError):
        await pool.query("SELECT count() FROM t")


@pytest.mark.parametrize(
    "format", ["JSON", "Native", "CSVWithNames", "Parquet", "Pretty", "TabSeparated", "XML"]
)
async def test_a_streamed_result_is_byte_for_byte_the_whole_one(pool: ChdbPool, format: str) -> None:
    # Pretty puts blocks together that come within a tenth of a second, and has columns as wide as these need.
    settings = "max_threads = 1, output_format_pretty_squash_consecutive_ms = 0"
    sql = f"SELECT number, toString(number) FROM numbers(200000) SETTINGS {settings}"
    whole = await pool.query(sql, format=format)
    async with pool.session(one_shot=True).stream(sql, format=format) as stream:
        pieces = [piece async for piece in _pieces(stream)]
        result = await stream.finish()
    assert without_elapsed(b"".join(pieces)) == without_elapsed(whole.data)
    assert result.read_rows == 200000


def without_elapsed(data: bytes) -> bytes:
    """JSON and XML end with the time the statement took."""
    return re.sub(rb"elapsed\W+[0-9.e-]+", b"", data)


async def _pieces(stream: object) -> AsyncIterator[bytes]:
    while piece := await stream.read():  # type: ignore[attr-defined]
        yield piece


async def test_a_reader_that_stops_reading_stops_the_query_and_frees_its_thread(pool: ChdbPool) -> None:
    async with pool.session(one_shot=True).stream(
        "SELECT * FROM system.numbers", scope=Scope(query_id="endless")
    ) as stream:
        assert await stream.read()
    running = (
        "SELECT count() FROM system.processes WHERE query LIKE '%system.numbers%'"
        " AND query NOT LIKE '%processes%'"
    )
    while (await pool.query(running)).text != "0\n":
        await asyncio.sleep(0.01)


async def test_a_session_that_is_closed_right_behind_its_reader_still_stops_the_query(pool: ChdbPool) -> None:
    session = pool.session()
    sql = (
        "SELECT sleepEachRow(0.1) FROM numbers(100000) SETTINGS max_block_size = 1"  # writes next to nothing
    )
    async with session.stream(sql, scope=Scope(query_id="x")):
        running = "SELECT count() FROM system.processes WHERE query LIKE '%sleepEach%'"
        while (await pool.query(running)).text != "2\n":
            pass  # the one that asks is there, too
    await session.close()
    async with asyncio.timeout(30):
        await asyncio.wait(pool._unfinished)


async def test_an_error_after_data_is_raised_when_the_stream_is_finished(pool: ChdbPool) -> None:
    sql = "SELECT throwIf(number = 1500000) FROM numbers(2000000) SETTINGS max_block_size = 1000"
    async with pool.session(one_shot=True).stream(sql) as stream:
        size = 0
        async for piece in _pieces(stream):
            size += len(piece)
        with pytest.raises(SqlError) as caught:
            await stream.finish()
    assert size > 0
    assert caught.value.code == 395


async def test_text_that_takes_no_output_clauses_is_streamed_too_and_errors_say_where(pool: ChdbPool) -> None:
    async with pool.session(one_shot=True).stream(
        "SHOW TABLES FROM default SETTINGS max_threads = 1"
    ) as stream:
        assert [piece async for piece in _pieces(stream)] == []
        await stream.finish()
    async with pool.session(one_shot=True).stream("SELECT 1 FORM t") as stream:
        assert await stream.read() == b""
        with pytest.raises(SqlError) as caught:
            await stream.finish()
    assert caught.value.code == 62
    assert "OUTFILE '" not in caught.value.message


@pytest.mark.parametrize(
    ("scope", "code"), [(Scope(settings={"no_such_setting": "1"}), 115), (Scope(database="nosuch"), 81)]
)
async def test_a_stream_ends_when_its_statement_cannot_even_begin(
    pool: ChdbPool, scope: Scope, code: int
) -> None:
    async with pool.session(one_shot=True).stream("SELECT 1", scope=scope) as stream:
        assert await stream.read() == b""
        with pytest.raises(SqlError) as caught:
            await stream.finish()
    assert caught.value.code == code


async def test_a_query_may_not_write_files_itself(pool: ChdbPool) -> None:
    with pytest.raises(SqlError) as caught:
        async with pool.session(one_shot=True).stream("SELECT 1 INTO OUTFILE '/tmp/x'"):
            pass
    assert caught.value.code == 358


async def test_an_insert_is_taken_chunk_by_chunk_with_defaults_and_columns(pool: ChdbPool) -> None:
    await pool.query(
        "CREATE TABLE t (a UInt64, b String DEFAULT concat('x', toString(a))) ENGINE = MergeTree ORDER BY a"
    )
    async with pool.use() as session:
        result = await session.insert("INSERT INTO t (a)", format="CSV", rows=rows(b"1\n2", b"2\n3", b"\n"))
        assert result.written_rows == 3
        await session.insert("INSERT INTO t", format="JSONEachRow", rows=rows(b'{"a":5}', b'{"a":6,"b":"z"}'))
        assert (
            await session.query("SELECT * FROM t ORDER BY a")
        ).text == "1\tx1\n3\tx3\n5\tx5\n6\tz\n22\tx22\n"


async def test_an_insert_whose_rows_break_off_inserts_nothing(pool: ChdbPool) -> None:
    await pool.query("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")

    async def broken() -> AsyncIterator[bytes]:
        yield b"1\n2\n"
        raise ConnectionResetError

    async with pool.use() as session:
        with pytest.raises(ConnectionResetError):
            await session.insert("INSERT INTO t", format="CSV", rows=broken())
        with pytest.raises(SqlError):
            await session.insert("INSERT INTO t", format="CSV", rows=rows(b"abc\n"))
        assert (await session.query("SELECT count() FROM t")).text == "0\n"


async def test_of_rows_that_break_off_behind_megabytes_none_is_inserted_and_the_connection_is_gone(
    pool: ChdbPool,
) -> None:
    await pool.query("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
    megabytes = [b"7\n" * (1 << 18)] * 6

    async def broken() -> AsyncIterator[bytes]:
        for piece in megabytes:
            yield piece
        raise ConnectionResetError

    def inserting(data: AsyncIterator[bytes]) -> Coroutine[Any, Any, QueryResult]:
        session = pool.session(one_shot=True)
        return session.insert("INSERT INTO t", format="CSV", rows=data, scope=Scope(query_id="large"))

    with pytest.raises(ConnectionResetError):
        await inserting(broken())
    with pytest.raises(SqlError):
        await inserting(rows(*megabytes, b"abc\n"))
    assert pool.idle._idle == [], "nobody gets a connection in which something has failed"
    assert (await pool.query("SELECT count() FROM t")).text == "0\n"
    assert (await inserting(rows(*megabytes))).written_rows == 6 << 18
    assert (await inserting(rows(*megabytes))).written_rows == 6 << 18
    assert len(pool.idle._idle) == 1, "it was used again"
    assert (await pool.query("SELECT count() FROM t")).text == f"{12 << 18}\n"


async def test_a_cancelled_statement_is_killed_and_does_not_hold_its_thread(pool: ChdbPool) -> None:
    task = asyncio.create_task(
        pool.query("SELECT sleepEachRow(1) FROM numbers(3000) SETTINGS max_block_size = 1", query_id="slow")
    )
    running = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'slow'"
    while (await pool.query(running)).text != "1\n":
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while (await pool.query(running)).text != "0\n":
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("settings", ["", " SETTINGS log_comment = 'its own'"])
async def test_a_result_that_nobody_wants_before_it_begins_ends(tmp_path: Path, settings: str) -> None:
    """(1) A thread takes the SELECT. (2) Its reader leaves, and it is to be killed. (3) chDB begins it."""
    pool = await ChdbPool.open(tmp_path / "data", max_running=1)
    is_taken, is_asked = threading.Event(), threading.Event()
    connect, kill = pool.connect, pool.kill

    def connect_late() -> Any:
        is_taken.set()
        assert is_asked.wait(20)
        return connect()

    async def kill_early(query_id: str) -> bool:
        found = await kill(query_id)
        is_asked.set()
        return found

    pool.connect, pool.kill = connect_late, kill_early  # type: ignore[method-assign]
    endless = f"SELECT number FROM system.numbers{settings}"
    async with pool.use(one_shot=True) as session, session.stream(endless, scope=Scope(query_id="endless")):
        await asyncio.to_thread(is_taken.wait, 20)
    assert (await asyncio.wait_for(pool.query("SELECT 1"), 20)).text == "1\n"  # on the only thread
    await pool.close()


async def test_query_parameters_are_values_not_text(pool: ChdbPool) -> None:
    result = await pool.query("SELECT {x:String}, {y:Array(UInt8)}", params={"x": "it's", "y": "[1,2]"})
    assert result.text == "it\\'s\t[1,2]\n"


async def test_what_buffer_tables_hold_is_written_when_chdb_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    often = "1, 1000, 1000, 100000, 100000, 1000000000, 1000000000"
    pool = await ChdbPool.open(tmp_path / "data", max_running=1)
    for sql in (
        "CREATE TABLE t (a Int8, CONSTRAINT small CHECK a < 10) ENGINE = Log",
        f"CREATE TABLE second AS t ENGINE = Buffer(default, t, {often})",
        f"CREATE TABLE first AS t ENGINE = Buffer(default, second, {often})",
        f"CREATE TABLE broken (a Int8) ENGINE = Buffer(default, t, {often})",
        "INSERT INTO first VALUES (1)",
        "INSERT INTO second VALUES (2)",
        "INSERT INTO broken VALUES (100)",
    ):
        await pool.query(sql)
    assert (await pool.query("SELECT * FROM t")).text == ""
    await pool.close()
    assert "storage.buffer_lost table=default.broken" in caplog.text
    pool = await ChdbPool.open(tmp_path / "data", max_running=1)
    assert (await pool.query("SELECT a FROM t ORDER BY a")).text == "1\n2\n"
    await pool.close()


async def test_data_is_there_after_every_restart_and_nothing_else_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    for start in range(3):
        pool = await ChdbPool.open(directory)
        await pool.query("CREATE TABLE IF NOT EXISTS t (a UInt64) ENGINE = MergeTree ORDER BY a")
        await pool.query(f"INSERT INTO t VALUES ({start})")
        assert (await pool.query("SELECT count() FROM t")).text == f"{start + 1}\n"
        databases = await pool.query("SELECT name, engine FROM system.databases WHERE engine != 'Memory'")
        assert databases.text == "default\tAtomic\n"
        await pool.close()
    tables = [path for path in (directory / "store").glob("*/*") if any(path.glob("**/*.sql"))]
    assert len(tables) == 1
    assert len(list((directory / "store").glob("*/*"))) == 2


@pytest.mark.parametrize(
    "limits",
    [
        {"max_memory_usage": "1", "max_untracked_memory": "0"},
        {"max_execution_time": "0.000001"},
        {"max_ast_elements": "1"},
    ],
    ids=["memory", "time", "size"],
)
async def test_what_a_failed_select_had_written_is_in_no_later_result_whatever_the_session_may(
    pool: ChdbPool, limits: dict[str, str]
) -> None:
    lifted = ", ".join(f"{name} = {'10000' if name == 'max_ast_elements' else '0'}" for name in limits)
    async with pool.use(settings=limits) as session:
        with pytest.raises(SqlError, match="too far"):
            await session.query(
                "SELECT throwIf(number = 200000, 'too far') FROM numbers(300000) "
                f"SETTINGS max_threads = 1, max_block_size = 1000, {lifted}"
            )
        assert (await session.query(f"SELECT 'x' SETTINGS {lifted}")).data == b"x\n"


async def test_a_start_removes_what_an_earlier_process_had_in_scratch_tables(tmp_path: Path) -> None:
    left = tmp_path / "data" / "data" / SCRATCH_DATABASE / "distributed_0" / "1_1_1_0"
    left.mkdir(parents=True)
    pool = await ChdbPool.open(tmp_path / "data", max_running=2)
    assert not left.exists()
    await pool.close()
