"""Runs of migrations while hosts are away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.abandonment import Abandonment, abandon
from engine.ddl.cleaner import REPLICA_MAX_INACTIVE_S, DDLCleaner
from engine.ddl.client import DDLQueueClient
from engine.ddl.initiator import PreparedStatement
from engine.ddl.output import OutputMode
from engine.migrations.drive import drive
from engine.migrations.errors import (
    TableNotMade,
)
from engine.migrations.gather import make_plan
from engine.migrations.plan import Presence
from engine.migrations.selection import ALL
from engine.migrations.states import CellState, MigrationState, RunState
from engine.migrations.upkeep import mark, refresh
from engine.names import HostId
from tests.migrations.support import TIMEOUT_S, World, in_world

pytestmark = pytest.mark.slow

NODE1, NODE2 = HostId("node01", 9000), HostId("node02", 9000)


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


@pytest.mark.parametrize("absence", ["never seen", "away for more than a day"])
def test_only_active_modes_go_on_at_once_without_a_host_of_which_keeper_has_nothing(
    tmp_path: Path, absence: str
) -> None:
    """After a day the cleaner removes `replicas/<host>`, and the next submission makes it anew, unused."""

    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}) if absence == "never seen" else frozenset())
        if absence != "never seen":
            await world.hosts[NODE2].stop()
            await world.env.sleep(REPLICA_MAX_INACTIVE_S + 60)
            report = await DDLCleaner(
                await world.server.connect(client="cleaner"), world.env, world.queue
            ).clean()
            assert report.stale_replicas == (str(NODE2),)
        plan = await make_plan(await world.runner(), world.request())
        assert {host.presence for host in plan.statements[0].hosts if host.host == NODE2} == {
            Presence.INACTIVE
        }
        begun_s = world.env.monotonic_s()
        request = world.request(output_mode=OutputMode.NONE_ONLY_ACTIVE)
        summary = await drive(await world.runner(), request)
        assert summary.state is RunState.PARTIAL
        assert len(world.entries()) == 4
        assert world.env.monotonic_s() - begun_s < TIMEOUT_S
        await world.hosts[NODE2].start()
        await world.env.sleep(1)
        assert (await drive(await world.runner(), request)).state is RunState.DONE
        assert len(set(world.schemas().values())) == 1
        world.check()

    in_world(tmp_path, scenario)


def test_a_host_that_leaves_the_cluster_before_a_recorded_statement_is_sent_is_missed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The attempt is recorded for both hosts, and the run dies. 2. node02 leaves the configuration.
    3. The next run sends what was recorded: node02 is inactive, and the run goes on or ends as its mode says.
    """

    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))

        async def die(self: DDLQueueClient, prepared: PreparedStatement) -> None:
            raise asyncio.CancelledError

        dying = await world.runner()
        with monkeypatch.context() as patched:
            patched.setattr(DDLQueueClient, "submit", die)
            with pytest.raises(asyncio.CancelledError):
                await drive(dying, world.request(run_id="dies"))
        assert {row.state for row in world.ledger.rows("shop")} == {CellState.RECORDED}
        assert world.entries() == []
        await dying.keeper.close()

        smaller = Topology({"shop": Cluster("shop", (Shard(1, (Replica("node01", 9000),)),))})
        runner = replace(await world.runner(), topology=smaller)
        summary = await drive(runner, world.request(target=1, output_mode=OutputMode.NONE_ONLY_ACTIVE))
        assert summary.state is RunState.PARTIAL
        states = {(row.statement, row.host): row.state for row in summary.rows}
        assert states == {
            (1, NODE1): CellState.DONE,
            (1, NODE2): CellState.INACTIVE,
            (2, NODE1): CellState.DONE,
        }
        said = Abandonment("ada", "taken out", 0)
        keeper = await world.server.connect()
        await abandon(keeper, world.queue.paths, "query-0000000000", NODE2, said)
        await refresh(runner, world.request())
        assert world.states() == {1: "failed"}
        record = await mark(runner, world.request(), 1, applied=True, reason="node02 was taken out")
        assert record.state is MigrationState.MARKED

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


def test_what_a_late_host_did_completes_a_migration_whose_files_are_gone(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        request = world.request(target=1, output_mode=OutputMode.NONE_ONLY_ACTIVE)
        await drive(await world.runner(), request)
        assert world.states() == {1: "waiting"}
        for file in world.folder.glob("1_*"):
            file.unlink()
        await world.hosts[NODE2].start()
        await world.env.sleep(5)
        (record,) = await refresh(await world.runner(), world.request())
        assert (record.state, record.statements) == (MigrationState.APPLIED, 2)
        assert record.file_checksum == record.rows[0].file_checksum

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


def test_a_run_that_does_not_wait_sees_who_has_come_back_since(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        # 1. Everything is sent while node02 is away. 2. It comes back and does it. 3. The same again ends it.
        await world.start(without=frozenset({NODE2}))
        request = world.request(timeout_s=0)
        assert (await drive(await world.runner(), request)).state is RunState.PARTIAL
        await world.hosts[NODE2].start()
        await world.env.sleep(1)
        assert (await drive(await world.runner(), request)).state is RunState.DONE
        assert set(world.states().values()) == {"applied"}
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
