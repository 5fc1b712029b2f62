"""An INSERT's rows on their way through a stage, in memory and on disk, with chDB."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from engine.config.model import User
from engine.distributed.definition import DistributedDefinition
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.registry.tables import Column, DistributedTable
from engine.node.distributed.sending.insert_rows import (
    RowsBehind,
    RowsOfText,
    for_memory,
    may_be_staged_in_memory,
)
from engine.node.distributed.sending.memory_stage import (
    MAX_BODY_BYTES,
    MEMORY_BYTES,
    MemoryStages,
    TooMuchForMemory,
)
from engine.node.distributed.sending.stage import Stage, Stages
from engine.node.statements.statement import Asked
from engine.storage import ChdbPool, QueryResult
from engine.storage.statement_text import InsertText

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE default.d (`k` UInt64, `v` String DEFAULT 'x') ENGINE = Null"
TABLE = DistributedTable(
    UUID(int=1),
    TableName("default", "d"),
    DistributedDefinition(cluster="c", database="default", table="t", sharding_key="k"),
    CREATE,
    (Column("k", "UInt64"), Column("v", "String", "DEFAULT")),
)
OWNER = "toUInt32(k % 3)"
HEAD = InsertText("INSERT INTO d", "TSV", 0)


class Staging:
    """Both kinds of stages over one chDB."""

    def __init__(self, pool: ChdbPool) -> None:
        self.pool = pool
        self.disk = Stages(pool, SystemEnv())
        self.memory = MemoryStages(self.disk)

    def asked(self, **settings: str) -> Asked:
        return Asked("", User("default"), self.pool.session(one_shot=True), settings=settings)

    def behind(self, chunks: Sequence[bytes]) -> RowsBehind:
        return RowsBehind(HEAD, given(chunks), no_input, self.memory)

    async def on_disk(self, rows: RowsBehind) -> list[tuple[int, int, bytes]]:
        async with self.disk.open(TABLE, OWNER) as stage:
            await rows.write(self.asked(), f"INSERT INTO {stage.table.quoted}")
            return await found_in(stage)

    async def in_memory(self, rows: RowsBehind, **settings: str) -> list[tuple[int, int, bytes]]:
        async with self.memory.open(TABLE, OWNER, shards=3) as stage:
            asked = for_memory(self.asked(), settings)
            stage.written = await rows.write_small(asked, f"INSERT INTO {stage.table.quoted}")
            return await found_in(stage)


async def given(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def no_input(asked: Asked, insert: InsertText, rows: AsyncIterator[bytes]) -> QueryResult:
    raise AssertionError("no input() here")


async def found_in(stage: Stage) -> list[tuple[int, int, bytes]]:
    return [
        (part.shard, part.rows, b"".join([chunk async for chunk in stage.rows(part)]))
        for part in await stage.parts()
    ]


@asynccontextmanager
async def staging(path: Path) -> AsyncIterator[Staging]:
    pool = await ChdbPool.open(path)
    staging = Staging(pool)
    try:
        await pool.query(CREATE)
        yield staging
    finally:
        await staging.disk.close()
        await staging.memory.close()
        await pool.close()


def rows_of(count: int, step: int = 1) -> list[bytes]:
    return [b"%d\tv%d\n" % (n * step, n) for n in range(count)]


async def test_memory_and_disk_cut_the_same_rows_into_the_same_blocks(tmp_path: Path) -> None:
    async with staging(tmp_path) as both:
        for rows in (rows_of(1), rows_of(2), rows_of(10, step=3), rows_of(20_000), []):
            disk = await both.on_disk(both.behind(rows))
            assert await both.in_memory(both.behind(rows)) == disk
            assert sum(count for _, count, _ in disk) == len(rows)
            assert [shard for shard, _, _ in disk] == sorted({int(row.split(b"\t")[0]) % 3 for row in rows})


async def test_what_does_not_fit_goes_to_disk_from_its_first_row(tmp_path: Path) -> None:
    async with staging(tmp_path) as both:
        rows = rows_of(1000)
        expected = await both.on_disk(both.behind(rows))
        body = both.behind(rows)
        both.memory.free_bytes = 100  # the others have the rest
        with pytest.raises(TooMuchForMemory):
            await both.in_memory(body)
        assert await both.on_disk(body) == expected
        body.close()
        assert both.memory.free_bytes == 100
        both.memory.free_bytes = MEMORY_BYTES
        large = both.behind([b"1\t" + b"x" * (MAX_BODY_BYTES // 2) + b"\n"] * 3)
        with pytest.raises(TooMuchForMemory):
            await both.in_memory(large)
        [(_, count, data)] = await both.on_disk(large)
        assert (count, len(data) > 3 * MAX_BODY_BYTES // 2) == (3, True)
        assert both.memory.free_bytes == MEMORY_BYTES


async def test_rows_that_become_too_large_in_memory_go_to_disk(tmp_path: Path) -> None:
    async with staging(tmp_path) as both:
        body = both.behind([b"%d\t%s\n" % (n, b"x" * 1000) for n in range(20_000)])
        with pytest.raises(TooMuchForMemory):
            await both.in_memory(body, max_memory_usage="1000000")
        assert sum(count for _, count, _ in await both.on_disk(body)) == 20_000
        values = "INSERT INTO d VALUES " + ", ".join(f"({n}, '{'x' * 1000}')" for n in range(10_000))
        settings = {"max_memory_usage": "1000000", "max_query_size": "100000000"}
        asked = for_memory(both.asked(max_query_size="100000000"), settings)
        async with both.memory.open(TABLE, OWNER, shards=3) as stage:
            with pytest.raises(TooMuchForMemory):
                await RowsOfText(values).write_small(asked, values.replace("d", stage.table.quoted, 1))


async def test_rows_that_are_wrong_are_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    async with staging(tmp_path) as both:
        body = both.behind([b"1\ta\n", b"no number\tb\n"])
        with pytest.raises(SqlError) as refused:
            await both.in_memory(body)
        assert refused.value.code != Code.MEMORY_LIMIT_EXCEEDED
        body.close()
        assert both.memory.free_bytes == MEMORY_BYTES


async def test_a_stage_serves_the_next_insert_only_when_the_last_has_ended_well(tmp_path: Path) -> None:
    async with staging(tmp_path) as both:

        async def tables() -> list[str]:
            await both.disk.close()  # what is done behind the answers
            shown = await both.pool.query("SHOW TABLES FROM `_oncluster`", format="TSVRaw")
            return shown.text.split()

        assert await both.in_memory(both.behind(rows_of(5)))
        [first] = await tables()
        for count in (1, 3):
            assert sum(rows for _, rows, _ in await both.in_memory(both.behind(rows_of(count)))) == count
            assert await tables() == [first]
        with pytest.raises(SqlError):
            await both.in_memory(both.behind([b"1\ta\n", b"no number\tb\n"]))
        assert await tables() == []
        both.memory.free_bytes = 0
        with pytest.raises(TooMuchForMemory):
            await both.in_memory(both.behind(rows_of(2)))
        assert await tables() == []
        both.memory.free_bytes = MEMORY_BYTES
        assert await both.in_memory(both.behind(rows_of(2)))
        other = replace(TABLE, create_query=CREATE.replace("'x'", "'y'"))
        async with both.memory.open(other, OWNER, shards=3) as stage:
            assert len(await tables()) == 2
            stage.written = await both.behind([b"7\n"]).write_small(
                both.asked(input_format_defaults_for_omitted_fields="1"),
                f"INSERT INTO {stage.table.quoted} (k)",
            )
            [(_, rows, data)] = await found_in(stage)
            assert (rows, data[-2:]) == (1, b"\x01y")
        assert len(await tables()) == 2
        await both.memory.close()
        assert await tables() == []


def test_only_rows_that_are_at_hand_and_cut_as_usual_are_staged_in_memory() -> None:
    assert RowsOfText("INSERT INTO d VALUES (1, 'a')").may_fit
    assert not RowsOfText("INSERT INTO d SELECT 1, 'a'").may_fit
    assert not RowsOfText(
        "INSERT INTO d SELECT k, v FROM input('k UInt64, v String') FORMAT TSV 1\ta"
    ).may_fit
    assert may_be_staged_in_memory({"max_threads": "1"})
    assert not may_be_staged_in_memory({"min_insert_block_size_rows": "1"})
