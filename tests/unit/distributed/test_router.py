"""What the router tells those who remember definitions."""

from __future__ import annotations

from pathlib import Path

from engine.config.model import User
from engine.node.router import StatementRouter
from engine.node.statement import Asked
from engine.node.system_tables import SystemTables
from engine.sql import Statement
from engine.storage import ChdbPool


class Remembers:
    """Of the node's replicated tables: that definitions may have changed."""

    def __init__(self) -> None:
        self.changes = 0

    async def run(self, asked: Asked, statement: Statement) -> None:
        return None

    async def prepare_read(self, asked: Asked, statement: Statement) -> Asked:
        return asked

    def changed(self) -> None:
        self.changes += 1


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
