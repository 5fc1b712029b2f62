"""Attempts that fail after they posted, drivers that end at a wrong moment, posts that come too late."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from engine.errors import NodeUnavailable, OnclusterError, ReplyLost, SqlError, Unavailable
from engine.names import TableName
from engine.testing.local_cluster import Call, LocalCluster
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.decisions import OnOneServer, Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves, RowsMissing
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.records import Event, Mode, Plan, ShardPlan, Staged
from spark_apps.clickhouse_cluster.shard_commit import ShardCommit
from spark_apps.clickhouse_cluster.shared_decisions import Shared
from spark_apps.clickhouse_cluster.writer import Attempt, Job, TaskStaged, finish, give_up
from tests.few import few_first
from tests.spark.conftest import Servers

pytestmark = pytest.mark.slow

SCHEMA = StructType([StructField("a", LongType()), StructField("s", StringType())])
ROWS = 60


def make_table(servers: Servers, *, replicated: bool = True) -> str:
    return servers.table("a UInt32, s String", rest="PARTITION BY a % 2 ORDER BY a", replicated=replicated)


def begin(servers: Servers, table: str, *, job_id: str = "job", mode: Mode = Mode.APPEND, **more: str) -> Job:
    """What the planner does: a new driver's look at the job."""
    given = {"table": table, "shards": servers.option, "sharding_key": "cityHash64(a)", "job_id": job_id}
    return Job.begin(Options.parse(given | more), SCHEMA, mode)


def attempt(
    job: Job, *, task: int, number: int, first: int = 0, last: int = ROWS, s: str = "x"
) -> TaskStaged:
    """One attempt of a task that has the rows from `first` to before `last`."""
    with Attempt(job, ("a", "s"), task, number) as posting:
        rows = list(range(first, last))
        posting.add(pa.record_batch({"a": pa.array(rows, pa.int64()), "s": [f"{s}{row}" for row in rows]}))
        posting.flush()
    return TaskStaged(task, number, posting.staged)


def is_once(servers: Servers, table: str, *, rows: int = ROWS) -> bool:
    return servers.ask(f"SELECT a FROM {table}") == sorted(map(str, range(rows)))


class Crash(BaseException):
    """The driver ends here."""


@pytest.fixture(params=few_first([True, False], few=1), ids=["replicated", "plain"])
def replicated(request: pytest.FixtureRequest) -> bool:
    """Of the test's `table`."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def place(servers: Servers, replicated: bool) -> Servers:
    """One replica of each shard where the test's `table` is not replicated."""
    return servers if replicated else servers.one_each


@pytest.fixture
def table(place: Servers, replicated: bool) -> str:
    return make_table(place, replicated=replicated)


def failing_once(frame: DataFrame, marker: Path, how: str) -> DataFrame:
    """The same rows; the first attempt of task 0 ends after its last row was given to the writer."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and not marker.exists():
            marker.touch()
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this attempt fails")

    return frame.mapInArrow(rows, frame.schema)


@pytest.mark.parametrize(
    ("kind", "how"), few_first([("nodes", "raise"), ("nodes", "kill"), ("real", "kill")], few=1)
)
def test_an_attempt_that_posted_and_then_failed_leaves_nothing(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str, how: str
) -> None:
    servers: Servers = request.getfixturevalue(kind)
    table = make_table(servers)
    frame = spark.range(ROWS, numPartitions=2).selectExpr("id AS a", "concat('x', id) AS s")
    marker = tmp_path / "failed"
    servers.writer(failing_once(frame, marker, how), block_rows="2").save(table)
    assert marker.exists()
    assert is_once(servers, table)
    assert servers.staging() == []


@pytest.mark.extended
def test_a_driver_that_ended_after_staging_starts_over(place: Servers, table: str) -> None:
    attempt(begin(place, table), task=0, number=1)
    again = begin(place, table)
    assert again.before is Progress.NOTHING
    finish(again, [attempt(again, task=0, number=1)])
    assert is_once(place, table)
    assert place.staging() == []


@pytest.mark.parametrize("when", few_first(["before", "after"], few=1))
@pytest.mark.parametrize("event", few_first([Event.INTENT, Event.ATTACHED], few=1), ids=str)
def test_a_driver_that_ended_in_the_middle_of_the_commit_goes_on(
    place: Servers, table: str, monkeypatch: pytest.MonkeyPatch, event: Event, when: str
) -> None:
    """1. Rows are staged and decided. 2. The commit ends at a record of its ledger, before or after it. 3. A
    new driver with the same job id takes no rows, and the commit goes on."""
    job = begin(place, table)
    messages = [attempt(job, task=0, number=1, last=30), attempt(job, task=1, number=2, first=30)]
    true_record = records.record

    def record(server: Server, key: str, seen: Event, facts: Mapping[str, Mapping[str, Any]]) -> None:
        if seen is not event or when == "after":
            true_record(server, key, seen, facts)
        if seen is event:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(records, "record", record)
        end_before_done(patch)
        with pytest.raises(Crash):
            finish(job, messages)
    again = begin(place, table)
    assert again.before is Progress.DECIDED
    finish(again, [])
    assert is_once(place, table)
    assert begin(place, table).before is Progress.DONE
    assert place.staging() == []


@pytest.mark.parametrize("mode", few_first([Mode.APPEND, Mode.OVERWRITE_PARTITIONS], few=2), ids=str)
@pytest.mark.extended
def test_a_server_that_ends_between_two_moves_of_one_statement_gets_the_others_later(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """1. A server carries out the first of the moves that one statement asks for. 2. No reply comes. 3. The
    load is started again."""
    table = make_table(servers)
    true_alter, moved = Moves._alter, list[Sequence[str]]()

    def alter(moves: Moves, verb: str, ids: Sequence[str]) -> None:
        true_alter(moves, verb, ids[:1])
        moved.append(ids)
        raise ReplyLost("cut")

    job = begin(servers, table, mode=mode)
    messages = [attempt(job, task=0, number=1)]
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "_alter", alter)
        with pytest.raises(ReplyLost):
            finish(job, messages)
    is_by_one = job.target.is_old and mode is Mode.APPEND
    assert [len(ids) for ids in moved] == [1 if is_by_one else 2] * 2
    finish(begin(servers, table, mode=mode), [])
    assert is_once(servers, table)
    assert servers.staging() == []


@pytest.mark.extended
def test_what_a_run_did_ahead_is_nothing_where_another_plan_is_decided(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Two drivers of one job have staged, and look. 2. The first gathers and records its intents. 3. The
    second's plan is decided, and it ends. 4. The first carries out that plan: its own intents count for
    nothing, so equal rows that somebody else adds meanwhile are not taken for the job's."""
    table = make_table(nodes)
    first, second = begin(nodes, table), begin(nodes, table)
    rows = [
        [attempt(job, task=0, number=1, last=30, s=s), attempt(job, task=1, number=2, first=30, s=s)]
        for job, s in ((first, "one"), (second, "two"))
    ]
    true_decide = Shared.decide

    def decide(decisions: Shared, plan: Plan) -> Plan:
        if plan.epoch == first.epoch:
            with monkeypatch.context() as patch:
                patch.setattr(Moves, "append", _crash)
                with pytest.raises(Crash):
                    finish(second, rows[1])
        return true_decide(decisions, plan)

    with monkeypatch.context() as patch:
        patch.setattr(Shared, "decide", decide)
        assert finish(first, rows[0]).epoch == second.epoch
    for shard in nodes.shards:
        own = records.recorded(shard[0], first.key)[Event.INTENT]
        decided = records.recorded(shard[0], first.key, epoch=second.epoch)[Event.INTENT]
        assert {facts["epoch"] for facts in decided.values()} == {second.epoch}
        assert own.keys() == decided.keys()
    assert is_once(nodes, table)
    assert {s[:3] for s in nodes.ask(f"SELECT s FROM {table}")} == {"two"}
    assert nodes.staging() == []


class HeldMoves:
    """The first call of a method of `Moves` on each shard waits until `go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str, *, shards: int) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._waiting, self._go_on = threading.Barrier(shards + 1), threading.Event()
        true_method, calls = getattr(Moves, method), itertools.count()

        def held(moves: Moves, ids: Sequence[str]) -> object:
            if next(calls) < shards:
                self._waiting.wait()
                self._go_on.wait()
            return true_method(moves, ids)

        patch.setattr(Moves, method, held)

    def begin(self, work: Callable[[], object]) -> Future[object]:
        """Returns when all shards' moves wait."""
        future = self._pool.submit(work)
        self._waiting.wait()
        return future

    def go_on(self) -> None:
        self._go_on.set()


def test_a_commit_that_was_left_behind_adds_nothing_when_it_goes_on(
    place: Servers, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A commit sleeps before its first move. 2. A new driver carries the job out, and ends before it is
    recorded as done. 3. The first goes on, and fails; where Keeper knows the parts, it drops what is moved
    again. 4. A third ends the job."""
    job = begin(place, table)
    messages = [attempt(job, task=0, number=1)]
    moves = HeldMoves(monkeypatch, "append", shards=2)
    sleeper = moves.begin(lambda: finish(job, messages))
    with monkeypatch.context() as patch:
        end_before_done(patch)
        with pytest.raises(Crash):
            finish(begin(place, table), [])
    moves.go_on()
    is_known = job.target.is_replicated and not job.target.is_old
    with contextlib.nullcontext() if is_known else pytest.raises(OnclusterError):
        sleeper.result()
    assert is_once(place, table)
    finish(begin(place, table), [])
    assert is_once(place, table)
    assert place.staging() == []


@pytest.mark.extended
def test_a_commit_that_was_left_behind_removes_nothing_when_it_goes_on(
    place: Servers, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A load that replaces partitions by nothing sleeps before its first move. 2. A new driver carries it
    out. 3. Another load has rows for those partitions. 4. The first goes on: its load is done."""
    job = begin(place, table, mode=Mode.OVERWRITE_PARTITIONS, partitions="0,1")
    moves = HeldMoves(monkeypatch, "replace", shards=2)
    sleeper = moves.begin(lambda: finish(job, []))
    again = finish(begin(place, table), [])
    other = begin(place, table, job_id="other")
    finish(other, [attempt(other, task=0, number=1)])
    moves.go_on()
    # Its move was refused, and its load is done.
    assert sleeper.result() == again
    assert is_once(place, table)


def test_a_shard_that_dies_in_the_middle_of_the_commit_gets_its_rows_when_it_is_back(
    nodes: Servers, running: tuple[LocalCluster, Call[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A load is decided. 2. SIGKILL to the one replica of the second shard, before its rows are moved.
    3. The load fails. 4. The replica is back, and the load is started once more."""
    cluster, call = running
    table = make_table(nodes)
    job = begin(nodes, table)
    messages = [attempt(job, task=0, number=1)]
    second = cluster.node("n3")
    true_move = Moves.append

    def append(moves: Moves, ids: Sequence[str]) -> Sequence[str]:
        if moves.server.port == second.http_port:
            call(second.kill9())
        return true_move(moves, ids)

    with monkeypatch.context() as patch:
        patch.setattr(Moves, "append", append)
        with pytest.raises(Unavailable):
            finish(job, messages)
    call(second.start())
    again = begin(nodes, table)
    assert again.before is Progress.DECIDED
    finish(again, [])
    assert is_once(nodes, table)
    assert nodes.staging() == []


@pytest.mark.extended
def test_a_driver_that_slept_through_the_commit_of_another_changes_nothing(nodes: Servers) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    messages = [attempt(job, task=0, number=1)]
    plan = finish(job, messages)
    assert finish(job, messages) == plan  # the winners' tables are gone, and nobody needs them
    assert is_once(nodes, table)


def test_a_plan_may_name_thousands_of_tasks(servers: Servers) -> None:
    """A server reads 256 KiB of a statement, unless it is told to read more."""
    job = begin(servers, make_table(servers))
    staged = tuple(staging.attempt_table(job.key, job.epoch, task, task).table for task in range(10_000))
    shard = ShardPlan("h", 1, tuple(Staged(table, 7) for table in staged))
    plan = Plan(job.key, job.epoch, "d.t", Mode.APPEND.value, 1, (shard,))
    assert job.decisions.decide(plan) == plan
    assert job.decisions.progress(job.key)[1] == plan
    job.decisions.forget(job.key)


def test_records_of_old_jobs_are_dropped_by_the_next_load(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one server has them; those that replicas share expire."""
    servers = servers.one_each
    table = make_table(servers, replicated=False)
    job = begin(servers, table)
    finish(job, [attempt(job, task=0, number=1)])
    begin(servers, table, job_id="other")
    assert begin(servers, table).before is Progress.DONE
    monkeypatch.setattr(records, "_KEPT_S", -3600)
    begin(servers, table, job_id="other")
    assert begin(servers, table).before is Progress.NOTHING


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE_PARTITIONS])
@pytest.mark.extended
def test_an_id_that_is_used_again_when_its_job_is_forgotten_is_that_of_a_new_load(
    place: Servers, table: str, mode: Mode
) -> None:
    for first, last in ((0, 30), (30, 60)):
        job = begin(place, table, mode=mode)
        finish(job, [attempt(job, task=0, number=1, first=first, last=last)])
        job.decisions.forget(job.key)
    expected = range(60) if mode is Mode.APPEND else range(30, 60)
    assert place.ask(f"SELECT a FROM {table}") == sorted(map(str, expected))


def test_an_attempt_that_posts_after_the_commit_changes_nothing(place: Servers, table: str) -> None:
    """1. Two attempts of a task run. 2. One wins and is committed. 3. The other posts what it still has."""
    job = begin(place, table)
    zombie = Attempt(job, ("a", "s"), 0, 1)
    zombie.add(pa.record_batch({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", "y", "z"]}))
    late = Attempt(job, ("a", "s"), 0, 3)
    late.add(pa.record_batch({"a": pa.array([4], pa.int64()), "s": ["x"]}))
    zombie.flush()
    finish(job, [attempt(job, task=0, number=2)])
    zombie.add(pa.record_batch({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", "y", "z"]}))
    with pytest.raises(SqlError) as refused:
        zombie.flush()
    assert refused.value.code == 60
    late.flush()  # its table is new: nobody reads it, and the next driver of the job drops it
    assert is_once(place, table)
    finish(begin(place, table), [])
    assert place.staging() == []
    assert is_once(place, table)


def test_rows_that_vanished_from_staging_end_the_job_before_it_writes(place: Servers, table: str) -> None:
    job = begin(place, table)
    message = attempt(job, task=0, number=1)
    shard, staged = message.staged[0]
    server = place.shards[shard][0]
    partition = "DROP PARTITION ID '0'"
    server.execute(f"ALTER TABLE {TableName(staging.DATABASE, staged.table).quoted} {partition}")
    with pytest.raises(RowsMissing, match=f"Shard {shard + 1}"):
        finish(job, [message])
    give_up(job)
    assert sum(place.counts(table)) == 0
    assert place.staging() == []


def test_a_failed_job_leaves_no_staging(place: Servers, table: str) -> None:
    job = begin(place, table)
    attempt(job, task=0, number=1)
    give_up(job)
    assert place.staging() == []
    assert sum(place.counts(table)) == 0


def test_an_attempt_that_fails_drops_what_it_has_staged_though_its_job_is_not_given_up(
    place: Servers, table: str
) -> None:
    """As of a stream, where nobody knows the job of tasks that have all failed."""
    job = begin(place, table)
    other = attempt(job, task=1, number=2)
    staged = place.staging()
    rows = pa.record_batch({"a": pa.array(range(ROWS), pa.int64()), "s": ["x"] * ROWS})
    with pytest.raises(Crash), Attempt(job, ("a", "s"), 0, 1) as posting:
        posting.add(rows)
        posting.flush()
        assert len(place.staging()) > len(staged)
        raise Crash
    assert place.staging() == staged
    finish(job, [other])
    assert is_once(place, table)


@pytest.mark.extended
@pytest.mark.parametrize("way", ["of a job", "of an attempt"])
def test_a_server_that_is_away_keeps_no_other_one_from_dropping_what_was_staged(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    attempt(job, task=0, number=1)
    servers = [Server("127.0.0.1", 1), *nodes.all]
    # Such as a busy machine, where the others have not begun when the first has failed.
    monkeypatch.setattr(staging, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    with pytest.raises(NodeUnavailable):
        if way == "of a job":
            staging.sweep(servers, job.key)
        else:
            staging.drop_on_each(servers, staging.attempt_table(job.key, job.epoch, 0, 1))
    assert nodes.staging() == []


@pytest.mark.extended
def test_what_a_server_kept_that_was_away_when_its_load_was_done_is_dropped_by_the_next_load(
    place: Servers, table: str
) -> None:
    """And what is staged for a load that is not done is left alone."""
    done, waiting = begin(place, table), begin(place, table, job_id="waiting")
    late = attempt(waiting, task=0, number=1, first=ROWS, last=2 * ROWS)
    finish(done, [attempt(done, task=0, number=1)])
    attempt(done, task=0, number=2)  # as if nobody could have dropped it
    other = begin(place, table, job_id="other")
    finish(other, [attempt(other, task=0, number=1, first=2 * ROWS, last=3 * ROWS)])
    assert {name.split("_")[1] for name in place.staging()} == {waiting.key}
    finish(waiting, [late])
    assert is_once(place, table, rows=3 * ROWS)
    assert place.staging() == []


@pytest.mark.extended
def test_giving_up_keeps_what_was_decided(
    place: Servers, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark calls abort also when the commit failed."""
    job = begin(place, table)
    messages = [attempt(job, task=0, number=1)]
    with monkeypatch.context() as patch:
        patch.setattr(ShardCommit, "gather", _crash)
        with pytest.raises(Crash):
            finish(job, messages)
    give_up(job)
    again = begin(place, table)
    assert again.before is Progress.DECIDED
    finish(again, [])
    assert is_once(place, table)


def end_before_done(patch: pytest.MonkeyPatch) -> None:
    """A driver ends when everything of its job is in the table."""
    for decisions in (OnOneServer, Shared):
        patch.setattr(decisions, "record_done", _crash)


def _crash(*_: object) -> None:
    raise Crash
