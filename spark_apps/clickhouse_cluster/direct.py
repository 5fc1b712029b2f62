"""Writing without staging: attempts post straight to the table, and its deduplication drops repetitions.

For frames whose tasks give the same rows in the same order however often they run: a range, files, or a frame
that was sorted within its partitions. After `repartition` or `groupBy` alone they do not, and a server drops
a block with a known token without looking at its rows. So such frames are found out, and fail the job.

Safety argument.
1. The first run of the job records when it began and how many rows each shard had. A later run goes on only
   while servers surely remember the tokens; after that the outcome is unknown.
2. A block's token is made of job, task, shard and the block's number: every attempt of every run gives it the
   same one.
3. Before a block is posted its digest is recorded under the token, on the coordinator: the next run may post
   to another replica of a shard, which knows the tokens as well. An attempt that finds another digest ends
   before it posts. Of two attempts at the same time one finds the other's, at the latest.
   An attempt that finds that another one has recorded its block posts it only if the table surely remembers
   what that one may have posted (`remembered`).
4. The post is one block to the server, and the table stores each partition of it once.
5. The commit looks at all records: each token of the winners has one digest, and there are no others. Then it
   counts: a shard has at least what it had and what was posted; if it has more, no two new parts are equal.
   The servers evaluate the sharding key on the partitions that were posted to (`proof`), and the replicas of
   each shard are compared (`replicas`). Only then the job is decided and done.
A crash anywhere is settled by a run with the same id: it posts everything again under the same tokens. A job
that fails has rows in the table, which a run with the same id completes; Spark's `abort` removes nothing.

Source: ClickHouse's `insert_deduplication_token` (22.1).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from engine.errors import ConfigError, NodeUnavailable, OnclusterError, UnknownOutcome
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import proof, records, staging
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.insert_settings import at_once, deduplicated
from spark_apps.clickhouse_cluster.moves import RowsMissing
from spark_apps.clickhouse_cluster.records import Event, Mode, Plan, ShardPlan, Staged
from spark_apps.clickhouse_cluster.remembered import is_remembered, newest_block
from spark_apps.clickhouse_cluster.replicas import require_equal_replicas
from spark_apps.clickhouse_cluster.split import Piece
from spark_apps.clickhouse_cluster.target import Target, column_list
from spark_apps.clickhouse_cluster.writer import Attempt, Job

log = logging.getLogger(__name__)

_TOKENS_SINCE = (22, 1)
REMEMBERED_S = 1800
"""So long at least tables remember tokens: half of the shortest default of all versions."""
_POSTS = TableName(staging.DATABASE, "posted")
# One block for the server, whatever it arrives in.
_ONE_BLOCK = {
    "max_partitions_per_insert_block": "0",
    "min_insert_block_size_rows": "1000000000",
    "min_insert_block_size_bytes": "1000000000000",
}


class NotReproducible(OnclusterError):
    """Two attempts of a task gave different rows."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The frame does not give the same rows again: {what}.",
            hint="Rows may be missing or stand there twice. Remove what the job wrote, and leave out "
            "delivery=direct, or sort within partitions before writing.",
        )


@dataclass(frozen=True, slots=True)
class Block:
    """One post. Shards count from 0."""

    shard: int
    token: str
    digest: str
    rows: int


@dataclass
class TaskPosted(WriterCommitMessage):
    """What the winning attempt of a task posted."""

    blocks: tuple[Block, ...]


def _require_direct(target: Target, mode: Mode) -> None:
    """Raises ConfigError when the direct way cannot be taken."""
    if mode is not Mode.APPEND:
        raise ConfigError(
            "Partitions are replaced by way of staging only.", hint="Leave out delivery=direct."
        )
    if target.version < _TOKENS_SINCE or not target.window.blocks:
        raise ConfigError(
            f"{target.table} does not deduplicate by tokens, which delivery=direct needs.",
            hint="That takes a Replicated table, or non_replicated_deduplication_window, on 22.1 or later.",
        )


def begin_direct(job: Job) -> Job:
    """Step 1. Raises ConfigError, and UnknownOutcome when an earlier run began too long ago."""
    if job.before is not Progress.NOTHING:
        return job
    _require_direct(job.target, job.mode)
    coordinator = _coordinator(job)
    try:
        records.prepare(coordinator)
        coordinator.execute(
            f"CREATE TABLE IF NOT EXISTS {_POSTS.quoted} (job String, token String, digest String, "
            "attempt String, newest String, at DateTime) ENGINE = MergeTree ORDER BY (job, token) "
            "TTL at + INTERVAL 7 DAY"
        )
    except NodeUnavailable as error:
        error.hint = "Only that replica records what is posted: start it, or leave out delivery=direct."
        raise
    begun = records.recorded(coordinator, job.key)[Event.BEGUN]
    if not begun:
        facts = {"at": int(time.time()), "clocks": _clocks(job.target), "before": _counts(job.target)}
        records.record(coordinator, job.key, Event.BEGUN, {"": facts})
    elif (age_s := int(time.time()) - int(begun[""]["at"])) > REMEMBERED_S:
        raise UnknownOutcome(
            f"An earlier run of this job began {age_s // 60} minutes ago and did not end. "
            f"{job.target.table} may have forgotten its tokens, and would store rows twice.",
            hint="Look what it wrote, remove that, and use another job_id.",
        )
    return job


def _coordinator(job: Job) -> Server:
    """Where every run of the job records what it posts: nobody else knows it."""
    return job.target.shards[0].replicas[0] if job.options.job_id else job.target.shards[0].replica


class DirectWriter(DataSourceArrowWriter):
    """See the module."""

    def __init__(self, job: Job, names: Sequence[str]) -> None:
        self._job = job
        self._names = tuple(names)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if self._job.before is not Progress.NOTHING:
            return TaskPosted(())
        with DirectAttempt(self._job, self._names, context.partitionId()) as posting:
            for batch in iterator:
                posting.add(batch)
            posting.flush()
        return TaskPosted(tuple(posting.blocks))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            finish(self._job, [message for message in messages if isinstance(message, TaskPosted)])
        except OnclusterError as error:
            error.hint = f"{error.hint} {self._how_to_complete}".lstrip()
            raise

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back; a run with the same id completes it."""
        log.warning("spark.posted_in_part job=%s: %s", self._job.key, self._how_to_complete)

    @property
    def _how_to_complete(self) -> str:
        return (
            f"Rows of the load may be in the table: a run with the option job_id={self._job.name} within "
            f"{REMEMBERED_S // 60} minutes completes it, and writes each row once."
        )


class DirectAttempt(Attempt):
    """Posts to the table itself."""

    def __init__(self, job: Job, names: Sequence[str], task: int) -> None:
        super().__init__(job, names, task, 0)
        self._task = task
        self._id = staging.new_nonce()
        self._newest: dict[int, str] = {}
        self.blocks: list[Block] = []

    def _open(self, shard: int) -> None:
        """The table is there."""

    def _send(self, piece: Piece) -> None:
        job, server = self._job, self._job.target.shards[piece.shard].replica
        number = sum(block.shard == piece.shard for block in self.blocks)
        digest = hashlib.sha256(piece.body).hexdigest()
        block = Block(piece.shard, f"{job.key}-{self._task}-{piece.shard}-{number}", digest, piece.rows)
        self._record(block)
        if _digests(job, token=block.token) != {block.token: {digest}}:
            raise NotReproducible(
                f"block {number} of task {self._task} for shard {piece.shard + 1} is another"
            )
        self._require_remembered(block)
        columns = column_list(self._names)
        server.execute(
            f"INSERT INTO {job.target.table.quoted} ({columns}) FORMAT {self._splitter.format}",
            body=piece.body,
            settings={
                **_ONE_BLOCK,
                **at_once(server),
                **deduplicated(server),
                "insert_deduplication_token": block.token,
            },
        )
        self.blocks.append(block)

    def _record(self, block: Block) -> None:
        target, shard = self._job.target, block.shard
        if shard not in self._newest:
            self._newest[shard] = newest_block(
                target.shards[shard].replica, target, target.keeper_paths[shard]
            )
        line = {
            "job": self._job.key,
            "token": block.token,
            "digest": block.digest,
            "attempt": self._id,
            "newest": self._newest[shard],
            "at": int(time.time()),
        }
        sql = f"INSERT INTO {_POSTS.quoted} FORMAT JSONEachRow"
        coordinator = _coordinator(self._job)
        coordinator.execute(sql, body=json.dumps(line).encode(), settings=at_once(coordinator))

    def _require_remembered(self, block: Block) -> None:
        """That the table still knows the block if another attempt has posted it. Raises UnknownOutcome."""
        target, shard = self._job.target, block.shard
        server, path = target.shards[shard].replica, target.keeper_paths[shard]
        others = _coordinator(self._job).rows(
            f"SELECT DISTINCT newest, toUInt32(at) AS at FROM {_POSTS.quoted} "
            f"WHERE job = {quote_string(self._job.key)} AND token = {quote_string(block.token)} "
            f"AND attempt != {quote_string(self._id)}"
        )
        for one in others:
            if not is_remembered(server, target, path, newest=one["newest"], at=int(one["at"])):
                raise UnknownOutcome(
                    f"A block of task {self._task} for shard {shard + 1} was posted before, and "
                    f"{target.table} on {server} may have forgotten its token: so many others came since.",
                    hint="Nobody can tell whether its rows are there. Look what the load wrote, remove that, "
                    "and use another job_id, without delivery=direct or with a larger "
                    "replicated_deduplication_window.",
                )


def finish(job: Job, messages: Sequence[TaskPosted]) -> None:
    """Step 5. Raises NotReproducible, RowsMissing, RowsTooMany, RowsOnWrongShard, ReplicasDiffer."""
    plan = job.plan
    if plan is None:
        blocks = [block for message in messages for block in message.blocks]
        shards, posted_to = [], list[list[str]]()
        begun = records.recorded(_coordinator(job), job.key)[Event.BEGUN][""]
        before, clocks = begun["before"], begun["clocks"]
        there = _counts(job.target)
        ours, posted = {block.token: {block.digest} for block in blocks}, _digests(job)
        if posted != ours:
            other = sorted(token for token in posted | ours if posted.get(token) != ours.get(token))
            raise NotReproducible(f"other blocks were posted: {', '.join(other[:5])}")
        for number, shard in enumerate(job.target.shards):
            rows = sum(block.rows for block in blocks if block.shard == number)
            if there[number] < before[number] + rows and job.target.keeps_every_row:
                raise RowsMissing(
                    f"Shard {number + 1} ({shard.replica}): {there[number]} rows, {before[number]} before "
                    f"and {rows} posted.",
                    hint="Somebody removed rows meanwhile. Look before you repeat.",
                )
            surplus = there[number] - before[number] - rows
            proof.require_no_block_twice(shard.replica, job.target, clocks[number], surplus=surplus)
            posted_to.append(proof.partitions_since(shard.replica, job.target, clocks[number]))
            _require_no_strangers(job, number, posted_to[number])
            shards.append(ShardPlan(shard.replica.host, shard.replica.port, (Staged("", rows),)))
        written = [shard.replica for shard in job.target.shards]
        require_equal_replicas(job.target, written, posted_to, wait_s=job.options.replicas_wait_s)
        table = str(job.target.table)
        plan = Plan(job.key, job.epoch, table, Mode.DIRECT.value, int(time.time()), tuple(shards))
        job.decisions.decide(plan)
    job.decisions.record_done(plan.job)


def _digests(job: Job, *, token: str = "") -> dict[str, set[str]]:
    """By token, the digests under which a block of the job was posted; of one token, if it is given."""
    one = f" AND token = {quote_string(token)}" if token else ""
    rows = _coordinator(job).rows(
        f"SELECT DISTINCT token, digest FROM {_POSTS.quoted} WHERE job = {quote_string(job.key)}{one}"
    )
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["token"], set()).add(row["digest"])
    return found


def _require_no_strangers(job: Job, number: int, partitions: Sequence[str]) -> None:
    """Raises RowsOnWrongShard."""
    if partitions:
        target, server = job.target, job.target.shards[number].replica
        where = f"_partition_id IN ({', '.join(map(quote_string, partitions))})"
        rows = proof.count_strangers(server, target, number, [target.table], where=where)
        if rows:
            hint = "They are of this load, or were in its partitions before: leave out delivery=direct then."
            raise proof.wrong_shard(server, target, number, rows, hint=hint)


def _clocks(target: Target) -> list[int]:
    """Seconds since 1970, by each shard's replica."""
    return [int(shard.replica.text("SELECT toUInt32(now())")) for shard in target.shards]


def _counts(target: Target) -> list[int]:
    """Rows of the table on each shard's replica."""
    return [int(shard.replica.text(f"SELECT count() FROM {target.table.quoted}")) for shard in target.shards]
