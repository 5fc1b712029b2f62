"""Tables whose names, keys and settings are unusual: rows get into them by way of staging all the same."""

from __future__ import annotations

import pytest

from engine.names import TableName, quote_string
from tests.spark.conftest import MADE, Servers
from tests.spark.test_faults import attempt, begin, finish, is_once

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["o'brien", "ba`ck\\slash/ä"])
def test_quotes_in_names_and_in_keeper_paths_are_theirs(servers: Servers, name: str) -> None:
    """Of a Replicated table, whose path in Keeper has the name: what was moved is looked for there."""
    table = TableName("d", name)
    for number, shard in enumerate(servers.shards, start=1):
        for replica, server in enumerate(shard, start=1):
            path = quote_string(f"/names/{servers.kind}/{name.replace('/', '')}/{number}")
            engine = f"ReplicatedMergeTree({path}, 'r{replica}')"
            rest = "PARTITION BY a % 2 ORDER BY a"
            server.execute(f"CREATE TABLE {table.quoted} (a UInt32, s String) ENGINE = {engine} {rest}")
            MADE.append((server, f"DROP TABLE {table.quoted}{' SYNC' if servers.kind == 'nodes' else ''}"))
    job = begin(servers, str(table))
    finish(job, [attempt(job, task=0, number=1)])
    assert is_once(servers, table.quoted)
    assert servers.staging() == []


@pytest.mark.parametrize(
    "rest",
    [
        "PARTITION BY a % 2 ORDER BY a SETTINGS index_granularity_bytes = 0",
        "PARTITION BY (a % 2, concat(s, 'it''s, (x')) ORDER BY (a, s) PRIMARY KEY a",
        "PARTITION BY nullIf(s, 'x1') ORDER BY a SETTINGS allow_nullable_key = 1",
        "PARTITION BY a / 7 ORDER BY a SETTINGS allow_floating_point_partition_key = 1",
    ],
)
def test_parts_of_staging_are_parts_of_the_table(nodes: Servers, rest: str) -> None:
    table = nodes.table("a UInt32, s String", rest=rest)
    job = begin(nodes, table)
    finish(job, [attempt(job, task=0, number=1, last=6)])
    assert is_once(nodes, table, rows=6)
