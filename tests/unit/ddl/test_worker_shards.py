"""Statements that one replica of a shard executes for all, and hosts that change while a worker runs."""

from __future__ import annotations

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry
from engine.ddl.identity import FixedResolver
from engine.ddl.outcome import HostState
from engine.ddl.shards import ShardExecution
from engine.ddl.status import ExecutionStatus
from engine.errors import OnclusterError
from engine.keeper.base import Create, CreateMode, Keeper, Node
from engine.keeper.memory import MemoryKeeperServer
from engine.names import HostId, TableName
from engine.testing.ddl.model import ModelDatabase
from tests.unit.ddl.support import PATHS, PORT, Bench, host, run, status_on, topology

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MergeTree"
REPLICATED = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree"
ADD = "ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8"


# --- once per shard ---------------------------------------------------------------------------------------


def test_a_replicated_table_is_altered_by_one_replica_and_reported_by_all() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(REPLICATED, "t1")
        status = await bench.ddl(ADD, "t2")
        assert status.is_done_on_all_hosts
        detailed = await (await bench.client()).status(status.entry)
        assert [shard.shard for shard in detailed.shards] == ["a:9000,b:9000"]
        executed = [bench.executors[name].executed.count(status.entry) for name in ("a", "b")]
        assert sorted(executed) == [0, 1]

    run(main)


def test_a_failed_alter_fails_on_its_executor_and_counts_as_executed_for_the_shard() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(REPLICATED, "t1")
        status = await bench.ddl("ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8 DEFAULT 'FAIL 44'", "t2")
        assert sorted(o.code for o in status.hosts) == [0, 44]

    run(main)


def test_a_table_that_does_not_replicate_is_altered_everywhere() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(CREATE, "t1")
        status = await bench.ddl(ADD, "t2")
        assert [bench.executors[name].executed.count(status.entry) for name in ("a", "b")] == [1, 1]

    run(main)


def test_after_four_failing_attempts_the_shard_gives_up() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(REPLICATED, "t1")
        for executor in bench.executors.values():
            executor.flaky_rate = 1.0
        status = await bench.ddl(ADD, "t2")
        assert [o.code for o in status.hosts] == [341, 341]
        assert "maximum retries exceeded" in status.hosts[0].error
        tries = sum(executor.executed.count(status.entry) for executor in bench.executors.values())
        assert tries == 4

    run(main)


async def begun_by_a_foreign_server(bench: Bench, **nodes: bytes) -> tuple[str, Keeper]:
    """Both replicas are stopped, an entry for their shard is in the queue, and a server that is not ours has
    made these nodes for it; the lock goes with its session."""
    bench.start("a", "b")
    await bench.ddl(REPLICATED, "t1")
    await bench.stop()
    entry = (await bench.submit(ADD, "t2")).entry
    other = await bench.keeper("foreign server")
    shard = "a:9000,b:9000"
    made = [
        Create(
            PATHS.shard(entry, shard, name),
            data,
            CreateMode.EPHEMERAL if name == "lock" else CreateMode.PERSISTENT,
        )
        for name, data in nodes.items()
    ]
    await other.multi([Create(PATHS.shards(entry)), Create(PATHS.shard(entry, shard)), *made])
    return entry, other


def test_the_shard_waits_for_a_replica_that_holds_the_lock_and_goes_on_when_it_is_gone() -> None:
    async def main(bench: Bench) -> None:
        entry, other = await begun_by_a_foreign_server(bench, tries_to_execute=b"1", lock=b"b:9000")
        bench.start("a")
        await bench.env.sleep(30)
        assert await status_on(bench, entry, "a") is None
        await other.close()
        await bench.env.sleep(1)
        assert await status_on(bench, entry, "a") == ExecutionStatus()

    run(main)


def test_a_lock_that_no_session_owns_holds_the_shard_up_no_longer() -> None:
    """Of a copy of Keeper's tree, made by another tool."""

    async def main(bench: Bench) -> None:
        entry, other = await begun_by_a_foreign_server(bench)
        await other.create(PATHS.shard(entry, "a:9000,b:9000", "lock"), b"b:9000")
        bench.start("a")
        await bench.env.sleep(1)
        assert await status_on(bench, entry, "a") == ExecutionStatus()

    run(main)


def test_a_foreign_replica_that_executed_is_believed() -> None:
    async def main(bench: Bench) -> None:
        entry, _ = await begun_by_a_foreign_server(bench, executed=b"b:9000")
        bench.start("a")
        await bench.env.sleep(1)
        assert await status_on(bench, entry, "a") == ExecutionStatus()
        assert bench.executors["a"].executed == []

    run(main)


def test_what_a_foreign_replica_executed_between_a_look_and_the_lock_is_not_executed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. a sees neither `executed` nor a lock. 2. A server that leaves no `attempt` takes the lock, executes
    and gives it back. 3. a takes the lock."""

    async def main(bench: Bench) -> None:
        entry, other = await begun_by_a_foreign_server(bench, tries_to_execute=b"0")
        acquire, executed = ShardExecution._acquire, PATHS.shard(entry, "a:9000,b:9000", "executed")

        async def acquire_late(self: ShardExecution) -> bool:
            await other.create(executed, b"b:9000")
            return await acquire(self)

        monkeypatch.setattr(ShardExecution, "_acquire", acquire_late)
        bench.start("a")
        await bench.env.sleep(5)
        assert await status_on(bench, entry, "a") == ExecutionStatus()
        assert bench.executors["a"].executed == []
        assert await other.exists(PATHS.shard(entry, "a:9000,b:9000", "lock")) is None

    run(main)


def test_in_a_circular_cluster_every_replica_executes() -> None:
    async def main(bench: Bench) -> None:
        shards = (
            Shard(1, (Replica("a", PORT, "r1"), Replica("b", PORT, "r1"))),
            Shard(2, (Replica("b", PORT, "r2"), Replica("a", PORT, "r2"))),
        )
        bench.topology = Topology({"c": Cluster("c", shards)}, {})
        bench.start("a", "b")
        path = "ReplicatedMergeTree('/t/{shard}', '{replica}')"
        await bench.ddl(f"CREATE TABLE r1.t ON CLUSTER c (a Int8) ENGINE = {path}", "t1")
        status = await bench.ddl("ALTER TABLE r1.t ON CLUSTER c ADD COLUMN b Int8", "t2")
        assert [(o.host.host, o.state) for o in status.hosts] == [
            ("a", HostState.DONE),
            ("b", HostState.DONE),
        ]
        assert [bench.executors[name].executed.count(status.entry) for name in ("a", "b")] == [1, 1]

    run(main)


def test_hosts_of_a_cluster_are_re_read_while_running() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(CREATE, "t1")
        bench.databases["x"] = ModelDatabase("x")
        bench.topology = topology("a b x")
        for worker in bench.workers.values():
            worker.topology_changed()
        bench.start("x")
        status = await bench.ddl("CREATE TABLE d.u ON CLUSTER c (a Int8)", "t2")
        assert [o.host for o in status.hosts] == [HostId(n, PORT) for n in ("a", "b", "x")]
        assert status.is_done_on_all_hosts

    run(main)


def test_an_entry_that_turns_out_to_be_ours_too_late_is_refused_and_not_run_out_of_order() -> None:
    async def main(bench: Bench) -> None:
        table = {"a": "10.0.0.1"}
        resolver = FixedResolver(table, local=frozenset({"10.0.0.1"}))
        early = await bench.put(DDLLogEntry(1, CREATE, (host("alias"),)).to_bytes())
        quiet = await bench.put(DDLLogEntry(1, CREATE, (host("other-alias"),)).to_bytes())
        bench.start("a", resolver=resolver)
        await bench.env.sleep(1)
        table["alias"] = "10.0.0.1"
        bench.workers["a"].topology_changed()
        await bench.env.sleep(1)
        assert await status_on(bench, early, "alias") == ExecutionStatus()
        await bench.submit(ADD, "later")
        await bench.env.sleep(1)
        table["other-alias"] = "10.0.0.1"
        bench.workers["a"].topology_changed()
        await bench.env.sleep(1)
        status = await status_on(bench, quiet, "other-alias")
        assert status is not None and status.code == 341
        assert [effect.what for effect in bench.databases["a"].effects] == ["create", "ALTER TABLE"]

    run(main, "a")


def test_an_entry_whose_host_dns_forgot_for_an_hour_is_executed_when_the_name_is_back() -> None:
    async def main(bench: Bench) -> None:
        table = {"a": "10.0.0.1"}
        entry = DDLLogEntry(1, CREATE, (host("alias"), host("gone")))
        name = await bench.put(entry.to_bytes())
        bench.start("a", resolver=FixedResolver(table, local=frozenset({"10.0.0.1"})))
        await bench.env.sleep(60)
        before = bench.server.operations["a"].total()
        await bench.env.sleep(3600)
        assert bench.server.operations["a"].total() < before + 300, "looks once a minute"
        assert await status_on(bench, name, "alias") is None
        table["alias"] = "10.0.0.1"
        await bench.env.sleep(120)
        assert await status_on(bench, name, "alias") == ExecutionStatus()

    run(main, "a")


def test_a_worker_that_starts_over_still_executes_nothing_out_of_order() -> None:
    async def main(bench: Bench) -> None:
        table = {"a": "10.0.0.1"}
        early = await bench.put(DDLLogEntry(1, CREATE, (host("alias"),)).to_bytes())
        bench.start("a", resolver=FixedResolver(table, local=frozenset({"10.0.0.1"})))
        await bench.env.sleep(1)
        # 1. A later statement is executed. 2. The next one finds the executor in trouble, and the worker
        # starts over. 3. DNS knows by then that the early one is for this host.
        assert (await bench.ddl("CREATE TABLE d.u ON CLUSTER c (a Int8)", "later")).is_done_on_all_hosts
        executor, table_engine = bench.executors["a"], bench.executors["a"].table_engine

        async def fails_once(name: TableName) -> str | None:
            executor.table_engine = table_engine  # type: ignore[method-assign]
            table["alias"] = "10.0.0.1"
            raise OnclusterError("The disk does not answer.")

        executor.table_engine = fails_once  # type: ignore[method-assign]
        assert (
            await bench.ddl("ALTER TABLE d.u ON CLUSTER c ADD COLUMN b Int8", "last")
        ).is_done_on_all_hosts
        assert table["alias"]
        await bench.env.sleep(120)
        status = await status_on(bench, early, "alias")
        assert status is not None and status.code == 341
        assert [effect.what for effect in bench.databases["a"].effects] == ["create", "ALTER TABLE"]

    run(main, "a")


def test_an_entry_that_is_expected_is_read_along_with_the_listing() -> None:
    async def main(bench: Bench) -> None:
        bench.server = MemoryKeeperServer(bench.env, latency_s=(0.01, 0.01))
        bench.start("a")
        keeper = await bench.keeper()
        await bench.env.sleep(5)
        took_ms = []
        for number in range(3):
            data = DDLLogEntry(
                1, f"CREATE TABLE d.t{number} ON CLUSTER c (a Int8) ENGINE = Memory", (host("a"),)
            )
            name = await bench.put(data.to_bytes())
            await bench.env.sleep(5)
            entry, finished = await keeper.get_many([PATHS.entry(name), PATHS.finished(name, host("a"))])
            assert isinstance(entry, Node) and isinstance(finished, Node) and finished.data == b"0\n"
            took_ms.append(finished.stat.ctime_ms - entry.stat.ctime_ms)
        # Two requests and their answers less than the first, when it is not even known under which name this
        # host goes: its own outcome is looked for with the entry, and both with the listing.
        first, *others = took_ms
        assert others == [first - 40] * 2

    run(main, "a")
