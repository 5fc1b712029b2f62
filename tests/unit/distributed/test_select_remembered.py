"""A text that comes again is not looked at again, and answers as if it had been."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from engine.config.model import Cluster, NodeConfig, Replica, Shard, Topology, User
from engine.distributed.select.query_tree import parse_query_tree
from engine.distributed.select.repeatable import is_repeatable
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.node.distributed.assembly import DistributedNode
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTables
from engine.sql import Statement
from engine.storage import ChdbSession
from tests.few import few_first
from tests.unit.distributed.test_select_property import Query
from tests.unit.distributed.test_select_shapes import EVENTS, PEOPLE, SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "6"))
NONE: Mapping[str, str] = {}


def cluster_of(*databases: str) -> Cluster:
    """Each shard is a database of this node."""
    return Cluster(
        "c",
        tuple(
            Shard(number, (Replica(f"host{number}", 9000, default_database=database),))
            for number, database in enumerate(databases, start=1)
        ),
    )


async def nowhere(asked: Asked, statement: Statement) -> object:
    raise AssertionError(asked.sql)


class World:
    """A node's Distributed tables in the database `d`, over the databases of `bench`."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.shards = [f"s{n}" for n in range(1, SHARDS + 1)]
        self.topology = Topology({"c": cluster_of(*self.shards)})
        self.node = DistributedNode(
            NodeConfig(path=str(bench.pool.path)),
            env=SystemEnv(),
            pool=bench.pool,
            topology=lambda: self.topology,
            is_local=lambda _: True,
            run_other=None,
        )
        self.router = StatementRouter(
            tables=SystemTables([]),
            run_on_cluster=nowhere,  # type: ignore[arg-type]
            distributed=self.node,
        )
        self.call = bench.loop.run_until_complete
        self.call(self.node.start())
        bench.ask("CREATE DATABASE IF NOT EXISTS d", "default")

    def make(
        self, name: str = "events", *, table: str = "events", columns: Mapping[str, str] = EVENTS
    ) -> None:
        text = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        self.ask(f"CREATE TABLE {name} ({text}) ENGINE = Distributed(c, '', {table}, id)")

    def ask(
        self,
        sql: str,
        *,
        database: str = "d",
        settings: Mapping[str, str] = NONE,
        params: Mapping[str, str] = NONE,
        profile: Mapping[str, str] = NONE,
    ) -> str:
        async def ask(session: ChdbSession) -> str:
            asked = Asked(sql, User("u"), session, "TSVWithNamesAndTypes", settings=settings, params=params)
            data = b""
            async with self.router.run(asked) as answer:
                while chunk := await answer.read():
                    data += chunk
                await answer.finish()
            return data.decode()

        async def ask_in_session() -> str:
            async with self.bench.pool.use(database=database, settings=profile, one_shot=True) as session:
                return await ask(session)

        return self.call(ask_in_session())

    @property
    def remembered(self) -> int:
        return len(self.node._selects._remembered)

    def end(self) -> None:
        """Nothing of it is left to the next node on this chDB."""
        self.bench.ask("DROP DATABASE d SYNC", "default")
        self.call(self.node.stop())
        for record in self.node.tables.catalog.all():
            self.node.tables.catalog.remove(record.uuid)


@pytest.fixture
def world(bench: Bench) -> Iterator[World]:
    world = World(bench)
    world.make()
    yield world
    world.end()


@pytest.mark.parametrize("seeds", few_first([2, SEEDS], few=1))
def test_queries_in_any_order_answer_as_one_table_does(world: World, seeds: int) -> None:
    world.make("people", table="people", columns=PEOPLE)
    for seed in range(seeds):
        rng = random.Random(seed)
        texts = [
            # No hidden columns: these belong to the tables of the shards.
            text
            for number in range(8)
            if "twice" not in (text := Query(seed * 100 + number).text()) and "label" not in text
        ]
        expected = {text: world.bench.ask(text) for text in texts}
        for text in rng.choices(texts, k=len(texts) * 2):
            assert world.ask(text) == expected[text], f"seed {seed}: {text}"
    assert world.remembered > seeds / 2


def test_a_text_that_was_remembered_is_not_analysed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT count(), sum(id) FROM events WHERE city = 'Rome'"
    first = world.ask(sql)
    assert world.remembered == 1

    def analysed(*_: object) -> object:
        raise AssertionError("analysed again")

    monkeypatch.setattr(world.node._selects._analyst, "analyse", analysed)
    assert world.ask(sql) == first
    with pytest.raises(AssertionError, match="analysed again"):
        world.ask(sql, settings={"max_threads": "1"})


class TestWhatChangesTheMeaning:
    def test_columns_of_the_table(self, world: World) -> None:
        sql = "SELECT * FROM events ORDER BY id LIMIT 1"
        assert world.ask(sql).startswith("id\tname\tcity")
        world.ask("ALTER TABLE events DROP COLUMN name")
        assert world.ask(sql).startswith("id\tcity")
        world.ask("ALTER TABLE events MODIFY COLUMN id Int64")
        assert "\nInt64\t" in world.ask(sql)

    def test_names(self, world: World) -> None:
        world.make("others", table="people", columns={"id": "UInt64"})
        sql = "SELECT count() FROM events"
        assert world.ask(sql).endswith("\n300\n")
        world.ask("EXCHANGE TABLES events AND others")
        assert world.ask(sql).endswith("\n120\n")
        world.ask("RENAME TABLE events TO elsewhere, others TO events")
        assert world.ask(sql).endswith("\n300\n")
        world.ask("DROP TABLE events SYNC")
        with pytest.raises(SqlError) as gone:
            world.ask(sql)
        assert gone.value.code == Code.UNKNOWN_TABLE

    def test_the_cluster(self, world: World) -> None:
        sql = "SELECT count() FROM events"
        assert world.ask(sql).endswith("\n300\n")
        shard = world.bench.ask("SELECT count() FROM events", "s1")
        world.topology = Topology({"c": cluster_of("s1")})
        assert world.ask(sql) == shard
        world.topology = replace(world.topology, clusters={"c": cluster_of("s1", "s1")})
        assert world.ask(sql) != shard
        world.topology = Topology()
        with pytest.raises(SqlError) as gone:
            world.ask(sql)
        assert gone.value.code == Code.CLUSTER_DOESNT_EXIST

    def test_settings(self, world: World) -> None:
        sql = "SELECT count() FROM events WHERE at >= toDateTime('2024-01-02 00:00:00')"
        for zone in ("UTC", "Asia/Tokyo", "UTC", "America/New_York"):
            settings = {"session_timezone": zone}
            expected = world.call(
                world.bench.pool.query(sql, format="TSVWithNamesAndTypes", database="one", settings=settings)
            ).text
            assert world.ask(sql, settings=settings) == expected
            assert world.ask(sql, profile=settings) == expected

    def test_parameters(self, world: World) -> None:
        sql = "SELECT count() FROM events WHERE id < {least:UInt64}"
        for least in ("7", "200", "7"):
            assert world.ask(sql, params={"least": least}).endswith(f"\n{least}\n")

    def test_the_database(self, world: World) -> None:
        sql = "SELECT count() FROM events"
        assert world.ask(sql).endswith("\n300\n")
        assert world.ask(sql, database="s1") == world.bench.ask(sql, "s1")
        assert world.ask(sql).endswith("\n300\n")

    def test_a_view_of_the_name(self, world: World) -> None:
        world.ask("CREATE TABLE meant ENGINE = Memory AS SELECT 1 AS n")
        sql = "SELECT sum(n) AS s FROM meant"
        assert world.ask(sql).endswith("\n1\n")
        assert world.ask(sql).endswith("\n1\n")
        world.ask("DROP TABLE meant SYNC")
        world.ask("CREATE VIEW meant AS SELECT count() AS n FROM events")
        assert world.ask(sql).endswith("\n300\n")

    @pytest.mark.parametrize("merging", ["0", "2"])
    def test_the_value_of_a_subquery(self, world: World, merging: str) -> None:
        """A shard writes it, and no statement of this node."""
        world.make("people", table="people", columns=PEOPLE)
        sql = "SELECT id FROM events WHERE id = (SELECT age FROM people WHERE id = 9000)"
        for age in ("5", "6"):
            world.bench.ask(f"INSERT INTO s1.people VALUES (9000, 'x', {age})")
            try:
                answer = world.ask(sql, settings={"distributed_group_by_no_merge": merging})
            finally:
                world.bench.ask("DELETE FROM s1.people WHERE id = 9000")
            assert answer == f"id\nUInt64\n{age}\n"

    def test_what_a_user_may_do(self, world: World) -> None:
        sql = "SELECT count() FROM events SETTINGS max_threads = 1"
        assert world.ask(sql).endswith("\n300\n")
        with pytest.raises(SqlError) as refused:
            world.ask(sql, profile={"readonly": "1"})
        assert refused.value.code == Code.READONLY
        assert world.ask(sql).endswith("\n300\n")


REPEATABLE = """
SELECT count() FROM events
SELECT count() FROM events WHERE id > 500000
SELECT city, count(), sum(price), max(id) FROM events GROUP BY city ORDER BY city
SELECT id, name FROM events ORDER BY price DESC, id LIMIT 10
SELECT count() FROM events WHERE city IN ('Rome', 'Oslo') AND toYear(day) = 2024
SELECT CAST(id AS String) FROM events LIMIT 1
"""
NOT_REPEATABLE = """
SELECT count() FROM events WHERE day > today()
SELECT count() FROM events WHERE day > `today`()
SELECT count() FROM events WHERE at > now() - INTERVAL 1 DAY
SELECT count() FROM events WHERE day > CURRENT_DATE
SELECT id, rand() FROM events
SELECT quantile(rand() % 2 / 2)(id) FROM events
SELECT id FROM events LIMIT toUInt8(now())
SELECT count() FROM events WHERE id IN extra
SELECT count() FROM events WHERE id IN (SELECT id FROM extra)
SELECT count() FROM events JOIN extra USING (id)
SELECT count(), (SELECT max(id) FROM extra) FROM events
WITH (SELECT max(id) FROM extra) AS m SELECT count() FROM events WHERE id < m
SELECT count() FROM events, numbers(3) AS n
SELECT dictGet('d', 'a', id) FROM events
SELECT my_own_function(id) FROM events
SELECT getSetting('max_threads') FROM events
SELECT count() FROM events UNION ALL SELECT 1
"""


@pytest.mark.parametrize("sql", REPEATABLE.strip().splitlines())
def test_what_depends_on_the_table_alone_is_remembered(world: World, sql: str) -> None:
    assert world.remembered == 0
    world.ask(sql)
    assert world.remembered == 1


@pytest.mark.parametrize("sql", NOT_REPEATABLE.strip().splitlines())
def test_what_may_mean_something_else_later_is_not_remembered(world: World, sql: str) -> None:
    world.bench.ask("CREATE TABLE IF NOT EXISTS d.extra AS one.extra ENGINE = Memory", "default")
    try:
        world.ask(sql)
    except SqlError as error:
        assert error.code in (36, 46, 47, 440), error
    assert world.remembered == 0


def test_a_call_that_only_the_analysis_shows_is_found() -> None:
    dump = (
        "QUERY id: 0\n  JOIN TREE\n    TABLE_FUNCTION id: 1, table_function_name: null\n"
        "  WHERE\n    FUNCTION id: 2, function_name: {}, function_type: ordinary\n\nSELECT 1"
    )
    sql = "SELECT count() FROM events WHERE x"
    assert is_repeatable(sql, parse_query_tree(dump.format("toYear")), places=1)
    assert not is_repeatable(sql, parse_query_tree(dump.format("today")), places=1)
    assert not is_repeatable(sql, None, places=1)


def test_users_who_may_only_read_are_asked_every_time(world: World) -> None:
    sql = "SELECT count() FROM events"
    for _ in range(2):
        assert world.ask(sql, profile={"readonly": "1"}).endswith("\n300\n")
    assert world.remembered == 0


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT count() FROM events, {}", Code.READONLY),
        ("SELECT (SELECT a FROM {}) FROM events", Code.READONLY),
        # chDB's word on the function is not reached where there are no rows.
        ("SELECT (SELECT throwIf(count() = 0) FROM events), (SELECT a FROM {})", 395),
    ],
)
def test_users_who_may_only_read_get_no_other_function_beside_the_table(
    world: World, sql: str, code: int
) -> None:
    with pytest.raises(SqlError) as refused:
        world.ask(sql.format("url('http://127.0.0.1:1/', CSV, 'a Int64')"), profile={"readonly": "1"})
    assert refused.value.code == code


def test_users_who_may_only_read_get_columns_that_the_table_in_chdb_has_not(world: World) -> None:
    sql = "SELECT uniqExact(_shard_num), countIf(_table = 'events') FROM events"
    assert world.ask(sql, profile={"readonly": "1"}).endswith("\n3\t300\n")


def test_the_oldest_is_forgotten_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.distributed.reading.remembered.MAX_ENTRIES", 3)
    for number in range(5):
        world.ask(f"SELECT count() FROM events WHERE id < {number}")
    assert world.remembered == 3


def test_a_cancelled_statement_leaves_nothing_behind(world: World) -> None:
    async def cancelled() -> None:
        session = world.bench.pool.session(database="d", one_shot=True)
        asked = Asked("SELECT sum(sleepEachRow(0.01)) FROM events", User("u"), session)
        task = asyncio.ensure_future(world.router.run(asked).__aenter__())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    world.call(cancelled())
    assert world.ask("SELECT count() FROM events").endswith("\n300\n")
