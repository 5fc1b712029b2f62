"""A folder that golang-migrate would run is judged, planned, rehearsed, applied and rolled back as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.model import DistributedDdl
from engine.env import SystemEnv
from engine.migrations.drive import drive
from engine.migrations.errors import ChangedMigration, MigrationRefused
from engine.migrations.files import load_folder, read_folder
from engine.migrations.gather import make_plan
from engine.migrations.lint import lint
from engine.migrations.model import RunRequest
from engine.migrations.rehearse import rehearse
from engine.migrations.selection import ALL
from engine.migrations.statements import Surroundings
from engine.migrations.states import RunState
from engine.storage.scratch import ScratchChdb
from tests.migrations.support import World, in_world, topology, write

FOLDER = {
    "1_init.up.sql": "CREATE TABLE t ON CLUSTER '{cluster}' (a String) ENGINE = Memory;\r\n"
    "-- a comment; with a semicolon\r\n"
    "ALTER TABLE t ON CLUSTER '{cluster}' ADD COLUMN b String;\r\n",
    "1_init.down.sql": "",
    "002_no_down.up.sql": "CREATE VIEW v AS SELECT $x$ a ; b $x$, 'c;d' FROM t;",
    "3_no_up.down.sql": "DROP VIEW v;",
    "1481574547_by_timestamp.up.sql": "/* ; */ CREATE TABLE u (a UInt8) ENGINE = Memory ;;\n;",
    "1481574547_by_timestamp.down.sql": "DROP TABLE u",
    "README.md": "How to migrate",
}
SENT = (
    "CREATE TABLE default.t (a String) ENGINE = Memory",
    "ALTER TABLE default.t ADD COLUMN b String",
    "CREATE VIEW default.v AS SELECT $x$ a ; b $x$, 'c;d' FROM default.t",
    "CREATE TABLE default.u (a UInt8) ENGINE = Memory",
)


def surroundings(world: World) -> Surroundings:
    return Surroundings("shop", world.topology, world.queue)


def test_it_is_planned_and_applied_unchanged_in_the_order_of_its_versions(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        migrations, problems = read_folder(world.folder)
        report = await lint(migrations, problems, surroundings(world))
        assert report.errors == ()
        assert "missing-up" in {f.rule for f in report.warnings if f.path.endswith("3_no_up.down.sql")}

        plan = await make_plan(await world.runner(), world.request())
        assert plan.problems == ()
        assert plan.notes == ("3_no_up has no up file: nothing is sent for it.",)
        assert [(m.version, len(m.statements)) for m in plan.migrations] == [
            (1, 2),
            (2, 1),
            (3, 0),
            (1481574547, 1),
        ]

        summary = await drive(await world.runner(), world.request())
        assert summary.state is RunState.DONE
        assert world.states() == dict.fromkeys((1, 2, 3, 1481574547), "applied")
        assert len(world.entries()) == len(SENT)
        for host in world.hosts.values():
            assert [" ".join(sql.split()).rstrip("; ") for sql in host.executed] == list(SENT)
        world.check()
        again = await make_plan(await world.runner(), world.request())
        assert (again.migrations, again.problems) == ((), ())

    in_world(tmp_path, scenario, files=FOLDER)


def test_a_down_file_without_an_up_file_is_run_on_the_way_down(tmp_path: Path) -> None:
    """1. Everything is applied. 2. Down to version 2: the timestamp's table goes, then what 3 says."""

    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        summary = await drive(await world.runner(), world.down(target=2))
        assert summary.state is RunState.DONE
        assert world.states() == {1: "applied", 2: "applied", 3: "rolled_back", 1481574547: "rolled_back"}
        for host in world.hosts.values():
            down = [sql.split() for sql in host.executed[len(SENT) :]]
            assert [words[:3] for words in down] == [
                ["DROP", "TABLE", "default.u"],
                ["DROP", "VIEW", "default.v"],
            ]
        with pytest.raises(MigrationRefused, match="2_no_down cannot be rolled back"):
            await drive(await world.runner(), world.down(target=ALL))

    in_world(tmp_path, scenario, files=FOLDER)


def test_an_up_file_that_is_written_after_a_run_has_passed_its_version_is_a_change(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request())
        sent = world.entries()
        write(world.folder, {"3_no_up.up.sql": "CREATE TABLE w (a UInt8) ENGINE = Memory"})
        with pytest.raises(ChangedMigration, match=r"3_no_up\.up\.sql"):
            await drive(await world.runner(), world.request())
        assert world.entries() == sent

    in_world(tmp_path, scenario, files=FOLDER)


def test_a_counter_that_jumps_to_a_version_without_an_up_file_is_a_gap_unless_that_file_says_why(
    tmp_path: Path,
) -> None:
    down = {"9_no_up.down.sql": "DROP VIEW IF EXISTS v"}

    async def scenario(world: World) -> None:
        await world.start()
        with pytest.raises(MigrationRefused, match="3 → 9"):
            await drive(await world.runner(), world.request())
        write(
            world.folder,
            {name: f'-- oncluster: allow=version-gap reason="x"\n{sql}' for name, sql in down.items()},
        )
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert world.states()[9] == "applied"

    in_world(tmp_path, scenario, files=FOLDER | down)


@pytest.mark.slow
async def test_it_passes_its_rehearsal_and_the_real_parser(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", FOLDER)
    migrations, problems = read_folder(folder)
    where = Surroundings("shop", topology(name="shop"), DistributedDdl())
    async with ScratchChdb() as scratch:
        report = await lint(migrations, problems, where, validator=scratch.validate)
        found = await rehearse(load_folder(folder), where, RunRequest("r"), scratch, env=SystemEnv())
    assert report.errors == ()
    assert found.is_ok, (found.failures, found.differences)
    assert {statement.version for statement in found.statements} == {1, 2, 1481574547}
