"""Random queries with distributed_group_by_no_merge and distributed_product_mode = 'local' against what
the shards answer by themselves. A failure prints its seed; `DISTRIBUTED_SELECT_SEEDS=3000` looks further."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from engine.errors import Code, SqlError
from tests.few import few_first
from tests.unit.distributed.test_select_property import Query
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import PEOPLE, SHARDS, Bench, bench
from tests.unit.distributed.test_select_spread import rows, with_totals

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = range(
    int(os.environ.get("DISTRIBUTED_SELECT_FIRST", "0")),
    int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "60")),
)
KEYS = ["city", "2", "note", "day", "id % 3", "pair.b", "length(tags)", "props['b']", "city = 'Rome'"]
KEYS += ["id IN (SELECT id FROM people)", "id % 9 IN (SELECT id % 9 FROM people WHERE age > 40)"]
MEMBERS = ["id IN (SELECT id FROM people)", "id + 1 NOT IN (SELECT id FROM people WHERE age > 30)"]
ITEMS = ["id", "name", "price * 2", "note", "_shard_num > 0", *KEYS, *MEMBERS]
JOINS = [" AS e JOIN people AS p ON e.id = p.id", " AS e LEFT JOIN people AS p ON e.id + 1 = p.id"]
VALUE = "(SELECT 100 FROM events WHERE id = 7)"
HAVING = " HAVING count() + 1 IN (SELECT id FROM people) OR max(id) IN (SELECT id FROM people WHERE age > 9)"
SETS = [" WITH ROLLUP", " WITH CUBE", " WITH TOTALS", " WITH ROLLUP WITH TOTALS"]


class SpreadQuery(Query):
    """`body` is up to HAVING, `order` the rest."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.is_grouped = self.rng.random() < 0.6
        items = self.rng.sample(KEYS if self.is_grouped else ITEMS, self.rng.randrange(1, 4))
        named = [f"{item} AS k{n}" for n, item in enumerate(items)]
        join = self.rng.choice(["", "", *JOINS]) if not self.is_grouped else ""
        where = self.where().replace("twice", "id").replace("label", "name").replace("PREWHERE", "WHERE")
        source = f"FROM events{join}{where}"
        if join:
            source, named = (
                source.replace("(id ", "(e.id ").replace("(name", "(e.name"),
                ["e.id AS k0, p.id AS k1"],
            )
        if not self.is_grouped:
            distinct = self.rng.choice(["", "", "DISTINCT "])
            self.body = f"SELECT {distinct}{', '.join(named)} {source}"
            self.has_totals = False
        else:
            aggregates = self.aggregates().replace("twice", "id")
            sets = self.rng.choice(["", "", *SETS])
            if self.rng.random() < 0.2 and len(items) == 2:
                group, sets = "GROUPING SETS ((k0), (k0, k1), ())", ""
            else:
                group = ", ".join(f"k{n}" for n in range(len(items)))
            having = self.rng.choice(["", "", " HAVING count() > 3", " HAVING a0 IS NOT NULL", HAVING])
            self.has_totals = "TOTALS" in sets
            self.body = f"SELECT {', '.join(named)}, {aggregates} {source} GROUP BY {group}{sets}{having}"
        self.body = self.body.replace("(SELECT avg(price) FROM events)", VALUE)
        self.order = " ORDER BY ALL" + self.rng.choice(["", " LIMIT 5", " LIMIT 3, 9"])

    def on_shard(self, number: int, *, is_local: bool) -> str:
        others = f"s{number}" if is_local else "one"
        text = self.body.replace(" people", f" {others}.people").replace(VALUE, "100")
        first, _, rest = text.partition("FROM events")
        rest = rest.replace("FROM events", f"FROM {others}.events")
        if "SELECT" in first[1:]:
            first = first.replace("FROM events", f"FROM {others}.events")
        return f"{first}FROM s{number}.events{rest}"


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    world = World(bench)
    world.make()
    world.make("people", table="people", columns=PEOPLE)
    yield world
    world.end()


def asked(world: World, sql: str, merging: str, mode: str) -> str | None:
    """None for what is refused."""
    try:
        return world.ask(
            sql, settings={"distributed_group_by_no_merge": merging, "distributed_product_mode": mode}
        )
    except SqlError as error:
        if error.code != Code.NOT_IMPLEMENTED:
            raise AssertionError(sql) from error
        return None


@pytest.mark.parametrize("seed", few_first(SEEDS, few=16))
def test_shards_answer_by_themselves_and_are_put_together(world: World, seed: int) -> None:
    query = SpreadQuery(seed)
    mode = query.rng.choice(["local", "global"])
    is_local = mode == "local"
    numbers = range(1, SHARDS + 1)
    if "_shard_num" in query.body:
        return
    parts = [query.on_shard(n, is_local=is_local) for n in numbers]
    whole = asked(world, query.body, "1", mode)
    if whole is not None:
        found, totals = with_totals(whole) if query.has_totals else (rows(whole), "")
        answers = [world.bench.ask(part) for part in parts]
        of_each = [with_totals(one) if query.has_totals else (rows(one), "") for one in answers]
        assert totals == of_each[0][1], query.body
        united = [*of_each[0][0][:2], *sorted(row for one, _ in of_each for row in one[2:])]
        assert found == united, f"seed {seed} {mode}: {query.body}"
    if query.is_grouped or is_local:
        merging = "2" if query.is_grouped else "0"
        together = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)
        distinct = "DISTINCT " if "DISTINCT " in query.body[:16] else ""
        answer = asked(world, query.body + query.order, merging, mode)
        if answer is not None:
            expected = world.bench.ask(f"SELECT {distinct}* FROM ({together}){query.order}")
            assert answer == expected, f"seed {seed} {mode}: {query.body}{query.order}"
