"""Half-made tables in Keeper, detached parts, broken files of Distributed tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.operations_place import carry_out_shown
from engine.keeper.base import Create, CreateMode
from engine.operations.act import ActState, Danger, Plan
from engine.operations.cleanup import (
    BrokenFilesFate,
    CleanupKind,
    CleanupSettings,
    DetachedAct,
    TableAct,
    cleanup_performer,
)
from engine.operations.cleanup.detached_parts import prefix_of
from engine.operations.finding import FindingKind
from engine.replication.paths import TablePaths
from tests.unit.operations.cleanup_support import DAY_S, HOUR_S, TABLE, Bench, nobody_answers, run, states
from tests.unit.operations.support import HOSTS

N1, N2, N3, N4 = HOSTS
TABLES, DETACHED, SPOOL = CleanupKind.TABLES, CleanupKind.DETACHED, CleanupKind.SPOOL


async def remove_below(bench: Bench, path: str, *, itself: bool = True) -> None:
    for node in sorted(bench.nodes(path), reverse=True):
        if itself or node != path:
            await bench.keeper.remove(node)


async def without_replicas(bench: Bench, path: str = TABLE) -> TablePaths:
    paths = await bench.table(path, r1=N1)
    await remove_below(bench, paths.replicas, itself=False)
    return paths


async def half_dropped(bench: Bench, path: str = TABLE) -> TablePaths:
    paths = await without_replicas(bench, path)
    await bench.keeper.multi([Create(paths.dropped)])
    await bench.keeper.remove(paths.replicas)
    await bench.keeper.remove(paths.metadata)
    return paths


async def remains(bench: Bench, path: str = TABLE) -> TablePaths:
    paths = await without_replicas(bench, path)
    await bench.keeper.remove(paths.replicas)
    await remove_below(bench, paths.quorum)
    return paths


MAKERS = {
    TableAct.WITHOUT_REPLICAS: without_replicas,
    TableAct.HALF_DROPPED: half_dropped,
    TableAct.REMAINS: remains,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_path_without_replica_stays_while_a_host_that_may_have_the_table_is_silent(
    tmp_path: Path, kind: TableAct
) -> None:
    async def main(bench: Bench) -> None:
        await MAKERS[kind](bench)
        await bench.env.sleep(2 * HOUR_S)
        planned = await bench.plan(TABLES)
        bench.servers[N1].is_down = True
        plan = await bench.plan(TABLES)
        assert (len(planned.acts), plan.acts) == (1, ())
        assert any(f"{TABLE} stays: n1:9000 does not answer" in note for note in plan.notes)
        report = await bench.apply(planned)
        assert states(report) == [ActState.REFUSED]
        assert "n1:9000 does not answer" in report.results[0][1].detail
        assert bench.nodes(TABLE)

    run(tmp_path, main)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_path_without_replica_goes_when_it_is_an_hour_old(tmp_path: Path, kind: TableAct) -> None:
    async def main(bench: Bench) -> None:
        await MAKERS[kind](bench)
        assert (await bench.plan(TABLES)).acts == ()
        await bench.env.sleep(2 * HOUR_S)
        plan = await bench.plan(TABLES)
        assert [act.kind for act in plan.acts] == [kind] and plan.needs_approval
        assert [finding.kind for finding in plan.findings] == [FindingKind.HALF_CREATED_TABLE]
        assert states(await bench.apply(plan)) == [ActState.DONE]
        assert bench.nodes(TABLE) == set()
        assert states(await bench.apply(plan, run_id="again")) == [ActState.NOT_NEEDED]

    run(tmp_path, main)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_path_at_which_a_host_has_a_table_stays(tmp_path: Path, kind: TableAct) -> None:
    """Its metadata is lost; the health check knows what to do."""

    async def main(bench: Bench) -> None:
        await MAKERS[kind](bench)
        await bench.env.sleep(2 * HOUR_S)
        plan = await bench.plan(TABLES)
        bench.has(N3, TABLE, "r1")
        assert (await bench.plan(TABLES)).acts == ()
        before = bench.nodes(TABLE)
        assert states(await bench.apply(plan)) == [ActState.REFUSED]
        assert bench.nodes(TABLE) == before

    run(tmp_path, main)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_table_that_was_made_there_since_stays(tmp_path: Path, kind: TableAct) -> None:
    async def main(bench: Bench) -> None:
        await MAKERS[kind](bench)
        await bench.env.sleep(2 * HOUR_S)
        plan = await bench.plan(TABLES)
        await remove_below(bench, TABLE)
        await bench.table(TABLE, r1=N1)
        before = bench.nodes(TABLE)
        assert states(await bench.apply(plan)) == [ActState.REFUSED]
        assert bench.nodes(TABLE) == before

    run(tmp_path, main)


def test_what_somebody_else_is_dropping_is_left_to_them(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await half_dropped(bench)
        await bench.env.sleep(2 * HOUR_S)
        plan = await bench.plan(TABLES)
        other = await bench.server.connect(client="n2", session_timeout_s=10)
        await other.create(paths.dropped_lock, mode=CreateMode.EPHEMERAL)
        assert states(await bench.apply(plan)) == [ActState.REFUSED]
        await other.close()
        assert states(await bench.apply(plan, run_id="again")) == [ActState.DONE]

    run(tmp_path, main)


@pytest.mark.parametrize(
    "names", [("dropped", "log"), ("metadata", "columns"), ("columns", "log", "dropped")]
)
def test_tables_whose_names_are_those_of_nodes_are_no_rubbish(tmp_path: Path, names: tuple[str, ...]) -> None:
    """`/clickhouse/tables/01` holds tables called `dropped`, `log`, …: it looks like half a table itself."""

    async def main(bench: Bench) -> None:
        for name in names:
            await bench.table(f"/clickhouse/tables/01/{name}", r1=N1)
            bench.has(N1, f"/clickhouse/tables/01/{name}", "r1")
        before = bench.nodes("/clickhouse/tables/01")
        await bench.env.sleep(9 * DAY_S)
        plan = await bench.plan()
        assert plan.acts == () and bench.nodes("/clickhouse/tables/01") == before

    run(tmp_path, main)


def test_a_directory_called_dropped_beside_a_table_called_log_is_no_dropped_table(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await bench.table("/clickhouse/tables/01/log", r1=N1)
        bench.has(N1, "/clickhouse/tables/01/log", "r1")
        await bench.keeper.create("/clickhouse/tables/01/dropped")
        await bench.env.sleep(9 * DAY_S)
        assert (await bench.plan(TABLES)).acts == ()

    run(tmp_path, main)


def test_nodes_of_which_nobody_can_tell_that_they_were_a_table_stay(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        paths = await remains(bench)
        await bench.keeper.set(paths.metadata, b"something else")
        await bench.keeper.set(paths.columns, b"")
        await bench.env.sleep(9 * DAY_S)
        plan = await bench.plan(TABLES)
        assert plan.acts == () and "cannot" not in plan.notes[0] and TABLE in plan.notes[0]

    run(tmp_path, main)


def test_a_look_that_is_too_long_ends_and_says_so(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        for number in range(30):
            await bench.table(f"/clickhouse/tables/{number:02}/t", r1=N1)
        plan = await bench.plan(TABLES, settings=CleanupSettings(most_directories=20))
        assert any("ended" in note for note in plan.notes)

    run(tmp_path, main)


# -- detached parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "prefix"),
    [
        ("all_1_1_0", ""),
        ("all_1_1_0_7", ""),
        ("broken-on-start_all_1_1_0", "broken-on-start"),
        ("covered-by-broken_all_1_1_0_try2", "covered-by-broken"),
        ("ignored_1_1_1_2", "ignored"),
        ("clone_20200101_3_3_0", "clone"),
        ("clone_something", None),
        ("../../etc", None),
    ],
)
def test_prefixes_are_told_from_partitions(directory: str, prefix: str | None) -> None:
    assert prefix_of(directory) == prefix


async def with_parts(bench: Bench) -> Plan:
    bench.servers[N1].detached_parts = {
        "all_1_1_0": 90 * int(DAY_S),
        "broken-on-start_all_2_2_0": 8 * int(DAY_S),
        "covered-by-broken_all_3_3_0": 8 * int(DAY_S),
        "noquorum_all_4_4_0": int(DAY_S),
        "strange": 90 * int(DAY_S),
    }
    bench.servers[N2].detached_parts = {"noquorum_all_1_1_0": 30 * int(DAY_S)}
    return await bench.plan(DETACHED)


def test_old_parts_that_servers_set_aside_go_and_those_of_people_stay(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        plan = await with_parts(bench)
        assert [(act.kind, act.host) for act in plan.acts] == [
            (DetachedAct.DROP, "n1:9000"),
            (DetachedAct.DROP, "n2:9000"),
        ]
        assert plan.acts[0].payload["parts"] == ["broken-on-start_all_2_2_0", "covered-by-broken_all_3_3_0"]
        assert any("3 detached parts of d.t on n1:9000 stay" in note for note in plan.notes)
        assert states(await bench.apply(plan)) == [ActState.DONE, ActState.DONE]
        assert sorted(bench.servers[N1].detached_parts) == ["all_1_1_0", "noquorum_all_4_4_0", "strange"]
        assert states(await bench.apply(plan, run_id="again")) == [ActState.NOT_NEEDED] * 2

    run(tmp_path, main)


def test_parts_of_people_go_only_when_asked_for(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await with_parts(bench)
        settings = CleanupSettings(detached_prefixes=("",))
        (act,) = (await bench.plan(DETACHED, settings=settings)).acts
        assert act.payload["parts"] == ["all_1_1_0"] and "detached by a person" in act.why

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("directory", "is_replicated", "named"),
    [
        ("clone_all_3_3_0", True, "clone"),
        ("ignored_all_4_4_0", True, "ignored"),
        ("unexpected_all_5_5_0", True, "unexpected"),
        ("broken-on-start_all_6_6_0", False, None),
    ],
)
def test_parts_that_may_be_the_only_copy_of_their_rows_are_not_proposed(
    tmp_path: Path, directory: str, is_replicated: bool, named: str | None
) -> None:
    async def main(bench: Bench) -> None:
        bench.servers[N1].detached_parts = {directory: 90 * int(DAY_S)}
        bench.servers[N1].is_replicated = is_replicated
        plan = await bench.plan(DETACHED)
        assert plan.acts == () and plan.findings == ()
        assert any("1 detached part of d.t" in note and "only copy" in note for note in plan.notes)
        if named is not None:
            (act,) = (await bench.plan(DETACHED, settings=CleanupSettings(detached_prefixes=(named,)))).acts
            assert act.payload["parts"] == [directory]

    run(tmp_path, main)


def test_a_part_that_was_detached_anew_since_the_plan_stays(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        plan = await with_parts(bench)
        bench.servers[N1].detached_parts["covered-by-broken_all_3_3_0"] = 5
        report = await bench.apply(plan)
        assert (
            "1 dropped; 1 left, not due any more: covered-by-broken_all_3_3_0" in report.results[0][1].detail
        )

    run(tmp_path, main)


def test_a_lost_answer_is_looked_up(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        plan = await with_parts(bench)
        bench.servers[N1].loses_replies = 2
        assert states(await bench.apply(plan)) == [ActState.DONE, ActState.DONE]
        assert len(bench.servers[N1].commands) == 2

    run(tmp_path, main)


def test_servers_that_are_down_or_cannot_say_an_age_are_named(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        await with_parts(bench)
        bench.servers[N1].knows_ages = False
        bench.servers[N2].is_down = True
        plan = await bench.plan(DETACHED)
        assert plan.acts == ()
        assert any("n1:9000 does not say how old" in note for note in plan.notes)
        assert any("n2:9000 are not known" in note for note in plan.notes)

    run(tmp_path, main)


@pytest.mark.parametrize("trouble", ["nonsense", "slow"])
def test_a_server_that_talks_nonsense_or_hangs_is_named_and_stops_nobody(
    tmp_path: Path, trouble: str
) -> None:
    async def main(bench: Bench) -> None:
        plan = await with_parts(bench)
        if trouble == "nonsense":
            bench.servers[N1].is_talking_nonsense = True
        else:
            bench.servers[N1].hangs_s = 600.0
        again = await bench.plan()
        assert [act.host for act in again.acts] == ["n2:9000"]
        assert sum("n1:9000" in note for note in again.notes) == 3  # replicas, detached parts, spool
        report = await bench.apply(plan)
        state = ActState.FAILED if trouble == "nonsense" else ActState.STARTED
        assert states(report) == [state, ActState.DONE]

    run(tmp_path, main)


def test_a_host_that_hangs_costs_a_plan_of_everything_its_patience_once(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.servers[N1].hangs_s = 600.0
        began_s = bench.env.monotonic_s()
        await bench.plan()
        assert bench.env.monotonic_s() - began_s < 2 * bench.site.patience_s

    run(tmp_path, main)


@pytest.mark.parametrize("as_json", [False, True])
def test_who_carries_out_a_plan_is_told_whom_nobody_could_ask(
    tmp_path: Path, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where there is nothing to do: not all was looked at."""

    async def main(bench: Bench) -> None:
        bench.servers[N1].is_down = True
        plan = await bench.plan(SPOOL)
        perform = cleanup_performer(bench.site, probe=nobody_answers)
        await carry_out_shown(bench.site, plan, perform, run_id="run", approved=True, as_json=as_json)

    run(tmp_path, main)
    assert "Broken files of n1:9000 are not known" in capsys.readouterr().out


def test_a_server_that_goes_down_fails_its_act_and_not_the_others(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        plan = await with_parts(bench)
        bench.servers[N1].is_down = True
        assert states(await bench.apply(plan)) == [ActState.FAILED, ActState.DONE]

    run(tmp_path, main)


def test_broken_files_of_distributed_tables_are_counted_and_stay_by_themselves(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.servers[N3].broken_files = 4
        plan = await bench.plan(SPOOL)
        (finding,) = plan.findings
        assert plan.acts == () and finding.kind is FindingKind.BROKEN_SPOOL
        assert (finding.host, finding.evidence["broken_files"]) == ("n3:9000", 4)

    run(tmp_path, main)


def test_broken_files_that_are_whole_are_sent_again_when_asked_for(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.servers[N3].broken_files = 4
        settings = CleanupSettings(broken_files=BrokenFilesFate.RESTORE)
        plan = await bench.plan(SPOOL, settings=settings)
        assert plan.needs_approval and "rows come twice" in plan.acts[0].why
        report = await bench.apply(plan)
        assert report.results[0][1].detail == "3 files will be sent again, 1 cannot be read"
        assert bench.servers[N3].restored == 3

    run(tmp_path, main)


def test_broken_files_are_dropped_only_if_they_are_those_of_the_plan(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.servers[N3].broken_files = 4
        plan = await bench.plan(SPOOL, settings=CleanupSettings(broken_files=BrokenFilesFate.DROP))
        assert plan.acts[0].danger is Danger.DESTROYS
        bench.servers[N3].broken_files = 5
        assert states(await bench.apply(plan, run_id="a")) == [ActState.REFUSED]
        bench.servers[N3].broken_files = 4
        assert states(await bench.apply(plan, run_id="b")) == [ActState.DONE]
        assert states(await bench.apply(plan, run_id="c")) == [ActState.NOT_NEEDED]
        bench.servers[N3].broken_files, bench.servers[N3].is_clickhouse = 4, True
        report = await bench.apply(plan, run_id="d")
        assert states(report) == [ActState.REFUSED] and "by hand" in report.results[0][1].detail

    run(tmp_path, main)
