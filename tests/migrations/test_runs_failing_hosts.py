"""Runs of migrations of which statements fail on hosts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.abandonment import Abandonment, abandon
from engine.ddl.cleaner import DDLCleaner
from engine.ddl.client import DDLQueueClient
from engine.ddl.initiator import prepare
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import correct_outcome_record, read_outcome_record
from engine.migrations.drive import drive
from engine.migrations.errors import (
    ChangedMigration,
    MigrationRefused,
)
from engine.migrations.gather import make_plan
from engine.migrations.plan import Action
from engine.migrations.selection import Leniency
from engine.migrations.states import CellState, MigrationState, RunState
from engine.migrations.upkeep import mark_done, refresh
from engine.names import HostId
from tests.migrations.support import SHOP, World, in_world, write

pytestmark = pytest.mark.slow

NODE1, NODE2 = HostId("node01", 9000), HostId("node02", 9000)
RETRY = Leniency(retry_failed=True)


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


@pytest.mark.parametrize("kept", [SHOP["2_column.up.sql"], ""], ids=["the last one", "the only one"])
def test_a_statement_that_failed_everywhere_may_be_removed_from_its_file(tmp_path: Path, kept: str) -> None:
    """What is left is applied and does not forbid runs up or down; what was applied must stay as it is."""

    async def scenario(world: World) -> None:
        await world.start()
        for host in world.hosts.values():
            host.fails["Intt8"] = (50, "Unknown type Intt8")
        await drive(await world.runner(), world.request())
        assert world.states() == {1: "applied", 2: "failed"}
        write(world.folder, {"2_column.up.sql": kept})
        summary = await drive(await world.runner(), world.request(leniency=RETRY))
        assert summary.state is RunState.DONE
        # What was taken out is no failure of the migration that is applied without it.
        assert {row.state for row in summary.rows} == {CellState.DONE}
        shown = [row for record in world.ledger.records(world.cluster).values() for row in record.rows]
        assert {row.state for row in shown} == {CellState.DONE}
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        write(world.folder, {"2_column.up.sql": kept + "ALTER TABLE s.a ADD COLUMN z Intt8;"})
        with pytest.raises(ChangedMigration, match="was added after it was applied"):
            await drive(await world.runner(), world.request())
        write(world.folder, {"2_column.up.sql": kept})
        assert (await drive(await world.runner(), world.down(target=1))).state is RunState.DONE
        assert world.states() == {1: "applied", 2: "rolled_back", 3: "rolled_back"}
        world.check()

    broken = {"2_column.up.sql": kept + "ALTER TABLE s.a ADD COLUMN z Intt8;"}
    in_world(tmp_path, scenario, files={**SHOP, **broken})


def test_a_corrected_file_that_has_more_statements_is_applied_when_all_of_them_are(tmp_path: Path) -> None:
    """1. The only statement fails on every host. 2. The file is corrected and has two. 3. The first is done
    by a host that came late, and seen by whoever looks then: the second was not sent."""

    async def scenario(world: World) -> None:
        await world.start()
        for host in world.hosts.values():
            host.fails["Intt8"] = (50, "Unknown type Intt8")
        await drive(await world.runner(), world.request(target=2))
        second = "ALTER TABLE s.a ADD COLUMN IF NOT EXISTS z Int8;\n"
        write(world.folder, {"2_column.up.sql": SHOP["2_column.up.sql"] + second})
        await world.hosts[NODE2].stop()
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.UNFINISHED
        await world.hosts[NODE2].start()
        await world.env.sleep(1)
        await refresh(await world.runner(), world.request())
        assert world.states() == {1: "applied", 2: "running"}
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert all(any("z Int8" in sql for sql in host.executed) for host in world.hosts.values())
        world.check()

    broken = {"2_column.up.sql": "ALTER TABLE s.a ADD COLUMN IF NOT EXISTS y Intt8;"}
    in_world(tmp_path, scenario, files={**SHOP, **broken})


def test_a_statement_that_is_done_somewhere_may_not_change(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["ADD COLUMN"] = (241, "Memory limit exceeded")
        await drive(await world.runner(), world.request())
        write(world.folder, {"2_column.up.sql": "ALTER TABLE s.a ADD COLUMN IF NOT EXISTS z Int8;"})
        with pytest.raises(ChangedMigration, match="failed on every host, and it is done on node01:9000"):
            await drive(await world.runner(), world.request(leniency=RETRY))

    in_world(tmp_path, scenario)


def test_a_retry_for_a_host_that_has_left_the_cluster_says_so_and_sends_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.c"] = (241, "Memory limit exceeded")
        await drive(await world.runner(), world.request())
        smaller = Topology({"shop": Cluster("shop", (Shard(1, (Replica("node01", 9000),)),))})
        sent = world.entries()
        with pytest.raises(MigrationRefused, match="node02:9000") as caught:
            await drive(replace(await world.runner(), topology=smaller), world.request(leniency=RETRY))
        assert "migrate mark 3 applied" in caught.value.hint
        assert world.entries() == sent

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


def test_an_entry_that_is_gone_without_a_record_is_unknown_and_can_be_sent_again_where_it_would_show(
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
        assert {row.host: row.state for row in rows} == {NODE1: CellState.DONE, NODE2: CellState.UNKNOWN}
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE
        assert len(set(world.schemas().values())) == 1
        assert sum("s.a (x" in sql for sql in world.hosts[NODE1].executed) == 1

    in_world(tmp_path, scenario)


def test_what_another_replica_did_for_the_shard_is_not_repeated_for_a_host_that_never_answered(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        update = "ALTER TABLE s.a UPDATE x = x + 1 WHERE 1"
        write(world.folder, {"4_more.up.sql": f"{update};\nCREATE TABLE s.w (x Int8) ENGINE = Memory;"})
        await world.hosts[NODE2].stop()
        await drive(await world.runner(), world.request(timeout_s=1))
        keeper = await world.server.connect()
        last = world.queue.paths.entry(f"query-{len(world.entries()) - 1:010}")
        for path in sorted((p for p in world.server.tree.nodes if p.startswith(last)), reverse=True):
            await keeper.remove(path)
        await world.hosts[NODE2].start()
        await refresh(await world.runner(), world.request())
        before = {node: list(world.hosts[node].executed) for node in (NODE1, NODE2)}
        plan = await make_plan(await world.runner(), world.request(leniency=RETRY))
        with pytest.raises(MigrationRefused, match="on node01:9000 of the same shard") as refused:
            await drive(await world.runner(), world.request(leniency=RETRY))
        assert "migrate mark 4 done --statement 1 --host node02:9000" in refused.value.hint
        assert plan.notes == (
            f"4.up statement 1 will not be sent again, and the run stops before it: {refused.value}",
        )
        assert {node: world.hosts[node].executed for node in (NODE1, NODE2)} == before
        # A person looks, and vouches for it: the run goes on behind it, and sends nothing a second time.
        runner, request = await world.runner(), world.request()
        with pytest.raises(MigrationRefused, match="statement 1 is done"):
            await mark_done(runner, request, 4, host=NODE1, reason="it has")
        with pytest.raises(MigrationRefused, match="nothing was sent to it"):
            await mark_done(runner, request, 4, host=NODE2, statement=2, reason="it has")
        with pytest.raises(MigrationRefused, match="needs a reason"):
            await mark_done(runner, request, 4, host=NODE2, reason=" ")
        record = await mark_done(runner, request, 4, host=NODE2, reason="it has the part of node01")
        assert record.state is MigrationState.RUNNING
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert world.states()[4] == "applied"
        rows = world.ledger.records("shop")[4].rows
        [row] = [r for r in rows if (r.statement, r.host) == (1, NODE2)]
        assert row.error == f"declared done by {request.requested_by}: it has the part of node01"
        for node in (NODE1, NODE2):
            assert len(world.hosts[node].executed) == len(before[node]) + 1
            assert "s.w" in world.hosts[node].executed[-1]

    in_world(tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (341, "Outcome unknown: node02:9000 began this ALTER TABLE and ended before it recorded how it went"),
        (341, "This entry was not begun in its turn"),
        (341, "Cannot execute replicated DDL query, maximum retries exceeded"),
        (159, "Cannot execute replicated DDL query, timeout exceeded"),
        (48, "Cannot execute replicated DDL query on leader"),  # of ClickHouse until 2020
    ],
)
def test_a_host_that_does_not_know_what_became_of_it_is_not_sent_it_again_where_nobody_would_notice(
    tmp_path: Path, code: int, said: str
) -> None:
    """It waited for another replica, for too long, or died over it. The shard, or it, may have done it."""

    async def scenario(world: World) -> None:
        await world.start()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        update = "ALTER TABLE s.a UPDATE x = x + 1 WHERE 1"
        write(world.folder, {"4_more.up.sql": f"{update};\nCREATE TABLE s.w (x Int8) ENGINE = Memory;"})
        world.hosts[NODE2].fails[update] = (code, said)
        assert (await drive(await world.runner(), world.request())).state is RunState.FAILED
        world.hosts[NODE2].fails.clear()
        [row] = [row for row in world.ledger.rows("shop") if (row.version, row.host) == (4, NODE2)]
        assert (row.state, row.code, row.error) == (CellState.UNKNOWN, code, said)
        sent = len(world.entries())
        with pytest.raises(MigrationRefused, match="do it twice") as refused:
            await drive(await world.runner(), world.request(leniency=RETRY))
        assert len(world.entries()) == sent
        assert "migrate mark 4 done --statement 1 --host node02:9000" in refused.value.hint
        await mark_done(await world.runner(), world.request(), 4, host=NODE2, reason="it has")
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert world.states()[4] == "applied"
        world.check()

    in_world(tmp_path, scenario)


def test_hosts_that_all_waited_in_vain_for_each_other_have_failed(tmp_path: Path) -> None:
    """So ClickHouse 20.4 says that an ALTER is wrong. It may be corrected."""

    async def scenario(world: World) -> None:
        await world.start()
        for host in world.hosts.values():
            host.fails["y Int9"] = (48, "Cannot execute replicated DDL query on leader")
        gate = world.hosts[NODE1].hold["y Int9"] = asyncio.Event()
        (world.folder / "2_column.up.sql").write_text("ALTER TABLE s.a ADD COLUMN y Int9;")
        run = asyncio.create_task(drive(await world.runner(), world.request()))
        while not any(row.state is CellState.UNKNOWN for row in world.ledger.rows("shop")):
            await world.env.sleep(0.1)  # node01 may be at it yet
        gate.set()
        assert (await run).state is RunState.FAILED
        assert {row.state for row in world.ledger.records("shop")[2].rows} == {CellState.FAILED}
        (world.folder / "2_column.up.sql").write_text("ALTER TABLE s.a ADD COLUMN y Int8;")
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE

    in_world(tmp_path, scenario)


def test_a_host_that_does_not_know_what_became_of_it_is_sent_again_what_would_show(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.hosts[NODE2].fails["s.c"] = (341, "Outcome unknown: node02:9000 began this CREATE TABLE")
        assert (await drive(await world.runner(), world.request())).state is RunState.FAILED
        world.hosts[NODE2].fails.clear()
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE
        assert len(set(world.schemas().values())) == 1
        world.check()

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("who", ["status", "a run", "a retry"])
def test_an_abandoned_host_is_not_sent_again_what_it_may_do_yet_and_has_done_what_it_did(
    tmp_path: Path, who: str
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        write(world.folder, {"4_more.up.sql": "CREATE TABLE IF NOT EXISTS s.z (x Int8) ENGINE = Memory"})
        await world.hosts[NODE2].stop()
        await drive(await world.runner(), world.request(timeout_s=1))
        keeper, entry = await world.server.connect(), f"query-{len(world.entries()) - 1:010}"
        await abandon(keeper, world.queue.paths, entry, NODE2, Abandonment("ada", "its disk burnt", 0))
        await refresh(await world.runner(), world.request())
        with pytest.raises(MigrationRefused) as refused:
            await drive(await world.runner(), world.request())
        assert "Start the host" in refused.value.hint and "mark 4 applied" in refused.value.hint
        plan = await make_plan(await world.runner(), world.request(leniency=RETRY))
        assert [host.action for host in plan.statements[-1].hosts] == [Action.NOTHING, Action.REFUSED]
        with pytest.raises(MigrationRefused, match=f"still stands in the queue as {entry}") as still_queued:
            await drive(await world.runner(), world.request(leniency=RETRY))
        assert any(str(still_queued.value) in note for note in plan.notes)
        with pytest.raises(MigrationRefused, match=f"still stands in the queue as {entry}"):
            await mark_done(await world.runner(), world.request(), 4, host=NODE2, reason="by hand")
        assert world.states()[4] == "failed"
        await world.hosts[NODE2].start()
        while not any("s.z" in sql for sql in world.hosts[NODE2].executed):
            await world.env.sleep(0.1)
        await world.env.sleep(1)
        looked = await look(world)
        assert (looked, world.states()[4]) == (True, "applied")
        assert sum("s.z" in sql for sql in world.hosts[NODE2].executed) == 1
        world.check()

    async def look(world: World) -> bool:
        match who:
            case "status":
                await refresh(await world.runner(), world.request())
                return True
            case "a run":
                return (await drive(await world.runner(), world.request())).state is RunState.DONE
            case _:
                again = world.request(leniency=RETRY)
                return (await drive(await world.runner(), again)).state is RunState.DONE

    in_world(tmp_path, scenario)


def test_an_entry_that_the_cleaner_removed_is_expired_until_its_host_has_done_it_after_all(
    tmp_path: Path,
) -> None:
    """1. node02 is away for longer than the queue keeps entries. 2. It had begun the entry, and says so."""

    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        await drive(await world.runner(), world.request(target=1))
        keeper, paths = await world.server.connect(), world.queue.paths
        await world.env.sleep(8 * 86_400)
        await DDLCleaner(keeper, world.env, world.queue).clean()
        await refresh(await world.runner(), world.request())
        rows = world.ledger.rows("shop")
        assert {row.host: row.state for row in rows} == {NODE1: CellState.DONE, NODE2: CellState.EXPIRED}
        entry = rows[0].entry
        record = await read_outcome_record(keeper, paths, entry)
        assert record is not None
        late = HostOutcome(NODE2, HostState.DONE)
        assert await correct_outcome_record(keeper, paths, entry, record.czxid, late)
        await refresh(await world.runner(), world.request())
        assert {row.state for row in world.ledger.rows("shop")} == {CellState.DONE}

    in_world(tmp_path, scenario)


def test_nobody_vouches_for_a_host_over_what_it_has_said_itself_since(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start(without=frozenset({NODE2}))
        await drive(await world.runner(), world.request(target=1))
        keeper, paths = await world.server.connect(), world.queue.paths
        await world.env.sleep(8 * 86_400)
        await DDLCleaner(keeper, world.env, world.queue).clean()
        await refresh(await world.runner(), world.request())
        [entry] = {row.entry for row in world.ledger.rows("shop") if row.state is CellState.EXPIRED}
        record = await read_outcome_record(keeper, paths, entry)
        assert record is not None
        late = HostOutcome(
            NODE2, HostState.FAILED, 57, "it has said so to the queue, and not yet to the ledger"
        )
        assert await correct_outcome_record(keeper, paths, entry, record.czxid, late)
        with pytest.raises(MigrationRefused, match="statement 1 is failed"):
            await mark_done(await world.runner(), world.request(), 1, host=NODE2, reason="surely")
        [row] = [row for row in world.ledger.rows("shop") if row.host == NODE2]
        assert (row.state, row.code) == (CellState.FAILED, 57)

    in_world(tmp_path, scenario)


@pytest.mark.parametrize(
    ("statement", "is_sent_again"),
    [
        ("ALTER TABLE s.a UPDATE x = x + 1 WHERE 1", False),
        ("EXCHANGE TABLES s.a AND s.b", False),
        ("TRUNCATE TABLE s.a", False),
        ("ALTER TABLE s.a DROP COLUMN y", True),
        ("DROP TABLE s.b", True),
    ],
)
def test_what_nobody_would_notice_the_second_time_is_not_sent_where_it_may_have_been_done(
    tmp_path: Path, statement: str, is_sent_again: bool
) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        write(world.folder, {"4_more.up.sql": statement})
        await world.hosts[NODE2].stop()
        await drive(await world.runner(), world.request(timeout_s=1))
        keeper = await world.server.connect()
        last = world.queue.paths.entry(f"query-{len(world.entries()) - 1:010}")
        for path in sorted((p for p in world.server.tree.nodes if p.startswith(last)), reverse=True):
            await keeper.remove(path)
        await world.hosts[NODE2].start()
        await refresh(await world.runner(), world.request())
        sent = len(world.entries())
        retry = world.request(leniency=RETRY)
        plan = await make_plan(await world.runner(), retry)
        actions = [(host.host, host.action) for host in plan.statements[-1].hosts]
        planned = Action.RETRY if is_sent_again else Action.REFUSED
        assert actions == [(NODE1, Action.NOTHING), (NODE2, planned)]
        if is_sent_again:
            assert plan.notes == ()
            await drive(await world.runner(), retry)
            assert len(world.entries()) == sent + 1
            return
        with pytest.raises(MigrationRefused, match="statement 1 is unknown on node02:9000") as refused:
            await drive(await world.runner(), retry)
        assert "migrate mark 4 done --statement 1 --host node02:9000" in refused.value.hint
        assert plan.notes == (
            f"4.up statement 1 will not be sent again, and the run stops before it: {refused.value}",
        )
        own = replace(retry, run_id=world.ledger.rows("shop")[-1].run_id)
        (of_own_failure,) = (await make_plan(await world.runner(), own)).statements
        assert {host.action for host in of_own_failure.hosts} == {Action.NOTHING}
        assert len(world.entries()) == sent
        write(world.folder, {"4_more.up.sql": "SYSTEM RELOAD DICTIONARIES"})
        with pytest.raises(ChangedMigration):
            await drive(await world.runner(), world.request(leniency=RETRY))

    in_world(tmp_path, scenario, replicas=1, shards=2)


@pytest.mark.parametrize("applied_before", [0, 1])
def test_a_keeper_that_lost_its_data_says_nothing_of_what_was_sent_before(
    tmp_path: Path, applied_before: int
) -> None:
    """The queue counts anew: the name of an entry is another's by then, or none has come as far."""

    async def scenario(world: World) -> None:
        await world.start()
        if applied_before:
            await drive(await world.runner(), world.request(target=applied_before))
        await world.hosts[NODE2].stop()
        late = await drive(await world.runner(), world.request(timeout_s=1))
        assert late.state is RunState.UNFINISHED
        await world.hosts[NODE1].stop()
        world.server.lose_data()
        await world.start()
        client = DDLQueueClient(await world.server.connect(), world.env, world.queue.paths)
        other = "CREATE TABLE s.other ON CLUSTER shop (x Int8) ENGINE = Memory"
        await client.submit(prepare(other, topology=world.topology, queue=world.queue, token="other"))
        await world.env.sleep(1)
        await refresh(await world.runner(), world.request())
        states = {
            row.host: row.state for row in world.ledger.rows("shop") if row.version == late.rows[0].version
        }
        assert states == {NODE1: CellState.DONE, NODE2: CellState.UNKNOWN}
        assert (await drive(await world.runner(), world.request(leniency=RETRY))).state is RunState.DONE
        assert len(set(world.schemas().values())) == 1

    in_world(tmp_path, scenario)
