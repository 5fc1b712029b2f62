"""Runs of migrations that are refused, and what a person can say to that."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.model import Cluster, Topology
from engine.errors import Busy
from engine.migrations.drive import drive
from engine.migrations.errors import (
    ApprovalRequired,
    ChangedMigration,
    MigrationFilesError,
    MigrationRefused,
    StaleFence,
)
from engine.migrations.files import Direction, load_folder
from engine.migrations.gather import make_plan
from engine.migrations.runner import MigrationRunner
from engine.migrations.selection import ALL, Leniency
from engine.migrations.states import RunState
from engine.migrations.upkeep import mark, refresh, unlock
from engine.names import HostId
from tests.migrations.support import SHOP, World, in_world, write

pytestmark = pytest.mark.slow

NODE1, NODE2 = HostId("node01", 9000), HostId("node02", 9000)


def test_what_destroys_data_needs_approval_and_nothing_is_sent_without_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        with pytest.raises(ApprovalRequired, match="DROP TABLE") as caught:
            await drive(await world.runner(), world.request(approved_by=""))
        assert len(caught.value.statements) == 1
        assert world.entries() == []
        assert (await drive(await world.runner(), world.request(approved_by="alice"))).state is RunState.DONE
        assert world.ledger.runs("shop")[-1].approved_by == "alice"

    files = {
        "1_a.up.sql": "CREATE TABLE IF NOT EXISTS s.a (x Int8) ENGINE = Memory;",
        "2_b.up.sql": "DROP TABLE IF EXISTS s.a;",
    }
    in_world(tmp_path, scenario, files=files)


def test_a_statement_that_cannot_go_on_cluster_is_refused_with_its_place_and_code_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        with pytest.raises(MigrationFilesError) as caught:
            await drive(await world.runner(), world.request())
        (problem,) = caught.value.problems
        assert (problem.line, problem.code) == (3, 48)
        assert problem.path.endswith("2_data.up.sql")
        assert world.entries() == []

    files = {
        "1_a.up.sql": "CREATE TABLE IF NOT EXISTS s.a (x Int8) ENGINE = Memory;",
        "2_data.up.sql": "-- seed\n\nINSERT INTO s.a VALUES (1);",
    }
    in_world(tmp_path, scenario, files=files)


def test_a_statement_of_which_hosts_would_read_a_part_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    long = f"CREATE TABLE s.long (x Int8 COMMENT '{'é' * 131072}') ENGINE = Memory"

    async def scenario(world: World) -> None:
        await world.start()
        (problem,) = (await make_plan(await world.runner(), world.request())).problems
        assert (problem.rule, problem.code) == ("not-sendable", 62)
        assert "max_query_size=0" in problem.message
        with pytest.raises(MigrationFilesError, match="hosts read 262144"):
            await drive(await world.runner(), world.request())
        assert world.entries() == []
        write(world.folder, {"1_long.up.sql": f"-- oncluster: setting.max_query_size=0\n{long}"})
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE

    in_world(tmp_path, scenario, files={"1_long.up.sql": long})


def test_a_cluster_that_is_not_configured_is_refused_with_its_code(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        runner = await world.runner()
        elsewhere = MigrationRunner(
            runner.keeper,
            load_folder(world.folder, cluster="nowhere"),
            runner.ledger,
            runner.topology,
            runner.queue,
            runner.env,
        )
        with pytest.raises(MigrationFilesError, match="shop") as caught:
            await drive(elsewhere, world.request())
        assert caught.value.code == 701

    in_world(tmp_path, scenario)


def test_a_second_run_is_refused_and_told_who_is_at_work(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        first = await world.runner()
        run = await first.begin(world.request(holder="alice at laptop, pid 7"))
        with pytest.raises(Busy, match="alice at laptop, pid 7") as caught:
            await drive(await world.runner(), world.request())
        assert caught.value.holder == "alice at laptop, pid 7"
        await first.finish(run)
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE

    in_world(tmp_path, scenario)


def test_of_two_runs_begun_at_once_one_does_everything_and_the_other_is_told(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runners = [await world.runner(), await world.runner()]
        results = await asyncio.gather(
            *(drive(runner, world.request()) for runner in runners), return_exceptions=True
        )
        kinds = sorted(type(result).__name__ for result in results)
        assert kinds in (["Busy", "RunSummary"], ["RunSummary", "RunSummary"])
        assert len(world.entries()) == 4
        world.check()

    for seed in range(5):
        folder = tmp_path / str(seed)
        in_world(folder, scenario, seed=seed)


def test_a_changed_file_of_an_applied_migration_is_reported_with_its_line(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        changed = SHOP["1_tables.up.sql"].replace("s.b (x Int8)", "s.b (x Int16)")
        write(world.folder, {"1_tables.up.sql": changed})
        with pytest.raises(ChangedMigration) as caught:
            await drive(await world.runner(), world.request())
        (problem,) = caught.value.problems
        assert (problem.line, problem.rule) == (2, "changed-file")

    in_world(tmp_path, scenario)


def test_an_applied_migration_whose_file_is_gone_is_reported(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        (world.folder / "3_more.up.sql").unlink()
        (world.folder / "3_more.down.sql").unlink()
        with pytest.raises(ChangedMigration, match="version 3"):
            await drive(await world.runner(), world.request())

    in_world(tmp_path, scenario)


def test_a_version_that_arrives_below_the_applied_ones_is_refused_unless_allowed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        write(
            world.folder, {"20240101_late.up.sql": "CREATE TABLE IF NOT EXISTS s.l (x Int8) ENGINE = Memory;"}
        )
        with pytest.raises(MigrationRefused, match="20240201"):
            await drive(await world.runner(), world.request())
        allowed = world.request(leniency=Leniency(out_of_order=True))
        assert (await drive(await world.runner(), allowed)).state is RunState.DONE

    files = {
        "20240201_b.up.sql": "CREATE TABLE IF NOT EXISTS s.b (x Int8) ENGINE = Memory;",
    }
    in_world(tmp_path, scenario, files=files)


def test_a_version_that_arrives_below_one_that_is_under_way_is_refused_as_well(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        await drive(await world.runner(), world.request(timeout_s=1))
        write(
            world.folder, {"20240101_late.up.sql": "CREATE TABLE IF NOT EXISTS s.l (x Int8) ENGINE = Memory;"}
        )
        with pytest.raises(MigrationRefused, match="20240201 is waiting"):
            await drive(await world.runner(), world.request())
        assert len(world.entries()) == 1

    files = {"20240201_b.up.sql": "CREATE TABLE IF NOT EXISTS s.b (x Int8) ENGINE = Memory;"}
    in_world(tmp_path, scenario, files=files)


def test_a_rollback_to_a_version_before_the_first_is_told_how_to_undo_everything(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        for target, is_told in ((0, True), (7, False)):
            with pytest.raises(MigrationRefused, match=f"There is no version {target}") as refused:
                await drive(await world.runner(), world.down(target=target))
            assert ("--all" in refused.value.hint) is is_told
        assert world.states() == {1: "applied", 2: "applied", 3: "applied"}

    in_world(tmp_path, scenario)


def test_a_gap_in_the_versions_is_refused_unless_allowed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        with pytest.raises(MigrationRefused, match="1 → 3"):
            await drive(await world.runner(), world.request())
        assert world.entries() == []
        allowed = world.request(leniency=Leniency(gaps=True))
        assert (await drive(await world.runner(), allowed)).state is RunState.DONE

    files = {name: text for name, text in SHOP.items() if not name.startswith("2")}
    in_world(tmp_path, scenario, files=files)


def test_a_gap_with_a_reason_in_the_file_behind_it_is_no_hindrance(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE

    files = {name: text for name, text in SHOP.items() if not name.startswith("2")}
    reason = '-- oncluster: allow=version-gap reason="2 was never released"\n'
    files["3_more.up.sql"] = reason + files["3_more.up.sql"]
    in_world(tmp_path, scenario, files=files)


def test_a_rollback_without_a_down_file_is_refused_before_anything_is_rolled_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        with pytest.raises(MigrationRefused, match="1_tables cannot be rolled back"):
            await drive(await world.runner(), world.down(target=ALL))
        assert len(world.entries()) == 4

    files = {name: text for name, text in SHOP.items() if name != "1_tables.down.sql"}
    in_world(tmp_path, scenario, files=files)


def test_a_cluster_whose_migrations_are_in_another_ledger_is_refused_until_this_one_takes_over(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        world.ledger_path = tmp_path / "other.sqlite"
        with pytest.raises(MigrationRefused, match=r"ledger\.sqlite"):
            await drive(await world.runner(), world.request())
        assert len(world.entries()) == 4
        # Here everything looks as if it had never been sent, which nobody must be told as the truth.
        with pytest.raises(MigrationRefused, match=r"ledger\.sqlite"):
            await refresh(await world.runner(), world.request())
        plan = await make_plan(await world.runner(), world.request())
        assert [p.rule for p in plan.problems] == ["refused"]
        assert "ledger.sqlite" in plan.problems[0].message
        summary = await drive(await world.runner(), world.request(adopt_ledger=True))
        assert summary.state is RunState.DONE
        assert len(world.entries()) == 8

    in_world(tmp_path, scenario)


def test_a_cluster_that_was_renamed_is_not_sent_everything_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        sent = world.entries()
        renamed = Cluster("store", world.topology.clusters["shop"].shards)
        world.folder = world.folder.rename(world.folder.with_name("store"))
        runner = replace(await world.runner(), topology=Topology({"store": renamed}))
        with pytest.raises(MigrationRefused, match=r"Of shop, .* has the migrations 1, 2, 3"):
            await drive(runner, world.request())
        assert [p.rule for p in (await make_plan(runner, world.request())).problems] == ["refused"]
        assert (await make_plan(runner, world.request(adopt_ledger=True))).problems == ()
        beside = replace(runner, topology=Topology({"store": renamed, "shop": renamed}))
        assert (await make_plan(beside, world.request())).problems == ()
        for version in (1, 2, 3):
            await mark(runner, world.request(), version, applied=True, reason="shop is store now")
        assert (await drive(runner, world.request())).state is RunState.DONE
        assert world.entries() == sent

    in_world(tmp_path, scenario)


def test_an_older_copy_of_the_ledger_is_refused_until_somebody_says_that_it_takes_over(
    tmp_path: Path,
) -> None:
    """1. The ledger is copied. 2. A migration is applied, undone and applied. 3. The copy is put back: it has
    never heard of the migration, and after 1 it would take what undid it for its own doing. A run
    whose server of Keeper lags is refused, too."""

    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request(target=2))
        newest, before = world.ledger_path, _copied(world.ledger_path, tmp_path / "before.db")
        behind = await world.server.connect(client="behind")
        world.server.stale_reads(behind.session_id)
        for request in (world.request(), world.down(), world.request()):
            await drive(await world.runner(), request)
        sent = world.entries()
        world.ledger_path = before
        runner = await world.runner()
        for work in (
            drive(replace(runner, keeper=behind), world.request()),
            drive(runner, world.request()),
            refresh(runner, world.request()),
        ):
            with pytest.raises(MigrationRefused, match="older copy of itself"):
                await work
        plan = await make_plan(runner, world.request())
        assert any("older copy" in problem.message for problem in plan.problems)
        await mark(runner, world.request(adopt_ledger=True), 3, applied=True, reason="compared")
        assert (await drive(runner, world.request())).state is RunState.DONE
        assert world.entries() == sent
        world.ledger_path = newest
        with pytest.raises(MigrationRefused, match="older copy of itself"):
            await drive(await world.runner(), world.request())

    in_world(tmp_path, scenario)


def _copied(ledger: Path | str, file: Path) -> Path:
    with closing(sqlite3.connect(ledger)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)
    return file


def test_unlocking_takes_the_lock_from_a_holder_that_will_not_come_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        lost = await world.runner()
        run = await lost.begin(world.by_tasks(holder="a scheduler that is gone"))
        broken = await unlock(await world.runner(), world.request())
        assert broken is not None and broken.holder == "a scheduler that is gone"
        for step in (lost.submit_statement(run, run.refs[0]), lost.finish(run)):  # it comes back after all
            with pytest.raises(StaleFence):
                await step
        assert world.entries() == [] and world.ledger.attempts("shop", 1, Direction.UP, 1) == []
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        with pytest.raises(Exception, match=r"lost the migration lock|taken over"):
            await lost.finish(run)
        assert await unlock(await world.runner(), world.request()) is None

    in_world(tmp_path, scenario)
