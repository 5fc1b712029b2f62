"""Our HTTP client against a real server of 2018: results, errors, ON CLUSTER, inserts."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import NodeClient
from engine.errors import Code, NodeUnavailable, SqlError


async def test_rows_come_with_types_and_big_integers_as_integers(start_real) -> None:
    real = await start_real(1)
    async with NodeClient(real.first.spec.url) as client:
        found = await client.query_rows(
            "SELECT toUInt64(18446744073709551615) AS big, 'it\\'s' AS text, toDate('2026-01-02') AS day, "
            "CAST(NULL AS Nullable(Int64)) AS nothing"
        )
        version = await client.version()

    assert found.columns == (
        ("big", "UInt64"),
        ("text", "String"),
        ("day", "Date"),
        ("nothing", "Nullable(Int64)"),
    )
    assert found.rows == ((18446744073709551615, "it's", "2026-01-02", None),)
    assert version[:2] >= (18, 16)


async def test_an_old_servers_error_has_its_code_and_nothing_but_its_message(start_real) -> None:
    real = await start_real(1)
    async with NodeClient(real.first.spec.url) as client:
        with pytest.raises(SqlError) as missing:
            await client.query_text("SELECT * FROM nobody")
        with pytest.raises(SqlError) as broken:
            await client.query_text("SELEC 1")

    assert missing.value.code == Code.UNKNOWN_TABLE
    assert missing.value.message == "Table default.nobody doesn't exist."
    assert broken.value.code == Code.SYNTAX_ERROR


async def test_a_statement_on_cluster_answers_a_row_for_each_host(start_real) -> None:
    real = await start_real(2)
    async with NodeClient(real.first.spec.url) as client:
        answer = await client.command("CREATE DATABASE d ON CLUSTER all", token="ignored-by-18.16")
        with pytest.raises(SqlError) as failed:
            await client.command("CREATE DATABASE d ON CLUSTER all")

    assert len(answer.splitlines()) == 2
    assert failed.value.code == Code.DATABASE_ALREADY_EXISTS
    assert "There was an error on [127.0.0.1:" in failed.value.message


async def test_an_insert_is_streamed(start_real) -> None:
    real = await start_real(1)
    await real.first.query("CREATE TABLE t (a UInt64, b String) ENGINE = Memory")

    async def rows():
        for i in range(1000):
            yield f"{i}\trow {i}\n".encode()

    async with NodeClient(real.first.spec.url) as client:
        await client.insert("t", rows(), format="TabSeparated", columns=("a", "b"))
        found = await client.query_rows("SELECT count() AS c, sum(a) AS s FROM t")

    assert found.dicts() == [{"c": 1000, "s": 499500}]


async def test_a_server_that_is_down_is_unavailable_and_is_found_again_when_it_is_back(start_real) -> None:
    real = await start_real(1)
    async with NodeClient(real.first.spec.url, retries=100, retry_pause_s=0.01) as patient:
        async with NodeClient(real.first.spec.url) as client:
            await client.ping()
            await real.first.stop()
            with pytest.raises(NodeUnavailable):
                await client.ping()
        waiting = asyncio.create_task(patient.query_text("SELECT 1"))
        await real.first.start()
        assert await waiting == "1\n"
