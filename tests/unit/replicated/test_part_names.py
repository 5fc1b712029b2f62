"""`_part` in queries of replicated tables: the replicated names, and which queries are left alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from engine.config.model import User
from engine.names import TableName
from engine.node.replicated.parts.part_names import PartNames
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.statement import Asked
from engine.part_storage import ChdbPartStore
from engine.sql import parse_statement
from tests.unit.part_storage.support import TABLE, add, opened

CREATE = "CREATE TABLE t (k UInt64, v Array(UInt8)) ENGINE = ReplacingMergeTree PARTITION BY k % 2 ORDER BY k"
SHOWN = {
    "SELECT _part FROM t WHERE k = 0": "0_0_0_0",
    "SELECT k FROM t WHERE _part = '1_2_5_1_7'": "3",
    "SELECT `_part` AS p FROM default.t AS x FINAL PREWHERE x._part = '0_0_0_0' GROUP BY p": "0_0_0_0",
    "SELECT default.t._part, t._part, _part FROM t WHERE k = 3": "1_2_5_1_7\t1_2_5_1_7\t1_2_5_1_7",
    "WITH 3 AS three, one AS (SELECT 1) SELECT _part, three FROM t WHERE k = three": "1_2_5_1_7\t3",
    "SELECT count() FROM (SELECT _part, k FROM t) AS s WHERE s._part LIKE '1\\_2%'": "1",
    "SELECT k FROM t WHERE k IN (SELECT k FROM plain WHERE _part = 'all_1_1_0') AND _part > ''": "3",
    "SELECT _part FROM plain WHERE k IN (SELECT k FROM t WHERE _part = '1_2_5_1_7')": "all_1_1_0",
    "SELECT ((k + 1) * length(_part)) FROM t WHERE k = 3": "36",
    "SELECT * EXCEPT v, _part FROM t WHERE k = 0 UNION ALL SELECT 0, '0_0_0_0'": "0\t0_0_0_0\n0\t0_0_0_0",
    "SELECT trim(BOTH '0' FROM _part), e FROM t ARRAY JOIN v AS e WHERE k = 0": "_0_0_\t1\n_0_0_\t2",
    "SELECT toTypeName(_part) FROM t LIMIT 1": "LowCardinality(String)",
    "SELECT k AS _part FROM t WHERE k = 3": "3",
    "SELECT k _part FROM t WHERE k = 3": "3",
    "SELECT arrayMap(_part -> _part + 1, v) FROM t WHERE k = 0": "[2,3]",
    "SELECT '_part', _partition_id FROM t WHERE k = 3": "_part\t1",
}  # fmt: skip


def asked(sql: str) -> Asked:
    session = cast(Any, SimpleNamespace(settings={}, database="default"))
    return Asked(sql=sql, user=User("default"), session=session)


def named(store: ChdbPartStore, table: TableName = TABLE) -> PartNames:
    running = SimpleNamespace(store=store, ctx=SimpleNamespace(name=table))
    found = SimpleNamespace(find={table: running}.get)
    return PartNames(cast(ReplicatedTables, found))


async def test_queries_see_the_names_that_system_parts_has(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await pool.query("CREATE TABLE plain (k UInt64) ENGINE = MergeTree ORDER BY k")
        await pool.query("INSERT INTO plain VALUES (3)")
        await add(pool, store, "VALUES (3, [])", "1_2_5_1_7")
        await add(pool, store, "VALUES (0, [1, 2])", "0_0_0_0")
        names, seen = named(store), {}
        for sql in SHOWN:
            prepared = await names.prepare(asked(sql), parse_statement(sql))
            seen[sql] = (await pool.query(prepared.sql)).text.rstrip("\n")
        assert seen == SHOWN
        # What chDB rewrites by itself has no UUID.
        plan = await store.plan_alter("RENAME COLUMN v TO w")
        await store.apply_alter(plan.definition.columns, plan.definition.metadata, {"v": "w"})
        unnamed = await pool.query("SELECT count() FROM t WHERE toUInt128(_part_uuid) = 0")
        assert unnamed.text == "2\n"
        sql = "SELECT _part FROM t ORDER BY k"
        prepared = await names.prepare(asked(sql), parse_statement(sql))
        assert (await pool.query(prepared.sql)).text == "0_0_0_0\n1_2_5_1_7\n"


async def test_what_reads_more_than_one_table_or_another_one_is_left_as_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (_, store):
        for sql in (
            "SELECT _part FROM other",
            "SELECT a._part FROM t AS a JOIN t AS b USING k",
            "SELECT a._part FROM t AS a, plain AS b",
            "SELECT _part FROM merge('t')",
            "CREATE VIEW w AS SELECT _part FROM t",
        ):
            statement = asked(sql)
            assert await named(store).prepare(statement, parse_statement(sql)) is statement
