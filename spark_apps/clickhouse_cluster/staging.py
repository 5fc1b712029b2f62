"""Tables that hold rows of a job until it commits. They live in a database of their own on the servers.

    s_<job>_<epoch>_<task>_<attempt>   what one attempt of one task posted to this shard
    c_<job>_<epoch>                    what one run of the commit has gathered for this shard

An epoch is one run of the job's plan, or of its commit; it begins with the time in seconds. Nothing merges in
these tables: their parts stay byte for byte what they are, which is what makes a commit repeatable.

A ReplicatedMergeTree takes a part that equals one it was given lately for a repetition and leaves it out,
also if another job sent it. So one column of a job's parts is compressed in a way that the job's id picks:
files differ where jobs differ, and are equal when a commit is repeated. Servers before 20.3 have no codecs.

Source: ClickHouse's StorageReplicatedMergeTree::replacePartitionFrom (`<partition>_replace_from_<hash>`).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.names import TableName, quote_string
from engine.sql.tokens import TokenKind, tokenize
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.target import Target

DATABASE = "oncluster_spark"
_NO_MERGES = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
_WIDTHS = (
    "UInt8",
    "Int8",
    "UInt16",
    "Int16",
    "Date",
    "UInt32",
    "Int32",
    "DateTime",
    "Float32",
    "UInt64",
    "Int64",
)
_NONCE_BITS = 16
_KEPT_S = 7 * 24 * 3600


def job_key(job_id: str, target: Target) -> str:
    """What stands for a job in names: a job is one load into one table."""
    return hashlib.sha256(f"{target.table}\0{job_id}".encode()).hexdigest()[:16]


def new_epoch() -> str:
    return f"{int(time.time())}x{secrets.token_hex(4)}"


def attempt_table(job: str, epoch: str, task: int, attempt: int) -> TableName:
    return TableName(DATABASE, f"s_{job}_{epoch}_{task}_{attempt}")


def commit_table(job: str, epoch: str) -> TableName:
    return TableName(DATABASE, f"c_{job}_{epoch}")


def create_database(server: Server) -> None:
    server.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")


def create(server: Server, name: TableName, target: Target, *, job: str) -> None:
    """Make a staging table of the target's structure. It must not exist."""
    _create(server, name, target, like=target.table)
    if not target.is_old:
        column = min(
            (column for column in target.columns if column.is_stored_as_given),
            key=lambda column: _WIDTHS.index(column.type) if column.type in _WIDTHS else len(_WIDTHS),
        )
        server.execute(
            f"ALTER TABLE {name.quoted} MODIFY COLUMN {TableName('', column.name).quoted} {_codec(job)}",
            settings={"allow_suspicious_codecs": "1"},
        )


def create_like(server: Server, name: TableName, target: Target, *, like: TableName) -> None:
    """Make another staging table of the same job. It must not exist."""
    _create(server, name, target, like=like)


def _create(server: Server, name: TableName, target: Target, *, like: TableName) -> None:
    keys = [f"PARTITION BY {_clause(target.partition_key)}"] if target.partition_key else []
    keys.append(f"ORDER BY {_clause(target.sorting_key) if target.sorting_key else 'tuple()'}")
    if target.primary_key and target.primary_key != target.sorting_key:
        keys.append(f"PRIMARY KEY {_clause(target.primary_key)}")
    server.execute(
        f"CREATE TABLE {name.quoted} AS {like.quoted} ENGINE = MergeTree {' '.join(keys)} "
        f"SETTINGS index_granularity = {target.index_granularity}, {_NO_MERGES}",
        # The codec of the job's column is one that nobody would choose.
        settings={} if target.is_old else {"allow_suspicious_codecs": "1"},
    )


def drop(server: Server, name: TableName) -> None:
    server.execute(f"DROP TABLE IF EXISTS {name.quoted}")


def tables(server: Server, *prefixes: str, older_than_s: int = 0) -> list[str]:
    """Names of staging tables that begin with one of the prefixes, made so long ago at least."""
    begins = " OR ".join(f"startsWith(name, {quote_string(prefix)})" for prefix in prefixes)
    age = f" AND metadata_modification_time < now() - {older_than_s}" if older_than_s else ""
    return server.text(
        f"SELECT name FROM system.tables WHERE database = {quote_string(DATABASE)} "
        f"AND ({begins}){age} ORDER BY name"
    ).split()


@dataclass(frozen=True, slots=True)
class Part:
    """`digest` is of all its files; empty where the server does not tell."""

    rows: int
    digest: str


Parts = dict[str, list[Part]]
"""By partition id, the parts that have rows."""


def parts(server: Server, target: Target, table: TableName | None = None) -> Parts:
    """Of the target's own table, or of a staging table."""
    table = table or target.table
    where = f"database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
    return _parts(server, target, where).get(table.table, {})


def attempts_parts(server: Server, target: Target, job: str, epoch: str) -> dict[str, Parts]:
    """By table, those of all attempts of one run of the job, whether they won or not."""
    mine = quote_string(f"s_{job}_{epoch}_")
    return _parts(server, target, f"database = {quote_string(DATABASE)} AND startsWith(table, {mine})")


def _parts(server: Server, target: Target, where: str) -> dict[str, Parts]:
    digest = "''" if target.is_old else "upper(hash_of_all_files)"
    rows = server.rows(
        f"SELECT table, partition_id, toString(rows) AS n, {digest} AS digest FROM system.parts "
        f"WHERE active AND rows > 0 AND {where}"
    )
    found: dict[str, Parts] = {}
    for row in rows:
        of = found.setdefault(row["table"], {}).setdefault(row["partition_id"], [])
        of.append(Part(int(row["n"]), row["digest"]))
    return found


def sweep(server: Server, job: str) -> None:
    """Drop what the job's runs left, and what any job left a week ago."""
    oldest = int(time.time()) - _KEPT_S
    for name in tables(server, "s_", "c_"):
        _, owner, epoch, *_ = name.split("_")
        born = epoch.split("x")[0]
        is_old = born.isdigit() and int(born) < oldest
        if owner == job or is_old:
            drop(server, TableName(DATABASE, name))


def sweep_all(servers: Iterable[Server], job: str) -> None:
    """`sweep` on each of them."""
    different = list(dict.fromkeys(servers))
    with ThreadPoolExecutor(len(different)) as pool:
        list(pool.map(lambda server: sweep(server, job), different))


def _codec(job: str) -> str:
    number = int(hashlib.sha256(job.encode()).hexdigest()[:8], 16)
    chain = ", ".join("LZ4" if number >> bit & 1 else "NONE" for bit in range(_NONCE_BITS))
    return f"CODEC({chain}, LZ4)"


def _clause(key: str) -> str:
    """A key as it may follow ORDER BY: several expressions stand in brackets."""
    depth = 0
    for token in tokenize(key):
        if token.text in "([":
            depth += 1
        elif token.text in ")]":
            depth -= 1
        elif token.text == "," and depth == 0 and token.kind is not TokenKind.STRING:
            return f"({key})"
    return key
