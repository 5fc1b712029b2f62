"""Decisions that the replicas of a table's first shard share: a load goes on while one of them is away.

They stand in a Replicated table beside the one that is loaded, `jobs_<hash of the table and its path>`, with
a replica wherever that one has a replica. A plan is inserted under its job's deduplication token: Keeper
takes one block of a token, by way of whichever replica it comes, so of two drivers one decides. Every other
record may be there twice. A partition is a job's, since dropping one makes Keeper forget its tokens as well.

Safety.
1. Before a replica is asked, it fetches what the others have (SYSTEM SYNC REPLICA). One that cannot, because
   who had it is away, is no answer: there may be a decision that nobody has seen.
2. Whoever was told that a job has no plan, and was told too early, learns it when it inserts its own.
3. All that is written may be written again: a lost reply is settled by the next replica that answers.
4. Where two plans of a job are there, something has switched deduplication off: `Corrupt`.
Rows expire after 90 days, those of streams after a year; tokens ten days before them.

Source: ClickHouse's `insert_deduplication_token` (22.1), StorageReplicatedMergeTree::dropPartition (blocks
are forgotten), InterpreterSystemQuery::syncReplica.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TypeVar

from engine.errors import Code, Corrupt, ReplyLost, SqlError, Unavailable
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.content import Content
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.insert_settings import at_once, deduplicated
from spark_apps.clickhouse_cluster.records import Plan
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)

_T = TypeVar("_T")

TOKENS_SINCE = (22, 1)
_IN_KEEPER = f"/clickhouse/{staging.DATABASE}"
"""Below what is copied and restored as ClickHouse's."""
_DAYS, _DAYS_OF_BATCHES, _DAYS_OF_TOKENS = 90, 365, 80
_TOKENS = 1_000_000
_ANSWER_S, _SYNC_S = 20.0, 10
_PASSES = (
    Code.ABORTED,
    Code.KEEPER_EXCEPTION,
    Code.NO_ZOOKEEPER,
    Code.REPLICA_ALREADY_EXISTS,
    Code.TABLE_IS_READ_ONLY,
    Code.TIMEOUT_EXCEEDED,
    Code.UNKNOWN_STATUS_OF_INSERT,
)
"""What a replica says that cannot answer now, and another one may."""
_LOOKS, _BETWEEN_LOOKS_S = 20, 0.25
_ROUNDS = 3
"""A statement that decides, and whose reply was lost, may arrive at any time, also when the job has been
given up: it is sent again, and whichever of both comes first decides."""
_DECIDED, _DONE, _BATCH = "decided", "done", "batch"


@dataclass(frozen=True, slots=True)
class Shared:
    """On the replicas of one shard, in the order in which they are asked. `of` is the table of the loads."""

    servers: tuple[Server, ...]
    of: TableName
    keeper_path: str

    @classmethod
    def of_shard(cls, target: Target, number: int) -> Shared:
        """`number` counts from 0. The replica that was chosen is asked first: it answers."""
        shard = target.shards[number]
        others = (server for server in shard.replicas if server != shard.replica)
        return cls((shard.replica, *others), target.table, target.keeper_paths[number])

    @property
    def server(self) -> None:
        """No one server has them."""

    @property
    def table(self) -> TableName:
        name = hashlib.sha256(f"{self.of}\0{self.keeper_path}".encode()).hexdigest()[:16]
        return TableName(staging.DATABASE, f"jobs_{name}")

    def make(self) -> None:
        """Let every replica that answers have the records: they are lost with those that have them."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(self._make_if_it_answers, self.servers))

    def is_there(self) -> bool:
        """On the replica that was chosen. Raises NodeUnavailable, ReplyLost."""
        return bool(staging.tables(self.servers[0], self.table.table))

    def decide(self, plan: Plan) -> Plan:
        def on(server: Server) -> Plan:
            once = {"insert_deduplication_token": f"{plan.job}-{_DECIDED}", **deduplicated(server)}
            self._insert(server, plan.job, _DECIDED, plan.to_json(), once)
            for _ in range(_LOOKS):
                # One's own is there at once, another one when it was fetched.
                if found := self._progress(server, plan.job)[1]:
                    return plan if found == plan else found
                self._sync(server)
                time.sleep(_BETWEEN_LOOKS_S)
            raise Unavailable(f"{server}: another plan of job {plan.job} is decided, and is not here yet.")

        return self._on_one(on, rounds=_ROUNDS)

    def progress(self, job: str) -> tuple[Progress, Plan | None]:
        def on(server: Server) -> tuple[Progress, Plan | None]:
            self._sync(server)
            return self._progress(server, job)

        return self._on_one(on)

    def record_done(self, job: str) -> None:
        self._on_one(lambda server: self._insert(server, job, _DONE, "", {}))

    def forget(self, job: str) -> None:
        sql = f"ALTER TABLE {self.table.quoted} DROP PARTITION {quote_string(job)}"
        self._on_one(lambda server: server.execute(sql, timeout_s=_ANSWER_S))

    def done_of(self, jobs: frozenset[str]) -> frozenset[str]:
        names = ", ".join(map(quote_string, sorted(jobs)))
        sql = f"SELECT DISTINCT job FROM {self.table.quoted} WHERE event = '{_DONE}' AND job IN ({names})"
        rows = self._on_one(lambda server: server.rows(sql, timeout_s=_ANSWER_S)) if jobs else []
        return frozenset(str(row["job"]) for row in rows)

    def record_batch(self, stream: str, batch: int, content: Content) -> None:
        facts = json.dumps({"batch": batch, **asdict(content)})
        self._on_one(lambda server: self._insert(server, stream, _BATCH, facts, {}))

    def last_batch(self, stream: str) -> int:
        return max(self._batches(stream), default=-1)

    def content_of_batch(self, stream: str, batch: int) -> Content | None:
        return self._batches(stream).get(batch)

    def _batches(self, stream: str) -> dict[int, Content]:
        """Of the stream, what each batch wrote."""
        where = f"job = {quote_string(stream)} AND event = '{_BATCH}' ORDER BY at"

        def on(server: Server) -> dict[int, Content]:
            self._sync(server)
            found = server.rows(f"SELECT facts FROM {self.table.quoted} WHERE {where}", timeout_s=_ANSWER_S)
            facts = [json.loads(row["facts"]) for row in found]
            return {one["batch"]: Content(one["rows"], one.get("digest")) for one in facts}

        return self._on_one(on)

    def _progress(self, server: Server, job: str) -> tuple[Progress, Plan | None]:
        """As this replica knows it. Raises Corrupt."""
        sql = f"SELECT event, facts FROM {self.table.quoted} WHERE job = {quote_string(job)}"
        rows = server.rows(sql, timeout_s=_ANSWER_S)
        plans = sorted({row["facts"] for row in rows if row["event"] == _DECIDED})
        if len(plans) > 1:
            raise Corrupt(
                f"{server}: job {job} has {len(plans)} plans in {self.table}, which has to deduplicate.",
                hint="Look which one is in the table, and drop the partition of this job there.",
            )
        if not plans:
            return Progress.NOTHING, None
        is_done = any(row["event"] == _DONE for row in rows)
        return Progress.DONE if is_done else Progress.DECIDED, Plan.from_json(plans[0])

    def _sync(self, server: Server) -> None:
        settings = {"receive_timeout": str(_SYNC_S)}
        server.execute(f"SYSTEM SYNC REPLICA {self.table.quoted}", settings=settings, timeout_s=_ANSWER_S)

    def _insert(self, server: Server, job: str, event: str, facts: str, more: Mapping[str, str]) -> None:
        line = {"job": job, "event": event, "facts": facts, "at": int(time.time())}
        settings = {"insert_quorum": "0", **at_once(server), **more}
        sql = f"INSERT INTO {self.table.quoted} FORMAT JSONEachRow"
        server.execute(sql, body=json.dumps(line).encode(), settings=settings, timeout_s=_ANSWER_S)

    def _make_if_it_answers(self, server: Server) -> None:
        """On one that is away the table is made by the first load that finds it there."""
        try:
            if not staging.tables(server, self.table.table):
                self._make_on(server)
        except (Unavailable, ReplyLost, SqlError) as error:
            if isinstance(error, SqlError) and error.code not in _PASSES:
                raise
            log.warning("spark.replica_has_no_records replica=%s error=%s", server, error.message)

    def _make_on(self, server: Server) -> None:
        rows = server.rows(
            "SELECT replica_name FROM system.replicas "
            f"WHERE database = {quote_string(self.of.database)} AND table = {quote_string(self.of.table)} "
            f"AND zookeeper_path = {quote_string(self.keeper_path)}"
        )
        if not rows:
            raise Unavailable(f"{server} has no replica of {self.of} at {self.keeper_path}.")
        in_keeper = f"{_IN_KEEPER}/{self.table.table}"
        names = ", ".join(map(quote_string, (in_keeper, str(rows[0]["replica_name"]))))
        staging.create_database(server)
        server.execute(
            f"CREATE TABLE IF NOT EXISTS {self.table.quoted} "
            "(job String, event String, facts String, at DateTime) "
            f"ENGINE = ReplicatedMergeTree({names}) PARTITION BY job ORDER BY (job, event) "
            f"TTL at + toIntervalDay(if(event = '{_BATCH}', {_DAYS_OF_BATCHES}, {_DAYS})) "
            f"SETTINGS replicated_deduplication_window = {_TOKENS}, "
            f"replicated_deduplication_window_seconds = {_DAYS_OF_TOKENS * 24 * 3600}"
        )

    def _on(self, server: Server, work: Callable[[Server], _T]) -> _T:
        """A replica that was away when the table was made gets it now, and fetches what the others have."""
        try:
            return work(server)
        except SqlError as error:
            if error.code not in (Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE):
                raise
        self._make_on(server)
        return work(server)

    def _on_one(self, work: Callable[[Server], _T], *, rounds: int = 1) -> _T:
        """What the first says that can. Raises Unavailable naming all when none does."""
        said: list[str] = []
        for server in self.servers * rounds:
            try:
                found = self._on(server, work)
            except (Unavailable, ReplyLost) as error:
                said.append(error.message)
            except SqlError as error:
                if error.code not in _PASSES:
                    raise
                said.append(error.message)
            else:
                if said:
                    log.warning("spark.records_elsewhere asked=%s others=%s", server, "; ".join(said))
                return found
        raise Unavailable(
            f"No replica has all records of jobs ({self.table}): {'; '.join(said)}",
            hint="Start a replica that was there for the last load.",
        )
