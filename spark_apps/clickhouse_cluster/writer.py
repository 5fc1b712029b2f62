"""Writing a frame: attempts stage, the driver commits.

Three processes take part: the planner makes the writer (and looks whether the job was done before), workers
run `write` once for each attempt of each task, and a last process runs `commit` or `abort`. They share what
is pickled: the writer's attributes, and the messages of the winning attempts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from engine.errors import Code, ConfigError, NodeUnavailable, OnclusterError, ReplyLost, SqlError
from spark_apps.clickhouse_cluster import commit, records, staging
from spark_apps.clickhouse_cluster.collector import spare_the_modules
from spark_apps.clickhouse_cluster.content import Content, Counted
from spark_apps.clickhouse_cluster.decisions import Decisions, Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.insert_settings import at_once
from spark_apps.clickhouse_cluster.key_types import require_types_of_key
from spark_apps.clickhouse_cluster.moves import RowsMissing
from spark_apps.clickhouse_cluster.options import Options, RepeatedBatch
from spark_apps.clickhouse_cluster.outcome import earlier, new_decisions
from spark_apps.clickhouse_cluster.partition_ids import require_partition_ids
from spark_apps.clickhouse_cluster.proof import RowsTooMany
from spark_apps.clickhouse_cluster.records import Mode, Plan, ShardPlan, Staged
from spark_apps.clickhouse_cluster.shards_apart import require_shards_apart
from spark_apps.clickhouse_cluster.split import Piece, Splitter
from spark_apps.clickhouse_cluster.target import Target, column_list
from spark_apps.clickhouse_cluster.types import check_schema

log = logging.getLogger(__name__)

_MANY_ROWS = 8_192
"""A task with so many has some for every shard."""
_INSERT_SETTINGS = {"max_partitions_per_insert_block": "0", "optimize_on_insert": "0"}


@dataclass
class TaskStaged(WriterCommitMessage):
    """What the winning attempt of a task staged: by shard (from 0), the table and its rows. `digest` is that
    of the rows, where they are a stream's."""

    task: int
    attempt: int
    staged: tuple[tuple[int, Staged], ...]
    digest: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One load: where it goes, and under which names. `name` is the job_id that finds it again. `decisions`
    has its plan, `plan` is what was decided before, if anything."""

    options: Options
    target: Target
    decisions: Decisions
    key: str
    epoch: str
    name: str
    mode: Mode
    before: Progress
    plan: Plan | None

    @classmethod
    def begin(cls, options: Options, schema: StructType, mode: Mode) -> Job:
        """Look at the target and at what an earlier run of the job left. Runs in the planner.

        Raises SqlError when the frame does not fit, ConfigError when rows would miss replicas, Unavailable
        when nobody can tell what an earlier run did.
        """
        spare_the_modules()
        target = Target.find(options, beside=records.prepare)
        target.require_replication()
        target.require_parts()
        require_shards_apart(target)
        epoch = staging.new_epoch()
        name = options.job_id or epoch
        key = staging.job_key(name, target)
        decisions = new_decisions(target, alone=_meeting_place(options, target))
        job = cls(options, target, decisions, key, epoch, name, mode, Progress.NOTHING, None)
        if options.job_id:
            job = job.looked_at_again()
        if job.before is Progress.NOTHING:
            # What was decided was checked by then, and the table may have been altered since.
            target.require_no_views(options)
            require_types_of_key(target)
            check_schema(schema, target)
            require_partition_ids(_replaced(options, mode), target)
        return job

    def named(self, job_id: str) -> Job:
        """The same with another id, as far as an earlier run of that got. Raises Unavailable."""
        return replace(self, key=staging.job_key(job_id, self.target), name=job_id).looked_at_again()

    def looked_at_again(self) -> Job:
        """With what the servers say now. Raises Unavailable."""
        found = earlier(self.target, self.key)
        decisions = found.decisions or self.decisions
        target = _staged_beside(self.target, decisions)
        return replace(self, target=target, decisions=decisions, before=found.progress, plan=found.plan)


def _meeting_place(options: Options, target: Target) -> Server:
    """Where one server decides: of a job that other drivers may have as well, the one that all of them
    choose, whichever replica was the first to answer. Two that decide on two servers would both write."""
    first = target.shards[0]
    return first.replicas[0] if options.job_id else first.replica


def _staged_beside(target: Target, decisions: Decisions) -> Target:
    """With the first shard's rows where the decisions are, if one server has them."""
    server = decisions.server
    if server is None or server == target.shards[0].replica:
        return target
    records.prepare(server)
    return target.with_coordinator(server)


class ClusterWriter(DataSourceArrowWriter):
    """See the module."""

    def __init__(self, job: Job, names: Sequence[str]) -> None:
        self._job = job
        self._names = tuple(names)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.taskAttemptId()
        how = self._job.options.repeated_batch or RepeatedBatch.COUNTED
        rows = Counted(iterator, self._names, how)
        done = stage(self._job, self._names, rows, task=task, attempt=attempt)
        return replace(done, digest=rows.content.digest)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        finish(self._job, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        give_up(self._job)


def stage(
    job: Job, names: Sequence[str], rows: Iterator[pa.RecordBatch], *, task: int, attempt: int
) -> TaskStaged:
    """Stage one attempt's rows. A job that was committed before takes no rows."""
    spare_the_modules()
    if job.before is not Progress.NOTHING:
        return TaskStaged(task, attempt, ())
    with Attempt(job, names, task, attempt) as posting:
        for batch in rows:
            posting.add(batch)
        posting.flush()
    return TaskStaged(task, attempt, posting.staged)


class Attempt:
    """One attempt of one task: gathers rows, cuts them by shard, posts to its own staging tables."""

    def __init__(self, job: Job, names: Sequence[str], task: int, attempt: int) -> None:
        self._job = job
        self._names = names
        self._table = staging.attempt_table(job.key, job.epoch, task, attempt)
        self._splitter = Splitter(job.target, names)
        self._batches: list[pa.RecordBatch] = []
        self._pending = 0
        self._rows: dict[int, int] = {}
        self._pool = ThreadPoolExecutor(len(job.target.shards))
        self._opened: dict[int, Future[None]] = {}
        self._posts: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if kind is not None and self._opened:
            self._drop()

    @property
    def staged(self) -> tuple[tuple[int, Staged], ...]:
        return tuple((shard, Staged(self._table.table, rows)) for shard, rows in sorted(self._rows.items()))

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._pending += batch.num_rows
        if self._pending >= _MANY_ROWS:
            for shard in self._job.target.owners:
                self._open(shard)
        if self._pending >= self._job.options.block_rows * len(self._job.target.shards):
            self._post()

    def flush(self) -> None:
        """Post what is left and wait for all posts. Raises what the first that failed says."""
        if self._pending:
            self._post()
        self._wait()

    def _post(self) -> None:
        rows = pa.Table.from_batches(self._batches).rename_columns(list(self._names))
        self._batches, self._pending = [], 0
        self._wait()  # one round of posts at a time bounds the memory
        for piece in self._splitter.split(rows):
            self._open(piece.shard)
            self._rows[piece.shard] = self._rows.get(piece.shard, 0) + piece.rows
            self._posts.append(self._pool.submit(self._send, piece))

    def _open(self, shard: int) -> None:
        """Make the table on this shard, if that was not begun: servers do it while rows are made and cut."""
        if shard not in self._opened:
            target, server = self._job.target, self._job.target.shards[shard].replica
            making = self._pool.submit(staging.create, server, self._table, target, job=self._job.key)
            self._opened[shard] = making

    def _send(self, piece: Piece) -> None:
        """Post rows to one shard, one after another for each of them."""
        target = self._job.target
        server = target.shards[piece.shard].replica
        self._opened[piece.shard].result()
        server.execute(
            f"INSERT INTO {self._table.quoted} ({column_list(self._names)}) FORMAT {self._splitter.format}",
            body=piece.body,
            settings={} if target.is_old else {**_INSERT_SETTINGS, **at_once(server)},
        )

    def _drop(self) -> None:
        """Nobody takes what an attempt that failed has staged, and of a stream's nobody else may know."""
        try:
            staging.drop_on_each(
                [self._job.target.shards[shard].replica for shard in self._opened], self._table
            )
        except OnclusterError as error:  # the error of the attempt says more
            log.warning("spark.staging_left job=%s error=%s", self._job.key, error.message)

    def _wait(self) -> None:
        posts, self._posts = self._posts, []
        for post in posts:
            post.result()


def finish(job: Job, messages: Sequence[WriterCommitMessage | None]) -> Plan:
    """Decide, unless that was done before, and carry the decision out.

    A run that was left behind has no table to move from; where the one that came after it is done, so is the
    load. An error after the decision says what finishes it.
    """
    spare_the_modules()
    try:
        return _finish(job, messages)
    except Exception as error:
        is_gone = isinstance(error, SqlError) and error.code == Code.UNKNOWN_TABLE
        if is_gone and (plan := _done_by_another(job)) is not None:
            log.info("spark.done_by_another_run job=%s", job.key)
            return plan
        _say_how_to_go_on(job, error)
        raise


def _done_by_another(job: Job) -> Plan | None:
    """The plan of the load if it is done."""
    try:
        progress, plan = job.decisions.progress(job.key)
    except OnclusterError:
        return None
    return plan if progress is Progress.DONE else None


def _say_how_to_go_on(job: Job, error: Exception) -> None:
    """A decided load is half in the table, and a new one beside it would write its rows twice."""
    try:
        is_decided = job.decisions.progress(job.key)[1] is not None
        state = "The load is decided and may be in the table in part"
    except OnclusterError:
        is_decided, state = True, "Nobody can tell now whether the load was decided"
    if not is_decided:
        return
    how = (
        f"{state}: run it again with the option job_id={job.name}, or start the query again, with its "
        "checkpoint, if this is a batch of a stream. That writes each row once."
    )
    if isinstance(error, OnclusterError):
        error.hint = f"{error.hint} {how}".lstrip()
    else:
        error.add_note(how)


def _finish(job: Job, messages: Sequence[WriterCommitMessage | None]) -> Plan:
    plan, ahead = job.plan, None
    if plan is None:
        winners = [cast(TaskStaged, message) for message in messages if message is not None]
        proposed = _plan(job, sorted(winners, key=lambda winner: winner.task))
        servers = [shard.replica for shard in job.target.shards]
        try:
            plan, ahead = commit.decide(proposed, job.target, servers, job.decisions)
        except RowsMissing:
            # Another driver that had the job's id may have decided, and dropped them.
            plan = job.decisions.progress(job.key)[1]
            if plan is None:
                raise
    servers = servers_of(plan, job.target, job.options, beside=job.decisions.server)
    wait_s = job.options.replicas_wait_s
    commit.carry_out(plan, job.target, servers, job.decisions, ahead=ahead, replicas_wait_s=wait_s)
    if job.plan is None and plan.epoch != job.epoch:
        _drop_mine(job)
    return plan


def _drop_mine(job: Job) -> None:
    """What this run staged, where another run's plan is carried out that may have staged elsewhere."""
    try:
        staging.sweep((shard.replica for shard in job.target.shards), job.key, job.epoch)
    except (NodeUnavailable, ReplyLost) as error:  # a later load there drops it
        log.warning("spark.staging_left job=%s error=%s", job.key, error.message)


def give_up(job: Job) -> None:
    """Drop what this run staged, unless the job was decided: then a later run needs it."""
    if job.before is Progress.NOTHING and job.decisions.progress(job.key)[1] is None:
        staging.sweep((shard.replica for shard in job.target.shards), job.key, job.epoch)


def servers_of(plan: Plan, target: Target, options: Options, *, beside: Server | None) -> list[Server]:
    """The servers that hold the plan's staging tables, by shard: as the target knows them, else as others are
    asked. `beside` is the first shard's, which may have got another address since."""
    known = {(server.host, server.port): server for shard in target.shards for server in shard.replicas}
    scheme = options.servers[0].scheme
    servers = [
        known.get((shard.host, shard.port))
        or Server(shard.host, shard.port, scheme, options.user, options.password)
        for shard in plan.shards
    ]
    return servers if beside is None else [beside, *servers[1:]]


def _plan(job: Job, winners: Sequence[TaskStaged]) -> Plan:
    """Raises RowsTooMany."""
    tasks = [winner.task for winner in winners]
    if len(set(tasks)) != len(tasks):
        raise RowsTooMany(f"Two attempts of a task have won: tasks {tasks}.", hint="Nothing was written.")
    shards = tuple(
        ShardPlan(
            shard.replica.host,
            shard.replica.port,
            tuple(staged for winner in winners for of, staged in winner.staged if of == shard.number - 1),
        )
        for shard in job.target.shards
    )
    also = _replaced(job.options, job.mode)
    content = sum((Content(0, winner.digest) for winner in winners), Content())
    return Plan(
        job.key, job.epoch, str(job.target.table), job.mode.value, int(time.time()), shards, also,
        content.digest if winners else None,
    )  # fmt: skip


def _replaced(options: Options, mode: Mode) -> tuple[str, ...]:
    """Partitions to replace also where there are no rows for them. Raises ConfigError."""
    if options.partitions and mode is not Mode.OVERWRITE_PARTITIONS:
        raise ConfigError(
            "partitions names what a load replaces, and this one adds rows.",
            hint='Use mode("overwrite"), or leave out the option partitions.',
        )
    return options.partitions
