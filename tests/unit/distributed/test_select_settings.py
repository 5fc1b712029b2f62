"""Settings in a statement over Distributed tables hold where ClickHouse lets them hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.errors import Code, SqlError
from engine.node.distributed.reading.settings_around import settings_around
from tests.few import each_in_turn
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import PEOPLE, SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    """`people` has every row twice, so that FINAL shows."""
    world = World(bench)
    for database in ("one", *(f"s{n}" for n in range(1, SHARDS + 1))):
        bench.ask(f"SYSTEM STOP MERGES {database}.people")
        bench.ask(
            f"INSERT INTO {database}.people SELECT id, concat(name, '2'), age + 1 FROM {database}.people"
        )
    world.make()
    world.make("people", table="people", columns=PEOPLE)
    yield world
    world.end()


SUBQUERIES = """
SELECT * FROM (SELECT count() c FROM people SETTINGS final = 1)
SELECT * FROM (SELECT count() c FROM people SETTINGS final = 1) a, (SELECT count() d FROM people) b
SELECT * FROM (SELECT * FROM (SELECT count() FROM people) SETTINGS final = 1)
SELECT * FROM (SELECT 1 c FROM people UNION ALL SELECT 2 FROM people SETTINGS final = 1) ORDER BY c
SELECT count() AS c FROM people UNION ALL SELECT count() FROM people SETTINGS final = 1
SELECT * FROM (SELECT 1 c FROM people SETTINGS final = 1 UNION ALL SELECT 2 FROM people) ORDER BY c
WITH q AS (SELECT count() AS c FROM people SETTINGS final = 1) SELECT * FROM q
SELECT count() FROM people WHERE id IN (SELECT id FROM people WHERE age = 3 SETTINGS final = 1)
SELECT * FROM (SELECT * EXCEPT (name) FROM people SETTINGS final = 1) ORDER BY id LIMIT 3
SELECT * FROM (SELECT count() FROM people WHERE id < (SELECT count() FROM people) SETTINGS final = 1)
SELECT count() FROM people WHERE id < (SELECT count() FROM people SETTINGS final = 1)
SELECT count() FROM people WHERE id < (SELECT count() FROM people) SETTINGS final = 1
SELECT * FROM (SELECT count() FROM events WHERE note IN (NULL, 'x1') SETTINGS transform_null_in = 1)
"""


@pytest.mark.parametrize("sql", SUBQUERIES.strip().splitlines())
def test_settings_of_a_subquery_hold_on_the_shards_of_its_tables(world: World, sql: str) -> None:
    """Rows of a UNION ALL come in any order."""
    for each in (sql, f"SELECT * FROM ({sql})"):
        assert sorted(world.ask(each).splitlines()) == sorted(world.bench.ask(each).splitlines())


OF_TARGETS = """
SELECT count(), sum(age) FROM fed FINAL
SELECT count(), sum(p.age) FROM fed AS p FINAL PREWHERE p.age % 2 = 0 WHERE id > 30
SELECT count(), sum(d.fed.age) FROM d.fed AS p PREWHERE fed.age % 2 = 0 WHERE p.id > 30
SELECT count(), max(name) FROM fed PREWHERE name LIKE '%2' WHERE id > 30
SELECT count(), sum(p.age) FROM events AS e JOIN fed AS p FINAL USING id PREWHERE p.age < 20
SELECT count() FROM people WHERE id IN (SELECT id FROM fed FINAL PREWHERE age = 5)
SELECT count(), sum(id) FROM fed SETTINGS final = 1
SELECT count(), sum(id) FROM around FINAL
"""


def test_a_materialized_view_is_read_with_what_is_for_its_target(world: World) -> None:
    for database in ("one", "d"):
        for sql in (
            "TABLE source (id UInt64, name String, age Nullable(UInt8)) ENGINE = Null",
            "MATERIALIZED VIEW fed TO people (age Nullable(UInt8), id UInt64, name String) AS FROM source",
            "VIEW around AS SELECT * FROM fed",
        ):
            world.bench.ask(f"CREATE {sql}", database)
    for sql in OF_TARGETS.strip().splitlines():
        assert world.ask(sql) == world.bench.ask(sql.replace("d.fed", "one.fed")), sql


def test_each_select_of_a_union_has_its_own_settings_and_the_last_ones_are_for_all() -> None:
    def final(sql: str) -> str:
        return settings_around(sql, sql.index("@"), {}).get("final", "")

    assert final("SELECT 1 FROM @ SETTINGS final = 1 UNION ALL SELECT 1 FROM t") == "1"
    assert final("SELECT * EXCEPT (a) FROM @ WHERE k IN (1) SETTINGS final = 1") == "1"
    assert final("SELECT 1 FROM t SETTINGS final = 1 EXCEPT SELECT 1 FROM @") == ""
    assert final("SELECT * FROM (SELECT 1 FROM t SETTINGS final = 1 UNION ALL (SELECT 1 FROM @))") == ""
    assert final("SELECT * FROM (SELECT 1 FROM @ SETTINGS final = 1, max_threads = 2)") == "1"
    zone = "SELECT * FROM (SELECT 1 FROM @ SETTINGS session_timezone = 'Japan')"
    assert settings_around(zone, zone.index("@"), {}) == {}


def test_what_cannot_hold_in_a_part_of_a_statement_is_refused_there(world: World) -> None:
    for setting in ("distributed_group_by_no_merge = 1", "distributed_product_mode = 'local'"):
        with pytest.raises(SqlError) as refused:
            world.ask(f"SELECT * FROM (SELECT count() FROM events SETTINGS {setting})")
        assert refused.value.code == Code.NOT_IMPLEMENTED
    usual = "SELECT * FROM (SELECT count() FROM @ SETTINGS distributed_group_by_no_merge = 0)"
    assert settings_around(usual, usual.index("@"), {}) == {"distributed_group_by_no_merge": "0"}
    with pytest.raises(SqlError):
        settings_around(usual, usual.index("@"), {"distributed_group_by_no_merge": "1"})


NULLS = """
SELECT count(), countIf(id > 5), sum(id), max(price), uniq(name) FROM events
SELECT count(), countIf(id > 5), sum(id), max(price), groupBitOr(id), avg(id) FROM events WHERE id > 100000
SELECT city, count() AS c, sumIf(id, id > 290) AS s, min(note) FROM events GROUP BY city ORDER BY city
SELECT city, count() FROM events GROUP BY city WITH TOTALS HAVING count() > 1 ORDER BY city
"""


@pytest.mark.parametrize("sql", NULLS.strip().splitlines())
def test_a_count_is_never_null(world: World, sql: str) -> None:
    sql += " SETTINGS aggregate_functions_null_for_empty = 1"
    assert world.ask(sql) == world.bench.ask(sql)


PREWHERE = """
SELECT id, name FROM people PREWHERE age % 3 = 0 ORDER BY id LIMIT 5
SELECT count(), max(age) FROM people PREWHERE age % 2 = 0
SELECT id FROM people PREWHERE name NOT LIKE '%2' WHERE age > 20 ORDER BY id
SELECT p.id, e.city FROM people p RIGHT JOIN events e ON p.id = e.id PREWHERE p.age % 2 = 0 ORDER BY e.id
SELECT * FROM (SELECT count() FROM people PREWHERE age % 2 = 0) WHERE 1
"""


@pytest.mark.parametrize("sql", PREWHERE.strip().splitlines())
def test_prewhere_takes_rows_away_before_the_setting_final_chooses_among_them(world: World, sql: str) -> None:
    settings = {"final": "1"}
    expected = world.bench.ask(f"{sql} SETTINGS final = 1")
    assert world.ask(sql, settings=settings) == expected
    behind = sql.replace(" WHERE age >", " AND age >").replace("PREWHERE", "WHERE")
    assert expected != world.bench.ask(f"{behind} SETTINGS final = 1")


JOINS = """
SELECT count(), sum(e.id), sum(p.id) FROM events AS e {} JOIN people AS p ON e.id = p.id PREWHERE e.id < 40
SELECT count(), max(people.id) FROM events {} JOIN people ON events.id = people.id PREWHERE id < 9
SELECT sum(age) FROM events e {} JOIN people FINAL AS p ON e.id = p.id PREWHERE id < 40 WHERE p.id > 9
SELECT count(), sum(p.age) FROM people p FINAL {} JOIN events AS e ON e.id = p.id PREWHERE age % 2 = 0
SELECT count(), sum(p.age) FROM one.extra {} JOIN people AS p ON extra.id = p.id PREWHERE extra.id < 20
SELECT count(), sum(e.id), sum(p.id) FROM events AS e {} JOIN people AS p ON e.id = p.id PREWHERE p.age > 20
SELECT count(), sum(e.id) FROM events AS e {} JOIN people AS p ON e.id = p.id PREWHERE age > 20 WHERE e.id > 9
SELECT count(), sum(p.id) FROM events AS e {} JOIN people FINAL AS p ON e.id = p.id PREWHERE p.age % 2 = 0
SELECT count(), sum(p.id) FROM one.extra {} JOIN people AS p ON extra.id = p.id PREWHERE people.age > 20
SELECT count() FROM events e {} JOIN people p ON e.id = p.id PREWHERE e.id IN (SELECT id FROM people)
SELECT count() FROM events {} JOIN people p USING id PREWHERE p.id IN (SELECT id FROM events PREWHERE id > 9)
"""


@pytest.mark.parametrize(
    ("sql", "kind"),
    each_in_turn(
        JOINS.replace("people FINAL AS p", "people AS p FINAL").strip().splitlines(),
        ["INNER", "LEFT", "RIGHT", "FULL"],
    ),
)
def test_prewhere_takes_rows_away_before_they_are_joined(world: World, sql: str, kind: str) -> None:
    assert world.ask(sql.format(kind)) == world.bench.ask(sql.format(kind))


def test_prewhere_before_array_join_and_in_many_joins(world: World) -> None:
    for sql in (
        "SELECT id, t FROM events ARRAY JOIN tags AS t PREWHERE id < 20 ORDER BY ALL",
        "SELECT 1 FROM events a FULL JOIN events b ON a.id = b.id + 1 PREWHERE a.id > 10 WHERE b.id < 9",
        "SELECT count() FROM (SELECT e.id FROM events e RIGHT JOIN people p USING id PREWHERE e.id < 7)",
        "SELECT 1 FROM events e, people p PREWHERE e.id IN (SELECT id FROM people) WHERE e.id = p.id",
    ):
        assert world.ask(sql) == world.bench.ask(sql)


def test_prewhere_with_final_in_what_is_used_twice(world: World) -> None:
    query = "WITH q AS (SELECT id, age FROM people FINAL PREWHERE {} WHERE id > 4) SELECT count() FROM q"
    for condition in ("age % 2 = 0", "name NOT LIKE '%2' AND age IS NOT NULL"):
        sql = f"{query.format(condition)} a JOIN q b USING id"
        assert world.ask(sql) == world.bench.ask(sql)
    with pytest.raises(SqlError) as refused:
        world.ask(f"{query.format('id IN (SELECT id FROM events)')} a JOIN q b USING id")
    assert refused.value.code == Code.NOT_IMPLEMENTED


def test_an_aggregation_of_no_rows_may_have_no_rows(world: World) -> None:
    for condition in ("id > 100000", "id > 10"):
        sql = f"SELECT count(), sum(id) FROM events WHERE {condition}"
        sql += " SETTINGS empty_result_for_aggregation_by_empty_set = 1"
        assert world.ask(sql) == world.bench.ask(sql)


SUSPICIOUS = "allow_suspicious_types_in_group_by = 1, allow_suspicious_types_in_order_by = 1"
MEANINGS = """
SELECT (id % 2)::Bool::String k FROM events GROUP BY k ORDER BY k SETTINGS bool_true_representation = 'ja'
SELECT max(id) FROM events WHERE (id % 2)::Bool::String = 'ja' SETTINGS bool_true_representation = 'ja'
SELECT max(toJSONString(id)) FROM events SETTINGS output_format_json_quote_64bit_integers = 1
SELECT formatRow('CSV', id, name) k FROM events GROUP BY k ORDER BY k SETTINGS format_csv_delimiter = ';'
SELECT max(formatRowNoNewline('CSV', id, name)) FROM events SETTINGS format_csv_delimiter = ';'
SELECT if(id < 9, name, id) k FROM events GROUP BY k ORDER BY ALL SETTINGS {suspicious}
SELECT (city, note) k FROM events GROUP BY k ORDER BY k SETTINGS enable_named_columns_in_function_tuple = 1
SELECT dateTrunc('month', at) k FROM events GROUP BY k SETTINGS function_date_trunc_return_type_behavior = 1
"""


@pytest.mark.parametrize("sql", MEANINGS.format(suspicious=SUSPICIOUS).strip().splitlines())
def test_a_setting_that_changes_what_an_expression_says_changes_it_for_the_rows_of_all_shards(
    world: World, sql: str
) -> None:
    assert world.ask(sql) == world.bench.ask(sql)


def test_tables_have_types_that_are_younger_than_what_compatibility_asks_for(world: World) -> None:
    text = "CREATE TABLE timed (id UInt64, t Time64(3)) ENGINE = "
    for database in ("one", "s1", "s2", "s3"):
        world.bench.ask(f"{text} MergeTree ORDER BY id", database)
        world.bench.ask("INSERT INTO timed SELECT number, toTime64(number, 3) FROM numbers(2)", database)
    world.ask(f"{text} Distributed(c, '', timed)")
    sql = "SELECT max(t) AS m FROM timed WHERE id > 0 SETTINGS compatibility = '24.3'"
    assert world.ask(sql) == world.bench.ask(sql)
    world.ask("DROP TABLE timed SYNC")


@pytest.mark.parametrize("kind", ["alias", "materialized"])
def test_an_asterisk_may_stand_for_hidden_columns_too(world: World, kind: str) -> None:
    world.ask(
        "CREATE TABLE shown (id UInt64, label String ALIAS concat(name, '!'), "
        "twice UInt64 MATERIALIZED id * 2, name String) ENGINE = Distributed(c, '', events)"
    )
    try:
        of_one = {"alias": "id, name, label", "materialized": "id, twice, name"}[kind]
        settings = {f"asterisk_include_{kind}_columns": "1"}
        answer = world.ask("SELECT * FROM shown ORDER BY id LIMIT 3", settings=settings)
        assert answer == world.bench.ask(f"SELECT {of_one} FROM events ORDER BY id LIMIT 3")
    finally:
        world.ask("DROP TABLE shown SYNC")


@pytest.mark.parametrize(
    ("name", "least", "code"),
    [
        ("max_ast_depth", 7, Code.TOO_DEEP_AST),
        ("max_ast_elements", 17, Code.TOO_BIG_AST),
        ("max_parser_depth", 15, Code.TOO_DEEP_RECURSION),
        ("max_parser_backtracks", 15, Code.TOO_SLOW_PARSING),
    ],
)
def test_limits_of_a_text_hold_for_the_client_s(world: World, name: str, least: int, code: Code) -> None:
    """What was made of it was refused; the client's, of one table, was within them."""
    sql = "SELECT age, count() FROM people GROUP BY age ORDER BY age LIMIT 2"
    enough, less = {name: str(least)}, {name: str(least - 1)}
    assert world.ask(sql, settings=enough) == world.ask(sql, profile=enough) == world.bench.ask(sql)
    with pytest.raises(SqlError) as raised:
        world.ask(sql, settings=less)
    assert raised.value.code == code


def test_names_of_the_node_s_own_need_not_be_strict(world: World) -> None:
    sql = "SELECT age, count() FROM people GROUP BY age ORDER BY age LIMIT 2"
    strict = {"enforce_strict_identifier_format": "1"}
    assert world.ask(sql, settings=strict) == world.bench.ask(sql)
    with pytest.raises(SqlError, match="contains characters other than alphanumeric") as raised:
        world.ask("SELECT age AS `my age` FROM people", settings=strict)
    assert raised.value.code == Code.BAD_ARGUMENTS
