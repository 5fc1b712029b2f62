"""A query over shards answers what the same query answers over one table that holds all rows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.distributed.select import RemoteSelect, ShardSource, SourceColumn, SourceTable, plan_select
from engine.distributed.select.making import make_template
from engine.distributed.select.model import union_all, virtual_columns
from engine.distributed.select.references import Reference, table_names
from engine.errors import SqlError
from engine.names import TableName
from engine.storage.chdb_pool import ChdbPool

pytestmark = pytest.mark.slow

SHARDS = 3
EVENTS = {
    "id": "UInt64",
    "name": "String",
    "city": "LowCardinality(String)",
    "price": "Decimal(12, 2)",
    "ratio": "Float64",
    "note": "Nullable(String)",
    "at": "DateTime('UTC')",
    "day": "Date",
    "tags": "Array(String)",
    "props": "Map(String, UInt32)",
    "pair": "Tuple(a Int32, b String)",
}
HIDDEN = {"twice": "UInt64 MATERIALIZED id * 2", "label": "String ALIAS concat(name, '!')"}
PEOPLE = {"id": "UInt64", "name": "String", "age": "Nullable(UInt8)"}


class DatabasesAsShards:
    """Each shard is a database of the same chDB."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.reads: list[RemoteSelect] = []

    async def table_expression(self, select: RemoteSelect, sources: Sequence[ShardSource] = ()) -> str:
        self.reads.append(select)
        parts = [select.sql(f"s{n}.{self._table}", shard_number=n) for n in range(1, SHARDS + 1)]
        return union_all(parts, [column for _, column in select.columns])


@dataclass
class Bench:
    pool: ChdbPool
    loop: asyncio.AbstractEventLoop
    tables: dict[str, Mapping[str, str]] = field(default_factory=lambda: {"events": EVENTS, "people": PEOPLE})
    """What is Distributed: columns and their types."""

    def ask(self, sql: str, database: str = "one") -> str:
        return self.loop.run_until_complete(
            self.pool.query(sql, format="TSVWithNamesAndTypes", database=database)
        ).text

    async def _describe(self, sql: str) -> list[tuple[str, str]]:
        rows = await self.pool.query(f"DESCRIBE ({sql})", format="TSV", database="one")
        return [
            (name.replace("\\'", "'"), type_.replace("\\'", "'"))
            for name, type_ in (line.split("\t")[:2] for line in rows.text.splitlines())
        ]

    async def _analyse(self, sql: str) -> str:
        try:
            return (await self.pool.query(sql, format="TSVRaw", database="one")).text
        except SqlError:
            return ""

    def distributed(self, sql: str) -> tuple[str, bool]:
        """The rewritten text, and whether it aggregates in two phases."""
        refs = []
        databases = {}
        for ref in table_names(sql):
            if ref.name.database not in ("", "one") or ref.name.table not in self.tables:
                continue
            columns = [SourceColumn(n, t) for n, t in self.tables[ref.name.table].items()]
            if ref.name.table == "events":
                columns += [SourceColumn(n, t.split()[0], is_hidden=True) for n, t in HIDDEN.items()]
            source = DatabasesAsShards(ref.name.table)
            table = SourceTable(columns, source, virtuals=virtual_columns(TableName("one", ref.name.table)))
            refs.append(Reference(ref.start, ref.end, ref.name.table, table))
            databases[ref.start] = TableName("one", ref.name.table)
        template = make_template(sql, refs, databases=databases)
        plan = self.loop.run_until_complete(plan_select(template, self._analyse, self._describe))
        text = plan.sql.replace("'one.", "").replace("`one.people`", "")  # strings, and an alias
        assert "one." not in text, plan.sql
        return plan.sql, plan.is_two_phase


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    path: Path = tmp_path_factory.mktemp("select") / "data"
    pool = loop.run_until_complete(ChdbPool.open(path, max_running=2))
    bench = Bench(pool, loop)
    for database in ("one", "s1", "s2", "s3"):
        bench.ask(f"CREATE DATABASE {database}", "default")
        columns = ", ".join(f"{n} {t}" for n, t in {**EVENTS, **HIDDEN}.items())
        bench.ask(f"CREATE TABLE events ({columns}) ENGINE = MergeTree ORDER BY id SAMPLE BY id", database)
        bench.ask(
            f"CREATE TABLE people ({', '.join(f'{n} {t}' for n, t in PEOPLE.items())}) "
            "ENGINE = ReplacingMergeTree ORDER BY id",
            database,
        )
    bench.ask(
        "INSERT INTO events SELECT number, concat('n', toString(number % 17)), "
        "['Rome', 'Oslo', 'Bonn', 'Kyiv'][number % 4 + 1], number * 1.25, number / 7, "
        "if(number % 5 = 0, NULL, concat('x', toString(number % 3))), "
        "toDateTime('2024-01-01 00:00:00', 'UTC') + number * 3600, toDate('2024-01-01') + number % 20, "
        "arrayMap(i -> concat('t', toString(i)), range(number % 4)), "
        "map('a', toUInt32(number), 'b', toUInt32(number % 3)), "
        "tuple(toInt32(number) - 50, toString(number % 2)) "
        "FROM numbers(300)"
    )
    bench.ask(
        "INSERT INTO people SELECT number * 3, concat('p', toString(number % 11)), "
        "nullIf(number % 90, 7) FROM numbers(120)"
    )
    for n in range(1, SHARDS + 1):
        for table in ("events", "people"):
            bench.ask(
                f"INSERT INTO s{n}.{table} SELECT * FROM one.{table} "
                f"WHERE cityHash64(id) % {SHARDS} = {n - 1}"
            )
    bench.ask("CREATE TABLE extra ENGINE = MergeTree ORDER BY id AS SELECT number * 2 AS id FROM numbers(30)")
    yield bench
    loop.run_until_complete(pool.close())
    other = loop.run_until_complete(ChdbPool.open(path.with_name("other")))  # so all of the first has ended
    loop.run_until_complete(other.close())
    loop.close()


TWO_PHASES = (Path(__file__).parent / "queries" / "two_phases.sql").read_text()
OTHERS = (Path(__file__).parent / "queries" / "others.sql").read_text()


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line]


def _over_one(sql: str) -> str:
    """The same question of one table: it has no `_shard_num`."""
    return sql.replace("_shard_num", "toUInt32(1 + cityHash64(id) % 3)")


@pytest.mark.parametrize("sql", _lines(TWO_PHASES))
def test_an_aggregation_in_two_phases_answers_as_one_table_does(bench: Bench, sql: str) -> None:
    text, is_two_phase = bench.distributed(sql)
    assert is_two_phase, text
    assert bench.ask(text) == bench.ask(_over_one(sql)), text


OF_SERVERS = """
SELECT S, count(), max(uptime()) >= 0 FROM events GROUP BY S ORDER BY S
SELECT S AS shard, hostName() = hostName() FROM events WHERE shard > 1 ORDER BY id LIMIT 3
SELECT *, S FROM events ORDER BY id LIMIT 3
SELECT concat('shard ', toString(S)), FQDN() != '', id FROM events WHERE S != 2 ORDER BY id LIMIT 5
SELECT count() FROM events PREWHERE S = 1
SELECT e.id, S FROM events AS e JOIN extra USING id ORDER BY id
SELECT p.id, S FROM events AS e JOIN people AS p ON e.id = p.id ORDER BY p.id, e.id
SELECT id FROM events WHERE id IN (SELECT S FROM people) ORDER BY id
SELECT s, count() FROM (SELECT S AS s FROM people) GROUP BY s ORDER BY s
SELECT * FROM (SELECT S AS s, id FROM people UNION ALL SELECT S AS s, id FROM events) ORDER BY ALL LIMIT 9
SELECT S, count() FROM people FINAL GROUP BY S WITH TOTALS ORDER BY S
SELECT id, row_number() OVER (PARTITION BY S ORDER BY id) AS n FROM events QUALIFY n = 2 ORDER BY id
"""
"""With the number of the shard as S, which a function says and a column."""


@pytest.mark.parametrize("sql", _lines(OF_SERVERS))
def test_what_a_server_says_of_itself_each_shard_says(bench: Bench, sql: str) -> None:
    by_function, by_column = (re.sub(r"\bS\b", name, sql) for name in ("shardNum()", "_shard_num"))
    answers = [bench.ask(bench.distributed(text)[0]).split("\n", 2)[2] for text in (by_function, by_column)]
    assert answers[0] == answers[1]


def test_around_a_subquery_over_shards_a_server_speaks_for_itself(bench: Bench) -> None:
    sql = "SELECT DISTINCT shardNum() FROM (SELECT shardNum() AS n FROM events WHERE n > 1)"
    assert bench.ask(bench.distributed(sql)[0]) == "shardNum()\nUInt32\n0\n"


@pytest.mark.parametrize("sql", _lines(OTHERS))
def test_any_other_query_answers_as_one_table_does(bench: Bench, sql: str) -> None:
    text, is_two_phase = bench.distributed(sql)
    assert not is_two_phase
    assert bench.ask(text) == bench.ask(_over_one(sql)), text


def test_sums_of_what_grew_between_rows_are_merged_by_their_times(bench: Bench) -> None:
    """Each shard has its own hours, the first one the last. Rows went one shard behind the other."""
    columns = {"at": "UInt32", "level": "Int32"}
    bench.tables["levels"] = columns
    for name in ("one", "s1", "s2", "s3"):
        text = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
        bench.ask(f"CREATE TABLE levels ({text}) ENGINE = MergeTree ORDER BY at", name)
    bench.ask("INSERT INTO levels SELECT number, cityHash64(number) % 100 FROM numbers(300)")
    for shard in (1, 2, 3):
        bench.ask(f"INSERT INTO s{shard}.levels SELECT * FROM one.levels WHERE intDiv(at, 100) = {3 - shard}")
    for sql in (
        "SELECT deltaSumTimestamp(level, at) FROM levels",
        "SELECT at % 2 AS k, deltaSumTimestamp(level, at) FROM levels GROUP BY k ORDER BY k",
        "SELECT deltaSumTimestampIf(level, at, at % 3 = 1) FROM levels WHERE at > 20",
    ):
        text, is_two_phase = bench.distributed(sql)
        assert is_two_phase
        assert bench.ask(text) == bench.ask(sql), text
    del bench.tables["levels"]
