"""What a worker does after a crash, and when its session ends."""

from __future__ import annotations

import json
import pathlib
from uuid import UUID

import pytest

from engine.ddl.entry import DDLLogEntry
from engine.ddl.identity import FixedResolver
from engine.ddl.intents import Intent, IntentKey
from engine.ddl.status import ExecutionStatus
from engine.ddl.task import digest_of
from engine.keeper.base import CreateMode, Remove
from engine.keeper.recipes import remove_recursive
from engine.names import TableName
from engine.testing.ddl.process import IntentDisk
from tests.unit.ddl.support import PATHS, Bench, host, kill, listen, run, status_on, topology

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MergeTree"
REPLICATED = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree"
ADD = "ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8"
CAPTURES = json.loads((pathlib.Path(__file__).parents[2] / "data" / "ddl_captures.json").read_text())


def test_an_outcome_that_was_recorded_is_only_reported() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE)
        node = await (await bench.keeper()).get(PATHS.entry(submission.entry))
        key = IntentKey(bench.queue.path, submission.entry, node.stat.czxid)
        intent = Intent(key, "a:9000", digest_of(node.data), "d.t", "", ExecutionStatus(57, "as recorded"))
        bench.disks["a"] = IntentDisk({key: intent})
        bench.start("a")
        await bench.env.sleep(1)
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus(57, "as recorded")
        assert bench.executors["a"].executed == []

    run(main, "a")


def test_an_intent_of_another_entry_of_that_name_does_not_count() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE)
        node = await (await bench.keeper()).get(PATHS.entry(submission.entry))
        key = IntentKey(bench.queue.path, submission.entry, node.stat.czxid)
        bench.disks["a"] = IntentDisk(
            {key: Intent(key, "a:9000", "other text", "d.t", "", ExecutionStatus())}
        )
        bench.start("a")
        await bench.env.sleep(1)
        assert bench.executors["a"].executed == [submission.entry]

    run(main, "a")


def test_a_statement_that_outlives_the_session_runs_once() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        bench.executors["a"].duration_s = (40.0, 40.0)
        submission = await bench.submit(CREATE)
        await bench.env.sleep(5)
        for session in bench.server.session_ids("a"):
            bench.server.expire_session(session)
        await bench.env.sleep(60)
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus()
        assert bench.executors["a"].executed == [submission.entry]

    run(main, "a")


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE TABLE d.u ON CLUSTER c ENGINE = MergeTree AS SELECT 1 AS a", 0),
        ("CREATE TABLE d.u ON CLUSTER c ENGINE = MergeTree COMMENT 'FAIL 44' AS SELECT 1 AS a", 44),
    ],
)
def test_an_outcome_that_the_table_does_not_show_survives_a_kill_before_its_report(
    sql: str, code: int
) -> None:
    """1. It takes long. 2. Keeper is out of reach when it ends. 3. The host is killed. 4. It is back."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        bench.executors["a"].duration_s = (4.0, 4.0)
        entry = (await bench.submit(sql)).entry
        await bench.env.sleep(1)
        bench.server.partition("a")
        await bench.env.sleep(5)
        assert await status_on(bench, entry, "a") is None
        await kill(bench, "a")
        bench.server.heal("a")
        bench.start("a")
        await bench.env.sleep(30)
        status = await status_on(bench, entry, "a")
        assert status is not None and status.code == code
        assert bench.executors["a"].executed == [], "it is not executed again"

    run(main, "a")


def test_a_statement_whose_entry_was_removed_meanwhile_still_goes_before_later_ones_on_its_object() -> None:
    async def main(bench: Bench) -> None:
        # 1. it begins and takes long, 2. the session ends, 3. the entry is removed, 4. the next one is read
        bench.start("a")
        bench.executors["a"].duration_s = (40.0, 40.0)
        first = await bench.submit(CREATE, "t1")
        await bench.env.sleep(5)
        for session in bench.server.session_ids("a"):
            bench.server.expire_session(session)
        keeper = await bench.keeper()
        entry = first.entry
        await keeper.multi([Remove(path(entry)) for path in (PATHS.active, PATHS.finished, PATHS.entry)])
        bench.executors["a"].duration_s = (1.0, 1.0)
        second = await bench.submit(ADD, "t2")
        await bench.env.sleep(60)
        assert bench.executors["a"].executed == [first.entry, second.entry]
        assert await status_on(bench, second.entry, "a") == ExecutionStatus()

    run(main, "a")


@pytest.mark.parametrize("fault", ["lose_next_reply", "lose_next_reply_and_lag"])
def test_a_lost_reply_to_the_report_is_found_in_the_queue(fault: str) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "t1")
        bench.executors["a"].duration_s = (1.0, 1.0)
        submission = await bench.submit(ADD, "t2")
        await bench.env.sleep(0.75)  # the claim stands, the statement is under way
        for session in bench.server.session_ids("a"):
            getattr(bench.server, fault)(session)
        await bench.env.sleep(20)
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus()
        assert bench.executors["a"].executed.count(submission.entry) == 1
        assert (await (await bench.keeper()).children(PATHS.active(submission.entry))).names == ()

    run(main, "a")


def test_a_claim_that_an_earlier_process_left_is_replaced() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "t1")
        stamp = bench.workers["a"]._identity.stamp
        await bench.stop("a")
        submission = await bench.submit(ADD, "t2")
        old = await bench.keeper("old process")
        await old.create(PATHS.active(submission.entry, host("a")), stamp, mode=CreateMode.EPHEMERAL)
        bench.start("a", server_uuid=bench.workers["a"]._identity.server_uuid)
        await bench.env.sleep(1)
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus()

    run(main, "a")


def test_a_claim_that_no_session_owns_holds_up_nothing() -> None:
    """As a copy of Keeper's tree, made by a tool that knows no ephemeral nodes, brings it along."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "t1")
        await bench.stop("a")
        submission = await bench.submit(ADD, "t2")
        copied = await bench.keeper("somebody")
        await copied.create(PATHS.active(submission.entry, host("a")), b"another server")
        bench.start("a")
        assert (await bench.last(await bench.client(), submission.entry)).is_complete
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus()

    run(main, "a")


def test_a_queue_that_was_made_anew_is_read_from_its_start() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "t1")
        bench.server.lose_data()
        await bench.env.sleep(20)
        status = await bench.ddl("CREATE TABLE d.other ON CLUSTER c (a Int8)", "t2")
        assert status.entry == "query-0000000000" and status.is_done_on_all_hosts

    run(main, "a")


def test_a_queue_that_was_made_anew_while_a_worker_was_cut_off_is_read_from_its_start() -> None:
    """It never sees the queue empty: the names that it knows are there, of other entries."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        for number in range(3):
            await bench.ddl(CREATE.replace("d.t", f"d.t{number}"), f"old{number}")
        bench.server.partition("a")
        keeper = await bench.keeper()
        await remove_recursive(keeper, PATHS.root)
        entries = [
            (await bench.submit(CREATE.replace("d.t", f"d.new{number}"), f"new{number}")).entry
            for number in range(2)
        ]
        assert entries == ["query-0000000000", "query-0000000001"]
        await bench.env.sleep(30)
        bench.server.heal("a")
        await bench.env.sleep(30)
        assert [await status_on(bench, entry, "a") for entry in entries] == [ExecutionStatus()] * 2
        assert {str(name) for name in bench.databases["a"].tables} == {
            *(f"d.t{number}" for number in range(3)),
            *(f"d.new{number}" for number in range(2)),
        }

    run(main, "a")


def test_hosts_are_marked_active_under_every_name_of_theirs() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", interserver_http_host="a-internal", tcp_port_secure=9440)
        await bench.env.sleep(5)
        keeper = await bench.keeper()
        names = (await keeper.children(PATHS.replicas_root)).names
        assert names == ("a%2Dinternal:9000", "a%2Dinternal:9440", "a:9000", "a:9440", "b:9000")
        assert await keeper.exists(PATHS.replica_active(host("a"))) is not None
        assert await keeper.exists(PATHS.replica_active(host("b"))) is None

    run(main)


def test_two_servers_behind_one_loopback_name_do_not_both_answer() -> None:
    async def main(bench: Bench) -> None:
        local = FixedResolver({"localhost": "127.0.0.1"})
        bench.topology = topology("localhost")
        bench.start("first", resolver=local, server_uuid=UUID(int=1))
        await bench.env.sleep(1)
        bench.start("second", resolver=local, server_uuid=UUID(int=2))
        status = await bench.ddl(CREATE)
        await bench.env.sleep(10)
        assert status.is_done_on_all_hosts
        assert len(bench.databases["first"].effects) == 1
        assert bench.databases["second"].effects == []

    run(main)


def _entry_of(sql: str, **fields: object) -> bytes:
    hosts = (host("a"), host("b"))
    return DDLLogEntry(version=8, query=sql, hosts=hosts, initiator="z:9000", **fields).to_bytes()  # type: ignore[arg-type]


def test_who_wants_a_statement_matters_only_where_the_configuration_says_so() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", users={"ann"})
        bench.start("b")
        client = await bench.client()
        codes = []
        for fields in (
            {"initiator_user": "ann"},
            {"initiator_user": "eve"},
            {"initiator_user": "ann", "initiator_roles": ("boss",)},
            {},
        ):
            sql = f"CREATE TABLE d.t{len(codes)} ON CLUSTER c (a Int8) ENGINE = Memory"
            status = await bench.last(client, await bench.put(_entry_of(sql, **fields)))
            codes.append(tuple(outcome.code for outcome in status.hosts))
        assert codes == [(0, 0), (192, 0), (511, 0), (0, 0)]
        assert bench.databases["a"].tables.keys() == {TableName("d", "t0"), TableName("d", "t3")}

    run(main)


def test_a_backup_of_somebody_elses_is_refused_and_holds_up_nothing() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        calls = listen(bench, "a")
        client = await bench.client()
        backup = "BACKUP TABLE d.t ON CLUSTER c TO Disk('d', 'x') SETTINGS internal = 1"
        status = await bench.last(client, await bench.put(_entry_of(backup, is_backup_restore=True)))
        assert [outcome.code for outcome in status.hosts] == [48, 48]
        assert calls == []
        assert (await bench.ddl(CREATE)).is_done_on_all_hosts

    run(main)


def test_a_parent_that_exists_nowhere_is_for_the_queues_of_replicated_databases_to_mind() -> None:
    """ClickHouse's worker of ON CLUSTER does not look at it, either."""

    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        entry = await bench.put(_entry_of(CREATE, parent=UUID(int=7)))
        assert (await bench.last(await bench.client(), entry)).is_done_on_all_hosts

    run(main)
