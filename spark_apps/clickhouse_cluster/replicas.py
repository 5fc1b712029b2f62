"""Whether the replicas of a shard have the same after a load.

A load writes to one replica of each shard, and a Replicated table brings the rows to the others. A replica
that is away or behind gets them later, whatever happens here: that is waited for a while, and then said in
the log. A replica that says it has everything, and has other parts than the one that was written, is wrong,
and nobody would notice: that ends the load with an error.

Source: ClickHouse's `system.parts` and `system.replicas`. Parts of one name have equal content on all
replicas, however each of them has compressed it.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.errors import NodeUnavailable, OnclusterError, ReplyLost, SqlError
from engine.names import quote_string
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0


class ReplicasDiffer(OnclusterError):
    """A replica says that it has everything, and has other rows than the one that was written."""


class Likeness(enum.Enum):
    """Of a replica, beside the one that was written."""

    ALIKE = "alike"
    DIFFERENT = "different"
    """Parts are absent, or there are others: a replica that is behind, or merges, looks so."""
    CONTRADICTING = "contradicting"
    """A part of the same name has other content."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A replica's active parts: by partition id and name their rows and what tells their content."""

    parts: Mapping[tuple[str, str], tuple[int, str]]

    @property
    def rows(self) -> dict[str, int]:
        """By partition id."""
        found: dict[str, int] = {}
        for (partition_id, _), (rows, _) in self.parts.items():
            found[partition_id] = found.get(partition_id, 0) + rows
        return found


@dataclass(frozen=True, slots=True)
class State:
    """Of a replica: its table's path in Keeper, and whether it has nothing to do."""

    keeper_path: str
    is_in_sync: bool


def likeness(written: Contents, other: Contents) -> Likeness:
    common = written.parts.keys() & other.parts.keys()
    if any(written.parts[key] != other.parts[key] for key in common):
        return Likeness.CONTRADICTING
    return Likeness.ALIKE if written.parts == other.parts else Likeness.DIFFERENT


def contents(server: Server, target: Target, partitions: Collection[str] | None) -> Contents:
    """Of these partitions, or of all."""
    chosen = (
        "" if partitions is None else f" AND partition_id IN ({', '.join(map(quote_string, partitions))})"
    )
    content = (
        "toString(data_uncompressed_bytes)"
        if target.is_old
        else "concat(hash_of_uncompressed_files, uncompressed_hash_of_compressed_files)"
    )
    rows = server.rows(
        f"SELECT partition_id, name, toString(rows) AS n, {content} AS content FROM system.parts "
        f"WHERE active AND {_is(target)}{chosen}"
    )
    return Contents({(row["partition_id"], row["name"]): (int(row["n"]), row["content"]) for row in rows})


def state_of(server: Server, target: Target) -> State:
    rows = server.rows(
        "SELECT zookeeper_path, toUInt8(NOT is_readonly AND NOT is_session_expired AND queue_size = 0 AND "
        f"log_pointer > log_max_index) AS is_in_sync FROM system.replicas WHERE {_is(target)}"
    )
    return State(rows[0]["zookeeper_path"], bool(rows[0]["is_in_sync"])) if rows else State("", False)


def _is(target: Target) -> str:
    table = target.table
    return f"database = {quote_string(table.database)} AND table = {quote_string(table.table)}"


def require_equal_replicas(
    target: Target,
    written: Sequence[Server],
    partitions: Sequence[Collection[str]] | None,
    *,
    wait_s: float,
) -> None:
    """By shard, compare the replica that was written with all others, in its partitions (None: all).

    Waits up to `wait_s` for those that are behind; 0 looks at none. Raises ReplicasDiffer.
    """
    if not target.is_replicated or not wait_s:
        return
    work = [
        (server, other, None if partitions is None else partitions[number])
        for number, (shard, server) in enumerate(zip(target.shards, written, strict=True))
        for other in shard.replicas
        if other != server and (partitions is None or partitions[number])
    ]
    if not work:
        return
    deadline_s = time.monotonic() + wait_s
    with ThreadPoolExecutor(len(work)) as pool:
        list(pool.map(lambda one: _require_alike(target, *one, deadline_s=deadline_s), work))


def _require_alike(
    target: Target,
    written: Server,
    other: Server,
    partitions: Collection[str] | None,
    *,
    deadline_s: float,
) -> None:
    before: tuple[Contents, Contents] | None = None
    looks_in_sync = 0
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            if before is None:
                _wait_for(other, target, wait_s=(deadline_s - time.monotonic()) / 2)
            seen = contents(written, target, partitions), contents(other, target, partitions)
            like = likeness(*seen)
            if like is Likeness.CONTRADICTING:
                raise _differ(target, written, other, *seen)
            if like is Likeness.ALIKE:
                return
            # Who is behind changes, or has something to do; who has nothing to do twice has everything.
            if before == seen:
                states = state_of(written, target), state_of(other, target)
                if states[0].keeper_path != states[1].keeper_path:
                    raise _two_tables(target, written, other, *states)
                looks_in_sync = looks_in_sync + 1 if all(state.is_in_sync for state in states) else 0
                if looks_in_sync > 1:
                    raise _differ(target, written, other, *seen)
            else:
                looks_in_sync = 0
        except (NodeUnavailable, ReplyLost, SqlError) as error:
            # Rows are where they were written, and come to the others by replication.
            log.warning("spark.replica_not_checked replica=%s error=%s", other, error.message)
            return
        if time.monotonic() >= deadline_s:
            log.warning("spark.replica_behind replica=%s table=%s", other, target.table)
            return
        before = seen
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _wait_for(server: Server, target: Target, *, wait_s: float) -> None:
    """Let the server wait until it has what the others have now, or for so long. It costs less than to ask.

    Raises NodeUnavailable, ReplyLost.
    """
    limit_s = max(1, int(wait_s))
    sql = f"SYSTEM SYNC REPLICA {target.table.quoted}"
    try:
        server.execute(sql, settings={"receive_timeout": str(limit_s)}, timeout_s=limit_s + 10.0)
    except SqlError as error:  # too late, or not allowed to this user: then it is looked at all the same
        log.info("spark.replica_not_waited_for replica=%s error=%s", server, error.message)


def _two_tables(target: Target, written: Server, other: Server, ours: State, theirs: State) -> ReplicasDiffer:
    return ReplicasDiffer(
        f"{target.table} on {written} and {other} are replicas of two tables, "
        f"{ours.keeper_path} and {theirs.keeper_path or 'none'}.",
        hint="Look at the macros of both servers: one path of Keeper is one shard.",
    )


def _differ(
    target: Target, written: Server, other: Server, ours: Contents, theirs: Contents
) -> ReplicasDiffer:
    ids = sorted(
        one
        for one in ours.rows.keys() | theirs.rows.keys()
        if ours.rows.get(one, 0) != theirs.rows.get(one, 0)
    )
    shown = [f"{one}: {ours.rows.get(one, 0)} and {theirs.rows.get(one, 0)}" for one in ids[:5]]
    why = f"rows by partition {'; '.join(shown)}" if shown else "equal numbers of rows, other parts"
    return ReplicasDiffer(
        f"{target.table} differs between {written} and {other}: {why}.",
        hint="The load has written its rows. `oncluster health` says which replica is wrong and repairs it.",
    )
