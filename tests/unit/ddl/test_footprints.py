"""Which statements may run beside each other where a queue has several lanes, and which wait."""

from __future__ import annotations

import pytest

from engine.config.model import Cluster, Replica, Shard
from engine.ddl.backlog import Backlog
from engine.ddl.entry import DDLLogEntry
from engine.ddl.matching import ClusterPlace
from engine.ddl.task import Task
from engine.names import entry_name
from engine.sql import parse_and_strip
from tests.unit.ddl.support import host


def task(number: int, sql: str) -> Task:
    statement, query = parse_and_strip(sql)
    replica = Replica("a", 9000, default_database="d")
    shard = Shard(1, (replica,))
    place = ClusterPlace(Cluster("c", (shard,)), shard, replica)
    entry = DDLLogEntry(1, sql, (host("a"),))
    return Task(entry_name(number), number, entry, "", host("a"), statement, query, place)


def waits(first: str, second: str) -> bool:
    """Whether `second`, which is later in the queue, waits for `first`."""
    backlog = Backlog(lanes=2)
    earlier, later = task(0, first), task(1, second)
    backlog.add(earlier)
    backlog.add(later)
    assert backlog.try_take() is earlier
    taken = backlog.try_take()
    if taken is None:
        backlog.done(earlier)
        assert backlog.try_take() is later
    return taken is None


T, U = "d.t ON CLUSTER c", "d.u ON CLUSTER c"
OF_ONE_TABLE = [
    "CREATE TABLE {} (a Int8) ENGINE = MergeTree ORDER BY a",
    "ALTER TABLE {} ADD COLUMN b Int8",
    "DROP TABLE {}",
    "TRUNCATE TABLE {}",
    "OPTIMIZE TABLE {} FINAL",
    "DELETE FROM {} WHERE a = 1",
]
OF_MORE = [
    "CREATE TABLE d.v ON CLUSTER c AS d.t",
    "CREATE VIEW d.v ON CLUSTER c AS SELECT * FROM d.t",
    "CREATE MATERIALIZED VIEW d.v ON CLUSTER c TO d.t AS SELECT * FROM d.w",
    "ALTER TABLE d.v ON CLUSTER c REPLACE PARTITION 1 FROM d.t",
    "RENAME TABLE d.v TO d.w ON CLUSTER c",
    "DROP DATABASE d ON CLUSTER c",
    "CREATE DATABASE d ON CLUSTER c",
    "DETACH TABLE d.v ON CLUSTER c",
]


@pytest.mark.parametrize("first", OF_ONE_TABLE)
@pytest.mark.parametrize("second", OF_ONE_TABLE)
def test_statements_of_one_table_wait_for_each_other_and_for_no_others(first: str, second: str) -> None:
    assert waits(first.format(T), second.format(T))
    assert waits(first.format("t ON CLUSTER c"), second.format(T)), "the replica's default database is d"
    assert not waits(first.format(T), second.format(U))


@pytest.mark.parametrize("more", OF_MORE)
def test_what_may_concern_other_tables_waits_for_all_before_it_and_all_behind_it_for_it(more: str) -> None:
    for sql in OF_ONE_TABLE:
        assert waits(sql.format("d.x ON CLUSTER c"), more)
        assert waits(more, sql.format("d.x ON CLUSTER c"))


def test_one_that_waits_is_not_overtaken_by_others_of_its_table() -> None:
    backlog = Backlog(lanes=3)
    tables = ("d.t, d.u ON CLUSTER c", T, U, "d.v ON CLUSTER c")
    tasks = [task(number, f"DROP TABLE {each}") for number, each in enumerate(tables)]
    for each in tasks:
        backlog.add(each)
    assert [backlog.try_take(), backlog.try_take(), backlog.try_take()] == [tasks[0], tasks[3], None]
    backlog.done(tasks[0])
    assert [backlog.try_take(), backlog.try_take()] == [tasks[1], tasks[2]]
