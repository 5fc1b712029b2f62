"""Runs of migrations from begin to end, and their single steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.migrations import ledger
from engine.migrations.drive import Silent, drive
from engine.migrations.errors import (
    MigrationRefused,
)
from engine.migrations.files import Direction
from engine.migrations.gather import make_plan
from engine.migrations.model import Progress
from engine.migrations.selection import ALL, Leniency
from engine.migrations.states import CellState, Event, LedgerRow, MigrationState, RunState
from engine.migrations.upkeep import refresh
from engine.migrations.verdict import Verdict
from engine.names import HostId
from tests.migrations.support import SHOP, World, in_world

pytestmark = pytest.mark.slow

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


def test_a_run_reads_of_a_long_migration_what_it_needs_for_each_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(*args: Any) -> list[LedgerRow]:
        nonlocal read
        found = original(*args)
        read += len(found)
        return found

    original = ledger._rows
    monkeypatch.setattr(ledger, "_rows", counted)

    def read_by(statements: int) -> int:
        nonlocal read
        read = 0
        tables = ";".join(
            f"CREATE TABLE IF NOT EXISTS t{n} (a UInt8) ENGINE = Log" for n in range(statements)
        )

        async def scenario(world: World) -> None:
            await world.start()
            assert (await drive(await world.runner(), world.request())).state is RunState.DONE

        in_world(tmp_path / str(statements), scenario, files={"1_a.up.sql": tables})
        return read

    assert read_by(20) < 3 * read_by(10)


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


def test_a_run_that_is_interrupted_is_no_longer_running(tmp_path: Path) -> None:
    """The next one attaches to what it sent."""

    async def scenario(world: World) -> None:
        await world.start()
        gate = world.hosts[NODE2].hold["s.a"] = asyncio.Event()
        runner = await world.runner()
        driven = asyncio.create_task(drive(runner, world.request()))
        while not world.entries():
            await world.env.sleep(1)
        driven.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driven
        await runner.keeper.close()
        (left,) = world.ledger.runs("shop")
        assert (left.state, left.note) == (RunState.UNFINISHED, "interrupted")
        gate.set()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        world.check()

    in_world(tmp_path, scenario)


class _Unread(Silent):
    """As a console is whose output goes into `head -n 1`."""

    def on_statement(self, progress: Progress) -> None:
        raise BrokenPipeError


def test_a_run_that_nobody_reads_any_more_is_no_longer_running(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        with pytest.raises(BrokenPipeError):
            await drive(runner, world.request(), listener=_Unread())
        (left,) = world.ledger.runs("shop")
        assert (left.state, left.note) == (RunState.UNFINISHED, "interrupted")
        await runner.keeper.close()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        world.check()

    in_world(tmp_path, scenario)


def test_a_clock_that_is_set_back_does_not_turn_the_order_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request(target=1))
        monkeypatch.setattr(world.env, "now_s", lambda: 0.0)
        await drive(await world.runner(), world.request())
        assert [run.run_id for run in world.ledger.runs("shop")] == ["run-1", "run-2"]

    in_world(tmp_path, scenario)


def test_a_run_whose_lock_went_to_another_is_no_longer_running(tmp_path: Path) -> None:
    """It died before it could say how it ended."""

    async def scenario(world: World) -> None:
        await world.start()
        dying = await world.runner(client="dying")
        await dying.begin(world.request())
        assert [run.state for run in world.ledger.runs("shop")] == [RunState.RUNNING]
        await dying.keeper.close()
        await drive(await world.runner(), world.request())
        left, done = world.ledger.runs("shop")
        assert (left.state, done.state) == (RunState.UNFINISHED, RunState.DONE)
        assert "lost its lock" in left.note

    in_world(tmp_path, scenario)


def test_an_empty_down_file_rolls_back_by_recording_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        assert (await drive(await world.runner(), world.down())).state is RunState.DONE
        assert world.states()[3] == "rolled_back"
        assert len(world.entries()) == 4

    in_world(tmp_path, scenario, files={**SHOP, "3_more.down.sql": "-- nothing to undo\n"})


def test_a_migration_without_statements_waits_for_its_turn(tmp_path: Path) -> None:
    """Where each step is a process of its own, the last one records whatever is complete."""

    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        world.hosts[NODE2].fails["DROP TABLE IF EXISTS s.c"] = (241, "Memory limit exceeded")
        runner = await world.runner()
        run = await runner.begin(world.by_tasks(direction=Direction.DOWN, target=ALL))
        await runner.submit_statement(run, run.refs[0])
        assert (await runner.wait(run, run.refs[0])).verdict is Verdict.FAILED
        for step in run.steps:
            await runner.finish_migration(run, step.version)
        assert (await runner.finish(run)).state is RunState.FAILED
        assert world.states() == {1: "applied", 2: "applied", 3: "failed"}

    in_world(tmp_path, scenario, files={**SHOP, "2_column.down.sql": "-- nothing to undo\n"})


def test_a_migration_without_statements_is_recorded_as_the_run_passes_it(tmp_path: Path) -> None:
    """Where nobody waits, one before it may fail when the run is past it: it leaves no hole for that."""

    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.b"] = (241, "Memory limit exceeded")
        gate = world.hosts[NODE2].hold["s.a"] = asyncio.Event()
        runner = await world.runner()
        run = await runner.begin(world.by_tasks(timeout_s=0))
        for ref in run.refs:
            await runner.submit_statement(run, ref)
        gate.set()
        await world.env.sleep(1)
        for ref in run.refs:
            await runner.collect(run, ref)
        for step in run.steps:
            await runner.finish_migration(run, step.version)
        assert world.states() == {1: "failed", 2: "applied", 3: "applied"}
        world.hosts[NODE2].fails.clear()
        await runner.finish(run)
        assert (await drive(runner, world.request(leniency=RETRY))).state is RunState.DONE

    in_world(tmp_path, scenario, files={**SHOP, "2_column.up.sql": "-- nothing yet\n"})


def test_a_migration_without_statements_whose_run_died_at_it_is_completed_by_looking(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        await drive(runner, world.request(target=1))
        run = await runner.begin(world.request(target=2))
        assert run.lease is not None
        # Between its beginning and its end, which are two transactions.
        writer = runner.locked.writer(run.request.run_id, run.lease)
        (step,) = run.steps
        script = runner.migrations.script(2, Direction.UP)
        assert script is not None
        writer.record_step(Event.STARTED, step, script.checksum, "tester")
        await runner.abandon(run)
        assert world.states() == {1: "applied", 2: "running"}
        (record,) = await refresh(await world.runner(), world.request())
        assert (record.version, record.state) == (2, MigrationState.APPLIED)
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert world.states() == {1: "applied", 2: "applied", 3: "applied"}

    in_world(tmp_path, scenario, files={**SHOP, "2_column.up.sql": "-- nothing yet\n"})


def test_secrets_reach_neither_the_ledger_nor_its_errors(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["CREATE USER"] = (1, "cannot parse IDENTIFIED BY 'hunter2'")
        await drive(await world.runner(), world.request())
        assert b"hunter2" not in Path(world.ledger_path).read_bytes()
        assert any("IDENTIFIED" in row.sql for row in world.ledger.rows("shop"))

    files = {"1_u.up.sql": "CREATE USER IF NOT EXISTS u IDENTIFIED BY 'hunter2';"}
    in_world(tmp_path, scenario, files=files)


def test_the_ledger_has_the_database_that_is_meant_where_a_statement_names_none(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        texts = {row.statement: row.sql for row in world.ledger.rows("shop")}
        assert list(texts.values()) == [
            "CREATE TABLE sales.t (x Int8) ENGINE = Memory",
            "CREATE TABLE default.u (x Int8) ENGINE = Memory",
        ]

    files = {
        "1_a.up.sql": "-- oncluster-next: database=sales\nCREATE TABLE t (x Int8) ENGINE = Memory;\n"
        "CREATE TABLE u (x Int8) ENGINE = Memory;\n"
    }
    in_world(tmp_path, scenario, files=files)
