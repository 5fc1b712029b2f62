"""A throw-away chDB for rehearsals."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from engine.errors import ReplyLost, SqlError
from engine.storage.scratch import ScratchChdb

pytestmark = pytest.mark.slow


async def test_statements_run_and_nothing_is_left_behind() -> None:
    async with ScratchChdb(macros={"shard": "07"}) as scratch:
        await scratch.execute("CREATE DATABASE d")
        await scratch.execute("CREATE TABLE d.t (a UInt64, b Nullable(String)) ENGINE = MergeTree ORDER BY a")
        await scratch.execute("INSERT INTO d.t VALUES (1, NULL), (2, 'x\ty')")
        assert await scratch.query("SELECT count() FROM d.t") == "2\n"
        assert await scratch.rows("SELECT * FROM d.t ORDER BY a") == [["1", "ᴺᵁᴸᴸ"], ["2", "x\ty"]]
        assert await scratch.query("SELECT getMacro('shard')") == "07\n"
        directory = scratch._directory
        assert directory is not None
        assert directory.is_dir()
    assert not Path(directory).exists()


async def test_a_place_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk. It was said that a statement had killed chDB."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(file))
    with pytest.raises(SqlError, match=f"Cannot make a scratch chDB in {file}: Not a directory") as caught:
        async with ScratchChdb():
            pass
    assert "TMPDIR" in caught.value.hint


async def test_a_time_zone_that_chdb_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not load then. It was said that a statement had killed it."""
    monkeypatch.setenv("TZ", "Foo/Bar")
    with pytest.raises(SqlError, match="chDB does not start here: Cannot load time zone Foo/Bar") as caught:
        async with ScratchChdb():
            pass
    assert "TZ=Foo/Bar" in caught.value.hint


async def test_errors_have_their_codes_and_the_scratch_lives_on() -> None:
    async with ScratchChdb() as scratch:
        with pytest.raises(SqlError) as caught:
            await scratch.execute("SELECT * FROM nosuch")
        assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")
        with pytest.raises(SqlError) as caught:
            await scratch.validate("CREATE TABEL t")
        assert caught.value.code == 62
        on_cluster = "create table t on cluster c (a UInt8) engine=Memory"
        assert await scratch.validate(on_cluster) == "CREATE TABLE t ON CLUSTER c (`a` UInt8) ENGINE = Memory"


async def test_what_a_failed_statement_had_written_is_in_no_other_answer() -> None:
    async with ScratchChdb() as scratch:
        with pytest.raises(SqlError):
            await scratch.query(
                "SELECT number, throwIf(number = 70000) FROM numbers(90000) SETTINGS max_block_size = 1000"
            )
        assert await scratch.query("SELECT 1") == "1\n"


async def test_a_chdb_that_dies_is_told_from_a_statement_that_fails() -> None:
    async with ScratchChdb() as scratch:
        assert scratch._process is not None
        slow = asyncio.create_task(scratch.execute("SELECT sleep(3)"))
        await asyncio.sleep(0)  # the statement is sent
        scratch._process.kill()
        with pytest.raises(ReplyLost):
            await slow


async def test_nobody_gets_the_answer_of_a_question_that_was_given_up() -> None:
    async with ScratchChdb() as scratch:
        slow = asyncio.create_task(scratch.query("SELECT sleep(3), 'old'"))
        await asyncio.sleep(0)  # the statement is sent
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        with pytest.raises(ReplyLost):
            await scratch.query("SELECT 'new'")


async def test_statements_that_would_end_processes_are_refused() -> None:
    async with ScratchChdb() as scratch:
        for sql in ("SYSTEM SHUTDOWN", "SYSTEM KILL", "SELECT 1 INTO OUTFILE '/tmp/x'"):
            with pytest.raises(SqlError):
                await scratch.execute(sql)
        assert await scratch.query("SELECT 1") == "1\n"


async def test_a_table_may_name_as_many_free_entries_of_the_pool_as_on_a_server_and_no_more() -> None:
    """With a pool of four, definitions of real clusters were refused in rehearsals and on nodes."""
    table = "CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS {} = {}"
    async with ScratchChdb() as scratch:
        for what in ("lower_max_size_of_merge", "execute_mutation", "execute_optimize_entire_partition"):
            name = f"number_of_free_entries_in_pool_to_{what}"
            await scratch.execute(table.format(name, 32))
            await scratch.execute("DROP TABLE t")
            with pytest.raises(SqlError) as caught:
                await scratch.execute(table.format(name, 33))
            assert caught.value.code == 36
