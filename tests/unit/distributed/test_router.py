"""What the router tells those who remember definitions, and what becomes of a name meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from engine.config.model import User
from engine.errors import SqlError
from engine.names import TableName
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTables
from engine.sql import Statement
from engine.storage import ChdbPool
from engine.storage.statement_text import InsertText


class Remembers:
    """Of the node's replicated tables: that definitions may have changed."""

    def __init__(self) -> None:
        self.changes = 0

    async def run(self, asked: Asked, statement: Statement) -> None:
        return None

    async def prepare_read(self, asked: Asked, statement: Statement) -> Asked:
        return asked

    def written_by_chdb(self, asked: Asked, statement: Statement) -> AbstractAsyncContextManager[None]:
        """None of its tables is replicated."""
        return nullcontext()

    def changed(self) -> None:
        self.changes += 1


class Creating(Remembers):
    """Those of a node where a replicated table `t` is being made: it is recorded when an INSERT has been
    found to concern none, and before or behind chDB's part of it."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__()
        self._is_late = is_late
        self.tables = ReplicatedTables()

    def _record(self) -> None:
        self.tables.recorded = lambda: [TableName("default", "t")]

    async def insert(self, asked: Asked, *_: object) -> None:
        return None

    @asynccontextmanager
    async def written_by_chdb(self, asked: Asked, statement: Statement) -> AsyncIterator[None]:
        if not self._is_late:
            self._record()
        with self.tables.written_by_chdb(statement.tables[0].within(asked.current_database)):
            yield
            self._record()


async def nowhere(asked: Asked, statement: Statement) -> object:
    raise AssertionError(asked.sql)


STATEMENTS = {
    "CREATE VIEW w AS SELECT 1 AS k": 1,
    "ALTER TABLE t ADD COLUMN n UInt8": 1,
    "INSERT INTO t (k) SELECT 1": 0,
    "INSERT INTO t (k) VALUES (1)": 0,
    "SET max_threads = 1": 0,
    "USE system": 0,
    "SELECT 1": 0,
}


async def test_an_insert_changes_no_definition(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path)
    try:
        await pool.query("CREATE TABLE t (k UInt8) ENGINE = Memory")
        remembers = Remembers()
        router = StatementRouter(
            tables=SystemTables([]),
            run_on_cluster=nowhere,  # type: ignore[arg-type]
            replicated=remembers,  # type: ignore[arg-type]
        )
        for sql, changes in STATEMENTS.items():
            remembers.changes = 0
            asked = Asked(sql, User("u"), pool.session(one_shot=True))
            async with router.run(asked) as answer:
                while await answer.read():
                    pass
                await answer.finish()
            assert remembers.changes == changes, sql
    finally:
        await pool.close()


async def rows() -> AsyncIterator[bytes]:
    yield b"3\n"


@pytest.mark.parametrize(("is_late", "count"), [(False, "0\n"), (True, "1\n")])
@pytest.mark.parametrize("form", ["values", "select", "stream"])
async def test_an_insert_whose_table_became_a_replicated_one_is_not_acknowledged(
    tmp_path: Path, form: str, is_late: bool, count: str
) -> None:
    """1. An INSERT into a table that is not there is chDB's. 2. A replicated table of that name is being
    made. 3. If that is before chDB has the INSERT it never gets it."""
    pool = await ChdbPool.open(tmp_path)
    try:
        await pool.query("CREATE TABLE t (k UInt8) ENGINE = Memory")
        router = StatementRouter(
            tables=SystemTables([]),
            run_on_cluster=nowhere,  # type: ignore[arg-type]
            replicated=Creating(is_late=is_late),  # type: ignore[arg-type]
        )
        head = "INSERT INTO t"
        sql = {"values": f"{head} VALUES (1)", "select": f"{head} SELECT 2", "stream": f"{head} FORMAT CSV"}
        asked = Asked(sql[form], User("u"), pool.session(one_shot=True))
        with pytest.raises(SqlError, match="was not there when the INSERT began") as refused:
            if form == "stream":
                await router.insert(asked, InsertText(head, "CSV", 0), rows())
            else:
                async with router.run(asked):
                    raise AssertionError("it was acknowledged")
        assert refused.value.code == 60
        assert (await pool.query("SELECT count() FROM t", format="TSV")).text == count
    finally:
        await pool.close()
