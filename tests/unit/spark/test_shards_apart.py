"""Whether shards of a cluster are one table: two of one path, in one Keeper or in two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import ConfigError
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.shards_apart import require_shards_apart
from spark_apps.clickhouse_cluster.target import Shard, Target
from tests.unit.spark.test_schema import target

PATH = "/tables/t"


class InKeeper(Server):
    """A server whose Keeper made the table's path in this transaction."""

    def rows(self, sql: str, **_: Any) -> list[dict[str, Any]]:
        assert "path = '/tables' AND name = 't'" in sql
        return [{"number": self.password, "at": "1700000000"}]


def of(*transactions: str, paths: tuple[str, str] = (PATH, PATH)) -> Target:
    servers = [InKeeper(f"h{at}", 1, password=made) for at, made in enumerate(transactions)]
    shards = (
        Shard(number, 1, (server,), server, version=(26, 9), engine="ReplicatedMergeTree")
        for number, server in enumerate(servers, start=1)
    )
    return replace(target(), shards=tuple(shards), keeper_paths=paths)


def test_one_path_in_one_keeper_is_one_table() -> None:
    with pytest.raises(ConfigError, match=r"Shards 1 and 2 of d\.t_all are one table d\.t:"):
        require_shards_apart(of("7", "7"))


def test_one_path_in_two_keepers_is_two_tables() -> None:
    require_shards_apart(of("7", "8"))


def test_nobody_is_asked_where_paths_differ_or_nothing_is_replicated() -> None:
    require_shards_apart(of("7", "7", paths=("/tables/1", "/tables/2")))
    require_shards_apart(of("7", "7", paths=("", "")))
