"""Runs of migrations from begin to end, and what stops them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.ddl.output import OutputMode
from engine.errors import Busy
from engine.migrations.drive import drive
from engine.migrations.errors import (
    ApprovalRequired,
    ChangedMigration,
    MigrationFilesError,
    MigrationRefused,
    TableNotMade,
)
from engine.migrations.files import load_folder
from engine.migrations.gather import make_plan
from engine.migrations.model import Progress
from engine.migrations.runner import MigrationRunner
from engine.migrations.selection import ALL, Leniency
from engine.migrations.states import CellState, RunState
from engine.migrations.upkeep import mark, refresh, unlock
from engine.migrations.verdict import Verdict
from engine.names import HostId
from tests.migrations.support import SHOP, TIMEOUT_S, World, in_world, write

NODE1, NODE2 = HostId("node01", 9000), HostId("node02", 9000)
RETRY = Leniency(retry_failed=True)


def test_applying_a_folder_runs_every_statement_once_on_every_host(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        summary = await drive(await world.runner(), world.request())
        assert summary.state is RunState.DONE
        assert world.states() == {1: "applied", 2: "applied", 3: "applied"}
        assert len(world.entries()) == 4
        assert len(set(world.schemas().values())) == 1
        assert len(world.hosts[NODE1].executed) == 4
        assert {row.state for row in summary.rows} == {CellState.DONE}
        assert len(summary.rows) == 4 * 2
        world.check()

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("last", [3, 1], ids=["one of several", "the only one"])
def test_a_rollback_of_the_last_that_is_run_again_undoes_no_other(tmp_path: Path, last: int) -> None:
    """As when all tasks of a DAG run are cleared: the run's id is the same."""

    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request(target=last))
        request = world.down()
        await drive(await world.runner(), request)
        left = dict.fromkeys(range(1, last), "applied") | {last: "rolled_back"}
        assert world.states() == left
        before = world.entries()
        assert (await make_plan(await world.runner(), request)).is_empty
        summary = await drive(await world.runner(), request)
        assert (summary.steps, world.states(), world.entries()) == ((), left, before)
        await drive(await world.runner(), world.down())  # another run is another wish
        assert world.states()[max(1, last - 1)] == "rolled_back"
        world.check()

    in_world(tmp_path, scenario)


def test_applying_again_sends_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        before = world.entries()
        summary = await drive(await world.runner(), world.request())
        assert (summary.state, summary.steps) == (RunState.DONE, ())
        assert world.entries() == before

    in_world(tmp_path, scenario)


def test_a_ledger_of_either_kind_goes_up_down_and_up_over_a_failure(tmp_path: Path, ledger_url: str) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.b (x"] = (241, "Memory limit exceeded")
        assert (await drive(await world.runner(), world.request())).state is RunState.FAILED
        world.hosts[NODE2].fails.clear()
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE
        assert (await drive(await world.runner(), world.down(target=ALL))).state is RunState.DONE
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert set(world.states().values()) == {"applied"}
        assert {row.state for row in world.ledger.rows("shop") if row.generation == 2} == {CellState.DONE}
        world.check()

    in_world(tmp_path, scenario, ledger=ledger_url)


def test_a_target_stops_the_run_after_its_version(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request(target=2))
        assert world.states() == {1: "applied", 2: "applied"}

    in_world(tmp_path, scenario)


def test_rolling_back_takes_the_last_migration_and_applying_it_again_is_a_new_submission(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        applied = world.schemas()
        await drive(await world.runner(), world.down())
        assert world.states() == {1: "applied", 2: "applied", 3: "rolled_back"}
        assert all("s.c" not in objects for objects in world.schemas().values())
        await drive(await world.runner(), world.request())
        assert world.schemas() == applied
        assert world.states()[3] == "applied"
        tokens = {row.token for row in world.ledger.rows("shop") if row.version == 3}
        assert len(tokens) == 3
        world.check()

    in_world(tmp_path, scenario)


def test_rolling_back_everything_runs_the_down_files_in_descending_order(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        await drive(await world.runner(), world.down(target=ALL))
        assert set(world.states().values()) == {"rolled_back"}
        downs = world.entries()[4:]
        assert [text.split()[0] for text in downs] == ["DROP", "ALTER", "DROP", "DROP"]
        assert all(not any(o.startswith("s.") for o in objects) for objects in world.schemas().values())

    in_world(tmp_path, scenario)


def test_a_target_of_a_rollback_stays_applied(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        await drive(await world.runner(), world.down(target=1))
        assert world.states() == {1: "applied", 2: "rolled_back", 3: "rolled_back"}

    in_world(tmp_path, scenario)


# --- hosts that are away ----------------------------------------------------------------------------------


def test_a_timeout_is_a_state_and_the_next_run_attaches_to_the_same_entry(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        # 1. node02 is off line. 2. The run waits its time and ends unfinished. 3. node02 comes back and
        # carries out what waits for it. 4. The next run finds it done, and sends only what was not sent.
        await world.start(without=frozenset({NODE2}))
        begun_s = world.env.monotonic_s()
        summary = await drive(await world.runner(), world.request())
        assert summary.state is RunState.UNFINISHED
        assert TIMEOUT_S <= world.env.monotonic_s() - begun_s < TIMEOUT_S + 5
        assert world.states() == {1: "running"}
        assert [row.state.value for row in summary.rows] == ["done", "inactive"] or [
            row.state.value for row in summary.rows
        ] == ["done", "waiting"]
        assert len(world.entries()) == 1
        await world.hosts[NODE2].start()
        summary = await drive(await world.runner(), world.request())
        assert summary.state is RunState.DONE
        assert len(world.entries()) == 4
        assert len(set(world.schemas().values())) == 1
        world.check()

    in_world(tmp_path, scenario)


def test_only_active_modes_go_on_without_a_host_that_is_away_and_the_ledger_shows_when_it_caught_up(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await world.hosts[NODE2].stop()
        request = world.request(output_mode=OutputMode.NONE_ONLY_ACTIVE)
        summary = await drive(await world.runner(), request)
        assert summary.state is RunState.PARTIAL
        assert len(world.entries()) == 4
        assert set(world.states().values()) == {"waiting"}
        waiting = {row.host for row in world.ledger.rows("shop") if row.state is CellState.INACTIVE}
        assert waiting == {NODE2}
        await world.hosts[NODE2].start()
        await world.env.sleep(1)
        await refresh(await world.runner(), world.request())
        assert set(world.states().values()) == {"applied"}
        assert {row.state for row in world.ledger.rows("shop")} == {CellState.DONE}
        assert len(set(world.schemas().values())) == 1
        world.check()

    in_world(tmp_path, scenario)


REPLICATED = {
    "1_table.up.sql": "CREATE TABLE s.r (x Int8) ENGINE = ReplicatedMergeTree ORDER BY x;\n"
    "CREATE TABLE s.p (x Int8) ENGINE = Memory;\n",
    "2_change.up.sql": "ALTER TABLE s.p ADD COLUMN y Int8;\nALTER TABLE s.r DELETE WHERE x = 1;\n"
    "ALTER TABLE s.r ADD COLUMN y Int8;\n",
}


def test_a_replicated_table_is_not_changed_while_a_host_that_is_away_has_still_to_make_it(
    tmp_path: Path,
) -> None:
    """It could not make it afterwards: ClickHouse refuses a replica with other columns."""

    async def scenario(world: World) -> None:
        await world.start()
        await world.hosts[NODE2].stop()
        request = world.request(output_mode=OutputMode.NONE_ONLY_ACTIVE)
        with pytest.raises(
            TableNotMade, match=r"2\.up statement 3 .* node02:9000 has still to make \(1\.up st"
        ):
            await drive(await world.runner(), request)
        assert len(world.entries()) == 4, "what changes no definition, and tables of each host's own, go on"
        assert world.states() == {1: "waiting", 2: "running"}
        assert world.ledger.runs("shop")[-1].state is RunState.UNFINISHED

        # It comes back. Nobody has looked since, and the next run looks before it refuses.
        await world.hosts[NODE2].start()
        await world.env.sleep(1)
        summary = await drive(await world.runner(), world.request(output_mode=OutputMode.NONE_ONLY_ACTIVE))
        assert summary.state is RunState.DONE
        assert len(world.entries()) == 5
        world.check()

    in_world(tmp_path, scenario, files=REPLICATED)


@pytest.mark.parametrize(("shards", "replicas", "timeout_s"), [(2, 1, None), (1, 2, 0)])
def test_it_is_changed_where_nobody_else_has_made_it_and_where_nothing_is_waited_for(
    tmp_path: Path, shards: int, replicas: int, timeout_s: int | None
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await world.hosts[NODE2].stop()
        more = {} if timeout_s is None else {"timeout_s": timeout_s}
        summary = await drive(
            await world.runner(), world.request(output_mode=OutputMode.NONE_ONLY_ACTIVE, **more)
        )
        assert summary.state is RunState.PARTIAL
        assert len(world.entries()) == 5

    in_world(tmp_path, scenario, files=REPLICATED, shards=shards, replicas=replicas)


def test_what_a_late_host_did_is_recorded_even_when_the_migration_was_rolled_back_meanwhile(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await world.hosts[NODE2].stop()
        patient = OutputMode.NONE_ONLY_ACTIVE
        await drive(await world.runner(), world.request(output_mode=patient))
        await drive(await world.runner(), world.down(output_mode=patient, target=ALL))
        await world.hosts[NODE2].start()
        await world.env.sleep(1)
        await refresh(await world.runner(), world.request())
        rows = world.ledger.rows("shop")
        assert len(rows) == 8 * 2
        assert {row.state for row in rows} == {CellState.DONE}
        assert set(world.states().values()) == {"rolled_back"}
        world.check()

    in_world(tmp_path, scenario)


def test_timeout_0_sends_everything_without_waiting(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE1, NODE2}))
        begun_s = world.env.monotonic_s()
        summary = await drive(await world.runner(), world.request(timeout_s=0))
        assert summary.state is RunState.PARTIAL
        assert world.env.monotonic_s() - begun_s < 5
        assert len(world.entries()) == 4

    in_world(tmp_path, scenario)


def test_a_negative_timeout_waits_for_ever(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        run = asyncio.create_task(drive(await world.runner(), world.request(timeout_s=-1)))
        await world.env.sleep(7 * 86_400)
        assert not run.done()
        await world.hosts[NODE2].start()
        assert (await run).state is RunState.DONE

    in_world(tmp_path, scenario)


def test_the_option_of_a_file_says_how_long_its_statements_are_waited_for(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        begun_s = world.env.monotonic_s()
        await drive(await world.runner(), world.request())
        assert 600 <= world.env.monotonic_s() - begun_s < 605

    files = {
        "1_a.up.sql": "-- oncluster: timeout=10m\nCREATE TABLE IF NOT EXISTS s.a (x Int8) ENGINE = Memory;"
    }
    in_world(tmp_path, scenario, files=files)


# --- hosts that fail --------------------------------------------------------------------------------------


def test_a_host_that_fails_stops_the_run_and_every_outcome_is_recorded(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.b"] = (241, "Memory limit exceeded")
        summary = await drive(await world.runner(), world.request())
        assert summary.state is RunState.FAILED
        assert "node02:9000" in summary.note
        assert world.states() == {1: "failed"}
        assert len(world.entries()) == 2
        failed = [row for row in summary.rows if row.state is CellState.FAILED]
        assert [(row.host, row.statement, row.code, row.error) for row in failed] == [
            (NODE2, 2, 241, "Memory limit exceeded")
        ]
        done = [row for row in summary.rows if row.state is CellState.DONE]
        assert len(done) == 3
        world.check()

    in_world(tmp_path, scenario)


def test_a_failed_migration_is_not_repeated_unless_asked_for(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.b"] = (241, "Memory limit exceeded")
        await drive(await world.runner(), world.request())
        with pytest.raises(MigrationRefused, match="retry-failed") as caught:
            await drive(await world.runner(), world.request())
        assert caught.value.code == 241
        assert len(world.entries()) == 2

    in_world(tmp_path, scenario)


def test_retrying_sends_what_failed_to_the_hosts_where_it_failed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.b"] = (241, "Memory limit exceeded")
        await drive(await world.runner(), world.request())
        world.hosts[NODE2].fails.clear()
        summary = await drive(await world.runner(), world.request(leniency=RETRY))
        assert summary.state is RunState.DONE
        assert world.states() == {1: "applied", 2: "applied", 3: "applied"}
        executed = [sum("s.b" in sql for sql in world.hosts[node].executed) for node in (NODE1, NODE2)]
        assert executed == [1, 1]
        attempts = {
            row.attempt for row in world.ledger.rows("shop") if row.statement == 2 and row.version == 1
        }
        assert attempts == {1, 2}
        assert len(set(world.schemas().values())) == 1
        world.check()

    in_world(tmp_path, scenario)


def test_a_statement_that_failed_everywhere_may_be_corrected_in_its_file(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        for host in world.hosts.values():
            host.fails["Intt8"] = (50, "Unknown type Intt8")
        await drive(await world.runner(), world.request())
        assert world.states() == {1: "applied", 2: "failed"}
        write(world.folder, {"2_column.up.sql": SHOP["2_column.up.sql"]})
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE
        world.check()

    broken = {"2_column.up.sql": "ALTER TABLE s.a ADD COLUMN IF NOT EXISTS y Intt8;"}
    in_world(tmp_path, scenario, files={**SHOP, **broken})


def test_a_statement_that_is_done_somewhere_may_not_change(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["ADD COLUMN"] = (241, "Memory limit exceeded")
        await drive(await world.runner(), world.request())
        write(world.folder, {"2_column.up.sql": "ALTER TABLE s.a ADD COLUMN IF NOT EXISTS z Int8;"})
        with pytest.raises(ChangedMigration):
            await drive(await world.runner(), world.request(leniency=RETRY))

    in_world(tmp_path, scenario)


def test_a_failed_migration_can_be_rolled_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.b (x"] = (241, "Memory limit exceeded")
        await drive(await world.runner(), world.request())
        summary = await drive(await world.runner(), world.down())
        assert summary.state is RunState.DONE
        assert world.states() == {1: "rolled_back"}
        assert set(world.schemas().values()) == {frozenset()}

    in_world(tmp_path, scenario)


def test_an_entry_that_was_cleaned_up_before_a_host_came_back_is_expired_and_can_be_sent_again(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        await drive(await world.runner(), world.request())
        keeper = await world.server.connect()
        entry = world.queue.paths.entry("query-0000000000")
        for path in sorted((p for p in world.server.tree.nodes if p.startswith(entry)), reverse=True):
            await keeper.remove(path)
        await world.hosts[NODE2].start()
        with pytest.raises(MigrationRefused, match="--retry-failed"):
            await refresh(await world.runner(), world.request())
            await drive(await world.runner(), world.request())
        assert world.states() == {1: "failed"}
        rows = world.ledger.rows("shop")
        assert {row.host: row.state for row in rows} == {NODE1: CellState.DONE, NODE2: CellState.EXPIRED}
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE
        assert len(set(world.schemas().values())) == 1
        assert sum("s.a (x" in sql for sql in world.hosts[NODE1].executed) == 1

    in_world(tmp_path, scenario)


# --- refusals ---------------------------------------------------------------------------------------------


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


# --- a person's word --------------------------------------------------------------------------------------


def test_a_migration_can_be_marked_with_a_reason_and_is_passed_over_then(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        with pytest.raises(MigrationRefused, match="reason"):
            await mark(runner, world.request(), 1, applied=True, reason=" ")
        record = await mark(runner, world.request(), 1, applied=True, reason="made by hand")
        assert (record.state.value, record.note) == ("marked", "made by hand")
        world.hosts[NODE1].objects.add("s.a")
        world.hosts[NODE2].objects.add("s.a")
        await drive(runner, world.request())
        assert world.states() == {1: "marked", 2: "applied", 3: "applied"}
        assert len(world.entries()) == 2

    in_world(tmp_path, scenario)


def test_marking_as_not_applied_makes_the_next_run_send_it_under_new_tokens(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        await mark(await world.runner(), world.request(), 3, applied=False, reason="dropped by hand")
        assert world.states()[3] == "rolled_back"
        await drive(await world.runner(), world.request())
        assert world.states()[3] == "applied"
        assert len(world.entries()) == 5

    in_world(tmp_path, scenario)


def test_a_migration_that_was_marked_in_the_middle_of_a_rollback_can_be_rolled_back_again(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        world.hosts[NODE2].fails["DROP TABLE IF EXISTS s.c"] = (241, "Memory limit exceeded")
        assert (await drive(await world.runner(), world.down())).state is RunState.FAILED
        await mark(await world.runner(), world.request(), 3, applied=True, reason="put back by hand")
        world.hosts[NODE2].fails.clear()
        assert (await drive(await world.runner(), world.down())).state is RunState.DONE
        assert world.states()[3] == "rolled_back"
        assert all("s.c" not in objects for objects in world.schemas().values())

    in_world(tmp_path, scenario)


def test_unlocking_takes_the_lock_from_a_holder_that_will_not_come_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        lost = await world.runner()
        run = await lost.begin(world.by_tasks(holder="a scheduler that is gone"))
        broken = await unlock(await world.runner(), world.request())
        assert broken is not None and broken.holder == "a scheduler that is gone"
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        with pytest.raises(Exception, match=r"lost the migration lock|taken over"):
            await lost.finish(run)
        assert await unlock(await world.runner(), world.request()) is None

    in_world(tmp_path, scenario)


# --- steps ------------------------------------------------------------------------------------------------


def test_a_statement_cannot_be_sent_before_those_in_front_of_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        run = await runner.begin(world.request())
        with pytest.raises(MigrationRefused, match="comes before it"):
            await runner.submit_statement(run, run.refs[1])
        assert world.entries() == []

    in_world(tmp_path, scenario)


def test_waiting_tells_each_change_as_it_is_recorded(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        gate = world.hosts[NODE2].hold["s.a"] = asyncio.Event()
        runner = await world.runner()
        run = await runner.begin(world.request())
        seen: list[Progress] = []
        await runner.submit_statement(run, run.refs[0])
        waiting = asyncio.create_task(runner.wait(run, run.refs[0], on_progress=seen.append))
        await world.env.sleep(5)
        rows = {row.host: row.state for row in world.ledger.rows("shop")}
        assert rows == {NODE1: CellState.DONE, NODE2: CellState.RUNNING}
        gate.set()
        assert (await waiting).verdict is Verdict.DONE
        assert [p.verdict for p in seen][-1] is Verdict.DONE
        assert {p.verdict for p in seen[:-1]} == {Verdict.WAIT}

    in_world(tmp_path, scenario)


def test_an_empty_down_file_rolls_back_by_recording_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        assert (await drive(await world.runner(), world.down())).state is RunState.DONE
        assert world.states()[3] == "rolled_back"
        assert len(world.entries()) == 4

    in_world(tmp_path, scenario, files={**SHOP, "3_more.down.sql": "-- nothing to undo\n"})


def test_secrets_reach_neither_the_ledger_nor_its_errors(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["CREATE USER"] = (1, "cannot parse IDENTIFIED BY 'hunter2'")
        await drive(await world.runner(), world.request())
        assert b"hunter2" not in Path(world.ledger_path).read_bytes()
        assert any("IDENTIFIED" in row.sql for row in world.ledger.rows("shop"))

    files = {"1_u.up.sql": "CREATE USER IF NOT EXISTS u IDENTIFIED BY 'hunter2';"}
    in_world(tmp_path, scenario, files=files)
