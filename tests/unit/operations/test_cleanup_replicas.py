"""Replicas in Keeper that no server has: which go, which never do, and what a crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import (
    Busy,
    KeeperUnavailable,
    NodeUnavailable,
    OnclusterError,
    ReplyLost,
    SqlError,
    UnknownOutcome,
)
from engine.keeper.recipes import create_if_not_exists
from engine.names import HostId
from engine.operations.act import ActState
from engine.operations.carrying_out import carry_out
from engine.operations.cleanup import (
    CleanupKind,
    CleanupSettings,
    GoneHost,
    ReplicaAct,
    cleanup_performer,
    plan_cleanup,
    record_plan,
)
from engine.operations.finding import FindingKind
from engine.operations.site import Site
from engine.replication.host import ReplicaHost
from engine.replication.paths import TablePaths
from tests.unit.operations.cleanup_support import (
    HOUR_S,
    TABLE,
    Bench,
    address,
    nobody_answers,
    run,
    states,
)
from tests.unit.operations.support import HOSTS

pytestmark = pytest.mark.slow

N1, N2, N3, N4 = HOSTS
OLD = HostId("retired", 9000)
REPLICAS = CleanupKind.REPLICAS


async def two_replicas(bench: Bench, second: HostId = N2) -> TablePaths:
    """`r1` is n1's, active and in use; `r2` is of `second`, which does not know of it."""
    paths = await bench.table(r1=N1, r2=second)
    await bench.activate(paths.replica("r1"), N1)
    bench.has(N1, TABLE, "r1")
    return paths


def test_an_orphaned_replica_goes_when_it_was_inactive_for_a_day_and_the_table_stays(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        first = await bench.plan(REPLICAS)
        assert first.acts == () and [f.kind for f in first.findings] == [FindingKind.ORPHANED_REPLICA]
        assert "not yet 24 h" in first.findings[0].what
        await bench.env.sleep(25 * HOUR_S)
        plan = await bench.plan(REPLICAS)
        (act,) = plan.acts
        assert (act.kind, act.subject) == (ReplicaAct.ORPHANED, paths.replica("r2").root)
        assert "None of the 4 hosts" in act.why and plan.needs_approval
        assert states(await bench.apply(plan)) == [ActState.DONE]
        assert (await bench.keeper.children(paths.replicas)).names == ("r1",)
        assert (await bench.plan(REPLICAS)).findings == ()

    run(tmp_path, main)


def test_a_dead_replica_of_a_host_that_was_taken_out_of_the_configuration_goes(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench, OLD)
        plan = await bench.plan_twice(REPLICAS)
        (act,) = plan.acts
        assert act.kind == ReplicaAct.DEAD and plan.findings[0].kind is FindingKind.DEAD_REPLICA
        assert states(await bench.apply(plan)) == [ActState.DONE]
        assert (await bench.keeper.children(paths.replicas)).names == ("r1",)

    run(tmp_path, main)


def test_a_host_that_keeper_knows_by_a_shared_address_is_called_by_its_name(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        shared = HostId("gateway", 9000)
        paths = await bench.table(n1=shared, n2=shared)
        await bench.activate(paths.replica("n1"), shared)
        bench.has(N1, TABLE, "n1")
        bench.servers[N2].is_down = True
        (finding,) = (await bench.plan(REPLICAS)).findings
        assert finding.host == "n2:9000" and "belongs to n2:9000, which is in Keeper under an" in finding.what
        gone = CleanupSettings(gone=(GoneHost("n2", "its disk burnt"),))
        (act,) = (await bench.plan(REPLICAS, settings=gone)).acts
        assert "Drop replica n2 of n2:9000" in act.what

    run(tmp_path, main)


def test_what_stands_in_the_queue_as_active_or_takes_connections_is_not_dead(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await two_replicas(bench, OLD)
        queue = bench.site.queue.paths
        for path in ("/clickhouse/task_queue", queue.replicas_root, queue.replica(OLD)):
            await create_if_not_exists(bench.keeper, path)
        await bench.keeper.create(queue.replica_active(OLD))
        plan = await bench.plan_twice(REPLICAS)
        what = plan.findings[0].what
        assert plan.acts == () and "is active in the DDL queue" in what and "is gone" not in what

    run(tmp_path, main)


def test_a_host_that_registers_in_the_queue_after_the_plan_keeps_its_replica(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench, OLD)
        plan = await bench.plan_twice(REPLICAS)
        queue = bench.site.queue.paths
        for path in ("/clickhouse/task_queue", queue.replicas_root, queue.replica(OLD)):
            await create_if_not_exists(bench.keeper, path)
        await bench.keeper.create(queue.replica_active(OLD))
        assert states(await bench.apply(plan)) == [ActState.REFUSED]
        assert await bench.keeper.exists(paths.replica("r2").host) is not None

    run(tmp_path, main)


def test_a_host_that_takes_connections_keeps_its_replica_before_and_after_the_plan(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench, OLD)

        async def somebody_answers(_: Site, address: ReplicaHost) -> bool:
            return address.host == OLD.host

        plan = await bench.plan_twice(REPLICAS)
        assert len(plan.acts) == 1
        perform = cleanup_performer(bench.site, probe=somebody_answers)
        report = await carry_out(bench.site, plan, perform, run_id="run", approved_by="boss")
        assert states(report) == [ActState.REFUSED]
        assert await bench.keeper.exists(paths.replica("r2").host) is not None
        plan = await plan_cleanup(bench.site, None, [REPLICAS], probe=somebody_answers)
        assert plan.acts == () and "still accepts connections" in plan.findings[0].what

    run(tmp_path, main)


def test_a_replica_that_somebody_writes_to_is_in_use_whatever_its_host_looks_like(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        assert len((await bench.plan_twice(REPLICAS)).acts) == 1
        await bench.keeper.set(paths.replica("r2").log_pointer, b"7")
        plan = await bench.plan(REPLICAS)
        assert plan.acts == () and "not yet 24 h" in plan.findings[0].what

    run(tmp_path, main)


def test_in_a_long_run_hosts_are_asked_again(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await two_replicas(bench)
        other = "/clickhouse/tables/02/t"
        await bench.table(other, r1=N1, r2=N2)
        bench.has(N1, other, "r1")
        plan = await bench.plan_twice(REPLICAS)
        first, second = plan.acts
        perform = cleanup_performer(bench.site, probe=nobody_answers)
        assert (await perform(first)).state is ActState.DONE
        bench.has(N2, other, "r2")  # its table was attached since, and is read-only
        await bench.env.sleep(60)
        assert (await perform(second)).state is ActState.REFUSED

    run(tmp_path, main)


def test_an_active_replica_and_one_that_a_server_has_are_no_rubbish(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        bench.has(N2, TABLE, "r2")  # read-only there, say
        assert (await bench.plan_twice(REPLICAS)).findings == ()
        bench.servers[N2].replicas.clear()
        await bench.activate(paths.replica("r2"), N2)
        assert (await bench.plan_twice(REPLICAS)).findings == ()

    run(tmp_path, main)


def test_the_day_begins_anew_with_each_activation(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        await bench.plan(REPLICAS)
        await bench.env.sleep(20 * HOUR_S)
        session = await bench.activate(paths.replica("r2"), N2)
        await session.close()
        await bench.env.sleep(20 * HOUR_S)
        assert (await bench.plan(REPLICAS)).acts == ()
        await bench.env.sleep(23 * HOUR_S)
        assert (await bench.plan(REPLICAS)).acts == ()
        await bench.env.sleep(2 * HOUR_S)
        assert len((await bench.plan(REPLICAS)).acts) == 1

    run(tmp_path, main)


def test_a_host_that_gives_no_answer_blocks_until_somebody_says_that_it_is_gone(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        bench.servers[N2].is_down = True
        plan = await bench.plan_twice(REPLICAS)
        assert plan.acts == () and "n2:9000 does not answer" in plan.findings[0].what
        assert any("--gone n2:9000=REASON" in note for note in plan.notes)
        settings = CleanupSettings(gone=(GoneHost("n2", "burnt"),))
        plan = await bench.plan(REPLICAS, settings=settings)
        (act,) = plan.acts
        assert act.kind == ReplicaAct.DEAD and "ada@here says that n2 is gone: burnt" in act.why
        assert states(await bench.apply(plan)) == [ActState.DONE]
        assert (await bench.keeper.children(paths.replicas)).names == ("r1",)

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NodeUnavailable("n2: refused."), "cannot be reached"),
        (ReplyLost("n2 did not answer.", hint="Look at its log."), "gave no answer in time"),
        (
            SqlError(516, "Code: 516. Authentication failed."),
            "cannot be asked: Code: 516. Authentication failed",
        ),
    ],
)
def test_a_host_that_gives_no_answer_is_named_once_with_the_reason(
    tmp_path: Path, error: OnclusterError, words: str
) -> None:
    async def main(bench: Bench) -> None:
        bench.servers[N2].error = error
        assert f"n2:9000 {words}." in (await bench.plan(REPLICAS)).notes

    run(tmp_path, main)


def test_a_word_about_one_host_does_not_unblock_another(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await two_replicas(bench)
        bench.servers[N2].is_down = bench.servers[N3].is_down = True
        plan = await bench.plan_twice(REPLICAS, settings=CleanupSettings(gone=(GoneHost("n2", "burnt"),)))
        assert plan.acts == ()

    run(tmp_path, main)


def test_a_detached_table_keeps_its_replica(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await two_replicas(bench)
        bench.servers[N2].detached_tables = {("d", "t")}
        plan = await bench.plan_twice(REPLICAS)
        assert plan.acts == () and "d.t is detached on n2:9000" in plan.findings[0].what
        bench.servers[N2].detached_tables = None
        (act,) = (await bench.plan(REPLICAS)).acts
        assert "n2:9000 cannot say whether the table is detached" in act.why

    run(tmp_path, main)


def test_a_table_of_hosts_that_nobody_knows_is_left_alone(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.table("/clickhouse/tables/other/t", r1=OLD, r2=HostId("stranger", 9000))
        assert (await bench.plan_twice(REPLICAS)).findings == ()
        settings = CleanupSettings(gone=(GoneHost("retired", "sold"),))
        (act,) = (await bench.plan(REPLICAS, settings=settings)).acts
        assert act.subject.endswith("/other/t/replicas/r1")

    run(tmp_path, main)


def test_a_replica_of_another_cluster_of_the_configuration_is_left_to_that(tmp_path: Path) -> None:
    """Its hosts were not asked: one that restarts just now looks like one that nobody has."""

    async def main(bench: Bench) -> None:
        await two_replicas(bench, second=OLD)
        assert [finding.kind for finding in (await bench.plan_twice(REPLICAS)).findings] == [
            FindingKind.DEAD_REPLICA
        ]
        config = bench.site.config
        other = Cluster("other", (Shard(1, (Replica(OLD.host, OLD.port),)),))
        clusters = {**config.topology.clusters, "other": other}
        bench.site.config = dataclasses.replace(config, topology=Topology(clusters))
        plan = await bench.plan(REPLICAS)
        assert (plan.acts, plan.findings) == ((), ())

    run(tmp_path, main)


@pytest.mark.parametrize("what", ["active", "activated", "has", "silent", "detached"])
def test_what_has_changed_since_the_plan_refuses_the_act(tmp_path: Path, what: str) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        replica = paths.replica("r2")
        plan = await bench.plan_twice(REPLICAS)
        match what:
            case "active":
                await bench.activate(replica, N2)
            case "activated":
                await (await bench.activate(replica, N2)).close()
            case "has":
                bench.has(N2, TABLE, "r2")
            case "silent":
                bench.servers[N4].is_down = True
            case "detached":
                bench.servers[N2].detached_tables = {("d", "t")}
        before = bench.nodes(replica.root)
        assert states(await bench.apply(plan)) == [ActState.REFUSED]
        assert bench.nodes(replica.root) == before

    run(tmp_path, main)


def test_an_activation_between_the_look_and_the_transaction_refuses_it(tmp_path: Path) -> None:
    """1. The act has looked at the replica and asked all hosts. 2. Its server activates it and dies. 3. The
    act's transaction finds another version of `host`."""

    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        replica = paths.replica("r2")
        plan = await bench.plan_twice(REPLICAS)
        asked = bench.servers[N4].query_rows

        async def answer_and_let_it_come_back(sql: str, **more: object) -> object:
            if "detached_tables" in sql:
                await (await bench.activate(replica, N2)).close()
            return await asked(sql, **more)

        bench.servers[N4].query_rows = answer_and_let_it_come_back  # type: ignore[method-assign,assignment]
        report = await bench.apply(plan)
        assert states(report) == [ActState.REFUSED] and "changed" in report.results[0][1].detail
        assert await bench.keeper.exists(replica.host) is not None

    run(tmp_path, main)


def test_with_the_last_replica_the_table_s_path_goes(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.table(r1=N1)
        plan = await bench.plan_twice(REPLICAS)
        report = await bench.apply(plan)
        assert "the table's path went with it" in report.results[0][1].detail
        assert bench.nodes(TABLE) == set()
        assert states(await bench.apply(plan, run_id="again")) == [ActState.NOT_NEEDED]

    run(tmp_path, main)


@pytest.mark.parametrize("seed", range(6))
def test_a_session_that_ends_in_the_middle_is_resumed_under_the_same_run(tmp_path: Path, seed: int) -> None:
    async def main(bench: Bench) -> None:
        for number in range(3):
            await bench.table(f"{TABLE}{number}", r1=N1, r2=N2)
            bench.has(N1, f"{TABLE}{number}", "r1")
        plan = await bench.plan_twice(REPLICAS)
        assert len(plan.acts) == 3
        requests = bench.server.operations["operator"]
        lost_after = requests.total() + 16 * seed + 8

        async def lose_the_session() -> None:
            while requests.total() < lost_after:
                await asyncio.sleep(0)
            bench.server.expire_session(bench.keeper.session_id)

        losing = asyncio.create_task(lose_the_session())
        with contextlib.suppress(UnknownOutcome, Busy):
            assert not (await bench.apply(plan)).is_good
        await losing
        fresh = bench.new_site(await bench.server.connect(client="again", session_timeout_s=30))
        report = await bench.apply(plan, on=fresh)
        assert all(state in (ActState.DONE, ActState.NOT_NEEDED) for state in states(report))
        for number in range(3):
            assert (await fresh.keeper.children(f"{TABLE}{number}/replicas")).names == ("r1",)

    run(tmp_path, main, seed=seed)


def test_a_replica_that_somebody_dropped_half_way_is_dropped_to_the_end(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        replica = paths.replica("r2")
        await bench.keeper.set(replica.is_lost, b"1")
        await bench.keeper.remove(replica.host)
        assert (await bench.plan(REPLICAS)).acts == ()  # somebody may be at it
        await bench.env.sleep(2 * HOUR_S)
        bench.servers[N3].is_down = True
        plan = await bench.plan(REPLICAS)
        assert plan.acts == () and "n3:9000 does not answer" in plan.findings[0].what
        bench.servers[N3].is_down = False
        plan = await bench.plan(REPLICAS)
        assert [act.kind for act in plan.acts] == [ReplicaAct.HALF_DROPPED]
        assert states(await bench.apply(plan)) == [ActState.DONE]
        assert bench.nodes(replica.root) == set()

    run(tmp_path, main)


def test_of_two_operators_the_second_is_told_the_name_of_the_first(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await two_replicas(bench)
        plan = await bench.plan_twice(REPLICAS)
        other = bench.new_site(await bench.server.connect(client="bob", session_timeout_s=30), "bob@there")
        refused: list[Busy] = []

        async def perform(act: object) -> object:
            with pytest.raises(Busy) as busy:
                await bench.apply(plan, on=other, run_id="bob")
            refused.append(busy.value)
            return await really(act)  # type: ignore[arg-type]

        really = cleanup_performer(bench.site, probe=nobody_answers)
        await carry_out(bench.site, plan, perform, run_id="ada", approved_by="boss")  # type: ignore[arg-type]
        assert "ada@here" in refused[0].holder
        assert states(await bench.apply(plan, on=other, run_id="bob")) == [ActState.NOT_NEEDED]

    run(tmp_path, main)


def test_findings_are_kept_and_resolved_by_the_next_look_at_their_kind(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await two_replicas(bench)
        plan = await bench.plan_twice(REPLICAS)
        assert len(record_plan(bench.site, plan).new) == 1
        assert len(record_plan(bench.site, plan, [REPLICAS]).continuing) == 1
        ddl = [CleanupKind.DDL]
        assert record_plan(bench.site, await bench.plan(*ddl), ddl).resolved == ()
        await bench.apply(plan)
        assert len(record_plan(bench.site, await bench.plan(REPLICAS), [REPLICAS]).resolved) == 1

    run(tmp_path, main)


def test_without_keeper_nothing_is_planned(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.site.keeper_or_none = None
        with pytest.raises(KeeperUnavailable):
            await bench.plan(REPLICAS)

    run(tmp_path, main)


def test_of_ten_thousand_nodes_only_those_that_tell_are_read(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        for number in range(400):
            await bench.table(f"/clickhouse/tables/{number % 20:02}/t{number}", r1=N1)
        assert len(bench.server.tree.nodes) > 10_000
        await bench.plan(REPLICAS)
        await bench.env.sleep(25 * HOUR_S)
        before = bench.server.operations["operator"].total()
        plan = await bench.plan(REPLICAS)
        assert len(plan.acts) == 400
        assert bench.server.operations["operator"].total() - before < 400 * 8

    run(tmp_path, main)


def test_an_address_that_nobody_can_read_is_treated_as_a_replica_that_was_never_active(
    tmp_path: Path,
) -> None:
    async def main(bench: Bench) -> None:
        paths = await two_replicas(bench)
        await bench.keeper.set(paths.replica("r2").host, b"\0garbage")
        (act,) = (await bench.plan_twice(REPLICAS)).acts
        assert "made and never used" in act.why
        await bench.keeper.set(paths.replica("r2").host, address(N2))
        await bench.env.sleep(1)
        assert states(await bench.apply(await bench.plan_twice(REPLICAS))) == [ActState.DONE]

    run(tmp_path, main)
