"""Plans with what can be found out by looking around, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.output import OutputMode
from engine.errors import NodeUnavailable
from engine.migrations.departed import departed
from engine.migrations.drive import drive
from engine.migrations.errors import MigrationFilesError
from engine.migrations.gather import make_plan
from engine.migrations.host_configuration import HostConfiguration
from engine.migrations.plan import Action, Plan, Presence, TableFacts
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import RunState
from engine.names import HostId, TableName
from tests.migrations.support import SHOP, World, in_world, write

NODE1, NODE2 = HostId("node01", 9000), HostId("node02", 9000)


class Probe:
    """One node answers, the other does not."""

    async def is_up(self, host: HostId) -> bool | None:
        return host == NODE1

    async def table(self, host: HostId, table: TableName) -> TableFacts | None:
        if host != NODE1:
            raise NodeUnavailable("refused")
        return TableFacts("MergeTree", 10, 1000)

    async def replicated_databases(self, host: HostId) -> frozenset[str]:
        if host != NODE1:
            raise NodeUnavailable("refused")
        return frozenset({"r"})

    async def configuration(self, host: HostId, cluster: str) -> HostConfiguration | None:
        return None


def presence(plan: Plan) -> dict[HostId, Presence]:
    return {host.host: host.presence for statement in plan.statements for host in statement.hosts}


def test_a_plan_changes_nothing_and_shows_who_is_away_and_what_waits(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        await world.hosts[NODE2].stop()
        await drive(await world.runner(), world.request(timeout_s=1))
        before = set(world.server.tree.nodes), world.ledger.rows("shop"), world.ledger.runs("shop")
        plan = await make_plan(await world.runner(), world.request())
        assert (set(world.server.tree.nodes), world.ledger.rows("shop"), world.ledger.runs("shop")) == before
        assert presence(plan) == {NODE1: Presence.ACTIVE, NODE2: Presence.INACTIVE}
        first = plan.statements[0].hosts
        assert [(h.action, h.state, h.backlog) for h in first] == [
            (Action.NOTHING, "done", 0),
            (Action.WAIT, "inactive", 1),
        ]
        assert all(h.action is Action.RUN for s in plan.statements[1:] for h in s.hosts)

    in_world(tmp_path, scenario)


def test_where_a_run_without_those_that_are_away_will_stop_is_noted(tmp_path: Path) -> None:
    files = {
        "1_t.up.sql": "CREATE TABLE s.r (x Int8) ENGINE = ReplicatedMergeTree ORDER BY x;\n"
        "ALTER TABLE s.r ADD COLUMN y Int8;\n"
    }

    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        active_only = world.request(output_mode=OutputMode.NONE_ONLY_ACTIVE)
        assert (await make_plan(runner, active_only)).notes == ()
        await world.hosts[NODE2].stop()
        assert (await make_plan(runner, world.request())).notes == ()
        (note,) = (await make_plan(runner, active_only)).notes
        assert note.startswith(
            "1.up statement 2 changes a replicated table that node02:9000 has still to make"
        )

    in_world(tmp_path, scenario, files=files)


def test_servers_that_do_not_say_whether_they_are_on_line_are_unknown_until_they_are_asked(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        plan = await make_plan(await world.runner(), world.request())
        assert set(presence(plan).values()) == {Presence.UNKNOWN}
        plan = await make_plan(await world.runner(), world.request(), probe=Probe())
        assert presence(plan) == {NODE1: Presence.ACTIVE, NODE2: Presence.INACTIVE}
        alter = next(s for s in plan.statements if "ALTER" in s.sql)
        assert [(h.rows, h.size_bytes) for h in alter.hosts] == [(10, 1000), (None, None)]

    in_world(tmp_path, scenario)


def test_hosts_are_asked_at_once_so_that_those_that_hang_are_waited_for_together(tmp_path: Path) -> None:
    hang_s = 10.0

    class Hanging(Probe):
        async def is_up(self, host: HostId) -> bool | None:
            await asyncio.sleep(hang_s)
            return False

        async def replicated_databases(self, host: HostId) -> frozenset[str]:
            await asyncio.sleep(hang_s)
            raise NodeUnavailable("no answer")

    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        began_s = world.env.monotonic_s()
        plan = await make_plan(runner, world.request(), probe=Hanging())
        assert world.env.monotonic_s() - began_s < 2 * hang_s
        assert set(presence(plan).values()) == {Presence.INACTIVE}

    in_world(tmp_path, scenario)


def test_hosts_that_are_configured_otherwise_are_noted_where_it_matters_to_a_statement(
    tmp_path: Path,
) -> None:
    files = {
        "1_t.up.sql": "CREATE DATABASE s;\n"
        "CREATE TABLE s.r (x Int8) ENGINE = ReplicatedMergeTree('/{layer}/r', '{replica}') ORDER BY x;\n"
        "CREATE TABLE s.d AS s.r ENGINE = Distributed('{cluster}', s, r, x);\n"
        "CREATE VIEW s.v AS SELECT '{no_macro}';\n"
        "CREATE TABLE s.p (x Int8) ENGINE = ReplicatedReplacingMergeTree(x) ORDER BY tuple()"
    }
    ours = {1: (NODE1, NODE2)}
    all_macros = {"layer": "1", "replica": "node02", "cluster": "shop"}
    node3 = HostId("node03", 9000)

    class Asked(Probe):
        def __init__(self, **differing: HostConfiguration) -> None:
            self.differing = differing

        async def is_up(self, host: HostId) -> bool | None:
            return True

        async def replicated_databases(self, host: HostId) -> frozenset[str]:
            return frozenset()

        async def configuration(self, host: HostId, cluster: str) -> HostConfiguration | None:
            assert cluster == "shop"
            return self.differing.get(
                host.host, HostConfiguration(ours, {**all_macros, "replica": host.host})
            )

    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()

        async def notes(**differing: HostConfiguration) -> tuple[str, ...]:
            return (await make_plan(runner, world.request(), probe=Asked(**differing))).notes

        assert await notes() == ()
        assert await notes(node02=HostConfiguration({1: (NODE2, NODE1)}, all_macros)) == ()
        assert await notes(node02=HostConfiguration({}, all_macros)) == (
            "node02:9000 does not know the cluster shop: it will refuse the statements (371).",
        )
        others = {1: (NODE1, node3)}
        one = HostConfiguration(others, {**all_macros, "replica": "node01"})
        (note,) = await notes(node01=one, node02=HostConfiguration(others, all_macros))
        assert note.startswith("By shop node01:9000 and node02:9000 mean other hosts than this configuration")
        assert note.endswith("shard 1 is node01:9000 + node03:9000 there and node01:9000 + node02:9000 here.")
        found = await notes(node02=HostConfiguration(ours, {"replica": "node02"}))
        assert [note.partition(":")[0] for note in found] == [
            "1.up statement 2 needs the macro 'layer', which node02",
            "1.up statement 3 needs the macro 'cluster', which node02",
        ]
        needs = ("/tables/{uuid}/{shard}", "{replica}")
        (note,) = await notes(node01=HostConfiguration(ours, one.macros, needs))
        assert note.startswith("1.up statement 5 needs the macro 'shard', which node01:9000 does not have")
        await drive(runner, world.request())
        assert await notes(node02=HostConfiguration({}, {})) == ()  # nothing is sent

    in_world(tmp_path, scenario, files=files)


def test_macros_that_put_replicas_elsewhere_than_the_cluster_says_are_noted_once(tmp_path: Path) -> None:
    engine = "ReplicatedMergeTree('/t/{shard}/{table}', '{replica}')"
    files = {
        "1_a.up.sql": f"CREATE TABLE s.t (x Int8) ENGINE = {engine} ORDER BY x;"
        "CREATE TABLE s.d (x Int8) ENGINE = ReplicatedMergeTree ORDER BY x",
        "2_b.up.sql": "CREATE TABLE s.u (x Int8) ENGINE = ReplicatedMergeTree('/t/u', '{host}') ORDER BY x",
        "3_c.up.sql": f"-- oncluster: cluster=one_shard\n"
        f"CREATE TABLE s.o (x Int8) ENGINE = {engine} ORDER BY x",
    }
    hosts = [HostId(f"node0{n}", 9000) for n in range(1, 5)]
    ours = {1: (hosts[0], hosts[1]), 2: (hosts[2], hosts[3])}
    sound = {
        host.host: {"shard": str(1 + n // 2), "replica": host.host, "host": host.host}
        for n, host in enumerate(hosts)
    }

    class Asked(Probe):
        def __init__(self, differing: Mapping[str, Mapping[str, str]]) -> None:
            self.macros = {host: {**macros, **differing.get(host, {})} for host, macros in sound.items()}

        async def is_up(self, host: HostId) -> bool | None:
            return True

        async def replicated_databases(self, host: HostId) -> frozenset[str]:
            return frozenset()

        async def configuration(self, host: HostId, cluster: str) -> HostConfiguration | None:
            return HostConfiguration(ours, self.macros[host.host], ("/default/{uuid}/{shard}", "{replica}"))

    async def scenario(world: World) -> None:
        await world.start()
        one_shard = Cluster("one_shard", (Shard(1, tuple(Replica(host.host, host.port) for host in hosts)),))
        world.topology = Topology({**world.topology.clusters, "one_shard": one_shard})
        runner = await world.runner()

        async def note(**differing: Mapping[str, str]) -> str:
            """The only one, but for what all have in common."""
            (found,) = (await make_plan(runner, world.request(), probe=Asked(differing))).notes
            assert found.startswith("By their macros, ")
            assert found.endswith(": 1.up statement 1 and 1 other statement.")
            return found.removeprefix("By their macros, ").partition(": 1.up")[0]

        assert (await make_plan(runner, world.request(), probe=Asked({}))).notes == ()
        assert await note(node02={"replica": "node01"}) == (
            "node01:9000 and node02:9000 are all the replica node01 of s.t at /t/1/t, which one of them "
            "makes and the others refuse (253)"
        )
        assert await note(node02={"shard": "3"}) == (
            "the replicas of shard 1 put s.t at different paths, /t/1/t on node01:9000, /t/3/t on "
            "node02:9000: they do not replicate each other, and what runs once for the shard "
            "reaches one of them"
        )
        assert await note(node03={"shard": "1"}, node04={"shard": "1"}) == (
            "shards 1 and 2 put s.t at one path, /t/1/t: each gets the rows of the others"
        )

    in_world(tmp_path, scenario, files=files, shards=2)


def test_what_forbids_a_run_is_a_problem_of_its_plan(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        await drive(runner, world.request())
        write(world.folder, {"1_tables.up.sql": SHOP["1_tables.up.sql"].replace("s.b", "s.bb")})
        plan = await make_plan(await world.runner(), world.request())
        assert [problem.rule for problem in plan.problems] == ["changed-file"]
        write(world.folder, {"1_tables.up.sql": "-- only a comment\n" + SHOP["1_tables.up.sql"]})
        plan = await make_plan(await world.runner(), world.request())
        assert plan.problems == ()
        assert any("comments or layout" in note for note in plan.notes)

    in_world(tmp_path, scenario)


def test_a_host_that_joined_later_is_named(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        runner = await world.runner()
        await drive(runner, world.request())
        cluster = world.topology.clusters["shop"]
        grown = Cluster("shop", (*cluster.shards, Shard(2, (Replica("node03", 9000),))))
        after: MigrationRunner = replace(runner, topology=Topology({"shop": grown}))
        plan = await make_plan(after, world.request())
        assert [note for note in plan.notes if "node03:9000 has none of the 3" in note]

    in_world(tmp_path, scenario)


def test_a_host_that_left_and_is_waited_for_is_named(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        summary = await drive(await world.runner(), world.request(timeout_s=1))
        assert summary.state is RunState.UNFINISHED
        smaller = Topology({"shop": Cluster("shop", (Shard(1, (Replica("node01", 9000),)),))})
        plan = await make_plan(replace(await world.runner(), topology=smaller), world.request())
        assert [note for note in plan.notes if "cleanup abandon node02:9000" in note], plan.notes
        assert not departed(summary.rows, world.topology)

    in_world(tmp_path, scenario)


def test_a_run_at_work_is_named(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        runner = await world.runner()
        await runner.begin(world.request(holder="alice"))
        plan = await make_plan(await world.runner(), world.request())
        assert any("alice" in note for note in plan.notes)

    in_world(tmp_path, scenario)


def test_a_run_whose_process_is_gone_is_not_at_work(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        runner = await world.runner()
        await runner.begin(world.request(holder="alice"))
        await runner.keeper.close()
        plan = await make_plan(await world.runner(), world.request())
        assert not any("alice" in note for note in plan.notes)

    in_world(tmp_path, scenario)


def test_a_database_that_hosts_say_is_replicated_forbids_the_run_before_anything_is_enqueued(
    tmp_path: Path,
) -> None:
    files = {
        "1_a.up.sql": "CREATE TABLE s.a (x Int8) ENGINE = Memory;\nCREATE TABLE s.b AS r.t;\n",
        "2_b.up.sql": "ALTER TABLE r.t ADD COLUMN y Int8;\n",
        "3_c.up.sql": "-- oncluster-next: database=r\nCREATE TABLE t2 (x Int8) ENGINE = Memory;\n",
        "4_c.up.sql": '-- oncluster-next: allow=replicated-database reason="one shard"\n'
        "ALTER TABLE r.t UPDATE y = 1 WHERE 1;\n",
        "5_d.up.sql": "DROP DATABASE r;\nCREATE DATABASE r;\nCREATE TABLE r.t (x Int8) ENGINE = Memory;\n",
    }

    async def scenario(world: World) -> None:
        await world.start()
        plan = await make_plan(await world.runner(), world.request(), probe=Probe())
        assert [(Path(p.path).name, p.line, p.rule, p.code) for p in plan.problems] == [
            ("2_b.up.sql", 1, "replicated-database", 80),
            ("3_c.up.sql", 2, "replicated-database", 80),
        ]
        assert "without ON CLUSTER" in plan.problems[0].message
        assert any(note.startswith("node02:9000 does not say") for note in plan.notes)
        with pytest.raises(MigrationFilesError, match="r is a Replicated database") as caught:
            await drive(replace(await world.runner(), probe=Probe()), world.request())
        assert caught.value.code == 80 and len(caught.value.problems) == 2
        assert world.entries() == [] and world.ledger.runs("shop") == []
        assert await lock_is_free(world)

    in_world(tmp_path, scenario, files=files)


async def lock_is_free(world: World) -> bool:
    """Another run, which leaves these statements out, begins."""
    runner = replace(await world.runner(client="other"), probe=Probe())
    return (await drive(runner, world.request(target=1))).state is RunState.DONE


def test_a_replicated_database_that_the_run_itself_makes_forbids_what_comes_after_it(tmp_path: Path) -> None:
    files = {
        "1_a.up.sql": "CREATE TABLE r.before (x Int8) ENGINE = Memory;\n"
        "DROP DATABASE r;\n"
        "CREATE DATABASE r ENGINE = Replicated('/r', '{shard}', '{replica}');\n"
        "CREATE TABLE r.behind (x Int8) ENGINE = Memory;\n",
    }

    async def scenario(world: World) -> None:
        await world.start()
        plan = await make_plan(await world.runner(), world.request())
        assert [problem.line for problem in plan.problems] == [4]
        with pytest.raises(MigrationFilesError, match="r is a Replicated database"):
            await drive(await world.runner(), world.request())
        assert world.entries() == []

    in_world(tmp_path, scenario, files=files)
