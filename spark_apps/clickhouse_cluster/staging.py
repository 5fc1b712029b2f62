"""Tables that hold rows of a job until it commits. They live in a database of their own on the servers.

    s_<job>_<epoch>_<task>_<attempt>   what one attempt of one task posted to this shard
    c_<job>_<epoch>                    what one run of the commit has gathered for this shard

An epoch is one run of the job's plan, or of its commit; it begins with the time in seconds. Nothing merges in
these tables: their parts stay byte for byte what they are, which is what makes a commit repeatable.

A ReplicatedMergeTree takes a part that equals one it was given lately for a repetition and leaves it out,
also if another job sent it. So the marks of a job's parts are compressed in a way that the job's id picks (a
column, on servers before 23.1): files differ where jobs differ, and are equal when a commit is repeated.
Servers before 20.3 have no codecs.

Source: ClickHouse's StorageReplicatedMergeTree::replacePartitionFrom (`<partition>_replace_from_<hash>`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.sql.tokens import TokenKind, tokenize
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.target import Target

DATABASE = "oncluster_spark"
_NO_MERGES = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
_NO_TTL_MERGES_SINCE = (21, 1)
_NO_TTL_MERGES = "max_number_of_merges_with_ttl_in_pool = 0"
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
_ALLOWED_MORE = {
    "allow_suspicious_fixed_string_types": "1",
    "allow_suspicious_indices": "1",
    "allow_suspicious_primary_key": "1",
    "allow_suspicious_ttl_expressions": "1",
    "allow_suspicious_variant_types": "1",
    "flatten_nested": "0",
}
"""Whoever made the table was asked, and a Nested that is one column there has to stay one."""
_ALLOWED_MORE_SINCE = (25, 1)
"""Servers refuse settings that they do not know; by then all of these are there."""
_NONCE_BITS = 16
_ALLOWED = {"allow_suspicious_codecs": "1", "allow_suspicious_low_cardinality_types": "1"}
_CODECS_OF_MARKS_SINCE = (23, 1)
_DROPS_WAIT_SINCE = (20, 10)
_KEPT_S = 7 * 24 * 3600
_LISTINGS = 100
_DROPS_AT_ONCE = 4
_STAGED = "_" * 19 + "%x%"
"""LIKE `s_<job>_<epoch>…`: names of other things that are here are shorter, or have no x."""
_BLOCKS = re.compile(r"\A[^_]+_\d+_(\d+)_\d+(?:_\d+)?\Z")
"""Of a part's name."""


def job_key(job_id: str, target: Target) -> str:
    """What stands for a job in names: a job is one load into one table."""
    return hashlib.sha256(f"{target.table}\0{job_id}".encode()).hexdigest()[:16]


def new_epoch() -> str:
    return f"{int(time.time())}x{new_nonce()}"


def new_nonce() -> str:
    return secrets.token_hex(4)


def attempt_table(job: str, epoch: str, task: int, attempt: int) -> TableName:
    return TableName(DATABASE, f"s_{job}_{epoch}_{task}_{attempt}")


def commit_table(job: str, epoch: str) -> TableName:
    return TableName(DATABASE, f"c_{job}_{epoch}")


def create_database(server: Server) -> None:
    server.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")


def create(
    server: Server, name: TableName, target: Target, *, job: str, like: TableName | None = None
) -> None:
    """Make a staging table of the structure of the target, or of `like`. It must not exist."""
    keys = [f"PARTITION BY {_clause(target.partition_key)}"] if target.partition_key else []
    # Servers list a version as the last of the sorting key, where the engine has put it.
    sorting_key = target.sorting_key.removesuffix(f", {target.sign_and_version.rpartition(', ')[2]}")
    keys.append(f"ORDER BY {_clause(sorting_key) if sorting_key else 'tuple()'}")
    if target.primary_key and target.primary_key != sorting_key:
        keys.append(f"PRIMARY KEY {_clause(target.primary_key)}")
    settings = f"{target.settings}, {_NO_MERGES}"
    if target.version >= _NO_TTL_MERGES_SINCE:
        # A part says itself until when its rows are kept: one that does not is kept for ever.
        keys += [f"TTL {target.ttl}"] if target.ttl else []
        settings += f", {_NO_TTL_MERGES}"
    versioned = target.sign_and_version
    engine = f"VersionedCollapsingMergeTree({versioned})" if versioned else "MergeTree"
    if target.version >= _CODECS_OF_MARKS_SINCE:
        settings += f", compress_marks = 1, marks_compression_codec = {quote_string(_codecs(job))}"
    server.execute(
        f"CREATE TABLE {name.quoted} AS {(like or target.table).quoted} ENGINE = {engine} {' '.join(keys)} "
        f"SETTINGS {settings}",
        settings=_allowed(target),
    )
    if like is None and not target.is_old and target.version < _CODECS_OF_MARKS_SINCE:
        _mark_column(server, name, target, job)


def _allowed(target: Target) -> dict[str, str]:
    """Settings for a table like the target, whose codecs may be such as nobody would choose."""
    if target.is_old:
        return {}
    return _ALLOWED | (_ALLOWED_MORE if target.version >= _ALLOWED_MORE_SINCE else {})


def _mark_column(server: Server, name: TableName, target: Target, job: str) -> None:
    column = min(
        (column for column in target.columns if column.is_stored_as_given),
        key=lambda column: _WIDTHS.index(column.type) if column.type in _WIDTHS else len(_WIDTHS),
    )
    server.execute(
        f"ALTER TABLE {name.quoted} MODIFY COLUMN {quote_identifier(column.name)} CODEC({_codecs(job)})",
        settings={"allow_suspicious_codecs": "1"},
    )


def drop(server: Server, name: TableName) -> None:
    server.execute(f"DROP TABLE IF EXISTS {name.quoted}")


def drop_and_wait(server: Server, name: TableName, *, version: tuple[int, ...]) -> None:
    """Drop a table when no statement uses it any more."""
    server.execute(f"DROP TABLE IF EXISTS {name.quoted}{' SYNC' if version >= _DROPS_WAIT_SINCE else ''}")


def gathered_by_others(server: Server, job: str, mine: TableName) -> list[TableName]:
    """Tables in which other runs of the job's commit have gathered, or are about to."""
    return [TableName(DATABASE, name) for name in tables(server, f"c_{job}_%") if name != mine.table]


def tables(server: Server, like: str) -> list[str]:
    """Names of tables and views here; none where no load ever was.

    An old server's listing fails when one of the tables is dropped meanwhile, by this load or by another.
    """
    # Cheaper than to ask `system.tables`.
    listing = f"SHOW TABLES FROM {DATABASE} LIKE {quote_string(like)}"
    tries = 0
    while True:
        try:
            return server.text(listing).split()
        except SqlError as error:
            if error.code == Code.UNKNOWN_DATABASE:
                return []
            tries += 1
            if error.code != Code.UNKNOWN_TABLE or tries == _LISTINGS:
                raise


def of_other_columns(server: Server, names: Sequence[str]) -> list[str]:
    """Those of these tables that have other columns than the first. All are of one run."""
    if len(names) < 2:
        return []
    run = "_".join(names[0].split("_")[:3]) + "_"
    rows = server.rows(
        "SELECT table, arraySort(groupArray(concat(name, ' ', type))) AS columns FROM system.columns "
        f"WHERE database = {quote_string(DATABASE)} AND startsWith(table, {quote_string(run)}) GROUP BY table"
    )
    columns = {row["table"]: row["columns"] for row in rows}
    return [name for name in names if name in columns and columns[name] != columns.get(names[0])]


def left(server: Server, *, records_older_than_s: int) -> list[str]:
    """Staging tables of all jobs, the ledger, and records of jobs that were done so long ago."""
    return server.text(
        f"SELECT name FROM system.tables WHERE database = {quote_string(DATABASE)} AND "
        "(startsWith(name, 's_') OR startsWith(name, 'c_') OR name = 'ledger' OR (startsWith(name, 'done_') "
        f"AND metadata_modification_time < now() - {records_older_than_s}))"
    ).split()


@dataclass(frozen=True, slots=True)
class Part:
    """`digest` is of all its files; empty where the server does not tell."""

    rows: int
    digest: str
    name: str


Parts = dict[str, list[Part]]
"""By partition id, the parts that have rows."""


Hashes = dict[str, set[str]]
"""By partition id, hashes of parts that were attached to a Replicated table lately, as Keeper knows them."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What Keeper remembers of blocks that a Replicated table was given: `hashes` of parts that were
    attached, the name of the `newest` of all blocks, and how many they are."""

    hashes: Hashes = field(default_factory=dict)
    newest: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """Parts on one server: of the target's own table, and by table those of all attempts, winners or not."""

    target: Parts
    attempts: dict[str, Parts]
    blocks: Blocks


def last_block(parts: Iterable[Part]) -> int:
    """The greatest block number of the parts of one partition: whatever is added to it gets a greater one.
    0 of names that say none, as before partitioning by expressions."""
    found = (_BLOCKS.search(part.name) for part in parts)
    return max((int(match.group(1)) for match in found if match), default=0)


def parts(server: Server, target: Target, table: TableName | None = None) -> Parts:
    """Of the target's own table, or of a staging table."""
    table = table or target.table
    where = f"database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
    return _parts(server, target, where).get(table, {})


def blocks(server: Server, target: Target, keeper_path: str) -> Blocks:
    mark = "_replace_from_"
    path = quote_string(f"{keeper_path}/blocks")
    try:
        (row,) = server.rows(
            "SELECT argMax(name, czxid) AS newest, toUInt32(count()) AS number, "
            f"arrayFilter(x -> position(x, {quote_string(mark)}) > 0, groupArray(name)) AS attached "
            f"FROM system.zookeeper WHERE path = {path}"
        )
    except SqlError as error:
        raise type(error)(error.code, f"Cannot read the blocks of {target.table}: {error.message}") from error
    found: Hashes = {}
    for name in row["attached"]:
        partition_id, _, digest = name.partition(mark)
        found.setdefault(partition_id, set()).add(digest)
    return Blocks(found, str(row["newest"]), int(row["number"]))


def has_block(server: Server, keeper_path: str, name: str) -> bool:
    path = quote_string(f"{keeper_path}/blocks")
    return bool(
        server.rows(f"SELECT name FROM system.zookeeper WHERE path = {path} AND name = {quote_string(name)}")
    )


def look(server: Server, target: Target, job: str, epoch: str, *, keeper_path: str) -> Seen:
    """At what one run of the job has staged, at the target, and at what Keeper says where a path is given."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(blocks, server, target, keeper_path) if keeper_path else None
        of_target, attempts = _staged(server, target, job, epoch)
        return Seen(of_target, attempts, Blocks() if asked is None else asked.result())


def _staged(server: Server, target: Target, job: str, epoch: str) -> tuple[Parts, dict[str, Parts]]:
    table, mine = target.table, quote_string(f"s_{job}_{epoch}_")
    found = _parts(
        server,
        target,
        f"(database = {quote_string(table.database)} AND table = {quote_string(table.table)} OR "
        f"database = {quote_string(DATABASE)} AND startsWith(table, {mine}))",
    )
    of_target = found.pop(table, {})
    return of_target, {name.table: some for name, some in found.items()}


def _parts(server: Server, target: Target, where: str) -> dict[TableName, Parts]:
    digest = "''" if target.is_old else "upper(hash_of_all_files)"
    rows = server.rows(
        f"SELECT database, table, partition_id, name, toString(rows) AS n, {digest} AS digest "
        f"FROM system.parts WHERE active AND rows > 0 AND {where}"
    )
    found: dict[TableName, Parts] = {}
    for row in rows:
        of = found.setdefault(TableName(row["database"], row["table"]), {})
        of.setdefault(row["partition_id"], []).append(Part(int(row["n"]), row["digest"], row["name"]))
    return found


def sweep_old(server: Server, names: Iterable[str]) -> None:
    """Drop those of these tables that any job left a week ago."""
    oldest = int(time.time()) - _KEPT_S
    for name in names:
        if name.startswith(("s_", "c_")):
            born = name.split("_")[2].split("x")[0]
            if born.isdigit() and int(born) < oldest:
                drop(server, TableName(DATABASE, name))


def sweep(
    servers: Iterable[Server],
    job: str,
    epoch: str = "",
    *,
    known: Mapping[Server, Iterable[str]] | None = None,
    done_of: Callable[[frozenset[str]], frozenset[str]] = lambda _: frozenset(),
) -> None:
    """On each server, drop what the job's runs left, or what one of them did; at once what is `known`. Of
    other jobs that is dropped which `done_of` says are done: their drivers may not have got at this server.

    Raises what the first that failed says, when all were asked.
    """

    def on_one(server: Server) -> None:
        with ThreadPoolExecutor(_DROPS_AT_ONCE) as drops:

            def drop_one(name: str) -> None:
                drop(server, TableName(DATABASE, name))

            first = list(dict.fromkeys((known or {}).get(server, ())))
            dropping = [drops.submit(drop_one, name) for name in first]
            names = [name for name in tables(server, _STAGED) if name not in first]
            others = frozenset(name.split("_")[1] for name in names) - {job}
            done = done_of(others) if others else frozenset()
            dropping += [
                drops.submit(drop_one, name)
                for name in names
                if name.startswith((f"s_{job}_{epoch}", f"c_{job}_{epoch}")) or name.split("_")[1] in done
            ]
            for one in dropping:
                one.result()

    _on_each(servers, on_one)


def drop_on_each(servers: Iterable[Server], name: TableName) -> None:
    """Drop what one attempt staged. Raises as `sweep`."""
    _on_each(servers, lambda server: drop(server, name))


def _on_each(servers: Iterable[Server], on_one: Callable[[Server], None]) -> None:
    """One that does not answer keeps no other from its work, which nobody would do later."""
    different = list(dict.fromkeys(servers))
    with ThreadPoolExecutor(len(different)) as pool:
        working = [pool.submit(on_one, server) for server in different]
    for work in working:
        work.result()


def _codecs(job: str) -> str:
    number = int(hashlib.sha256(job.encode()).hexdigest()[:8], 16)
    return ", ".join((*("LZ4" if number >> bit & 1 else "NONE" for bit in range(_NONCE_BITS)), "LZ4"))


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
