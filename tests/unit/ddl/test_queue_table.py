"""The rows of `system.distributed_ddl_queue`, and of `system.clusters`, which names the same hosts."""

from __future__ import annotations

from typing import cast

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry, Setting
from engine.ddl.queue_table import QUEUE_COLUMNS, QueueRow, read_queue_rows
from engine.ddl.status import ExecutionStatus
from engine.keeper.base import Create, CreateMode, Keeper
from engine.names import HostId
from engine.node.statements.statement import Asked
from engine.node.system.cluster_tables import ClustersTable
from tests.unit.ddl.support import PATHS, Bench, host, run

DROP = "DROP TABLE d.t ON CLUSTER c"


async def put(
    bench: Bench,
    *hosts: str,
    active: str | None = "",
    finished: dict[str, ExecutionStatus] | None = None,
    query: str = DROP,
) -> Keeper:
    """An entry for these hosts; `active` names those at work, None: without that directory. `finished` None:
    without that one."""
    entry = await bench.put(DDLLogEntry(1, query, tuple(map(host, hosts)), "").to_bytes())
    keeper = await bench.keeper("hosts")
    if active is not None:
        await keeper.create(PATHS.active(entry))
        for name in active.split():
            await keeper.create(PATHS.active(entry, host(name)), mode=CreateMode.EPHEMERAL)
    if finished is not None:
        ops = [Create(PATHS.finished(entry, host(n)), s.to_bytes()) for n, s in finished.items()]
        await keeper.multi([Create(PATHS.finished(entry)), *ops])
    return keeper


def states(rows: list[QueueRow]) -> list[tuple[str | None, str]]:
    return [(row.host, row.status.value) for row in rows]


@pytest.mark.parametrize(
    ("hosts", "active", "finished", "expected"),
    [
        ("a b c", "b", {"c": ExecutionStatus()}, [("c", "Finished"), ("b", "Active"), ("a", "Inactive")]),
        ("a b", "a", {"a": ExecutionStatus()}, [("a", "Finished"), ("b", "Inactive")]),
        ("a b", "", {}, [("a", "Inactive"), ("b", "Inactive")]),
        ("a b", None, {}, [("a", "Removing"), ("b", "Removing")]),
        ("a b", None, {"b": ExecutionStatus()}, [("b", "Finished"), ("a", "Removing")]),
        ("a b", None, None, [("a", "Inactive"), ("b", "Inactive")]),
        ("a", "x", {"y": ExecutionStatus()}, [("y", "Finished"), ("x", "Active"), ("a", "Inactive")]),
        ("", "", {}, [(None, "Unknown")]),
        ("", None, None, [(None, "Unknown")]),
    ],
    ids=[
        "every state",
        "finished counts more than active",
        "nobody has begun",
        "a cleaner removes it",
        "a cleaner removes it, one was done",
        "just made",
        "hosts that are not in its list",
        "for nobody",
        "for nobody, just made",
    ],
)
def test_each_host_of_an_entry_has_a_state(
    hosts: str,
    active: str | None,
    finished: dict[str, ExecutionStatus] | None,
    expected: list[tuple[str | None, str]],
) -> None:
    async def main(bench: Bench) -> None:
        keeper = await put(bench, *hosts.split(), active=active, finished=finished)
        assert states(await read_queue_rows(keeper, PATHS)) == expected

    run(main)


def test_an_outcome_has_its_code_its_text_and_its_time() -> None:
    async def main(bench: Bench) -> None:
        entry = await bench.put(DDLLogEntry(1, DROP, (host("a"),), "from%2Dhere:9001").to_bytes())
        await bench.env.sleep(2.5)
        keeper = await bench.keeper()
        text = "Code: 60. DB::Exception: it's gone"
        status = ExecutionStatus(60, text).to_bytes()
        await keeper.multi([Create(PATHS.finished(entry)), Create(PATHS.finished(entry, host("a")), status)])
        (row,) = await read_queue_rows(keeper, PATHS)
        assert (row.entry, row.entry_version, row.cluster, row.query) == (entry, 1, "c", DROP)
        assert (row.initiator_host, row.initiator_port) == ("from-here", 9001)
        assert (row.exception_code, row.exception_text, row.query_duration_ms) == (60, text, 2500)
        assert row.query_finish_time in (row.query_create_time + 2, row.query_create_time + 3)

    run(main)


def test_passwords_of_statements_are_not_shown() -> None:
    async def main(bench: Bench) -> None:
        create = "CREATE USER ada ON CLUSTER c IDENTIFIED WITH plaintext_password BY 'SECRET'"
        settings = (Setting("max_threads", "1"), Setting("s3_password", "'SECRET'"))
        stored = DDLLogEntry(2, create, (host("a"),), "from%2Dhere:9001", settings)
        entry = await bench.put(stored.to_bytes())
        keeper = await bench.keeper()
        status = ExecutionStatus(62, f"Code: 62. DB::Exception: Syntax error: {create}").to_bytes()
        await keeper.multi([Create(PATHS.finished(entry)), Create(PATHS.finished(entry, host("a")), status)])
        (row,) = await read_queue_rows(keeper, PATHS)
        assert "SECRET" not in f"{row.query} {row.exception_text}"
        assert "CREATE USER ada" in row.query
        assert row.settings == {"max_threads": "1", "s3_password": "[HIDDEN]"}

    run(main)


def test_an_entry_that_nobody_can_read_is_shown_without_what_is_not_known() -> None:
    async def main(bench: Bench) -> None:
        await bench.put(b"garbage")
        keeper = await put(bench, "a", query="NOT SQL (")
        garbage, strange = await read_queue_rows(keeper, PATHS)
        assert garbage.values()[1:7] == (None, None, None, "", "", {})
        assert garbage.values()[8:] == (None, None, "Unknown", None, None, None, None)
        assert (strange.entry_version, strange.cluster, strange.query) == (1, "", "NOT SQL (")
        assert (strange.initiator_host, strange.initiator_port) == (None, None)

    run(main)


def test_a_queue_that_is_not_there_is_empty() -> None:
    async def main(bench: Bench) -> None:
        assert await read_queue_rows(await bench.keeper(), PATHS) == []

    run(main)


def test_rows_have_a_value_for_each_column() -> None:
    assert len(QueueRow("e", None, None, None, "", "", {}, 0).values()) == len(QUEUE_COLUMNS)


async def test_the_table_of_clusters_says_where_each_replica_is() -> None:
    first = Shard(
        1, (Replica("a", 9000), Replica("10.0.0.1", 9001, default_database="d", user="u")), weight=5
    )
    second = Shard(2, (Replica("localhost", 9440), Replica("[::1]", 9000)), internal_replication=True)
    topology = Topology({"c": Cluster("c", (first, second)), "d": Cluster("d", (second,))}, {})
    table = ClustersTable(
        lambda: topology,
        lambda host: host.host == "a",
        lambda host: (3, 7) if host == HostId("localhost", 9440) else (0, 0),
    )
    columns = (
        *("cluster", "shard_num", "shard_weight", "internal_replication", "replica_num", "host_name"),
        *("host_address", "port", "is_local", "user", "default_database"),
        *("errors_count", "estimated_recovery_time"),
    )
    rows = [tuple(row[name] for name in columns) for row in await table.rows(cast(Asked, None), [])]
    of_second = [
        (2, 1, 1, 1, "localhost", "127.0.0.1", 9440, 0, "default", "", 3, 7),
        (2, 1, 1, 2, "[::1]", "::1", 9000, 0, "default", "", 0, 0),
    ]
    assert rows == [
        ("c", 1, 5, 0, 1, "a", "", 9000, 1, "default", "", 0, 0),
        ("c", 1, 5, 0, 2, "10.0.0.1", "10.0.0.1", 9001, 0, "u", "d", 0, 0),
        *(("c", *row) for row in of_second),
        *(("d", *row) for row in of_second),
    ]
