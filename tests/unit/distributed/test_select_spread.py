"""distributed_group_by_no_merge and distributed_product_mode: each shard's own answers, put together.

The oracle reads the tables of the shards one by one, and knows nothing of plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import Code, SqlError
from tests.few import each_in_turn
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import PEOPLE, SHARDS, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

QUERIES = Path(__file__).parent / "queries"


@pytest.fixture(scope="module")
def world(bench: object) -> Iterator[World]:
    world = World(bench)  # type: ignore[arg-type]
    world.make()
    world.make("people", table="people", columns=PEOPLE)
    world.bench.ask(
        "CREATE DICTIONARY words (id UInt64, word String) PRIMARY KEY id LAYOUT(FLAT()) LIFETIME(0) SOURCE("
        "CLICKHOUSE(QUERY 'SELECT number, ''w'' || toString(number) FROM numbers(2)'))",
        "default",
    )
    yield world
    world.bench.ask("DROP DICTIONARY words", "default")
    world.end()


def rows(answer: str) -> list[str]:
    """Sorted, behind names and types."""
    head, types, *rest = answer.splitlines()
    return [head, types, *sorted(rest)]


def by_shard(world: World, sql: str) -> list[str]:
    """Every shard's whole answer, one behind the other."""
    answers = [world.bench.ask(sql, f"s{n}").splitlines() for n in range(1, SHARDS + 1)]
    return [*answers[0][:2], *sorted(row for answer in answers for row in answer[2:])]


NO_MERGE = """
SELECT count() FROM events
SELECT city, count() AS c, uniq(name) FROM events GROUP BY city
SELECT city, sum(price) AS s FROM events WHERE id > 20 GROUP BY city HAVING s > 500 ORDER BY s DESC LIMIT 2
SELECT id, name FROM events ORDER BY id LIMIT 3
SELECT DISTINCT city, note FROM events
SELECT quantile(0.5)(id), groupArray(3)(id % 2) FROM events WHERE city = 'Rome'
SELECT max(e.id) AS m, any('x') FROM events AS e WHERE e.id > 1000000
SELECT city, row_number() OVER (ORDER BY city) AS r FROM events GROUP BY city
SELECT city, arrayJoin(tags) AS t, count() FROM events GROUP BY city, t
SELECT id, name FROM events FINAL SETTINGS max_threads = 1
SELECT `id` % 3 AS `a b`, count() FROM events PREWHERE id > 4 WHERE price > 7 GROUP BY `a b` LIMIT 1 BY 2
SELECT count() FROM people FINAL
SELECT toUInt8(1) AS one FROM events SAMPLE 1/2 GROUP BY one
SELECT 3 AS k, city, count() AS c FROM events GROUP BY k, city ORDER BY k, c
WITH x (a) AS (SELECT 3) SELECT max(id) AS m FROM events WHERE id IN x OR id % 7 IN (SELECT a + 1 FROM x)
WITH x AS MATERIALIZED (SELECT 5 AS a) SELECT count() FROM events WHERE id > 1 AND id % 9 IN (SELECT a FROM x)
"""


@pytest.mark.parametrize(
    "sql", NO_MERGE.replace("FROM events FINAL", "FROM people FINAL").strip().splitlines()
)
def test_without_merging_every_shard_answers_by_itself(world: World, sql: str) -> None:
    settings = {"distributed_group_by_no_merge": "1"}
    assert rows(world.ask(sql, settings=settings)) == by_shard(world, sql)


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        (
            "SELECT sum(c), count() FROM (SELECT city, count() AS c FROM events GROUP BY city)",
            "SELECT sum(c), count() FROM (@)|SELECT city, count() AS c FROM events GROUP BY city",
        ),
        (
            "SELECT city, c FROM (SELECT city, count() c FROM events GROUP BY city) WHERE c > 9 ORDER BY ALL",
            "SELECT city, c FROM (@) WHERE c > 9|SELECT city, count() AS c FROM events GROUP BY city",
        ),
        (
            "SELECT count() AS n FROM events UNION ALL SELECT count() FROM extra FORMAT TSVWithNamesAndTypes",
            "SELECT * FROM (@) UNION ALL SELECT count() FROM one.extra|SELECT count() AS n FROM events",
        ),
    ],
)
def test_a_subquery_is_not_merged_and_what_is_around_it_is(world: World, sql: str, same: str) -> None:
    outer, inner = same.split("|")
    parts = [inner.replace("FROM events", f"FROM s{n}.events") for n in range(1, SHARDS + 1)]
    expected = world.bench.ask(outer.replace("@", " UNION ALL ".join(parts)))
    settings = {"distributed_group_by_no_merge": "1"}
    assert rows(world.ask(sql.replace("extra", "one.extra"), settings=settings)) == rows(expected)


NO_MERGE_BUT_ORDER = """
SELECT city, count() AS c FROM events GROUP BY city|ORDER BY c, city
SELECT 9 AS k, city, count() AS c FROM events GROUP BY k, city|ORDER BY k, c, city LIMIT 1 BY k, city
SELECT city AS k, sum(price) AS s FROM events WHERE id > 20 GROUP BY k HAVING count() > 20|ORDER BY s LIMIT 4
SELECT count() AS c FROM events|ORDER BY c LIMIT 2
SELECT max(id) AS m FROM events WHERE id > 1000000|
SELECT city, max(id) AS m FROM events GROUP BY city|ORDER BY city, m DESC LIMIT 1 BY city
SELECT note, uniq(name) AS u FROM events GROUP BY note|ORDER BY ALL LIMIT 3 OFFSET 1
"""


@pytest.mark.parametrize("sql", NO_MERGE_BUT_ORDER.strip().splitlines())
def test_groups_that_are_not_merged_are_ordered_and_limited_together(world: World, sql: str) -> None:
    query, order = sql.split("|")
    parts = [query.replace("FROM events", f"FROM s{n}.events") for n in range(1, SHARDS + 1)]
    expected = world.bench.ask(f"SELECT * FROM ({' UNION ALL '.join(parts)}) {order}")
    asked = world.ask(f"{query} {order}", settings={"distributed_group_by_no_merge": "2"})
    assert asked == expected if order else rows(asked) == rows(expected)


def with_totals(answer: str) -> tuple[list[str], str]:
    """The rows, and the totals behind an empty line."""
    if answer.startswith("\n"):  # no rows: chDB writes totals before names then
        _, of_nothing, *names = answer.splitlines()
        return rows("\n".join(names)), f"{of_nothing}\n"
    head, has_totals, totals = answer.rpartition("\n\n")
    return (rows(head), totals) if has_totals else (rows(answer), "")


TOTALS_AND_WINDOWS = (
    "SELECT city, count() AS c, sum(c) OVER (ORDER BY city) AS r, sum(sum(id)) OVER () AS s FROM events "
    "GROUP BY city WITH TOTALS ORDER BY city LIMIT 3"
)
WITH_TOTALS = (QUERIES / "unmerged_totals.sql").read_text()


@pytest.mark.parametrize("sql", [*WITH_TOTALS.strip().splitlines(), TOTALS_AND_WINDOWS])
def test_totals_without_merging_are_those_of_the_first_shard(world: World, sql: str) -> None:
    """As in ClickHouse: Pipe::unitePipes takes totals from the first source that has any."""
    found, totals = with_totals(world.ask(sql, settings={"distributed_group_by_no_merge": "1"}))
    answers = [with_totals(world.bench.ask(sql, f"s{n}")) for n in range(1, SHARDS + 1)]
    assert totals == answers[0][1]
    assert found == [*answers[0][0][:2], *sorted(row for of_one, _ in answers for row in of_one[2:])]


@pytest.mark.parametrize("sql", WITH_TOTALS.strip().splitlines())
def test_groups_with_totals_that_are_not_merged_are_ordered_together(world: World, sql: str) -> None:
    query, by, rest = sql.partition(" ORDER BY ")
    found, totals = with_totals(world.ask(sql, settings={"distributed_group_by_no_merge": "2"}))
    parts = [query.replace("FROM events", f"FROM s{n}.events") for n in range(1, SHARDS + 1)]
    settings = ""
    if " SETTINGS " in query:
        settings = " SETTINGS" + query.partition(" SETTINGS")[2]
        parts = [part.partition(" SETTINGS")[0] for part in parts]
    united = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)
    expected = world.bench.ask(f"SELECT * FROM ({united}){by}{rest}{settings}")
    assert (found, totals) == with_totals(expected)


TOTALS_OF_SUBQUERIES = """
SELECT * FROM [SELECT city, count() AS c FROM events GROUP BY city WITH TOTALS] WHERE c > 9
SELECT sum(c), any(city) > '' FROM [SELECT city, count() AS c FROM events GROUP BY city WITH TOTALS]
SELECT city, c, s FROM [SELECT city, count() AS c FROM events GROUP BY city WITH TOTALS] AS a JOIN \
[SELECT city, sum(id) AS s FROM events WHERE id > 5 GROUP BY city WITH TOTALS HAVING s > 9] AS b USING city
[SELECT city, max(id) AS m FROM events GROUP BY city WITH TOTALS] UNION ALL \
[SELECT note, min(id) FROM events GROUP BY note WITH ROLLUP WITH TOTALS]
SELECT * FROM [SELECT count() AS c, any(id) > 0 AS a FROM events WITH TOTALS] WHERE c > 9
"""


@pytest.mark.parametrize(
    ("sql", "value"), each_in_turn(TOTALS_OF_SUBQUERIES.replace("\\\n", "").strip().splitlines(), ["1", "2"])
)
def test_totals_of_subqueries_are_those_of_the_first_shard(world: World, sql: str, value: str) -> None:
    def of_each(match: re.Match[str]) -> str:
        parts = [match[1].replace("FROM events", f"FROM s{n}.events") for n in range(1, SHARDS + 1)]
        return f"(SELECT * FROM ({' UNION ALL '.join(f'SELECT * FROM ({part})' for part in parts)}))"

    asked = sql.replace("[", "(").replace("]", ")")
    found = with_totals(world.ask(asked, settings={"distributed_group_by_no_merge": value}))
    assert found == with_totals(world.bench.ask(re.sub(r"\[(.*?)\]", of_each, sql)))


TOTALS_OF_JOINS = """
SELECT city, count() AS c FROM events WHERE id IN (SELECT id * 3 FROM people) GROUP BY city WITH TOTALS
SELECT e.city, p.name, count() AS c FROM events AS e JOIN people AS p ON e.id + 1 = p.id \
GROUP BY e.city, p.name WITH ROLLUP WITH TOTALS ORDER BY c DESC, e.city, p.name LIMIT 3
SELECT count() AS c, max(p.id) FROM events AS e LEFT JOIN people AS p ON e.id + 1 = p.id WITH TOTALS
"""


@pytest.mark.parametrize("sql", TOTALS_OF_JOINS.replace("\\\n", "").strip().splitlines())
def test_there_are_totals_of_what_each_shard_joins_by_itself(world: World, sql: str) -> None:
    settings = {"distributed_group_by_no_merge": "1", "distributed_product_mode": "local"}
    found, totals = with_totals(world.ask(sql, settings=settings))
    answers = [with_totals(world.bench.ask(sql, f"s{n}")) for n in range(1, SHARDS + 1)]
    assert totals == answers[0][1]
    assert found == [*answers[0][0][:2], *sorted(row for of_one, _ in answers for row in of_one[2:])]


GROUPING = (QUERIES / "unmerged_sets.sql").read_text()


@pytest.mark.parametrize("sql", GROUPING.strip().splitlines())
def test_every_shard_rolls_its_own_groups_up(world: World, sql: str) -> None:
    query, order = sql.split("|")
    parts = [query.replace("FROM events", f"FROM s{n}.events") for n in range(1, SHARDS + 1)]
    expected = world.bench.ask(f"SELECT * FROM ({' UNION ALL '.join(parts)}) {order}")
    asked = world.ask(f"{query} {order}", settings={"distributed_group_by_no_merge": "2"})
    assert asked == expected if order else rows(asked) == rows(expected)
    each = world.ask(query, settings={"distributed_group_by_no_merge": "1"})
    assert rows(each) == by_shard(world, query)


GLOBAL = """
SELECT count() FROM events WHERE id GLOBAL IN (SELECT id * 3 FROM [people]) AND id + 1 IN [own]
SELECT e.id, p.id AS o FROM events AS e GLOBAL JOIN [people] AS p ON e.id + 1 = p.id WHERE o IN [own]
SELECT count() FROM events WHERE id GLOBAL NOT IN [one.extra] AND id + 1 IN [own]
SELECT count() FROM events WHERE (id, 1) GLOBAL IN (SELECT id, 1 FROM [one.extra]) AND id + 1 IN [own]
SELECT id FROM events WHERE note GLOBAL IN (SELECT if(id > 9, 'x1', NULL) FROM [one.extra]) AND id % 9 = 1
SELECT count() FROM events WHERE id GLOBAL IN (SELECT id FROM [one.extra] WHERE id GLOBAL IN [one.extra])
SELECT e.id, x.id AS o FROM events AS e GLOBAL JOIN [one.extra] AS x ON e.id + 1 = o WHERE o + 1 IN [own]
SELECT e.id, o.id FROM events AS e GLOBAL ANY RIGHT JOIN [one.extra] o USING (id) WHERE e.id + 1 IN [own]
SELECT id, n FROM events GLOBAL LEFT JOIN (SELECT id, [id, NULL] n FROM [one.extra]) o USING id WHERE id < 99
SELECT e.id FROM events e GLOBAL JOIN (SELECT id FROM [one.extra] LIMIT 0) p USING id JOIN [own] o USING id
SELECT count() FROM events GLOBAL FULL JOIN (SELECT o.id FROM [one.extra] o JOIN [people] USING id) p USING id
"""


@pytest.mark.parametrize("sql", GLOBAL.strip().splitlines())
def test_what_is_global_is_whole_and_of_the_node_that_was_asked(world: World, sql: str) -> None:
    """In brackets: these tables are read by the initiator, whatever the mode; [own] is each shard's."""
    sql = sql.replace("[own]", "(SELECT id FROM people)").replace("[id, NULL]", "tuple(id, NULL)")

    def on_shard(n: int) -> list[str]:
        text = sql.replace("[people]", "one.people").replace("[one.extra]", "one.extra")
        return world.bench.ask(text, f"s{n}").splitlines()

    answers = [on_shard(n) for n in range(1, SHARDS + 1)]
    expected = [*answers[0][:2], *sorted(row for answer in answers for row in answer[2:])]
    settings = {"distributed_group_by_no_merge": "1", "distributed_product_mode": "local"}
    asked = sql.replace("[", "").replace("]", "")
    assert rows(world.ask(asked, settings=settings)) == expected
    world.bench.ask("CREATE TABLE d.mine ENGINE = Memory AS SELECT * FROM one.extra")
    try:
        assert rows(world.ask(asked.replace("one.extra", "mine"), settings=settings)) == expected
    finally:
        world.bench.ask("DROP TABLE d.mine SYNC")


def test_rows_of_a_global_join_have_the_types_of_their_table(world: World) -> None:
    sql = "SELECT o.* FROM events AS e GLOBAL JOIN one.events AS o ON e.id = o.id + 1 WHERE e.id % 7 = 0"
    assert rows(world.ask(sql, settings={"distributed_group_by_no_merge": "1"})) == by_shard(world, sql)
    sql = "SELECT e.id, extra.id FROM events AS e GLOBAL JOIN one.extra ON e.id = extra.id"
    assert rows(world.ask(sql, settings={"distributed_group_by_no_merge": "1"})) == by_shard(world, sql)


def test_a_global_join_of_more_rows_than_a_request_takes_is_refused(world: World) -> None:
    sql = "SELECT count() FROM events GLOBAL JOIN (SELECT a.id FROM one.events a, one.events b) AS o USING id"
    with pytest.raises(SqlError) as refused:
        world.ask(sql, settings={"distributed_group_by_no_merge": "1"})
    assert refused.value.code == Code.NOT_IMPLEMENTED


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM events WHERE id GLOBAL IN (@) ORDER BY id",
        "SELECT e.id, p.id FROM events AS e GLOBAL LEFT JOIN (@) AS p ON e.id = p.id ORDER BY e.id",
    ],
)
def test_within_a_global_side_every_shard_joins_its_own_tables(world: World, sql: str) -> None:
    """As in ClickHouse, where that side is a statement of its own."""
    side = (
        "SELECT id FROM {0}people WHERE id IN (SELECT id + 3 FROM {0}events) "
        "AND id > (SELECT min(id) FROM {1}people)"
    )
    of_all = " UNION ALL ".join(side.format(f"s{n}.", "one.") for n in range(1, SHARDS + 1))
    expected = world.bench.ask(sql.replace("@", of_all))
    asked = sql.replace("@", side.format("", ""))
    assert world.ask(asked, settings={"distributed_product_mode": "local"}) == expected
    assert world.bench.ask(asked) != expected


SETS = """
SELECT id FROM [events] WHERE id IN (@) ORDER BY id|SELECT max(id) AS id FROM events
SELECT id FROM [events] WHERE id GLOBAL NOT IN (@) AND id > 290|SELECT max(id) AS id FROM events
SELECT e.id FROM [events] AS e JOIN (@) AS o ON e.id = o.id|SELECT min(id) AS id FROM events GROUP BY city
SELECT e.id FROM [events] AS e GLOBAL ALL JOIN (@) AS o ON e.id = o.id|SELECT DISTINCT 7 AS id FROM events
SELECT e.id FROM [events] AS e, (@) AS o WHERE e.id = o.id|SELECT id FROM events ORDER BY id DESC LIMIT 2
SELECT id FROM [people] WHERE id IN (@)|SELECT max(id) AS id FROM (SELECT id FROM one.events WHERE id < 99)
"""


@pytest.mark.parametrize("sql", SETS.strip().splitlines())
def test_on_the_right_of_in_and_join_are_the_groups_of_each_shard(world: World, sql: str) -> None:
    """As in ClickHouse, which asks for them with the statement's settings. They were merged."""
    text, side = sql.split("|")
    of_each = " UNION ALL ".join(side.replace(" events", f" s{n}.events") for n in range(1, SHARDS + 1))
    expected = world.bench.ask(re.sub(r"\[(\w+)\]", r"one.\1", text.replace("@", of_each)))
    asked = re.sub(r"[\[\]]", "", text.replace("@", side))
    assert rows(world.ask(asked, settings={"distributed_group_by_no_merge": "1"})) == rows(expected)
    if "LIMIT" not in side and "DISTINCT" not in side:
        assert rows(world.ask(asked, settings={"distributed_group_by_no_merge": "2"})) == rows(expected)


def test_groups_of_each_shard_that_are_not_asked_for_first_are_refused(world: World) -> None:
    sql = "SELECT id FROM events WHERE id IN (SELECT maxOrNull(id) FROM events)"
    with pytest.raises(SqlError) as refused:
        world.ask(sql, settings={"distributed_group_by_no_merge": "1"})
    assert refused.value.code == Code.NOT_IMPLEMENTED


OF_GROUPS = """
SELECT city, count() AS c FROM events GROUP BY city HAVING c IN [own] OR city IN (SELECT 'Rome')|
SELECT id, count() AS c FROM events GROUP BY id HAVING id IN [own] AND sum(id + 1 IN [own]) > 0|
SELECT id + 1 IN [own] AS k, max(id) AS m, count() AS c FROM events GROUP BY k|
SELECT id % 7 AS k, count() AS c FROM events GROUP BY k|, c IN [all] AS x, sum(c) OVER (ORDER BY k) AS s
SELECT note, id IN [own] AS k, grouping(k) g, count() c FROM events GROUP BY CUBE (note, k) HAVING c IN [own]|
SELECT note, count() AS c FROM events GROUP BY note WITH TOTALS|, c + 1 IN [all] AS x
"""


@pytest.mark.parametrize(("sql", "mode"), each_in_turn(OF_GROUPS.strip().splitlines(), ["local", "global"]))
def test_shards_that_do_not_merge_end_at_having(world: World, sql: str, mode: str) -> None:
    """[own] is theirs; [all], and what windows make of groups, is the initiator's."""
    own, _, rest = sql.partition("|")
    parts = []
    for n in range(1, SHARDS + 1):
        text = own.replace("[own]", f"(SELECT id FROM {f's{n}' if mode == 'local' else 'one'}.people)")
        parts.append(f"SELECT * FROM ({text.replace('FROM events', f'FROM s{n}.events')})")
    rest = rest.replace("[all]", "(SELECT id FROM one.people)")
    expected = world.bench.ask(f"SELECT *{rest} FROM ({' UNION ALL '.join(parts)}) ORDER BY ALL")
    select, _, source = sql.replace(sql[sql.index("|") :], "").partition(" FROM events")
    asked = f"{select}{sql.partition('|')[2]} FROM events{source} ORDER BY ALL"
    asked = re.sub(r"\[\w+\]", "(SELECT id FROM people)", asked)
    settings = {"distributed_group_by_no_merge": "2", "distributed_product_mode": mode}
    assert world.ask(asked, settings=settings) == expected


def test_totals_of_shards_may_read_other_tables_whole(world: World) -> None:
    sql = (
        "SELECT city, count() AS c, c + 2 IN (SELECT id FROM people) AS x FROM events "
        "GROUP BY city WITH TOTALS HAVING c IN (SELECT id FROM people)"
    )
    answers = [with_totals(world.bench.ask(sql.replace("people", "one.people"), f"s{n}")) for n in (1, 2, 3)]
    for value in ("1", "2"):
        settings = {"distributed_group_by_no_merge": value}
        found, totals = with_totals(world.ask(sql, settings=settings))
        assert totals == answers[0][1]
        assert found == [*answers[0][0][:2], *sorted(row for of_one, _ in answers for row in of_one[2:])]
        settings["distributed_product_mode"] = "local"
        with pytest.raises(SqlError) as refused:
            world.ask(sql, settings=settings)
        assert refused.value.code == Code.NOT_IMPLEMENTED


def test_windows_and_expressions_of_groups_are_for_all_shards(world: World) -> None:
    settings = {"distributed_group_by_no_merge": "2"}
    window = "sum(count()) OVER (PARTITION BY city)"
    sql = f"SELECT DISTINCT city, {window} AS c, 1 + 1 AS two FROM events GROUP BY city"
    expected = "SELECT city, count() AS c, 2 AS two FROM events GROUP BY city"
    lines = rows(world.ask(sql, settings=settings))[2:]
    assert lines == rows(world.bench.ask(expected))[2:]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT city FROM events ORDER BY city LIMIT 3",
        "SELECT id FROM events AS e WHERE EXISTS (SELECT 1 FROM people WHERE id = e.id) ORDER BY id",
        "SELECT e.id FROM events AS e GLOBAL JOIN one.extra AS x ON e.id = x.id ORDER BY id",
    ],
)
def test_rows_are_merged_as_ever_where_there_are_no_groups(world: World, sql: str) -> None:
    for value in ("0", "2"):
        assert world.ask(sql, settings={"distributed_group_by_no_merge": value}) == world.bench.ask(sql)


LOCAL = """
SELECT id FROM events WHERE id IN (SELECT id * 3 FROM people)
SELECT id, city FROM events WHERE id NOT IN (SELECT id + 1 FROM people WHERE age > 20) AND price > 9
SELECT id FROM events WHERE id IN people_ids
SELECT e.id, p.id AS o FROM events AS e JOIN people AS p ON e.id + 1 = p.id
SELECT e.id, age FROM events AS e LEFT JOIN (SELECT id, age FROM people WHERE age > 9) p ON e.id + 2 = p.id
SELECT e.id, e.note, p.name FROM events AS e ANY LEFT JOIN people AS p USING (name)
SELECT id FROM events WHERE id + 1 IN (SELECT id FROM people WHERE id IN (SELECT id FROM events WHERE id > 9))
SELECT id, (id * 2 NOT IN (SELECT id FROM people)) + 1 AS x, [x, id IN (SELECT id+3 FROM people)] FROM events
SELECT id AS i, i + 3 IN (SELECT id FROM people) FROM events WHERE i IN (SELECT id + 1 FROM people)
SELECT 9 AS k, id FROM events WHERE id IN (SELECT id + 1 FROM people) ORDER BY k LIMIT 1 BY k, id
SELECT DISTINCT id IN (SELECT id + 1 FROM people) AS x, city FROM events WHERE id % 7 = 0 AND city < 'D' AND x
SELECT e.id, e.id IN (SELECT id + 1 FROM people) AS x, p.id FROM events AS e LEFT JOIN people AS p USING id
SELECT id FROM events LIMIT 1 BY id IN (SELECT id + 1 FROM people), id
"""


@pytest.mark.parametrize(
    "sql", LOCAL.replace("people_ids", "(SELECT id + 1 FROM people)").strip().splitlines()
)
def test_every_shard_joins_its_own_tables(world: World, sql: str) -> None:
    assert rows(world.ask(sql, settings={"distributed_product_mode": "local"})) == by_shard(world, sql)


@pytest.mark.parametrize(
    ("sql", "of_all"),
    [
        (
            "SELECT count() AS c, sum(id) AS s FROM events WHERE id IN (SELECT id * 3 FROM people)",
            "SELECT sum(c) AS c, sum(s) AS s FROM (@)",
        ),
        (
            "SELECT city, count() AS c FROM events AS e JOIN people AS p ON e.id + 1 = p.id GROUP BY city",
            "SELECT city, sum(c) AS c FROM (@) GROUP BY city ORDER BY city LIMIT 3",
        ),
    ],
)
def test_what_shards_join_by_themselves_is_merged(world: World, sql: str, of_all: str) -> None:
    def on_shard(n: int) -> str:
        return sql.replace("FROM events", f"FROM s{n}.events").replace("people", f"s{n}.people")

    expected = world.bench.ask(of_all.replace("@", " UNION ALL ".join(map(on_shard, range(1, SHARDS + 1)))))
    tail = " ORDER BY city LIMIT 3" if "GROUP" in sql else ""
    asked = world.ask(sql + tail, settings={"distributed_product_mode": "local"})
    assert asked == expected
    everything = world.ask(sql + tail, settings={"distributed_product_mode": "global"})
    assert everything == world.bench.ask(sql + tail)
    assert everything != asked


@pytest.mark.parametrize(
    ("sql", "of_all"),
    [
        (
            "SELECT sum(id IN (SELECT id*3 FROM people)) s, max(id IN (SELECT 3 FROM people)) m FROM events",
            "SELECT sum(s) AS s, max(m) AS m FROM (@)",
        ),
        (
            "SELECT id + 1 IN (SELECT id FROM people) AS k, count() AS c FROM events GROUP BY k ORDER BY k",
            "SELECT k, sum(c) AS c FROM (@) GROUP BY k ORDER BY k",
        ),
        (
            "SELECT id IN (SELECT id + 1 FROM people) AS x, id FROM events ORDER BY x DESC, id LIMIT 5",
            "SELECT * FROM (@) ORDER BY x DESC, id LIMIT 5",
        ),
        (
            "SELECT id FROM events ORDER BY id IN (SELECT id + 1 FROM people) DESC, id LIMIT 5",
            "SELECT id FROM (@) ORDER BY x DESC, id LIMIT 5",
        ),
    ],
)
def test_expressions_that_shards_evaluate_have_their_own_tables(world: World, sql: str, of_all: str) -> None:
    def on_shard(n: int) -> str:
        text = sql.replace("FROM events", f"FROM s{n}.events").replace(" FROM people", f" FROM s{n}.people")
        text = text.partition(" ORDER BY")[0]
        if text.startswith("SELECT id FROM"):
            text = text.replace("SELECT id", "SELECT id, id IN (SELECT id + 1 FROM people) AS x", 1)
        return text

    asked = world.ask(sql, settings={"distributed_product_mode": "local"})
    parts = [on_shard(n).replace("FROM people", f"FROM s{n}.people") for n in range(1, SHARDS + 1)]
    assert asked == world.bench.ask(of_all.replace("@", " UNION ALL ".join(parts)))


WINDOWS = """
SELECT id, row_number() OVER (PARTITION BY id + 1 IN [s] ORDER BY id) AS r, id + 3 IN [one] AS x FROM events
SELECT id, sum(id + 1 IN [s]) OVER (ORDER BY id + 2 IN [s] DESC, id ROWS 2 PRECEDING), id IN [one] FROM events
SELECT max(id) OVER (PARTITION BY city) m FROM events WHERE id + 1 IN [s] QUALIFY m > 9 AND id + 1 IN [one]
SELECT id FROM events QUALIFY count(id) OVER (ORDER BY id + 1 IN [s], id) < 20 AND id + 1 IN [one]
SELECT city, count() AS c, sum(sum(id + 1 IN [s])) OVER (ORDER BY city), c IN [one] FROM events GROUP BY 1
SELECT max(id) AS m FROM events WHERE id + 1 IN [s] GROUP BY id % 90 HAVING max(id) + 1 IN [one]
"""


@pytest.mark.parametrize("sql", WINDOWS.strip().splitlines())
def test_shards_evaluate_what_windows_are_over_and_the_initiator_the_rest(world: World, sql: str) -> None:
    """[s] are a shard's own people, [one] those of all."""
    sql += " ORDER BY ALL"
    asked = re.sub(r"\[\w+\]", "(SELECT id FROM people)", sql)
    own = [f"SELECT {n} AS shard, id FROM s{n}.people" for n in range(1, SHARDS + 1)]
    rows = [f"SELECT {n} AS shard, * FROM s{n}.events" for n in range(1, SHARDS + 1)]
    of_shard = f"(shard, id + \\1) IN ({' UNION ALL '.join(own)})"
    expected = re.sub(r"id \+ (\d) IN \[s\]", of_shard, sql)
    expected = expected.replace("[one]", "(SELECT id FROM one.people)")
    expected = expected.replace("FROM events", f"FROM ({' UNION ALL '.join(rows)}) AS events")
    found = world.ask(asked, settings={"distributed_product_mode": "local"}).splitlines()
    assert found[2:] == world.bench.ask(expected).splitlines()[2:]
    assert found[2:] != world.bench.ask(asked).splitlines()[2:]


def test_what_is_made_of_groups_is_the_initiators_with_all_rows(world: World) -> None:
    """As in ClickHouse, whose shards never see it."""
    sql = (
        "SELECT id % 90 AS k, k IN (SELECT id FROM people) AS x, count() AS c FROM events GROUP BY k "
        "HAVING sum(id IN (SELECT id + 1 FROM people)) > 0 AND k + 2 IN (SELECT id FROM people) ORDER BY k"
    )
    asked = world.ask(sql, settings={"distributed_product_mode": "local"})
    events = " UNION ALL ".join(
        f"SELECT id, id IN (SELECT id + 1 FROM s{n}.people) AS y FROM s{n}.events"
        for n in range(1, SHARDS + 1)
    )
    expected = (
        "SELECT id % 90 AS k, k IN (SELECT id FROM one.people) AS x, count() AS c FROM ({}) GROUP BY k "
        "HAVING sum(y) > 0 AND k + 2 IN (SELECT id FROM one.people) ORDER BY k"
    )
    assert asked == world.bench.ask(expected.format(events))
    assert asked.count("\n") > 3


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT _shard_num, count() FROM events GROUP BY _shard_num ORDER BY 1",
        "SELECT max(_shard_num) AS m, _table, hostName() AS h FROM events GROUP BY _table, h ORDER BY m",
    ],
)
def test_shards_that_do_not_merge_know_their_numbers(world: World, sql: str) -> None:
    answer = world.ask(sql, settings={"distributed_group_by_no_merge": "2"})
    assert [line.split("\t")[0] for line in answer.splitlines()[2:]] == ["1", "2", "3"]
    sql = "SELECT _shard_num, id + _shard_num IN (SELECT id FROM people) AS x FROM events ORDER BY id LIMIT 3"
    answer = world.ask(sql, settings={"distributed_product_mode": "local"})
    assert [line.split("\t")[0] for line in answer.splitlines()[2:]] == ["1", "2", "2"]


def test_without_merging_other_tables_are_read_whole_or_locally(world: World) -> None:
    sql = "SELECT count() FROM events WHERE id IN (SELECT id * 3 FROM people)"
    whole = [
        world.bench.ask(sql.replace("FROM people", "FROM one.people"), f"s{n}").splitlines()[2]
        for n in range(1, SHARDS + 1)
    ]
    settings = {"distributed_group_by_no_merge": "1"}
    assert rows(world.ask(sql, settings=settings))[2:] == sorted(whole)
    settings["distributed_product_mode"] = "local"
    assert rows(world.ask(sql, settings=settings)) == by_shard(world, sql)


def test_a_column_of_another_table_may_change_its_type(world: World) -> None:
    sql = "SELECT o.v FROM events AS e JOIN d.other AS o ON e.id = o.id"
    for type_ in ("UInt8", "String"):
        world.ask(f"CREATE TABLE other (id UInt64, v {type_}) ENGINE = Memory")
        world.ask("INSERT INTO other SELECT 7, 7")
        assert world.ask(sql, settings={"distributed_group_by_no_merge": "1"}) == f"v\n{type_}\n7\n"
        world.ask("DROP TABLE other SYNC")


def test_only_the_shards_that_can_have_rows_are_asked(world: World) -> None:
    settings = {"distributed_group_by_no_merge": "1", "optimize_skip_unused_shards": "1"}
    sql = "SELECT count() FROM events WHERE id = {}"
    assert len(rows(world.ask(sql.format("7 OR id > 5"), settings=settings))) == 2 + SHARDS
    one = rows(world.ask(sql.format(7), settings={**settings, "force_optimize_skip_unused_shards": "1"}))
    assert len(one) == 3


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        (
            "SELECT count() c FROM events GROUP BY city WITH TOTALS HAVING c IN (SELECT id FROM one.extra)",
            "1",
        ),
        ("SELECT id FROM events WHERE EXISTS (SELECT 1 FROM people WHERE people.id = events.id)", "1"),
        ("SELECT city, (SELECT groupArray(id) FROM one.extra) AS a FROM events GROUP BY city", "2"),
        ("WITH RECURSIVE c AS (SELECT count() AS n FROM events) SELECT a.n FROM c AS a, c AS b", "1"),
    ],
)
def test_what_has_no_meaning_without_merging_is_refused(world: World, sql: str, value: str) -> None:
    with pytest.raises(SqlError) as refused:
        world.ask(sql, settings={"distributed_group_by_no_merge": value})
    assert refused.value.code == Code.NOT_IMPLEMENTED


SCALARS = """
SELECT count() FROM events WHERE price > [SELECT max(m) / 2 FROM (SELECT max(price) AS m FROM events)]
SELECT city, count() AS c FROM events WHERE exists[SELECT 1 FROM people WHERE age > 20] GROUP BY city
SELECT count() FROM events WHERE exists[SELECT 1 FROM people WHERE age > 200]
WITH [SELECT age FROM people WHERE id = 9] AS n SELECT n FROM events WHERE id IN (SELECT id + n FROM people)
SELECT count() FROM events WHERE id IN (SELECT id FROM people WHERE age > [SELECT 5 FROM people WHERE id = 3])
SELECT tuple([SELECT name FROM people WHERE id = 3], 1) AS t, max(id) AS m FROM events AS e WHERE id != 3
SELECT if(id = [(SELECT toLowCardinality(id) FROM people WHERE id = 6) EXCEPT SELECT 4], 1, 2) i FROM events
"""


@pytest.mark.parametrize(("sql", "mode"), each_in_turn(SCALARS.strip().splitlines(), ["local", "global"]))
def test_a_subquery_that_is_one_value_is_evaluated_first_over_all_shards(
    world: World, sql: str, mode: str
) -> None:
    """As in ClickHouse. In brackets here: it has the rows of all shards in any mode."""

    def on_shard(n: int) -> str:
        text = re.sub(r"\[.*\]", lambda of_all: re.sub(" FROM (?=[a-z])", " FROM one.", of_all[0]), sql)
        text = text.replace("(SELECT id + n FROM people", f"(SELECT id + n FROM {others[n]}.people")
        text = text.replace("(SELECT id FROM people", f"(SELECT id FROM {others[n]}.people")
        return world.bench.ask(text.replace("[", "(").replace("]", ")"), f"s{n}")

    others = {n: f"s{n}" if mode == "local" else "one" for n in range(1, SHARDS + 1)}
    answers = [on_shard(n).splitlines() for n in others]
    expected = [*answers[0][:2], *sorted(row for answer in answers for row in answer[2:])]
    settings = {"distributed_group_by_no_merge": "1", "distributed_product_mode": mode}
    assert rows(world.ask(sql.replace("[", "(").replace("]", ")"), settings=settings)) == expected


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT count() FROM events WHERE price > (SELECT avg(price) FROM events)", 125),
        ("SELECT count() FROM events WHERE id = (SELECT id FROM people)", 125),
        ("SELECT no_such_column FROM events", Code.UNKNOWN_IDENTIFIER),
        ("SELECT city, dictGet('d', 'v', count()) FROM events GROUP BY city WITH TOTALS", 36),
        (
            "SELECT id FROM events WHERE id > (SELECT max(no_such_column) FROM people)",
            Code.UNKNOWN_IDENTIFIER,
        ),
    ],
)
def test_a_statement_that_is_wrong_has_its_own_error(world: World, sql: str, code: int) -> None:
    """A value of each shard is no value."""
    with pytest.raises(SqlError) as refused:
        world.ask(sql, settings={"distributed_group_by_no_merge": "1"})
    assert refused.value.code == code
    assert "null(" not in str(refused.value)


FILTERS = {"events": "id % 3 != 1", "people": "age > 20"}
FILTERED = """
SELECT count(), sum(id) FROM events
SELECT city, count() AS c FROM events AS e GROUP BY city HAVING c > 1 ORDER BY c LIMIT 2
SELECT city, count() FROM events GROUP BY city WITH TOTALS
SELECT count() FROM people FINAL WHERE id > 1
SELECT id FROM events WHERE id IN (SELECT id * 2 FROM people)
SELECT e.id, p.id AS o, p.age FROM events AS e JOIN people AS p FINAL ON e.id = p.id
SELECT id FROM events WHERE id IN (SELECT id FROM people WHERE id IN (SELECT id + 1 FROM events))
SELECT id FROM events AS e SAMPLE 1/2 WHERE id NOT IN (SELECT id FROM people)
"""


def filtering(names: dict[str, str]) -> str:
    """The setting, with tables called by other names."""
    return "{" + ", ".join(f"'{name}': '{FILTERS[table]}'" for name, table in names.items()) + "}"


@pytest.mark.parametrize(("sql", "mode"), each_in_turn(FILTERED.strip().splitlines(), ["local", "global"]))
def test_filters_of_tables_hold_where_shards_answer_by_themselves(world: World, sql: str, mode: str) -> None:
    answers = []
    for n in range(1, SHARDS + 1):
        others = f"s{n}" if mode == "local" else "one"
        first, source, rest = sql.partition(" FROM ")
        for word in ("FROM", "JOIN"):
            for table in FILTERS:
                rest = rest.replace(f"{word} {table}", f"{word} {others}.{table}")
        filters = filtering(
            {f"{database}.{table}": table for database in {f"s{n}", "one"} for table in FILTERS}
        )
        text = f"{first}{source}s{n}.{rest} SETTINGS additional_table_filters = {filters}"
        answers.append(with_totals(world.bench.ask(text)))
    settings = {"distributed_group_by_no_merge": "1", "distributed_product_mode": mode}
    unfiltered, _ = with_totals(world.ask(sql, settings=settings))
    settings["additional_table_filters"] = filtering({table: table for table in FILTERS})
    found, totals = with_totals(world.ask(sql, settings=settings))
    assert totals == answers[0][1]
    assert found == [*answers[0][0][:2], *sorted(row for of_one, _ in answers for row in of_one[2:])]
    assert found != unfiltered


def test_a_filter_by_the_name_of_another_shards_table_holds_on_that_shard(world: World) -> None:
    sql = "SELECT count() FROM events WHERE id IN (SELECT id FROM people)"
    local = {"distributed_product_mode": "local"}
    whole, filters = int(world.ask(sql, settings=local).split()[-1]), "{'s2.people': '0'}"
    found = int(world.ask(sql, settings={**local, "additional_table_filters": filters}).split()[-1])
    of_shard = world.bench.ask(sql, "s2").split()[-1]
    assert found == whole - int(of_shard) < whole
