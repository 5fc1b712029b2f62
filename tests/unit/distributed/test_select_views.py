"""Views over Distributed tables: virtual columns and sets are as they are of a view over one table."""

from __future__ import annotations

import pytest

from engine.errors import Code, SqlError
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import PEOPLE, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench", "world"]

VIEWS = {
    "seen": "SELECT id, price FROM events",
    "late": "SELECT * FROM seen WHERE id > 5",
    "few": "SELECT id FROM events WHERE id < 10",
    "named": "SELECT id, 'x' AS _table FROM events",
}
VIRTUALS = """
SELECT _table, count() FROM seen GROUP BY _table
SELECT _table, id FROM late ORDER BY id LIMIT 1
SELECT *, _table FROM seen ORDER BY id LIMIT 1
SELECT * FROM late WHERE _table = 'late' ORDER BY id LIMIT 2
SELECT count() FROM seen WHERE _table = 'events'
SELECT x.id, x._table, length(_database) > 0 FROM seen AS x ORDER BY id LIMIT 1
SELECT seen.*, seen._table FROM seen ORDER BY id LIMIT 1
SELECT a._table, b._table, e._table FROM seen a JOIN late b USING id JOIN events e USING id LIMIT 1
SELECT * EXCEPT (price), _table FROM seen ORDER BY id LIMIT 1
SELECT _table, id FROM (SELECT *, _table FROM seen UNION ALL SELECT *, _table FROM late) ORDER BY ALL LIMIT 2
WITH w AS (SELECT *, _table FROM seen) SELECT * FROM w ORDER BY id LIMIT 1
SELECT _table, * FROM named ORDER BY id LIMIT 1
SELECT count() FROM events WHERE id IN few AND _table = 'events'
"""
SETS = """
SELECT count() FROM events WHERE id IN few AND id > 3
SELECT count() FROM events WHERE id NOT IN few OR id = 1
SELECT id IN few AS x, count() FROM events GROUP BY x ORDER BY x
"""
READ_WITH = """
SELECT count(), any(id > 0) FROM seen FINAL
SELECT x.id FROM late AS x FINAL SAMPLE 1/2 OFFSET 1/10 WHERE x.id < 20 ORDER BY x.id
SELECT count() FROM seen SAMPLE 1/4 JOIN few FINAL USING id
SELECT count() FROM upto(most = 9) FINAL WHERE id IN (SELECT id FROM few SAMPLE 1/3)
"""
SIDES = """
SELECT sum(a.id), sum(n) FROM {one} PASTE JOIN (SELECT number n FROM numbers(9)) b
SELECT * FROM {one} PASTE JOIN (SELECT id y FROM events ORDER BY id DESC) b ORDER BY id
SELECT max(a.id - y) FROM {one} PASTE JOIN (SELECT id y FROM events ORDER BY id) b
"""
ONE = "(SELECT id FROM seen ORDER BY id) AS a"


OWN_NAMES = """
SELECT id, (SELECT count() FROM events AS x WHERE x.id = events.id) AS c FROM events ORDER BY id LIMIT 3
SELECT count() FROM events WHERE EXISTS (SELECT 1 FROM events AS x WHERE x.id = events.id + 1)
SELECT id FROM seen WHERE id IN (SELECT x.id FROM seen AS x WHERE seen.price < 9) ORDER BY id
SELECT id, (SELECT count() FROM late x WHERE x.id = late.id) AS c FROM late ORDER BY id LIMIT 3
SELECT events.id FROM events a WHERE a.id IN (SELECT events.id FROM events b WHERE events.id < 3) ORDER BY 1
"""
ALIASES = """
SELECT count(), sum(b.price) FROM events AS people JOIN people AS b ON people.id = b.id
SELECT count(), sum(b.id) FROM people AS b, seen people WHERE people.id = b.id
SELECT count(), max(b.id) FROM (SELECT id FROM events) people SEMI JOIN people b USING id
SELECT count(), max(b.number) FROM numbers(3) people JOIN people b USING number
SELECT count() FROM events AS people JOIN few AS b USING id WHERE people.id IN (SELECT id FROM people)
SELECT count() FROM events AS people WHERE id IN (SELECT id FROM people) OR id IN (SELECT id FROM one.people)
SELECT id AS people, age FROM people ORDER BY id LIMIT 3
"""


def make_views(world: World, bench: Bench) -> None:
    for name, select in VIEWS.items():
        world.ask(f"CREATE VIEW {name} AS {select}")
        bench.ask(f"CREATE OR REPLACE VIEW {name} AS {select}")


def test_a_view_has_virtual_columns_of_its_own(world: World, bench: Bench) -> None:
    make_views(world, bench)
    for sql in VIRTUALS.strip().splitlines():
        assert world.ask(sql) == bench.ask(sql), sql


def test_a_view_may_be_a_set_in_any_place_of_a_condition(world: World, bench: Bench) -> None:
    make_views(world, bench)
    for sql in SETS.strip().splitlines():
        assert world.ask(sql) == bench.ask(sql), sql


def test_a_table_keeps_its_own_name_beside_an_alias(world: World, bench: Bench) -> None:
    """Not that of the SELECT around it."""
    make_views(world, bench)
    for sql in OWN_NAMES.strip().splitlines():
        assert world.ask(sql) == bench.ask(sql), sql


def test_an_alias_in_from_is_read_and_not_the_table_of_its_name(world: World, bench: Bench) -> None:
    make_views(world, bench)
    world.make("people", table="people", columns=PEOPLE)
    for sql in ALIASES.strip().splitlines():
        assert world.ask(sql) == bench.ask(sql), sql


def test_view_around_a_select_sees_no_common_table_expression(world: World, bench: Bench) -> None:
    make_views(world, bench)
    for view in ("events", "seen", "(SELECT id FROM events WHERE id IN (SELECT id FROM late))"):
        for name in ("events", "seen", "late"):
            ctes = f"WITH {name} AS (SELECT 1 AS id)"
            sql = f"{ctes} SELECT count() FROM {name} AS a, view(SELECT * FROM {view}) AS b"
            assert world.ask(sql) == bench.ask(sql), sql


def test_tables_that_have_each_others_names_as_aliases_are_refused(world: World) -> None:
    world.make("people", table="people", columns=PEOPLE)
    with pytest.raises(SqlError) as refused:
        world.ask("SELECT count() FROM events AS people JOIN people AS events ON people.id = events.id")
    assert refused.value.code == Code.NOT_IMPLEMENTED


def test_final_and_sample_behind_a_view_mean_nothing(world: World, bench: Bench) -> None:
    make_views(world, bench)
    world.ask("CREATE VIEW upto AS SELECT id FROM events WHERE id < {most:UInt64}")
    bench.ask("CREATE OR REPLACE VIEW upto AS SELECT id FROM events WHERE id < {most:UInt64}")
    for sql in READ_WITH.strip().splitlines():
        assert world.ask(sql) == bench.ask(sql), sql


def test_a_view_with_parameters_may_be_read_by_other_views(world: World, bench: Bench) -> None:
    """chDB keeps the name with its database as one word: `one.under`(…)."""
    for name, select in {
        "under": "SELECT id, price FROM events WHERE id < {most:UInt64}",
        "at_nine": "SELECT id FROM under(most = 9)",
        "between": "SELECT id FROM {database}.under(most = {high:UInt64} + 1) WHERE id > {low:UInt64}",
        "at_last": "SELECT * FROM {database}.between(low = 3, high = 7) UNION ALL SELECT * FROM at_nine",
    }.items():
        world.ask(f"CREATE VIEW {name} AS {select.replace('{database}', 'd')}")
        bench.ask(f"CREATE OR REPLACE VIEW {name} AS {select.replace('{database}', 'one')}")
    for sql in (
        "SELECT count(), sum(id) FROM at_nine",
        "SELECT id FROM between(low = 2, high = 6) ORDER BY id",
        "SELECT id FROM at_last AS a JOIN between(low = 0, high = 5) AS b USING id ORDER BY id",
    ):
        assert world.ask(sql) == bench.ask(sql), sql


DESCRIBED = """
SELECT id, price FROM events PREWHERE id < 20 WHERE price > 3
SELECT e.id, p.name FROM events AS e JOIN people AS p ON e.id = p.id PREWHERE city = 'Rome' OR e.id < 9
SELECT max(city) FROM (SELECT * FROM events PREWHERE id IN (SELECT id FROM events PREWHERE id > 9))
SELECT x, id FROM events PREWHERE (id + 1 AS x) < 30
WITH q AS (SELECT id FROM events PREWHERE id < 7) SELECT * FROM q JOIN people USING id PREWHERE age > 3
SELECT *, _partition_id AS p, _table FROM people AS e FINAL WHERE id < 9
SELECT _sample_factor, hostName() = '' AS h, count() AS c FROM events SAMPLE 1/2 GROUP BY ALL
"""


def test_a_view_may_have_prewhere_and_virtual_columns_and_be_described(world: World, bench: Bench) -> None:
    """chDB finds out the columns of what it makes a view of, or describes, and knows neither there."""
    world.make("people", table="people", columns=PEOPLE)
    for number, select in enumerate(DESCRIBED.strip().splitlines()):
        world.ask(f"CREATE OR REPLACE VIEW pre{number} AS {select} COMMENT 'with PREWHERE'")
        bench.ask(f"CREATE OR REPLACE VIEW pre{number} AS {select}")
        for sql in (
            f"SELECT * FROM pre{number} ORDER BY ALL",
            f"DESCRIBE ({select})",
            f"DESCRIBE pre{number}",
        ):
            assert world.ask(sql) == bench.ask(sql), sql
        kept = (
            f"SELECT as_select FROM system.tables WHERE database = currentDatabase() AND name = 'pre{number}'"
        )
        assert world.ask(kept) == bench.ask(kept).replace("one.", "d.")
    few = "(id String) AS SELECT id FROM events PREWHERE id < 3"
    world.ask(f"CREATE VIEW few_pre {few}")
    bench.ask(f"CREATE OR REPLACE VIEW few_pre {few}")
    assert world.ask("SELECT * FROM few_pre ORDER BY id") == bench.ask("SELECT * FROM few_pre ORDER BY id")


def test_the_sides_of_a_paste_join_have_the_order_that_they_ask_for(world: World, bench: Bench) -> None:
    """chDB dropped it, and so the rows stood shard behind shard."""
    make_views(world, bench)
    for sql in SIDES.format(one=ONE).strip().splitlines():
        expected = bench.ask(f"{sql} SETTINGS query_plan_remove_redundant_sorting = 0")
        assert world.ask(sql) == expected, sql


def test_a_view_has_the_types_that_it_declares(world: World, bench: Bench) -> None:
    """They were those of its SELECT."""
    columns = (
        "(name FixedString(5), total Float64, s AggregateFunction(sum, UInt64), n LowCardinality(UInt8))"
    )
    select = "SELECT name, sum(price) AS total, sumState(id) AS s, count() AS n FROM events GROUP BY name"
    allowed = "SETTINGS allow_suspicious_low_cardinality_types = 1"
    world.ask(f"CREATE VIEW typed {columns} AS {select} {allowed}")
    bench.ask(f"CREATE OR REPLACE VIEW typed {columns} AS {select} {allowed}")
    for sql in (
        "SELECT name, total, finalizeAggregation(s), n FROM typed ORDER BY name",
        "SELECT sum(total / 7), sumMerge(s), toTypeName(any(name)) FROM typed",
        "SELECT toTypeName(*) FROM (SELECT total FROM typed AS x) LIMIT 1",
    ):
        assert world.ask(sql) == bench.ask(sql), sql
