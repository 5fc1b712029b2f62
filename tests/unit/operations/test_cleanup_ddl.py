"""Cleaning the DDL queue as an operation, what expired, and giving up on a dead host's tasks."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.model import Cluster, Topology
from engine.ddl.abandonment import Abandoning, Abandonment, settle_expired
from engine.ddl.cleaner import DDLCleaner
from engine.ddl.client import DDLQueueClient
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import OutcomeRecord, correct_outcome_record, read_outcome_record
from engine.env import SystemEnv
from engine.errors import Busy, Refused, SqlError, UnknownOutcome
from engine.keeper.base import CreateMode
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import create_ancestors
from engine.names import HostId, QueuePaths
from engine.operations.act import ActState, Danger
from engine.operations.carrying_out import ApprovalMissing, carry_out
from engine.operations.cleanup import (
    CleanupKind,
    CleanupSettings,
    DdlAct,
    abandon_performer,
    cleanup_performer,
    plan_abandon,
    plan_cleanup,
)
from engine.operations.finding import FindingKind, Severity
from tests.unit.operations.cleanup_support import DAY_S, Bench, run, states
from tests.unit.operations.support import CLUSTER, HOSTS

pytestmark = pytest.mark.slow

N1, N2, N3, N4 = HOSTS
DDL = CleanupKind.DDL


async def status(bench: Bench, entry: str) -> dict[str, HostState]:
    client = DDLQueueClient(bench.keeper, bench.env, bench.site.queue.paths)
    return {o.host.host: o.state for o in (await client.status(entry)).hosts}


def test_finished_entries_over_the_number_go_in_batches_that_need_no_approval(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(220)
        plan = await bench.plan(DDL)
        assert [len(act.payload["entries"]) for act in plan.acts] == [100, 100, 9]
        assert {act.kind for act in plan.acts} == {DdlAct.REMOVE} and not plan.needs_approval
        assert await bench.entries() == names  # a plan changes nothing
        report = await carry_out(bench.site, plan, cleanup_performer(bench.site), run_id="r")
        assert states(report) == [ActState.DONE] * 3
        assert await bench.entries() == names[209:]
        assert set((await status(bench, names[0])).values()) == {HostState.DONE}
        assert (await bench.plan(DDL)).acts == ()

    run(tmp_path, main, max_tasks_in_queue=10)


def test_an_unfinished_entry_is_never_removed_for_its_number(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(1, finished=(N1, N2, N3))
        names += await bench.submit(5)
        plan = await bench.plan(DDL)
        assert plan.acts[0].payload["entries"] == names[1:3]
        assert any("n4:9000 did not answer: query-0000000000" in note for note in plan.notes)
        await bench.apply(plan)
        assert await bench.entries() == [names[0], *names[3:]]

    run(tmp_path, main, max_tasks_in_queue=2)


def test_over_the_age_limit_it_expires_after_approval_and_the_host_is_found(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(2, finished=(N1, N2, N3))
        await bench.env.sleep(8 * DAY_S)
        await bench.submit(1)
        plan = await bench.plan(DDL)
        act = plan.acts[0]
        assert (act.kind, act.danger) == (DdlAct.EXPIRE, Danger.DESTROYS)
        assert "expired for n4:9000" in act.what and plan.findings == ()
        with pytest.raises(ApprovalMissing):
            await carry_out(bench.site, plan, cleanup_performer(bench.site), run_id="r0")
        report = await bench.apply(plan)
        assert report.is_good
        assert f"expired for n4:9000: {names[0]}, {names[1]}" in report.results[0][1].detail
        (finding,) = (await bench.plan(DDL)).findings
        assert (finding.kind, finding.severity) == (FindingKind.EXPIRED_DDL, Severity.CRITICAL)
        assert finding.host == "n4:9000" and finding.evidence["entries"] == 2
        assert f"({names[0]} to {names[1]}, the last of them CREATE TABLE d.t1 " in finding.what
        await bench.env.sleep(8 * DAY_S)
        assert (await bench.plan(DDL)).findings == ()

    run(tmp_path, main)


def test_what_another_cleaner_expired_is_found_too(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(3, finished=(N1, N2, N3))
        await DDLCleaner(bench.keeper, bench.env, bench.site.queue).clean()
        (finding,) = (await bench.plan(DDL)).findings
        assert "n4:9000 never answered 1 entry that was removed" in finding.what

    run(tmp_path, main, max_tasks_in_queue=1)


def test_an_entry_that_somebody_began_to_execute_after_the_plan_stays(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(3, finished=(N1, N2, N3))
        await bench.env.sleep(8 * DAY_S)
        plan = await bench.plan(DDL)
        active = bench.site.queue.paths.active(names[1], N4)
        await bench.keeper.create(active, mode=CreateMode.EPHEMERAL)
        report = await bench.apply(plan)
        assert await bench.entries() == [names[1]]
        assert "1 left (a host is executing it: query-0000000001)" in report.results[0][1].detail

    run(tmp_path, main)


def test_what_was_finished_when_it_was_planned_does_not_expire_when_the_queue_was_made_anew(
    tmp_path: Path,
) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(3)
        plan = await bench.plan(DDL)
        root = bench.site.queue.paths.root
        for path in sorted(bench.nodes(root), reverse=True):
            await bench.keeper.remove(path)
        again = await bench.submit(3, finished=(N1,))
        report = await bench.apply(plan)
        assert states(report) == [ActState.REFUSED] and await bench.entries() == again

    run(tmp_path, main, max_tasks_in_queue=1)


def test_several_cleaners_at_once_remove_each_entry_once(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(60)
        plan = await bench.plan(DDL)
        other = await bench.server.connect(client="node", session_timeout_s=10)
        cleaner = DDLCleaner(other, bench.env, bench.site.queue)
        report, others = await asyncio.gather(bench.apply(plan), cleaner.clean())
        assert await bench.entries() == names[-6:]
        assert report.is_good and len(others.removed) <= 54

    run(tmp_path, main, max_tasks_in_queue=5)


@pytest.mark.parametrize("seed", range(4))
def test_a_session_that_is_lost_in_the_middle_is_resumed_under_the_same_run(
    tmp_path: Path, seed: int
) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(120)
        plan = await bench.plan(DDL)
        requests = bench.server.operations["operator"]
        lost_after = requests.total() + 300 * seed + 300

        async def lose_the_session() -> None:
            while requests.total() < lost_after:
                await asyncio.sleep(0)
            bench.server.expire_session(bench.keeper.session_id)

        losing = asyncio.create_task(lose_the_session())
        with contextlib.suppress(UnknownOutcome, Busy):
            await bench.apply(plan)
        losing.cancel()
        fresh = bench.new_site(await bench.server.connect(client="again", session_timeout_s=30))
        report = await bench.apply(plan, on=fresh)
        assert report.is_good
        assert list((await fresh.keeper.children(fresh.queue.paths.root)).names) == names[-11:]

    run(tmp_path, main, seed=seed, max_tasks_in_queue=10)


def test_a_person_may_keep_fewer_finished_entries(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(6)
        settings = CleanupSettings(ddl_keep_entries=2)
        plan = await bench.plan(DDL, settings=settings)
        assert plan.acts[0].payload["entries"] == names[:3]
        await bench.apply(plan)
        assert await bench.entries() == names[3:]

    run(tmp_path, main)


def test_presence_of_hosts_that_are_gone_for_a_day_goes(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(1)
        await bench.env.sleep(2 * DAY_S)
        plan = await bench.plan(DDL)
        assert [act.kind for act in plan.acts] == [DdlAct.PRESENCE]
        await bench.apply(plan)
        assert (await bench.keeper.children(bench.site.queue.paths.replicas_root)).names == ()

    run(tmp_path, main)


def test_an_unknown_cluster_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.site.cluster = "nothing"
        with pytest.raises(SqlError) as refused:
            await plan_cleanup(bench.site)
        assert refused.value.code == 701 and "c" in refused.value.hint

    run(tmp_path, main)


# -- giving up on a dead host's tasks ----------------------------------------------------------------------


async def give_up(bench: Bench, *entries: str, run_id: str = "g") -> list[ActState]:
    plan = await plan_abandon(bench.site, N4, reason="Its machine burnt down.", entries=entries)
    report = await carry_out(
        bench.site, plan, abandon_performer(bench.site), run_id=run_id, approved_by="boss"
    )
    return states(report)


def test_abandoned_tasks_of_a_dead_host_end_the_wait_and_let_the_queue_be_cleaned(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(4, finished=(N1, N2, N3))
        bench.servers[N4].is_down = True
        assert await give_up(bench) == [ActState.DONE]
        found = await status(bench, names[0])
        assert found == {
            "n1": HostState.DONE,
            "n2": HostState.DONE,
            "n3": HostState.DONE,
            "n4": HostState.ABANDONED,
        }
        assert await bench.keeper.exists(bench.site.queue.paths.finished(names[0], N4)) is None
        assert await give_up(bench, run_id="again") == []
        plan = await bench.plan(DDL)
        assert plan.acts[0].payload["entries"] == names[:2] and not plan.needs_approval
        await bench.apply(plan)
        assert (await status(bench, names[0]))["n4"] is HostState.ABANDONED
        assert (await bench.plan(DDL)).findings == ()

    run(tmp_path, main, max_tasks_in_queue=1)


def test_what_expired_for_a_dead_host_is_no_finding_any_more_once_it_is_abandoned(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(2, finished=(N1, N2, N3))
        await bench.env.sleep(8 * DAY_S)
        await bench.apply(await bench.plan(DDL))
        assert len((await bench.plan(DDL)).findings) == 1
        bench.servers[N4].is_down = True
        assert await give_up(bench) == [ActState.DONE]
        assert (await bench.plan(DDL)).findings == ()

    run(tmp_path, main)


def test_what_expired_for_a_host_that_is_there_is_no_finding_any_more_once_somebody_has_dealt_with_it(
    tmp_path: Path,
) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(2, finished=(N1, N2, N3))
        await bench.env.sleep(8 * DAY_S)
        await bench.apply(await bench.plan(DDL))
        (waiting,) = await bench.submit(1, finished=(N1, N2, N3))
        assert len((await bench.plan(DDL)).findings) == 1
        assert await give_up(bench, names[1], run_id="first") == [ActState.DONE]
        (finding,) = (await bench.plan(DDL)).findings
        assert finding.evidence["first_entry"] == finding.evidence["last_entry"] == names[0]
        assert await give_up(bench, run_id="second") == [ActState.DONE]
        assert (await bench.plan(DDL)).findings == ()
        assert (await status(bench, waiting))["n4"] is HostState.WAITING, "it does that by itself"
        client = DDLQueueClient(bench.keeper, bench.env, bench.site.queue.paths)
        outcome = (await client.status(names[0])).outcome(N4)
        assert outcome.state is HostState.EXPIRED, "it has not done it, whoever did"
        assert outcome.error.endswith("Its machine burnt down.") and bench.site.operator in outcome.error
        with pytest.raises(Refused, match="n4:9000 answers"):
            await plan_abandon(bench.site, N4, reason="once more")

    run(tmp_path, main)


def test_what_did_not_expire_for_a_host_that_is_there_is_said(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(1, finished=(N1, N2, N3))
        await bench.env.sleep(8 * DAY_S)
        await bench.apply(await bench.plan(DDL))
        (waiting,) = await bench.submit(1, finished=(N1, N2, N3))
        plan = await plan_abandon(bench.site, N4, reason="by hand", entries=[names[0], waiting])
        assert [act.payload["entries"] for act in plan.acts] == [[names[0]]]
        assert plan.notes[1:] == (f"Nothing expired for n4:9000 in {waiting}.",)

    run(tmp_path, main)


async def test_what_somebody_has_dealt_with_is_still_done_when_the_host_says_so_itself() -> None:
    record = OutcomeRecord("query-0000000000", 7, 0, "", "", "", (HostOutcome(N4, HostState.EXPIRED),))
    paths = QueuePaths()
    keeper = await MemoryKeeperServer(SystemEnv()).connect()
    await create_ancestors(keeper, paths.outcome(record.entry))
    await keeper.create(paths.outcome(record.entry), record.to_bytes())

    async def say(reason: str) -> Abandoning:
        return await settle_expired(keeper, paths, record.entry, N4, Abandonment("ada", reason, 1))

    assert [await say("by hand"), await say("again")] == [Abandoning.SETTLED, Abandoning.ALREADY]
    assert await correct_outcome_record(keeper, paths, record.entry, 7, HostOutcome(N4, HostState.DONE))
    assert await say("late") is Abandoning.HAS_OUTCOME
    found = await read_outcome_record(keeper, paths, record.entry)
    assert found is not None and [o.state for o in found.hosts] == [HostState.DONE]


def test_only_the_entries_that_are_named_are_abandoned_and_others_are_said(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        names = await bench.submit(3, finished=(N1, N2, N3))
        bench.servers[N4].is_down = True
        plan = await plan_abandon(bench.site, N4, reason="sold", entries=[names[1], "query-0000000099"])
        assert plan.acts[0].payload["entries"] == [names[1]]
        assert plan.notes == ("Nothing waits for n4:9000 in query-0000000099.",)

    run(tmp_path, main)


def test_a_host_that_nobody_knows_is_refused_and_one_that_left_the_cluster_is_not(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(1, finished=(N1, N2, N3))
        with pytest.raises(
            Refused, match=r"c has no host n44:9000, and no task in the queue is for it"
        ) as refused:
            await plan_abandon(bench.site, HostId("n44", 9000), reason="mistyped")
        assert "n4:9000" in refused.value.hint
        bench.servers[N4].is_down = True
        first, _ = bench.site.topology_cluster.shards
        left = Topology(clusters={CLUSTER: Cluster(CLUSTER, (first,))})
        bench.site.config = replace(bench.site.config, topology=left)
        assert N4 not in bench.site.hosts
        assert await give_up(bench) == [ActState.DONE]
        assert await give_up(bench, run_id="again") == []

    run(tmp_path, main)


def test_a_host_that_is_there_is_not_given_up(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(1, finished=(N1, N2, N3))
        with pytest.raises(Refused, match="n4:9000 answers"):
            await plan_abandon(bench.site, N4, reason="slow")
        bench.servers[N4].is_down = True
        with pytest.raises(Refused, match="reason"):
            await plan_abandon(bench.site, N4, reason=" ")
        plan = await plan_abandon(bench.site, N4, reason="gone")
        await bench.keeper.create(bench.site.queue.paths.replica_active(N4), mode=CreateMode.EPHEMERAL)
        report = await carry_out(
            bench.site, plan, abandon_performer(bench.site), run_id="r", approved_by="boss"
        )
        assert states(report) == [ActState.REFUSED]
        with pytest.raises(Refused, match="is active in the queue"):
            await plan_abandon(bench.site, N4, reason="gone")

    run(tmp_path, main)
