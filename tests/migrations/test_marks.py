"""A person's word in the ledger: what was applied, or undone, by other hands than these."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.migrations.drive import drive
from engine.migrations.errors import MigrationRefused
from engine.migrations.states import RunState
from engine.migrations.upkeep import mark, mark_up_to
from engine.names import HostId
from tests.migrations.support import World, in_world

pytestmark = pytest.mark.slow

NODE1, NODE2 = HostId("node01", 9000), HostId("node02", 9000)


def test_what_another_tool_has_applied_is_marked_in_one_step(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        with pytest.raises(MigrationRefused, match="no version 4"):
            await mark_up_to(runner, world.request(), 4, reason="by golang-migrate")
        found = await mark_up_to(runner, world.request(), 2, reason="by golang-migrate")
        assert [(record.version, record.note) for record in found] == [
            (1, "by golang-migrate"),
            (2, "by golang-migrate"),
        ]
        assert await mark_up_to(runner, world.request(), 2, reason="by golang-migrate") == []
        for host in world.hosts.values():
            host.objects |= {"s.a", "s.b"}
        await drive(runner, world.request())
        assert world.states() == {1: "marked", 2: "marked", 3: "applied"}

    in_world(tmp_path, scenario)


def test_what_was_begun_here_is_not_marked_together_with_others(tmp_path: Path) -> None:
    """Of it the ledger knows more than that another tool has applied it."""

    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        await drive(runner, world.request(target=1))
        await mark(runner, world.request(), 1, applied=False, reason="dropped by hand")
        with pytest.raises(MigrationRefused, match="Version 1 is rolled_back") as refused:
            await mark_up_to(runner, world.request(), 3, reason="by golang-migrate")
        assert "mark 1 applied" in refused.value.hint
        assert world.states() == {1: "rolled_back"}

    in_world(tmp_path, scenario)


def test_a_migration_whose_files_are_gone_for_good_can_be_marked_as_not_applied(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        (world.folder / "3_more.up.sql").unlink()
        (world.folder / "3_more.down.sql").unlink()
        for version, applied in ((3, True), (4, False)):
            with pytest.raises(MigrationRefused, match=f"no version {version}"):
                await mark(await world.runner(), world.request(), version, applied=applied, reason="x")
        await mark(await world.runner(), world.request(), 3, applied=False, reason="squashed into 2")
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert world.states()[3] == "rolled_back"

    in_world(tmp_path, scenario)


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


def test_what_is_so_already_is_not_marked_and_the_proof_of_its_hosts_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        await drive(runner, world.request(target=1))
        for version, applied, state in ((1, True, "applied"), (2, False, "pending")):
            with pytest.raises(MigrationRefused, match=f"is {state} already"):
                await mark(runner, world.request(), version, applied=applied, reason="to be sure")
        with pytest.raises(MigrationRefused, match="reason"):
            await mark_up_to(runner, world.request(), 3, reason=" ")
        assert world.states() == {1: "applied"}

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
