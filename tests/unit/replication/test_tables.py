"""What Keeper holds of a table: from chDB's CREATE text, compared with Keeper's, and made in order."""

from __future__ import annotations

import json
import pathlib
import re
from dataclasses import replace
from uuid import UUID

import pytest

from engine.env import SystemEnv
from engine.errors import BadVersion, Corrupt, MultiFailed, NodeExists, NotEmpty, SqlError
from engine.keeper.base import Create, CreateMode, SetData
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import create_ancestors
from engine.replication.block_id import BlockId
from engine.replication.columns import Columns
from engine.replication.creation import (
    NewReplica,
    later_nodes,
    leader_election_ops,
    pristine_checks,
    replica_ops,
    table_ops,
)
from engine.replication.part_name import PartName
from engine.replication.paths import TablePaths, sequence_number
from engine.replication.table_definition import parse_definition
from engine.replication.table_metadata import TableMetadata, Weight, check_metadata, differences

DATA = pathlib.Path(__file__).parents[2] / "data"
DEFINITIONS = json.loads((DATA / "replication_definitions.json").read_text())["definitions"]
CREATED_BY_18_16 = json.loads((DATA / "replication_captures.json").read_text())["created"]
BY_NAME = {row["name"]: row for row in DEFINITIONS}
NEW = NewReplica(b"metadata", b"columns", UUID(int=7))
NOTHING: frozenset[Weight] = frozenset()
ATTACH = frozenset({Weight.ADOPTABLE})

# Paths of the two transactions of chDB 4.4, in their order, as ZooKeeper's transaction log has them.
TABLE_ORDER = re.findall(
    r"\S+",
    """
    /t /t/metadata /t/columns /t/log /t/blocks /t/async_blocks /t/deduplication_hashes /t/block_numbers
    /t/nonincrement_block_numbers /t/leader_election /t/temp /t/temp/abandonable_lock-insert
    /t/temp/abandonable_lock-other /t/replicas /t/quorum /t/quorum/last_part /t/quorum/failed_parts
    /t/mutations
    """,
)
REPLICA_ORDER = re.findall(
    r"\S+",
    """
    host log_pointer queue parts flags is_lost metadata columns metadata_version
    min_unprocessed_insert_time max_processed_insert_time mutation_pointer creator_info
    """,
)


# --- from SQL ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", DEFINITIONS, ids=lambda row: row["name"])
def test_a_create_text_gives_the_texts_that_clickhouse_wrote_for_it(row: dict[str, str]) -> None:
    definition = parse_definition(row["create_query"])
    assert definition.metadata.to_bytes().decode() == row["metadata"]
    assert definition.columns.to_bytes().decode() == row["stored_columns"]


@pytest.mark.parametrize("row", DEFINITIONS, ids=lambda row: row["name"])
def test_texts_of_clickhouse_are_written_back_byte_for_byte(row: dict[str, str]) -> None:
    assert TableMetadata.from_bytes(row["metadata"].encode()).to_bytes().decode() == row["metadata"]
    assert Columns.from_bytes(row["stored_columns"].encode()).to_bytes().decode() == row["stored_columns"]


def test_settings_and_comment_are_read_too() -> None:
    rich = parse_definition(BY_NAME["rich"]["create_query"])
    assert ("deduplicate_merge_projection_mode", "'drop'") in rich.settings
    short = "CREATE TABLE d.t (`a` UInt8) ENGINE = MergeTree ORDER BY a SETTINGS x, y = 2, z"
    assert parse_definition(short).settings == (("x", "1"), ("y", "2"), ("z", "1"))
    assert parse_definition(BY_NAME["old_ops"]["create_query"]).comment == "a table"


def test_a_column_named_like_a_clause_does_not_end_a_clause() -> None:
    columns = "(`TTL` Date, `SETTINGS` UInt8)"
    text = f"CREATE TABLE d.t {columns} ENGINE = MergeTree ORDER BY (TTL, SETTINGS) TTL TTL + 1"
    metadata = parse_definition(text).metadata
    assert (metadata.primary_key, metadata.ttl) == ("TTL, SETTINGS", "TTL + 1")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE TABLE d.t (`a` UInt8) ENGINE = Log", 36),
        ("CREATE TABLE d.t (`a` UInt8) ENGINE = ReplicatedMergeTree('/t', 'r') ORDER BY a", 36),
        ("CREATE TABLE d.t", 62),
        ("CREATE TABLE d.t (`a` UInt8)", 62),
        ("CREATE TABLE d.t (`a` UInt8, , `b` UInt8) ENGINE = MergeTree ORDER BY a", 62),
        ("CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a", 62),
        ("CREATE TABLE d.t (`a` UInt8 ENGINE = MergeTree ORDER BY a", 62),
        ("CREATE TABLE d.t (`a` UInt8) ENGINE = MergeTree ORDER BY a SETTINGS index_granularity = '8 k'", 36),
    ],
)
def test_text_that_chdb_does_not_write_is_refused(text: str, code: int) -> None:
    with pytest.raises(SqlError) as refused:
        parse_definition(text)
    assert refused.value.code == code


# --- against Keeper's -------------------------------------------------------------------------------------

PLAIN = parse_definition(BY_NAME["plain"]["create_query"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"primary_key": "d"}, "primary key"),
        ({"partition_key": "d"}, "partition key expression"),
        ({"partition_key": None}, "partition key expression"),
        ({"index_granularity": 77}, "index granularity"),
        ({"mode": 5}, "mode"),
        ({"sign_column": "s"}, "sign column"),
        ({"version_column": "v"}, "version column"),
        ({"columns_to_sum": "v"}, "columns to sum"),
    ],
)
def test_an_immutable_difference_is_refused_at_create_and_at_attach(
    change: dict[str, object], field: str
) -> None:
    local = replace(PLAIN.metadata, **change)  # type: ignore[arg-type]
    for allowed in (NOTHING, ATTACH):
        with pytest.raises(
            SqlError, match=f"Metadata of table d.t in ZooKeeper differs in {field}"
        ) as refused:
            check_metadata(local, PLAIN.metadata, table="d.t", allowed=allowed)
        assert refused.value.code == 342


@pytest.mark.parametrize(
    "change",
    [
        {"ttl": "d"},
        {"sorting_key": "d, id, v"},
        {"indices": "i v TYPE minmax"},
        {"index_granularity_bytes": 1},
    ],
)
def test_an_adoptable_difference_is_refused_at_create_only(change: dict[str, object]) -> None:
    local = replace(PLAIN.metadata, **change)  # type: ignore[arg-type]
    check_metadata(local, PLAIN.metadata, table="d.t", allowed=ATTACH)
    with pytest.raises(SqlError) as refused:
        check_metadata(local, PLAIN.metadata, table="d.t", allowed=NOTHING)
    assert refused.value.code == 342


def test_what_an_old_server_did_not_write_is_not_a_difference() -> None:
    stored = replace(PLAIN.metadata, merge_parameters_version=0, index_granularity_bytes=0)
    local = replace(PLAIN.metadata, version_column="v")
    assert differences(local, stored) == ()


def test_columns_that_differ_are_named() -> None:
    stored = PLAIN.columns
    stored.check_same(stored, where="/t/columns")
    changed = Columns((replace(stored.columns[0], type="Date32"), stored.columns[1]))
    with pytest.raises(SqlError) as refused:
        changed.check_same(stored, where="/t/columns")
    assert refused.value.code == 122
    assert "only in Keeper: v" in str(refused.value) and "`d` Date32" in str(refused.value)
    with pytest.raises(SqlError, match="another order"):
        Columns(stored.columns[::-1]).check_same(stored, where="/t/columns")


# --- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "root", ["", "t", "/", "//t", "/t//x", "/t/../x", "/t/./x", "/t\0", "/t\n", "/a\ud800"]
)
def test_a_table_path_that_keeper_would_refuse_is_refused(root: str) -> None:
    with pytest.raises(SqlError) as refused:
        TablePaths(root)
    assert refused.value.code == 36


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\0"])
def test_a_replica_name_that_is_no_step_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(SqlError):
        TablePaths("/t").replica(name)


def test_every_path_of_a_real_18_16_table_is_known() -> None:
    roots = [row["path"] for row in CREATED_BY_18_16]
    paths = TablePaths(roots[0] + "/")
    known = {value for value in _all_paths(paths) if isinstance(value, str)}
    for node in ("node01", "node02", "node03"):
        known |= {value for value in _all_paths(paths.replica(node)) if isinstance(value, str)}
    unknown = [path for path in roots if path not in known and "/leader_election/" not in path]
    assert unknown == []


def _all_paths(paths: object) -> set[object]:
    names = [name for name in dir(type(paths)) if isinstance(getattr(type(paths), name), property)]
    return {getattr(paths, name) for name in names} | {paths.root}  # type: ignore[attr-defined]


def test_names_from_elsewhere_are_checked_before_they_are_joined() -> None:
    paths = TablePaths("/t")
    replica = paths.replica("r")
    for name in ("../x", "log-1", "log-00000000011", "x-0000000001", ""):
        with pytest.raises(SqlError):
            paths.log_entry(name)
        with pytest.raises(SqlError):
            replica.queue_entry(name)
    with pytest.raises(SqlError):
        paths.block_number_prefix("a/b")
    assert paths.log_entry("log-0000000012") == "/t/log/log-0000000012"
    assert replica.queue_entry("queue-0000000001") == "/t/replicas/r/queue/queue-0000000001"
    assert sequence_number("block-0000000042") == 42
    assert paths.mutation(3) == "/t/mutations/0000000003"
    part = PartName.parse("all_0_0_0")
    assert replica.part(part) == "/t/replicas/r/parts/all_0_0_0"
    assert paths.parallel_quorum(part).endswith("/quorum/parallel/all_0_0_0")
    assert paths.block(BlockId("all", 1, 2)) == "/t/blocks/all_1_2"
    assert paths.block_number_prefix("all") == "/t/block_numbers/all/block-"


# --- creation ---------------------------------------------------------------------------------------------


def test_table_and_first_replica_are_one_transaction_in_clickhouses_order() -> None:
    paths = TablePaths("/t")
    ops = table_ops(paths, paths.replica("r1"), NEW)
    expected = [*TABLE_ORDER, "/t/replicas/r1", *(f"/t/replicas/r1/{leaf}" for leaf in REPLICA_ORDER)]
    assert [op.path for op in ops] == expected
    assert all(isinstance(op, Create) and op.mode is CreateMode.PERSISTENT for op in ops)
    data = {op.path: op.data for op in ops if isinstance(op, Create) and op.data}
    assert data == {
        "/t/metadata": b"metadata",
        "/t/columns": b"columns",
        "/t/replicas": b"last added replica: r1",
        "/t/replicas/r1/is_lost": b"0",
        "/t/replicas/r1/metadata": b"metadata",
        "/t/replicas/r1/columns": b"columns",
        "/t/replicas/r1/metadata_version": b"0",
        "/t/replicas/r1/creator_info": f"{UUID(int=7)}|{UUID(int=0)}".encode(),
    }


def test_a_further_replica_is_lost_at_first_and_checks_the_list_of_replicas() -> None:
    paths = TablePaths("/t")
    ops = replica_ops(paths, paths.replica("r2"), NEW, replica_count=1, replicas_version=4)
    assert [op.path for op in ops[1:-1]] == [f"/t/replicas/r2/{leaf}" for leaf in REPLICA_ORDER]
    assert ops[-1] == SetData("/t/replicas", b"last added replica: r2", 4)
    assert Create("/t/replicas/r2/is_lost", b"1") in ops
    alone = replica_ops(paths, paths.replica("r2"), NEW, replica_count=0, replicas_version=4)
    assert Create("/t/replicas/r2/is_lost", b"0") in alone


async def test_of_two_that_create_at_once_one_makes_all_and_the_other_nothing() -> None:
    keeper = await MemoryKeeperServer(SystemEnv()).connect()
    paths = TablePaths("/clickhouse/tables/01/t")
    await create_ancestors(keeper, paths.root)
    first, second = paths.replica("r1"), paths.replica("r2")
    await keeper.multi(table_ops(paths, first, NEW))
    with pytest.raises(MultiFailed) as failure:
        await keeper.multi(table_ops(paths, second, NEW))
    assert isinstance(failure.value.error, NodeExists) and failure.value.index == 0
    # The loser becomes a further replica; a list that has changed meanwhile makes it look again.
    stale = replica_ops(paths, second, NEW, replica_count=1, replicas_version=0)
    await keeper.multi(replica_ops(paths, paths.replica("r3"), NEW, replica_count=1, replicas_version=0))
    with pytest.raises(MultiFailed) as failure:
        await keeper.multi(stale)
    assert isinstance(failure.value.error, BadVersion)
    assert (await keeper.children(paths.replicas)).names == ("r1", "r3")
    await keeper.multi(pristine_checks(first))
    await keeper.set(first.host, b"host: x\n")
    with pytest.raises(MultiFailed):
        await keeper.multi(pristine_checks(first))


async def test_the_nodes_of_newer_servers_complete_a_table_at_every_start() -> None:
    keeper = await MemoryKeeperServer(SystemEnv()).connect()
    paths = TablePaths("/t")
    await keeper.multi(table_ops(paths, paths.replica("r1"), NEW))
    made = []
    for _ in range(2):
        for op in later_nodes(paths, NEW):
            try:
                await keeper.create(op.path, op.data)
                made.append(op.path)
            except NodeExists:
                pass
    assert made == [
        "/t/quorum/parallel",
        "/t/part_moves_shard",
        "/t/pinned_part_uuids",
        "/t/alter_partition_version",
        "/t/lost_part_count",
        "/t/lightweight_updates",
        "/t/lightweight_updates/in_progress",
        "/t/table_shared_id",
    ]
    await keeper.multi(leader_election_ops(paths))
    assert (await keeper.children(paths.leader_election)).names == ("leader_election-0",)
    with pytest.raises(MultiFailed) as failure:
        await keeper.multi(leader_election_ops(paths))
    assert isinstance(failure.value.error, NotEmpty)


def test_malformed_metadata_is_corrupt_and_says_where() -> None:
    good = BY_NAME["rich"]["metadata"].encode()
    for bad in (
        b"",
        good + b"more\n",
        good.replace(b"mode: 5", b"mode: 4"),
        good.replace(b"index granularity: 1024", b"index granularity: x"),
        good.replace(b"data format version: 1", b"data format version: 2"),
        good[:-1],
    ):
        with pytest.raises(Corrupt) as refused:
            TableMetadata.from_bytes(bad, where="/t/metadata")
        assert refused.value.where == "/t/metadata"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "columns format version: 1\n2 columns:\n`a` UInt8\n",
        "columns format version: 1\n1 columns:\na UInt8\n",
        "columns format version: 1\n1 columns:\n`a`\n",
        "columns format version: 1\n2 columns:\n`a` UInt8\n`a` UInt8\n",
        "columns format version: 1\n1 columns:\n`a` UInt8\tDEFAULT\n",
        "columns format version: 1\n1 columns:\n`a` UInt8\tTTL x\tCODEC(LZ4)\n",
        "columns format version: 1\n1 columns:\n`a` UInt8\n\n",
        "columns format version: 2\n1 columns:\n`a` UInt8\n",
        "columns format version: 1\n99999999999 columns:\n`a` UInt8\n",
    ],
)
def test_malformed_columns_are_refused(text: str) -> None:
    with pytest.raises(Corrupt):
        Columns.from_bytes(text.encode(), where="/t/columns")
