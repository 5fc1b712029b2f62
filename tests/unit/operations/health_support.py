"""Facts made by hand for the checks, and nodes that answer statements from dictionaries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.client import QueryRows
from engine.keeper.base import Keeper
from engine.keeper.recipes import create_ancestors
from engine.names import HostId, TableName
from engine.operations.health.facts import (
    ClusterFacts,
    HostFacts,
    KeeperFacts,
    RegisteredReplica,
    RegisteredTable,
    ReplicaFacts,
)
from engine.replication.host import ReplicaHost
from tests.unit.operations.support import CLUSTER, HOSTS

NOW_S = 1_700_000_000
TABLE = TableName("d", "t")
PATH = "/tables/t"
PAIR = HOSTS[:2]
COLUMNS = {
    "replicas": "database table zookeeper_path replica_name zookeeper_name is_readonly is_session_expired "
    "future_parts parts_to_check queue_size inserts_in_queue absolute_delay queue_oldest_time "
    "readonly_duration last_queue_update_exception zookeeper_exception",
    "replication_queue": "database table node_name type new_part_name last_exception postpone_reason "
    "create_time num_tries is_currently_executing",
    "mutations": "database table mutation_id command latest_failed_part latest_fail_reason create_time "
    "latest_fail_time parts_to_do is_done",
    "distribution_queue": "database table data_path last_exception data_files data_compressed_bytes "
    "broken_data_files error_count is_blocked",
    "disks": "name path free_space total_space",
    "detached_parts": "database table name modification_time reason",
    "clusters": "cluster shard_num replica_num host_name port is_local",
    "macros": "macro substitution",
    "detached_tables": "database table",
}
"""What a server of today has; texts begin empty, numbers 0."""
_TEXTS = re.compile("database|table|path|name|exception|reason|type|command|id|part$")


def replica(name: str = "n1", **changes: Any) -> ReplicaFacts:
    return replace(ReplicaFacts(TABLE, PATH, name, "default"), **changes)


def registered(name: str, **changes: Any) -> RegisteredReplica:
    host = HostId(name, 9000)
    return replace(RegisteredReplica(name, is_active=True, log_pointer=1, host=host, table=TABLE), **changes)


def table(*replicas: RegisteredReplica, **changes: Any) -> RegisteredTable:
    known = {each.name: each for each in replicas or (registered("n1"), registered("n2"))}
    return replace(RegisteredTable(PATH, True, 0, known), **changes)


def cluster(*hosts: HostFacts, keeper: KeeperFacts | None = None, **changes: Any) -> ClusterFacts:
    """Shard 1 with a healthy replica of `d.t` on n1 and on n2, but for what is given."""
    known = {host: HostFacts(host, version=(26, 9), replicas=(replica(host.host),)) for host in PAIR}
    known |= {host.host: host for host in hosts}
    facts = ClusterFacts(
        CLUSTER,
        NOW_S * 1000,
        known,
        keeper or KeeperFacts(tables={PATH: table()}),
        {1: PAIR, 2: HOSTS[2:]},
    )
    return replace(facts, **changes)


def host(number: int = 1, **facts: Any) -> HostFacts:
    return HostFacts(HOSTS[number - 1], **({"version": (26, 9)} | facts))


def shards_known(hosts: Sequence[HostId] = HOSTS) -> list[dict[str, Any]]:
    """Rows of `system.clusters`: two replicas to a shard."""
    return [
        {"shard_num": at // 2 + 1, "host_name": host.host, "port": host.port} for at, host in enumerate(hosts)
    ]


@dataclass
class FakeNode:
    """Answers like a server. `tables` are rows of `system.…`; `answers` are (pattern, rows or an error to
    raise or to await); `on_command` is called with each statement that changes something."""

    name: str
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"clusters": shards_known()})
    columns: dict[str, str] = field(default_factory=lambda: dict(COLUMNS))
    answers: list[tuple[str, Any]] = field(default_factory=list)
    on_command: Callable[[str], Any] = lambda sql: None
    commands: list[str] = field(default_factory=list)
    version_: Any = (26, 9, 2, 1)
    url: str = "http://fake"

    async def version(self) -> tuple[int, ...]:
        return await self._said(self.version_)

    async def query_rows(self, sql: str) -> QueryRows:
        for pattern, answer in self.answers:
            if re.search(pattern, sql):
                return QueryRows((), tuple(await self._said(answer)))
        if "FROM system.columns" in sql:
            pairs = [(name, column) for name, text in self.columns.items() for column in text.split()]
            return QueryRows((), tuple(pairs))
        if "FROM system.settings" in sql:
            return QueryRows((), tuple((row["name"],) for row in self.tables.get("settings", ())))
        if "now64" in sql or "now()" in sql:
            return QueryRows((), ((0,),))
        name = re.search(r"FROM system\.(\w+)", sql)
        assert name, sql
        rows = [row for row in self.tables.get(name[1], ()) if _fits(row, sql)]
        if "hash_of_all_files" in sql:
            wanted = ("database", "table", "name", "hash_of_all_files")
            return QueryRows((), tuple(tuple(row[column] for column in wanted) for row in rows))
        if "zookeeper_exception" in sql:
            wanted = ("zookeeper_path", "replica_name", "zookeeper_exception")
            return QueryRows((), tuple(tuple(row.get(one, "") for one in wanted) for row in rows))
        if "SELECT database, table, zookeeper_path" in sql:
            wanted = ("database", "table", "zookeeper_path", "replica_name")
            return QueryRows((), tuple(tuple(row[column] for column in wanted) for row in rows))
        aliases = re.findall(r"AS `(_\w+)`", sql)
        assert aliases, sql
        columns = tuple((alias, "String") for alias in aliases)
        return QueryRows(columns, tuple(tuple(_value(row, alias[1:]) for alias in aliases) for row in rows))

    async def query_text(self, sql: str, *, format: str = "") -> str:
        for pattern, answer in self.answers:
            if re.search(pattern, sql):
                return str(await self._said(answer))
        return ""

    async def command(self, sql: str, *, settings: Mapping[str, str] | None = None) -> str:
        self.commands.append(sql)
        answer = self.on_command(sql)
        if hasattr(answer, "__await__"):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return ""

    async def _said(self, answer: Any) -> Any:
        if callable(answer):
            answer = answer()
        if hasattr(answer, "__await__"):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def replica(self, **changes: Any) -> dict[str, Any]:
        """Its row of `system.replicas`, changed; made at the first call."""
        row = {"database": "d", "table": "t", "zookeeper_path": PATH, "replica_name": self.name}
        rows = self.tables.setdefault("replicas", [row])
        rows[0].update(changes)
        return rows[0]

    def part(self, name: str, checksum: str) -> None:
        row = {"database": "d", "table": "t", "name": name, "hash_of_all_files": checksum}
        self.tables.setdefault("parts", []).append(row)


def _fits(row: dict[str, Any], sql: str) -> bool:
    if "zookeeper_path" in sql.partition("WHERE")[2]:
        return f"'{row['zookeeper_path']}'" in sql
    return True


def _value(row: dict[str, Any], column: str) -> Any:
    return row.get(column, "" if _TEXTS.search(column) and column != "parts_to_do" else 0)


async def register(keeper: Keeper, name: str, *, path: str = PATH, is_active: bool = True) -> None:
    """What a replica has in Keeper."""
    root = f"{path}/replicas/{name}"
    await create_ancestors(keeper, f"{root}/parts/x")
    for node in (f"{path}/log", f"{path}/mutations"):
        if await keeper.exists(node) is None:
            await keeper.create(node)
    address = ReplicaHost(name, 9009, 9000, "d", "t").to_bytes()
    for node, data in (("is_lost", b"0"), ("log_pointer", b"1"), ("host", address), ("queue", b"")):
        await keeper.create(f"{root}/{node}", data)
    if is_active:
        await keeper.create(f"{root}/is_active", b"UUID_x")
