"""Users who may only read, and limits of results: they hold for the answer, not for what the node asks chDB
about the statement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

ODD = {"id": "UInt64", "v": "Variant(String, UInt64)", "t": "Tuple(x UInt8)", "arr": "Array(UInt8)"}
LIMITS = [{}, {"max_result_rows": "3"}, {"max_result_bytes": "100"}]
QUERIES = """
SELECT id, v FROM odd ORDER BY id LIMIT 2
SELECT v.UInt64 AS k, count(), max(id), min(id) FROM odd GROUP BY k ORDER BY k LIMIT 1
SELECT a.id, b.v FROM odd AS a JOIN odd AS b ON a.id = b.id + 1 ORDER BY a.id LIMIT 2
SELECT id, arr, t.x FROM odd ARRAY JOIN arr ORDER BY id, arr LIMIT 2
"""


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    world = World(bench)
    world.make()
    columns = ", ".join(f"{name} {type_}" for name, type_ in ODD.items())
    for database in ("one", *world.shards):
        bench.ask(f"CREATE TABLE odd ({columns}) ENGINE = MergeTree ORDER BY id", database)
    bench.ask(
        "INSERT INTO odd SELECT number, toUInt64(number % 3), tuple(number % 9), range(number % 3) "
        "FROM numbers(30)"
    )
    for n, shard in enumerate(world.shards):
        bench.ask(f"INSERT INTO {shard}.odd SELECT * FROM one.odd WHERE id % {len(world.shards)} = {n}")
    world.make("odd", table="odd", columns=ODD)
    yield world
    world.end()


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("readonly", ["0", "1", "2"])
@pytest.mark.parametrize("sql", QUERIES.strip().splitlines())
def test_a_reader_has_the_answer_whatever_the_types(
    world: World, sql: str, readonly: str, limits: dict[str, str]
) -> None:
    assert world.ask(sql, profile={"readonly": readonly, **limits}) == world.bench.ask(sql)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_limit_of_the_result_is_none_of_the_analysis(world: World, limits: dict[str, str]) -> None:
    """Shards that do not merge depend on it."""
    settings = {"distributed_group_by_no_merge": "1", **limits}
    answer = world.ask("SELECT count() FROM events", settings=settings)
    assert sum(map(int, answer.splitlines()[2:])) == 300
    assert len(answer.splitlines()) == 5
