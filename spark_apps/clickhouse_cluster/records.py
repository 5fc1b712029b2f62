"""A job's plan, and what is remembered of its moves on the servers themselves.

Which plan is the job's is in `decisions`. The table `ledger`, on each shard's replica, says for a year what
happened to each partition.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.content import Content
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.insert_settings import at_once

_LEDGER = TableName(staging.DATABASE, "ledger")
_KEPT_S = 90 * 24 * 3600


EITHER = "either"
"""Of an intent that was read: the hashes of every intent of its partition. The parts of one were moved, or of
none."""


class Mode(enum.Enum):
    APPEND = "append"
    OVERWRITE_PARTITIONS = "overwrite partitions"
    DIRECT = "direct"


class Event(enum.Enum):
    INTENT = "intent"
    ATTACHED = "attached"
    BEGUN = "begun"
    BATCH = "batch"
    """Of a stream, by its number in place of a partition's id: it is done."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that a winning attempt left in one staging table."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    host: str
    port: int
    staged: tuple[Staged, ...]

    @property
    def rows(self) -> int:
        return sum(staged.rows for staged in self.staged)


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision: what a job's commit moves into the table. `at` is the time in seconds.

    `partitions` are replaced also where there are no rows for them. `digest` is that of a stream's batch
    (`content`).
    """

    job: str
    epoch: str
    table: str
    mode: str
    at: int
    shards: tuple[ShardPlan, ...]
    partitions: tuple[str, ...] = ()
    digest: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        raw: dict[str, Any] = json.loads(text)
        shards = tuple(
            ShardPlan(shard["host"], shard["port"], tuple(Staged(**one) for one in shard["staged"]))
            for shard in raw.pop("shards")
        )
        return cls(**raw | {"shards": shards, "partitions": tuple(raw["partitions"])})


def prepare(server: Server) -> None:
    """Make what jobs need on a server, and drop what nobody needs any more.

    Records of jobs go that were done three months ago: their ids may then be used once more.
    """
    names = staging.left(server, records_older_than_s=_KEPT_S)
    if _LEDGER.table not in names:
        staging.create_database(server)
        _create_ledger(server)
    for name in names:
        if name.startswith("done_"):
            forget(server, name.removeprefix("done_"))
    staging.sweep_old(server, names)


def forget(server: Server, job: str) -> None:
    """Drop the views that say what a job has decided, and that it is done."""
    for prefix in ("decided_", "done_"):
        staging.drop(server, TableName(staging.DATABASE, f"{prefix}{job}"))


def _create_ledger(server: Server) -> None:
    columns = "(job String, event String, partition_id String, facts String, at DateTime)"
    table = f"{_LEDGER.quoted} {columns} ENGINE = MergeTree ORDER BY (job, partition_id)"
    try:
        server.execute(f"CREATE TABLE IF NOT EXISTS {table} TTL at + INTERVAL 1 YEAR")
    except SqlError as error:
        if error.code != Code.SYNTAX_ERROR:
            raise
        server.execute(f"CREATE TABLE IF NOT EXISTS {table}")  # before 19.6 nothing expires


def record(server: Server, job: str, event: Event, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """What happened to partitions: `facts` by their ids. All of it is recorded, or nothing."""
    at = int(time.time())
    lines = [
        {"job": job, "event": event.value, "partition_id": one, "facts": json.dumps(about), "at": at}
        for one, about in facts.items()
    ]
    if lines:
        body = "\n".join(map(json.dumps, lines)).encode()
        sql = f"INSERT INTO {_LEDGER.quoted} FORMAT JSONEachRow"
        server.execute(sql, body=body, settings=at_once(server))


def last_batch(server: Server, stream: str) -> int:
    """The greatest number of a batch that is recorded here; -1 if there is none."""
    sql = (
        f"SELECT toString(max(toInt64(partition_id))) AS last, toString(count()) AS n FROM {_batches(stream)}"
    )
    try:
        (row,) = server.rows(sql)
    except SqlError as error:
        if error.code not in (Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE):
            raise
        return -1  # no load ever was here
    return int(row["last"]) if row["n"] != "0" else -1


def content_of_batch(server: Server, stream: str, batch: int) -> Content | None:
    """As it was recorded the last time, if it was."""
    one = f"{_batches(stream)} AND partition_id = '{batch}' ORDER BY at DESC LIMIT 1"
    found = [json.loads(row["facts"]) for row in server.rows(f"SELECT facts FROM {one}")]
    return Content(found[0]["rows"], found[0].get("digest")) if found else None


def _batches(stream: str) -> str:
    return f"{_LEDGER.quoted} WHERE job = {quote_string(stream)} AND event = '{Event.BATCH.value}'"


def attached_by_hand(job: str, partition_id: str, *, epoch: str) -> str:
    """The statement by which a person records that a partition has its rows."""
    facts = json.dumps({"epoch": epoch})
    values = ", ".join(map(quote_string, (job, Event.ATTACHED.value, partition_id, facts)))
    return f"INSERT INTO {_LEDGER.quoted} (job, event, partition_id, facts, at) VALUES ({values}, now())"


def recorded(server: Server, job: str, *, epoch: str = "") -> dict[Event, dict[str, dict[str, Any]]]:
    """By event and partition id, the facts of the plan of `epoch`, which was decided: others were proposed
    only, or are of a job that had this id before and is forgotten, as a run that began so long ago is.

    Of two runs that both recorded an intent, the one that saw fewer rows is right: the other looked when the
    first had been carried out. The hashes of both are under `EITHER`.
    """
    rows = server.rows(
        f"SELECT event, partition_id, facts FROM {_LEDGER.quoted} WHERE job = {quote_string(job)} "
        f"AND (event != '{Event.BEGUN.value}' OR toUInt32(at) > {int(time.time()) - _KEPT_S}) ORDER BY at"
    )
    found: dict[Event, dict[str, dict[str, Any]]] = {event: {} for event in Event}
    for row in rows:
        event, facts = Event(row["event"]), json.loads(row["facts"])
        if epoch and facts.get("epoch", epoch) != epoch:
            continue
        earlier = found[event].setdefault(row["partition_id"], facts)
        if event is Event.INTENT:
            either = [*earlier.get(EITHER, ()), facts.get("hashes", [])]
            chosen = facts if facts.get("before", 0) < earlier.get("before", 0) else earlier
            found[event][row["partition_id"]] = chosen | {EITHER: either}
    return found
