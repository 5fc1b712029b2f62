"""The whole cleanup while requests and replies are lost, sessions end and reads are old: in the end
everything that was to go is gone, each once, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.ddl.outcome_record import OutcomeRecord
from engine.errors import Busy, Unavailable, UnknownOutcome
from engine.operations.act import ActState, Plan
from engine.operations.carrying_out import Report
from engine.operations.cleanup import CleanupKind
from engine.operations.site import Site
from tests.few import few_first
from tests.unit.operations.cleanup_support import HOUR_S, Bench, run
from tests.unit.operations.support import HOSTS

pytestmark = pytest.mark.slow

N1, N2, N3, N4 = HOSTS
TABLES = tuple(f"/clickhouse/tables/01/t{number}" for number in range(3))


async def site_of(bench: Bench, attempt: int) -> Site | None:
    try:
        return bench.new_site(await bench.server.connect(client=f"operator{attempt}", session_timeout_s=30))
    except Unavailable:
        return None


async def apply_until_done(bench: Bench, plan: Plan) -> tuple[Report, int]:
    """As an operator does it: the same run again, in a new process, until every act has an outcome."""
    for attempt in range(60):
        site = await site_of(bench, attempt)
        try:
            report = None if site is None else await bench.apply(plan, on=site)
        except (UnknownOutcome, Unavailable, Busy):
            report = None
        if report is not None and not report.count(ActState.STARTED):
            return report, attempt
        bench.server.crash_client(f"operator{attempt}")
        await bench.env.sleep(45)  # the lock goes with its session
        if attempt == 30:
            bench.faults.calm()
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("seed", few_first(range(8), few=3))
def test_under_faults_everything_planned_goes_once_and_nothing_else(tmp_path: Path, seed: int) -> None:
    async def main(bench: Bench) -> None:
        for path in TABLES:
            await bench.table(path, r1=N1, r2=N2)
            bench.has(N1, path, "r1")
        half = await bench.table("/clickhouse/tables/01/half", r1=N1)
        for node in sorted(bench.nodes(half.replicas), reverse=True)[:-1]:
            await bench.keeper.remove(node)
        names = await bench.submit(30)
        await bench.plan(CleanupKind.REPLICAS)
        await bench.env.sleep(25 * HOUR_S)
        plan = await bench.plan()
        assert len(plan.acts) == 1 + 1 + len(TABLES) + 1  # entries, presence, replicas, the half table
        kept = {path: bench.nodes(f"{path}/replicas/r1") for path in TABLES}
        await bench.keeper.close()

        bench.faults.is_calm = False
        report, _ = await apply_until_done(bench, plan)
        bench.faults.calm()
        assert bench.faults.happened

        assert report.is_good, report.to_json()
        tree = bench.server.tree.nodes
        assert await _left(bench) == names[-6:]
        for name in names[:-6]:
            record = OutcomeRecord.from_bytes(tree[bench.site.queue.paths.outcome(name)].data)
            assert all(outcome.state.is_reported for outcome in record.hosts)
        assert bench.nodes(half.root) == set()
        for path in TABLES:
            assert bench.nodes(f"{path}/replicas/r2") == set()
            assert bench.nodes(f"{path}/replicas/r1") == kept[path]

    run(tmp_path, main, seed=seed, max_tasks_in_queue=5)


async def _left(bench: Bench) -> list[str]:
    keeper = await bench.server.connect(client="look", session_timeout_s=30)
    return list((await keeper.children(bench.site.queue.paths.root)).names)
