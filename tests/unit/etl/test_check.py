"""Whether replicas have what Spark counted, and whether the tables of a load are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from engine.config.model import Cluster, Replica, Shard
from engine.env import SystemEnv
from engine.errors import (
    ConfigError,
    NodeUnavailable,
    OnclusterError,
    ReplyLost,
    SqlError,
)
from engine.etl.check import LoadCheckFailed, any_host, check_load, urls_of
from engine.etl.report import TableReport
from engine.etl.targets import TargetsMissing, require_over, require_targets
from engine.names import quote_string
from engine.storage.scratch import ScratchChdb
from tests.unit.etl.loads import CLUSTER, FLIGHTS, REPORT


class Nodes:
    """Rows by host and table; a host that is not there does not answer, but with `error`."""

    error: OnclusterError = NodeUnavailable("It cannot be reached.")

    def __init__(self, rows: Mapping[str, Mapping[str, int]], *, late: int = 0) -> None:
        self.rows = rows
        self.asked: list[str] = []
        self._late = late

    async def count(self, host: str, sql: str) -> int:
        self.asked.append(f"{host}: {sql}")
        if host not in self.rows:
            raise self.error
        table = sql.partition(" FROM ")[2].partition(" WHERE ")[0].replace("`", "")
        missing = 1 if self._late > 0 and host == "b2" else 0
        self._late -= missing
        return self.rows[host][table] - missing


def nodes(*, late: int = 0, **changes: int) -> Nodes:
    """The cluster as it should be after REPORT, with other numbers of rows on some hosts."""
    rows = {"a1": 4, "a2": 4, "b1": 6, "b2": 6} | changes
    return Nodes({host: {"d.flights": count, "d.flights_all": 10} for host, count in rows.items()}, late=late)


async def test_every_replica_of_every_shard_and_the_distributed_table_are_asked() -> None:
    asked = nodes()
    check = await check_load(REPORT, CLUSTER, asked, env=SystemEnv(), patience_s=0)
    check.require_passed()

    assert check.passed
    assert [(row.host, row.table, row.rows) for row in check.replicas] == [
        ("a1", "d.flights", 4),
        ("a2", "d.flights", 4),
        ("b1", "d.flights", 6),
        ("b2", "d.flights", 6),
        ("a1", "d.flights_all", 10),
    ]
    assert asked.asked[0] == "a1: SELECT count() FROM `d`.`flights` WHERE day >= '2013-01-01'"


@pytest.mark.parametrize("wrong", [5, 7, 0])
async def test_a_replica_with_other_rows_fails_the_check_by_name(wrong: int) -> None:
    check = await check_load(REPORT, CLUSTER, nodes(b2=wrong), env=SystemEnv(), patience_s=0)

    with pytest.raises(LoadCheckFailed, match=f"shard 2, b2: {wrong} rows, 6 expected") as failed:
        check.require_passed()
    assert [row.host for row in failed.value.check.wrong] == ["b2"]
    assert "b1" not in str(failed.value)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "error", [NodeUnavailable("it is away"), ReplyLost("it is away"), SqlError(60, "it is away")]
)
async def test_a_replica_that_does_not_answer_fails_the_check(error: OnclusterError, exact: bool) -> None:
    report = replace(REPORT, tables=(replace(FLIGHTS, exact=exact),))
    silent = nodes()
    del silent.rows["a2"]
    silent.error = error
    check = await check_load(report, CLUSTER, silent, env=SystemEnv(), patience_s=0)

    wanted = "4" if exact else "at least 4"
    with pytest.raises(LoadCheckFailed, match=f"shard 1, a2: it is away, {wanted} expected"):
        check.require_passed()
    assert [row.host for row in check.wrong] == ["a2"]


async def test_replicas_of_one_name_are_asked_each_at_its_own_port() -> None:
    shard = Shard(1, (Replica("a", 9001, http_port=8001), Replica("a", 9002, http_port=8002)))
    cluster = Cluster("c", (shard, Shard(2, (Replica("b", 9000),))))
    assert urls_of(cluster) == {
        "a:9001": "http://a:8001",
        "a:9002": "http://a:8002",
        "b": "http://b:8123",
    }
    asked = Nodes({host: {"d.flights": 6, "d.flights_all": 10} for host in ("a:9001", "a:9002", "b")})
    asked.rows["a:9001"]["d.flights"] = 3
    asked.rows["a:9002"]["d.flights"] = 4

    check = await check_load(REPORT, cluster, asked, env=SystemEnv(), patience_s=0)

    assert [row.host for row in check.wrong] == ["a:9001"]
    assert any_host(cluster) == "a:9001"


async def test_rows_over_the_distributed_table_count_too() -> None:
    wrong = nodes()
    wrong.rows = {host: {**rows, "d.flights_all": 9} for host, rows in wrong.rows.items()}
    check = await check_load(REPORT, CLUSTER, wrong, env=SystemEnv(), patience_s=0)

    with pytest.raises(LoadCheckFailed, match=r"d\.flights_all over a1: 9 rows, 10 expected"):
        check.require_passed()


async def test_a_replica_that_is_behind_is_given_time() -> None:
    late = nodes(late=2)
    check = await check_load(REPORT, CLUSTER, late, env=SystemEnv(), patience_s=30)

    assert check.passed
    assert sum(line.startswith("b2") for line in late.asked) == 3


async def test_appended_rows_may_join_others_but_not_be_fewer() -> None:
    report = replace(REPORT, tables=(replace(FLIGHTS, exact=False),))

    assert (await check_load(report, CLUSTER, nodes(b2=60), env=SystemEnv(), patience_s=0)).passed
    assert not (await check_load(report, CLUSTER, nodes(b2=5), env=SystemEnv(), patience_s=0)).passed


async def test_a_report_that_contradicts_itself_or_names_a_strange_shard_fails_at_once() -> None:
    strange = replace(REPORT, tables=(replace(FLIGHTS, rows_per_shard={1: 4, 3: 6}),))
    for report, message in ((strange, "c has no shard 3"), (replace(REPORT, read=99), "read 99 rows")):
        check = await check_load(report, CLUSTER, nodes(), env=SystemEnv(), patience_s=300)
        with pytest.raises(LoadCheckFailed, match=message):
            check.require_passed()


async def test_a_table_that_stands_on_each_shard_in_full_is_missed_where_it_is_not() -> None:
    """Also on a shard that has joined since, of which the report knows nothing."""
    airlines = TableReport("d.flights", "d.flights", 16, {1: 16})
    asked = nodes(a1=16, a2=16, b1=0, b2=0)
    check = await check_load(
        replace(REPORT, tables=(airlines,)), CLUSTER, asked, env=SystemEnv(), patience_s=0
    )
    assert [row.host for row in check.wrong] == ["b1", "b2"]

    unequal = replace(REPORT, tables=(replace(airlines, rows_per_shard={1: 16, 2: 0}),))
    check = await check_load(unequal, CLUSTER, asked, env=SystemEnv(), patience_s=0)
    assert check.problems == ("d.flights: 16 rows on each shard, but they have 16, 0",)


async def test_tables_and_columns_that_are_not_there_are_named() -> None:
    class Tables:
        async def count(self, host: str, sql: str) -> int:
            return int(not any(name in sql for name in gone))

    gone: tuple[str, ...] = ()
    await require_targets(Tables(), "a1")
    gone = ("name = 'daily_delays_all'", "name = 'airline'")
    with pytest.raises(TargetsMissing, match=r"a1 has no table flights\.daily_delays_all to load into"):
        await require_targets(Tables(), "a1")
    gone = ("name = 'airline'",)
    with pytest.raises(TargetsMissing, match="a1 has no column") as missing:
        await require_targets(Tables(), "a1")
    assert missing.value.missing == ("flights.flights_all.airline",)


@pytest.mark.slow
async def test_a_load_into_a_cluster_that_the_tables_do_not_name_is_refused() -> None:
    """The condition is evaluated by chDB, over a row that stands for `system.tables`."""

    class Tables:
        async def count(self, host: str, sql: str) -> int:
            row = "'flights' AS database, 'flights_all' AS name, 'Distributed' AS engine"
            rows = f"(SELECT {row}, {text} AS engine_full)"
            return int(await scratch.query(sql.replace("system.tables", rows)))

    async with ScratchChdb() as scratch:
        for first in ("'orders'", "orders", "'{cluster}'"):
            text = quote_string(f"Distributed({first}, 'flights', 'flights', cityHash64(a, b))")
            await require_over("orders", Tables(), "a1")
        for first in ("'logs'", "logs"):
            text = quote_string(f"Distributed({first}, 'flights', 'flights')")
            with pytest.raises(ConfigError, match="not over the cluster 'orders'"):
                await require_over("orders", Tables(), "a1")
