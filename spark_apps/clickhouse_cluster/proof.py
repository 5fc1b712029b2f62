"""What is proven of a load before it counts as done: no row on a wrong shard, none too many.

Where. The servers evaluate the sharding key themselves: on what was staged, before anything is decided; after
posts without staging on the partitions that were posted to. A key that may say another thing the next time
(`rand()`), or that a server does not know, is nobody's to check.

How many. Rows that are missing are looked for at each move (`moves`). Rows too many are found by the parts:
a part that was moved keeps the digest of its files, which no part of another job has, so a second one of that
digest is the same rows again; and in a partition that was replaced, no part may be active that was there
before. Rows that others add meanwhile are theirs and disturb nothing. Servers before 20.3 show no digests;
there sizes stand for them, and rows that look as if they were there twice are an unknown outcome.

Whether the replicas of a shard are alike is another question (`replicas`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.distributed.select.deterministic import is_deterministic
from engine.distributed.sharding import slot_expression
from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Placement
from spark_apps.clickhouse_cluster.target import Target

log = logging.getLogger(__name__)

_TABLES_AT_ONCE = 50


class RowsOnWrongShard(OnclusterError):
    """A server evaluates the sharding key in another way than whoever sent it the rows."""


class RowsTooMany(OnclusterError):
    """Rows of the job are there more than once, or beside what they replaced."""


# -- where ---------------------------------------------------------------------------------------------------


def can_tell_shards(target: Target) -> bool:
    """Whether rows have one right shard that can be told afterwards."""
    return (
        target.placement is Placement.BY_KEY
        and len(target.owners) > 1
        and is_deterministic(target.sharding_key, [column.name for column in target.columns])
    )


def count_strangers(
    server: Server, target: Target, shard: int, tables: Sequence[TableName], *, where: str = ""
) -> int:
    """How many rows of these tables, which have the target's columns, belong to another shard than this one
    (from 0). `where` narrows them. Raises SqlError 60 where a table is gone.
    """
    if not tables or not can_tell_shards(target):
        return 0
    key = target.sharding_key
    narrowed = f"WHERE {where}" if where else ""
    try:
        asked = f"SELECT toTypeName({key}) FROM {tables[0].quoted} {narrowed} LIMIT 1"
        key_type = server.text(asked)
        if not key_type:
            return 0
        ends = target.ends_of_slots
        slot = slot_expression(key, key_type, ends[-1])
        begin, end = (0, *ends)[shard : shard + 2]
        is_ours = f"{slot} BETWEEN {begin} AND {end - 1}" if begin < end else "0"
        strangers = f"WHERE NOT ({is_ours})" + (f" AND ({where})" if where else "")
        counts = [f"SELECT count() AS n FROM {table.quoted} {strangers}" for table in tables]
        return sum(
            int(server.text(f"SELECT sum(n) FROM ({' UNION ALL '.join(counts[at : at + _TABLES_AT_ONCE])})"))
            for at in range(0, len(counts), _TABLES_AT_ONCE)
        )
    except SqlError as error:
        if error.code != Code.UNKNOWN_FUNCTION:
            raise
        log.warning("spark.shards_not_checked server=%s error=%s", server, error.message)
        return 0


def wrong_shard(server: Server, target: Target, shard: int, rows: int, *, hint: str) -> RowsOnWrongShard:
    return RowsOnWrongShard(
        f"Shard {shard + 1} ({server}): {rows} rows have another shard by the sharding key "
        f"{target.sharding_key}, as the server evaluates it.",
        hint=hint,
    )


# -- how many ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartSeen:
    """`is_as_inserted`: no merge has made it. `digest` is of its files, or what stands for it."""

    partition_id: str
    name: str
    rows: int
    is_active: bool
    is_as_inserted: bool
    digest: str
    modified_s: int


def parts_seen(
    server: Server, target: Target, tables: Iterable[TableName]
) -> dict[TableName, list[PartSeen]]:
    """Parts with rows, also such as were merged or replaced, as long as the server lists them."""
    named = " OR ".join(
        f"(database = {quote_string(table.database)} AND table = {quote_string(table.table)})"
        for table in tables
    )
    sizes = "concat(toString(data_compressed_bytes), '/', toString(data_uncompressed_bytes))"
    digest = sizes if target.is_old else "upper(hash_of_all_files)"
    rows = server.rows(
        "SELECT database, table, partition_id, name, toString(rows) AS n, toUInt8(active) AS is_active, "
        f"toUInt8(min_block_number = max_block_number AND level = 0) AS is_as_inserted, {digest} AS digest, "
        "toUInt32(modification_time) AS modified_s "
        f"FROM system.parts WHERE rows > 0 AND ({named})"
    )
    found: dict[TableName, list[PartSeen]] = {}
    for row in rows:
        found.setdefault(TableName(row["database"], row["table"]), []).append(
            PartSeen(
                row["partition_id"], row["name"], int(row["n"]), bool(row["is_active"]),
                bool(row["is_as_inserted"]), row["digest"], int(row["modified_s"]),
            )
        )  # fmt: skip
    return found


def twins(parts: Iterable[PartSeen], expected: Mapping[tuple[str, str], int]) -> list[PartSeen]:
    """Parts that are there more often than `expected` of their partition and digest; others do not count."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for part in parts:
        key = (part.partition_id, part.digest)
        if key in expected:
            counts[key] += 1
            if counts[key] > expected[key]:
                found.append(part)
    return found


def require_no_surplus(
    server: Server,
    target: Target,
    source: TableName,
    *,
    replaced: Collection[str],
    before: Mapping[str, Collection[str]],
    rows_before: Mapping[str, int],
) -> None:
    """After the moves out of `source`. `replaced` are the ids of partitions that were replaced, others had
    rows added. `before` are the names of the target's active parts before the first move, by partition, and
    `rows_before` their rows; both empty where an earlier run had moved some.

    Raises RowsTooMany, UnknownOutcome.
    """
    seen = parts_seen(server, target, (source, target.table))
    sent = [part for part in seen.get(source, []) if part.is_active]
    # What a repeated REPLACE has replaced once more is there no longer, though it is listed.
    there = [
        part for part in seen.get(target.table, []) if part.is_active or part.partition_id not in replaced
    ]
    old = {(partition_id, name) for partition_id, names in before.items() for name in names}
    left = [part for part in there if part.partition_id in replaced and (part.partition_id, part.name) in old]
    if left:
        raise _too_many(server, target, left, "were to be replaced, and are there")
    if target.is_old:
        _require_rows_of_sizes(server, target, sent, there, rows_before)
        return
    expected = Counter((part.partition_id, part.digest) for part in sent)
    if again := twins(there, expected):
        raise _too_many(server, target, again, "are there a second time")


def _require_rows_of_sizes(
    server: Server,
    target: Target,
    sent: Sequence[PartSeen],
    there: Sequence[PartSeen],
    rows_before: Mapping[str, int],
) -> None:
    """Sizes are equal by accident, too: they count where just as many rows are too many."""
    expected = Counter((part.partition_id, part.digest) for part in sent)
    for partition_id in {part.partition_id for part in sent} & rows_before.keys():
        again = [part for part in twins(there, expected) if part.partition_id == partition_id]
        rows = sum(part.rows for part in there if part.is_active and part.partition_id == partition_id)
        ours = sum(part.rows for part in sent if part.partition_id == partition_id)
        surplus = rows - rows_before[partition_id] - ours
        if again and surplus == sum(part.rows for part in again):
            raise UnknownOutcome(
                f"{server}: {target.table} has {surplus} rows more in partition {partition_id} than it had "
                "and was given, in a part as large as one that was given.",
                hint="The rows may be there twice, or somebody else wrote as many. Look; a further run with "
                "the same job_id adds nothing.",
            )


def partitions_since(server: Server, target: Target, since_s: int) -> list[str]:
    """Of the target, those that have parts which came to be since then, by the server's clock."""
    parts = parts_seen(server, target, [target.table]).get(target.table, [])
    return sorted({part.partition_id for part in parts if part.modified_s >= since_s})


def require_no_block_twice(server: Server, target: Target, since_s: int, *, surplus: int) -> None:
    """After posts without staging, where a shard has `surplus` rows more than were posted to it. Parts that
    came since, of one block each, are equal where a block was stored twice. Raises RowsTooMany."""
    parts = parts_seen(server, target, [target.table]).get(target.table, [])
    new = [part for part in parts if part.modified_s >= since_s and part.is_as_inserted]
    again = twins(new, {(part.partition_id, part.digest): 1 for part in new})
    if surplus > 0 and again:
        raise _too_many(server, target, again, "are there a second time")


def _too_many(server: Server, target: Target, parts: Sequence[PartSeen], what: str) -> RowsTooMany:
    some = ", ".join(sorted(part.name for part in parts)[:5])
    return RowsTooMany(
        f"{server}: {sum(part.rows for part in parts)} rows of {target.table} {what} (parts {some}).",
        hint="Remove what is too many (ALTER TABLE … DROP PART, or load the partitions again with "
        'mode("overwrite")), then run the job again: it adds nothing, and looks again.',
    )
