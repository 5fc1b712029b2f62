"""merge() and tables of engine Merge over Distributed tables answer as over tables that hold all rows."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from engine.errors import Code, SqlError
from tests.few import few_first
from tests.unit.distributed.test_select_property import Query
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import EVENTS, HIDDEN, PEOPLE, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "40"))
MERGED = ["merge('^events')", "merge(currentDatabase(), '^events')", "all_events", "merge('^events$|^all_')"]
"""The last one has a row of the Distributed table twice."""


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    """Beside the Distributed table: one of chDB's own with other columns, and a view over both."""
    world = World(bench)
    world.make(columns={**EVENTS, **HIDDEN})
    world.make("people", table="people", columns=PEOPLE)
    for database, ask in (("one", bench.ask), ("d", world.ask)):
        ask(
            f"CREATE TABLE {database}.events_old (id UInt32, name String, city String, more Nullable(UInt8), "
            "price Decimal(14, 3), at DateTime('UTC')) ENGINE = MergeTree ORDER BY id"
        )
        ask(
            f"INSERT INTO {database}.events_old SELECT number + 1000, concat('n', toString(number % 5)), "
            "'Rome', nullIf(number % 3, 1), number / 8, 0 FROM numbers(20)"
        )
        seen = f"SELECT id, city, note FROM {database}.events WHERE id < 9"
        ask(f"CREATE VIEW {database}.events_seen AS {seen}")
        ask(f"CREATE TABLE {database}.all_events ENGINE = Merge('{database}', '^events')")
        few = f"Merge('{database}', '^events$|old$')"
        ask(f"CREATE TABLE {database}.few (id UInt64, price String) ENGINE = {few}")
        cities = f"SELECT city, count() AS c FROM {database}.all_events GROUP BY city"
        ask(f"CREATE VIEW {database}.over_merge AS {cities}")
    yield world
    for name in ("over_merge", "few", "all_events", "events_seen", "events_old"):
        bench.ask(f"DROP TABLE one.{name} SYNC")
    world.end()


@pytest.mark.parametrize("seed", few_first(range(SEEDS), few=13))
def test_a_random_query_answers_as_over_merged_tables_with_all_rows(world: World, seed: int) -> None:
    merged = random.Random(seed).choice(MERGED)
    sql = Query(seed).text().replace("PREWHERE", "WHERE").replace("FROM events", f"FROM {merged} AS events")
    sql = sql.replace("AS events AS e", "AS e")
    try:
        expected = world.bench.ask(sql)
    except SqlError:
        return  # Of several types one has no such function.
    assert world.ask(sql) == expected, sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT _table, count() FROM merge('^events') GROUP BY _table ORDER BY _table",
        "SELECT length(_database) > 0 AS b, _table, max(id) FROM all_events GROUP BY ALL ORDER BY ALL",
        "SELECT * FROM merge('^events') ORDER BY ALL LIMIT 7",
        "SELECT *, _table FROM merge('^events') WHERE id IN (7, 1003) ORDER BY ALL",
        "SELECT id, label, twice, _table FROM merge('^events') WHERE id IN (7, 1003) ORDER BY ALL",
        "SELECT count() FROM all_events WHERE _table = 'events_old'",
        "SELECT count() FROM all_events WHERE _table = 'events' AND city = 'Rome'",
        "SELECT id, price, toTypeName(price) FROM few ORDER BY id DESC LIMIT 30",
        "SELECT count(), sum(id) FROM merge('^events$|^people$')",
        "SELECT count() FROM merge('^people') FINAL",
        "SELECT city, c FROM over_merge ORDER BY city",
        "SELECT a._table, b.id FROM merge('^events') AS a JOIN people AS b ON a.id = b.id ORDER BY ALL",
        "SELECT id FROM people WHERE id IN (SELECT id FROM all_events) ORDER BY id",
        "SELECT id FROM people WHERE id IN (SELECT id FROM few) ORDER BY id",
        "SELECT more, count() FROM merge('^events') GROUP BY more WITH TOTALS ORDER BY more",
        "WITH q AS (SELECT id, _table t FROM few) SELECT a.t, id FROM q a JOIN q b USING id ORDER BY ALL",
    ],
)
def test_a_merged_table_answers_as_over_tables_with_all_rows(world: World, sql: str) -> None:
    assert world.ask(sql) == world.bench.ask(sql)


def test_members_may_be_in_many_databases(world: World) -> None:
    sql = "SELECT _database, _table, count() FROM merge(REGEXP('^(one|d)$'), '^few$|^people$') GROUP BY 1, 2"
    few, people = (
        world.bench.ask(f"SELECT count() FROM {name}").splitlines()[2] for name in ("few", "people")
    )
    expected = [
        f"{database}\t{table}\t{count}"
        for database in ("d", "one")
        for table, count in (("events", "300"), ("events_old", "20"), ("people", people))
    ]
    assert int(few) == 320
    assert world.ask(f"{sql} ORDER BY ALL").splitlines()[2:] == expected


def test_a_merged_table_is_read_in_two_phases_and_with_its_conditions(world: World) -> None:
    text = world.ask("EXPLAIN SYNTAX SELECT city, uniq(name) FROM all_events WHERE id > 5 GROUP BY city")
    assert "uniqMerge" in text
    assert text.count("uniqState") >= 4


def test_a_table_that_becomes_a_member_is_read(world: World) -> None:
    sql = "SELECT count() FROM merge('^late')"
    world.ask("CREATE TABLE late1 (id UInt64) ENGINE = MergeTree ORDER BY id")
    world.ask("INSERT INTO late1 VALUES (1)")
    assert world.ask(sql).endswith("\n1\n")
    world.ask("CREATE TABLE late2 (id UInt64) ENGINE = Distributed(c, '', events)")
    assert world.ask(sql).endswith("\n301\n")
    world.ask("DROP TABLE late2 SYNC")
    assert world.ask(sql).endswith("\n1\n")
    world.ask("DROP TABLE late1 SYNC")


def test_a_view_that_reads_itself_does_not_stop_others(world: World) -> None:
    world.ask("CREATE VIEW self_1 AS SELECT 1 AS one")
    world.ask("CREATE OR REPLACE VIEW self_1 AS SELECT count() AS one FROM merge('d', '^self')")
    with pytest.raises(SqlError):
        world.ask("SELECT * FROM self_1")
    assert world.ask("SELECT count() FROM events").endswith("\n300\n")
    world.ask("DROP TABLE self_1 SYNC")


@pytest.mark.parametrize(
    ("sql", "filters"),
    [
        ("SELECT _table, count(), sum(id) FROM all_events GROUP BY _table ORDER BY _table", "all_events"),
        ("SELECT id, price FROM all_events AS a WHERE city = 'Rome' ORDER BY ALL LIMIT 9", "a"),
        ("SELECT count() FROM merge('^events') AS m JOIN people AS p ON m.id = p.id", "m"),
        ("SELECT city, c FROM over_merge ORDER BY city", "all_events"),
    ],
)
def test_a_filter_is_that_of_all_members(world: World, sql: str, filters: str) -> None:
    filtering = f"{{'{filters}': 'id % 7 != 2 AND _table != \\'events_seen\\''}}"
    found = world.ask(sql, settings={"additional_table_filters": filtering})
    assert found == world.bench.ask(f"{sql} SETTINGS additional_table_filters = {filtering}")
    assert found != world.ask(sql)


def test_alias_columns_of_a_member_are_its_own(world: World) -> None:
    """Shards were asked for columns that they have not."""
    columns = "id UInt64, thrice UInt64 ALIAS id * 3"
    world.ask(f"CREATE TABLE own_1 ({columns}) ENGINE = Distributed(c, '', events)")
    world.ask(f"CREATE TABLE own_2 ({columns}) ENGINE = MergeTree ORDER BY id")
    world.ask("INSERT INTO own_2 VALUES (1000)")
    expected = world.bench.ask("SELECT sum(id) * 3 + 3000 FROM events").splitlines()[2]
    world.ask("CREATE TABLE of_own (id UInt64, thrice Float64) ENGINE = Merge('d', '^own')")
    for source in ("merge('^own')", "of_own"):
        assert world.ask(f"SELECT sum(thrice) FROM {source}").splitlines()[2] == expected
    for name in ("of_own", "own_2", "own_1"):
        world.ask(f"DROP TABLE {name} SYNC")


def test_what_cannot_be_merged_is_refused(world: World) -> None:
    refused = [
        ("SELECT count() FROM all_events", {"additional_table_filters": "{'events': 'id > 5'}"}),
        ("SELECT count() FROM all_events", {"distributed_group_by_no_merge": "1"}),
        ("CREATE TABLE written ENGINE = Merge('d', '^events', 'events')", {}),
    ]
    for sql, settings in refused:
        with pytest.raises(SqlError) as raised:
            world.ask(sql, settings=settings)
        assert raised.value.code == Code.NOT_IMPLEMENTED, sql
