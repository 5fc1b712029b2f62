"""A name comes to mean a Distributed table while a statement runs: chDB's placeholder is never met."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.config.model import User
from engine.errors import Code, SqlError
from engine.node.distributed.registry.overlooked import PLACEHOLDER
from engine.node.statements.statement import Asked
from engine.storage import ChdbSession
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import bench

pytestmark = pytest.mark.slow

__all__ = ["bench", "world"]


def after_first(
    monkeypatch: pytest.MonkeyPatch, owner: object, method: str, work: Callable[[], Awaitable[None]]
) -> None:
    """`work` is done behind the first call of the method, before anybody sees its result."""
    original = getattr(owner, method)
    calls: list[int] = []

    async def called(*args: Any) -> Any:
        result = await original(*args)
        calls.append(1)
        if len(calls) == 1:
            await work()
        return result

    monkeypatch.setattr(owner, method, called)


def running(world: World, sql: str) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        session = world.bench.pool.session(database="d", one_shot=True)
        async with world.router.run(Asked(sql, User("u"), session)) as answer:
            await answer.finish()

    return run


def count(world: World, name: str) -> int:
    return int(world.ask(f"SELECT count() FROM {name}").split("\n")[2])


@pytest.fixture
def plain(world: World) -> World:
    world.ask(
        "CREATE TABLE plain (id UInt64) ENGINE = MergeTree ORDER BY id AS SELECT number AS id FROM numbers(7)"
    )
    world.ask("CREATE VIEW seen AS SELECT id FROM plain")
    world.node.deliver_here_with(world.router)
    return world


@pytest.mark.parametrize("name", ["plain", "seen"])
def test_a_select_that_was_prepared_before_an_exchange_answers_what_the_name_means_now(
    plain: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # 1. `plain` is not Distributed: the text is left as it is. 2. EXCHANGE. 3. chDB runs the text.
    after_first(monkeypatch, plain.node, "prepare_read", running(plain, "EXCHANGE TABLES plain AND events"))
    assert count(plain, name) == 300


def test_an_insert_that_was_prepared_before_an_exchange_goes_to_the_shards(
    plain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.ask("CREATE TABLE s1.ids (id UInt64) ENGINE = MergeTree ORDER BY id")
    plain.ask("CREATE TABLE ids (id UInt64) ENGINE = Distributed(c, s1, ids, id % 1)")
    after_first(monkeypatch, plain.node, "run", running(plain, "EXCHANGE TABLES plain AND ids"))
    plain.ask("INSERT INTO plain SELECT number FROM numbers(5)")
    assert plain.bench.ask("SELECT count() FROM s1.ids", "default").split("\n")[-2:] == ["5", ""]
    plain.bench.ask("DROP TABLE s1.ids SYNC", "default")


def test_a_table_that_is_attached_while_a_select_is_prepared_is_read(
    plain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.make("other")
    plain.ask("DETACH TABLE events")
    after_first(monkeypatch, plain.node._selects._references, "of", running(plain, "ATTACH TABLE events"))
    assert count(plain, "other UNION ALL SELECT count() FROM events") == 300


def test_a_name_that_was_distributed_for_a_moment_only_is_read_again(
    plain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1. `plain` is prepared. 2. EXCHANGE: chDB reads the placeholder. 3. EXCHANGE once more, unseen.
    exchange = running(plain, "EXCHANGE TABLES plain AND events")
    after_first(monkeypatch, plain.node, "prepare_read", exchange)
    original, looks = plain.node.names_moved, list[int]()

    async def looked(*args: Any) -> bool:
        looks.append(1)
        if len(looks) == 1:
            await exchange()
        return await original(*args)

    monkeypatch.setattr(plain.node, "names_moved", looked)
    assert count(plain, "plain") == 7


def test_a_name_that_is_given_away_again_and_again_is_an_error_and_no_wrong_answer(
    plain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = plain.node.prepare_read

    async def prepared(*args: Any) -> Any:
        result = await original(*args)
        if args[0].sql.startswith("SELECT"):
            for _ in range(2):
                await running(plain, "EXCHANGE TABLES plain AND events")()
        return result

    monkeypatch.setattr(plain.node, "prepare_read", prepared)
    with pytest.raises(SqlError) as refused:
        count(plain, "plain")
    assert refused.value.code == Code.ABORTED


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE fresh (id UInt64) ENGINE = Distributed(c, s1, events)",
        "ALTER TABLE events RENAME COLUMN pair TO couple",
    ],
)
def test_a_table_that_is_just_being_made_is_not_taken_for_one_that_a_database_took_along(
    plain: World, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    # 1. The record is written. 2. Another statement drops a database, and records without a table go.
    # 3. chDB makes the table.
    drop = running(plain, "DROP DATABASE other")
    plain.ask("CREATE DATABASE other")
    original, dropped = ChdbSession.query, list[int]()

    async def query(session: ChdbSession, text: str, **options: Any) -> Any:
        if "CREATE TABLE" in text and PLACEHOLDER in text and not dropped:
            dropped.append(1)
            await drop()
        return await original(session, text, **options)

    monkeypatch.setattr(ChdbSession, "query", query)
    plain.ask(sql)
    assert dropped
    assert count(plain, "fresh" if "fresh" in sql else "events") >= 300
