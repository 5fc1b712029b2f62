"""Loads with a `job_id` while a replica of the first shard is away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import Corrupt, Unavailable
from engine.names import TableName
from engine.testing.local_cluster import Call, LocalCluster
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.shared_decisions import Shared
from spark_apps.clickhouse_cluster.writer import Job, finish
from tests.spark.conftest import Servers
from tests.spark.test_faults import attempt, begin, is_once, make_table

pytestmark = pytest.mark.slow

Away = Callable[[], Any]


def shared_of(job: Job) -> Shared:
    assert isinstance(job.decisions, Shared)
    return job.decisions


@pytest.fixture
def first_is_away(running: tuple[LocalCluster, Call[Any]]) -> Away:
    """SIGKILL to the first replica of the first shard, which is started again at the end."""
    cluster, call = running
    node = cluster.node("n1")

    @contextmanager
    def away() -> Iterator[None]:
        call(node.kill9())
        try:
            yield
        finally:
            call(node.start())

    return away


def seen_from(nodes: Servers, server: Server) -> Servers:
    """As if the first shard had this replica only: what is asked is asked there."""
    return replace(nodes, shards=[[server], nodes.shards[1]])


def test_a_load_begins_and_ends_while_the_first_replica_is_away_and_takes_place_once(
    nodes: Servers, first_is_away: Away
) -> None:
    """1. The first replica ends when a driver has staged there. 2. A second driver of the job stages and
    commits elsewhere. 3. The first replica is back, and the first driver commits. 4. A third begins."""
    table = make_table(nodes)
    early = begin(nodes, table)
    assert early.target.shards[0].replica == nodes.shards[0][0]
    staged = [attempt(early, task=0, number=1, s="early")]
    with first_is_away():
        job = begin(nodes, table)
        assert (job.before, job.target.shards[0].replica) == (Progress.NOTHING, nodes.shards[0][1])
        finish(job, [attempt(job, task=0, number=2, s="late")])
        assert begin(nodes, table).before is Progress.DONE
    finish(early, staged)
    assert begin(nodes, table).before is Progress.DONE
    nodes.shards[0][0].execute(f"SYSTEM SYNC REPLICA {table}")
    assert is_once(nodes, table)
    assert {s[:4] for s in nodes.ask(f"SELECT s FROM {table}")} == {"late"}
    assert nodes.staging() == []


@pytest.mark.extended
def test_a_job_that_was_done_is_known_to_be_while_the_replica_that_did_it_is_away(
    nodes: Servers, first_is_away: Away
) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    finish(job, [attempt(job, task=0, number=1)])
    nodes.shards[0][1].execute(f"SYSTEM SYNC REPLICA {shared_of(job).table.quoted}")
    with first_is_away():
        assert begin(nodes, table).before is Progress.DONE


@pytest.mark.extended
def test_a_decision_that_only_a_replica_has_which_is_away_stops_the_load(
    nodes: Servers, first_is_away: Away
) -> None:
    """It may be there, or not."""
    table, second = make_table(nodes), nodes.shards[0][1]
    job = begin(nodes, table)
    second.execute(f"SYSTEM STOP FETCHES {shared_of(job).table.quoted}")
    finish(job, [attempt(job, task=0, number=1)])
    with first_is_away():
        second.execute(f"SYSTEM START FETCHES {shared_of(job).table.quoted}")
        with pytest.raises(Unavailable, match="Nobody can tell whether this job was committed before"):
            begin(nodes, table)
    assert begin(nodes, table).before is Progress.DONE
    assert is_once(nodes, table)


@pytest.mark.extended
def test_of_two_plans_that_come_by_way_of_two_replicas_the_first_is_decided(nodes: Servers) -> None:
    table = make_table(nodes)
    one, other = (begin(seen_from(nodes, server), table) for server in nodes.shards[0])
    for s, job in (("one", one), ("other", other)):
        finish(job, [attempt(job, task=0, number=1, s=s)])
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_two_plans_of_a_job_are_nobody_s_to_choose_from(nodes: Servers) -> None:
    job = begin(nodes, make_table(nodes))
    server, records = nodes.shards[0][0], shared_of(job).table.quoted
    for plan in ("{}", "[]"):
        row = json.dumps({"job": job.key, "event": "decided", "facts": plan})
        server.execute(f"INSERT INTO {records} FORMAT JSONEachRow {row}")
    with pytest.raises(Corrupt, match=f"job {job.key} has 2 plans"):
        job.looked_at_again()


@pytest.mark.extended
def test_a_plan_that_is_proposed_when_another_one_is_decided_is_not_the_jobs(nodes: Servers) -> None:
    job = begin(nodes, make_table(nodes))
    plan = finish(job, [attempt(job, task=0, number=1)])
    assert shared_of(job).decide(replace(plan, epoch="other")) == plan


def test_what_replicas_share_expires(nodes: Servers) -> None:
    """Of jobs after three months, of streams after a year."""
    job = begin(nodes, make_table(nodes))
    server, records = nodes.shards[0][0], shared_of(job).table.quoted
    for event, days in (("done", 100), ("done", 80), ("batch", 300), ("batch", 400)):
        values = f"'{event}{days}', '{event}', '', now() - {days} * 86400"
        server.execute(f"INSERT INTO {records} VALUES ({values})")
    server.execute(f"OPTIMIZE TABLE {records} FINAL")
    assert server.text(f"SELECT job FROM {records} ORDER BY job").split() == ["batch300", "done80"]


@pytest.mark.extended
def test_records_of_an_older_server_are_found_when_it_shares_them(nodes: Servers) -> None:
    """A job was decided on one replica, as where servers know no tokens."""
    table = make_table(nodes)
    job = begin(nodes, table)
    plan = finish(job, [attempt(job, task=0, number=1)])
    job.decisions.forget(job.key)
    assert begin(nodes, table).before is Progress.NOTHING
    text = plan.to_json().replace("\\", "\\\\").replace("'", "\\'")
    view = TableName("oncluster_spark", f"decided_{job.key}").quoted
    server = nodes.shards[0][1]
    server.execute(f"CREATE VIEW {view} AS SELECT '{text}' AS plan")
    try:
        again = begin(nodes, table)
        assert (again.before, again.decisions.server) == (Progress.DECIDED, server)
    finally:
        server.execute(f"DROP TABLE {view}")
