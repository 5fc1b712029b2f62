"""What a worker does with entries: its own, other people's, and those nobody can read."""

from __future__ import annotations

import base64
import json
import pathlib
import sqlite3
from uuid import UUID

import pytest

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Execution
from engine.ddl.identity import FixedResolver
from engine.ddl.initiator import without_token
from engine.ddl.intents import Intent, IntentKey
from engine.ddl.outcome import HostState
from engine.ddl.status import ExecutionStatus
from engine.ddl.task import digest_of
from engine.errors import SqlError
from engine.keeper.base import CreateMode, Remove
from engine.names import TableName, entry_name
from engine.testing.ddl_process import IntentDisk
from tests.unit.ddl_support import PATHS, PORT, Bench, host, run, status_on, topology

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MergeTree"
REPLICATED = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree"
ADD = "ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8"
CAPTURES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "ddl_captures.json").read_text())


def listen(bench: Bench, name: str) -> list[Execution]:
    """What reaches the local server of a host that has been started."""
    calls: list[Execution] = []
    executor = bench.executors[name]
    original = executor.execute

    async def execute(execution: Execution) -> None:
        calls.append(execution)
        await original(execution)

    executor.execute = execute  # type: ignore[method-assign]
    return calls


def test_the_executed_text_names_the_entry_and_has_no_cluster() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        calls = listen(bench, "a")
        await bench.ddl(CREATE, "token-1", settings={"max_threads": "3"})
        call = calls[0]
        sql = call.sql
        assert sql.startswith("/* ddl_entry=query-0000000000 */ ")
        assert without_token(sql.removeprefix("/* ddl_entry=query-0000000000 */ ")) == (
            "CREATE TABLE d.t (a Int8) ENGINE = MergeTree"
        )
        assert (call.settings, call.initial_query_id, call.user) == (
            {"max_threads": "3"},
            "token-1",
            "default",
        )

    run(main)


def test_the_queues_profile_holds_where_the_sender_has_changed_nothing() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", profile={"max_threads": "1", "max_memory_usage": "7"})
        calls = listen(bench, "a")
        await bench.ddl(CREATE, settings={"max_threads": "3"})
        assert calls[0].settings == {"max_threads": "3", "max_memory_usage": "7"}

    run(main, "a")


def test_each_host_fills_in_the_default_database_of_its_own_address() -> None:
    async def main(bench: Bench) -> None:
        shards = (Shard(1, (Replica("a", PORT, "da"),)), Shard(2, (Replica("b", PORT, "db"),)))
        bench.topology = Topology({"c": Cluster("c", shards)}, {})
        bench.start("a", "b")
        await bench.ddl("CREATE TABLE t ON CLUSTER c (a Int8) ENGINE = MergeTree")
        assert list(bench.databases["a"].tables) == [TableName("da", "t")]
        assert list(bench.databases["b"].tables) == [TableName("db", "t")]

    run(main)


def test_entries_are_executed_in_order_and_reported_by_every_host() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        for number, sql in enumerate([CREATE, ADD, "DROP TABLE d.t ON CLUSTER c"]):
            assert (await bench.ddl(sql, f"t{number}")).is_done_on_all_hosts
        effects = [effect.what for effect in bench.databases["a"].effects]
        assert effects == ["create", "ALTER TABLE", "drop"]

    run(main)


def test_a_backlog_is_done_by_a_host_that_comes_later() -> None:
    async def main(bench: Bench) -> None:
        for number in range(5):
            await bench.submit(f"CREATE TABLE d.t{number} ON CLUSTER c (a Int8)", f"t{number}")
        bench.start("a", "b")
        status = await bench.last(await bench.client(), "query-0000000004")
        assert status.is_done_on_all_hosts
        assert len(bench.databases["b"].tables) == 5

    run(main)


def test_a_dead_host_holds_up_nobody_else() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        first, second = await bench.submit(CREATE, "t1"), await bench.submit(ADD, "t2")
        await bench.env.sleep(1)
        for submission in (first, second):
            assert await status_on(bench, submission.entry, "a") == ExecutionStatus()
            assert await status_on(bench, submission.entry, "b") is None

    run(main)


def test_keeper_operations_of_a_drained_entry_are_few() -> None:
    async def main(bench: Bench) -> None:
        for number in range(50):
            await bench.submit(f"CREATE TABLE d.t{number} ON CLUSTER c (a Int8)", f"t{number}")
        bench.start("a")
        await bench.env.sleep(5)
        counts = bench.server.operations["a"]
        assert sum(counts.values()) - counts["multi_ops"] <= 50 * 3 + 30
        assert counts["multi"] <= 52

    run(main, "a")


# --- entries of other makes -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 4, 6, 7, 8])
def test_entries_of_every_version_are_executed(version: int) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        entry = DDLLogEntry(version, CREATE, (host("a"), host("b")), initiator="x:1", initiator_user="alice")
        name = await bench.put(entry.to_bytes())
        status = await bench.last(await bench.client(), name)
        assert status.is_done_on_all_hosts

    run(main)


REFUSED = {
    "07_version2": None,
    "09_no_on_cluster": 371,
    "10_not_ddl": 78,
    "11_unknown_cluster": 371,
    "16_double_quotes_list": 26,
    "18_empty_data": 27,
    "20_crlf": 27,
}
"""What 18.16 wrote for these texts; it does not know version 2, we do."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_real_server_refused_is_refused_with_its_code_and_holds_up_nobody(case: str) -> None:
    row = next(row for row in CAPTURES["entries"] if row["case"] == case)
    data = base64.b64decode(row["base64"]) if "base64" in row else row["text"].encode()

    async def main(bench: Bench) -> None:
        names = [f"node{number:02}" for number in range(1, 7)]
        bench.topology = Topology(
            {"order_cluster": topology(" ".join(names)).clusters["c"], "c": topology("node01").clusters["c"]}
        )
        bench.start("node01")
        poison = await bench.put(data)
        after = await bench.submit(CREATE, "after")
        await bench.env.sleep(1)
        status = await status_on(bench, poison, "node01")
        assert status is not None
        assert status.code == (REFUSED[case] or 0)
        assert await status_on(bench, after.entry, "node01") == ExecutionStatus()

    run(main)


def test_an_unknown_version_is_refused_and_a_megabyte_is_executed() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        future = await bench.put(b"version: 9\nquery: q\n")
        large = f"CREATE TABLE d.large ON CLUSTER c (a Int8) /* {'x' * 1_000_000} */"
        big = await bench.put(DDLLogEntry(1, large, (host("a"),)).to_bytes())
        await bench.env.sleep(1)
        assert (await status_on(bench, future, "a")).code == 287  # type: ignore[union-attr]
        assert await status_on(bench, big, "a") == ExecutionStatus()

    run(main, "a")


def test_entries_for_others_and_odd_names_are_left_alone() -> None:
    async def main(bench: Bench) -> None:
        name = await bench.put(DDLLogEntry(1, CREATE, (host("other"),)).to_bytes())
        keeper = await bench.keeper()
        for odd in ("query-", "query-1", "lock", "query-00000000012"):
            await keeper.create(PATHS.entry(odd), b"x")
        bench.start("a", "b")
        await bench.env.sleep(1)
        assert (await keeper.children(PATHS.entry(name))).names == ()
        assert (await bench.ddl(CREATE)).is_done_on_all_hosts

    run(main)


def test_a_host_that_dns_does_not_know_delays_and_does_not_stop_the_queue() -> None:
    async def main(bench: Bench) -> None:
        name = await bench.put(DDLLogEntry(1, CREATE, (host("nowhere"),)).to_bytes())
        bench.start("a", "b")
        assert (await bench.ddl(CREATE)).is_done_on_all_hosts
        await bench.env.sleep(60)
        assert await status_on(bench, name, "a") is None

    run(main)


def test_a_worker_finds_itself_behind_another_name() -> None:
    async def main(bench: Bench) -> None:
        bench.start(
            "a", resolver=FixedResolver({"a": "10.0.0.1", "alias": "10.0.0.1"}, local=frozenset({"10.0.0.1"}))
        )
        name = await bench.put(DDLLogEntry(1, CREATE, (host("alias"),)).to_bytes())
        await bench.env.sleep(1)
        assert await status_on(bench, name, "alias") == ExecutionStatus()

    run(main, "a")


# --- errors -----------------------------------------------------------------------------------------------


def test_an_error_is_reported_once_with_the_servers_text() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        calls = listen(bench, "a")
        status = await bench.ddl("DROP TABLE d.nope ON CLUSTER c")
        assert [o.code for o in status.hosts] == [60, 60]
        assert status.hosts[0].error == "Code: 60. DB::Exception: Table d.nope doesn't exist. (UNKNOWN_TABLE)"
        assert len(calls) == 1

    run(main)


def test_a_retriable_error_is_tried_again_until_it_works() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        bench.executors["a"].flaky_rate = 1.0
        submission = await bench.submit(CREATE)
        await bench.env.sleep(20)
        assert await status_on(bench, submission.entry, "a") is None
        assert len(bench.executors["a"].executed) > 2
        bench.executors["a"].flaky_rate = 0.0
        await bench.env.sleep(10)
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus()
        assert len(bench.databases["a"].effects) == 1

    run(main, "a")


@pytest.mark.parametrize("code", [242, 517, 529, 173, 202, 241, 341, 999])
def test_these_errors_are_tried_again_and_never_reported(code: int) -> None:
    """Read-only, cannot assign ALTER, not a leader, memory (twice), too many queries, unfinished, Keeper."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        executor = bench.executors["a"]
        execute, tries = executor.execute, 0

        async def busy_at_first(execution: Execution) -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise SqlError(code, "busy")
            await execute(execution)

        executor.execute = busy_at_first  # type: ignore[method-assign]
        status = await bench.ddl(CREATE)
        assert (status.hosts[0].state, status.hosts[0].code) == (HostState.DONE, 0)
        assert (tries, len(bench.databases["a"].effects)) == (3, 1)

    run(main, "a")


@pytest.mark.parametrize("code", [1, 48, 57, 60, 62, 159, 225, 243, 371, 1000])
def test_any_other_error_is_final(code: int) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        calls = listen(bench, "a")
        status = await bench.ddl(f"CREATE TABLE d.t ON CLUSTER c (a Int8) COMMENT 'FAIL {code}'")
        await bench.env.sleep(60)
        assert (status.hosts[0].state, status.hosts[0].code) == (HostState.FAILED, code)
        assert len(calls) == 1

    run(main, "a")


def test_errors_that_are_too_long_for_one_request_together_are_reported_singly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(bench: Bench) -> None:
        for number in range(40):
            await bench.submit(f"CREATE TABLE d.t{number} ON CLUSTER c (a Int8)", f"t{number}")
        bench.start("a")

        async def fails(execution: Execution) -> None:
            raise SqlError(57, "x" * 60_000)

        bench.executors["a"].execute = fails  # type: ignore[method-assign]
        await bench.env.sleep(20)
        for number in range(40):
            status = await status_on(bench, entry_name(number), "a")
            assert status is not None and (status.code, len(status.message) > 60_000) == (57, True)
        assert "worker_starts_over" not in caplog.text

    run(main, "a")


def test_an_error_of_any_length_and_any_letters_is_reported() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")

        async def fails(execution: Execution) -> None:
            raise SqlError(57, "\N{CLOUD}" * 10 + "\N{GRINNING FACE}" * 500_000)

        bench.executors["a"].execute = fails  # type: ignore[method-assign]
        status = await bench.ddl(CREATE)
        assert status.hosts[0].code == 57 and "\N{CLOUD}\N{GRINNING FACE}" in status.hosts[0].error

    run(main, "a")


def test_a_statement_that_the_program_fails_at_is_an_error_in_the_end_and_the_next_one_is_executed() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        executor = bench.executors["a"]
        execute = executor.execute

        async def fails(execution: Execution) -> None:
            if "d.t" in execution.sql:
                raise TypeError("a defect")
            await execute(execution)

        executor.execute = fails  # type: ignore[method-assign]
        status = await bench.ddl(CREATE, "t1")
        assert (status.hosts[0].code, "TypeError: a defect" in status.hosts[0].error) == (1002, True)
        assert (await bench.ddl("CREATE TABLE d.u ON CLUSTER c (a Int8)", "t2")).is_done_on_all_hosts
        assert 10 < bench.env.monotonic_s() < 60
        await bench.stop("a")
        bench.start("a")
        await bench.env.sleep(60)
        assert len(bench.databases["a"].effects) == 1

    run(main, "a")


def test_a_disk_that_is_full_is_waited_for() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        executor = bench.executors["a"]
        execute = executor.execute

        async def fails(execution: Execution) -> None:
            if bench.env.monotonic_s() < 300:
                raise sqlite3.OperationalError("database or disk is full")
            await execute(execution)

        executor.execute = fails  # type: ignore[method-assign]
        assert (await bench.ddl(CREATE)).is_done_on_all_hosts

    run(main, "a")


def test_of_an_entry_with_several_statements_none_is_executed() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        calls = listen(bench, "a")
        query = "DROP TABLE IF EXISTS d.t ON CLUSTER c; DROP TABLE IF EXISTS d.u"
        entry = await bench.put(DDLLogEntry(5, query, (host("a"),)).to_bytes())
        await bench.env.sleep(5)
        status = await status_on(bench, entry, "a")
        assert status is not None and status.code == 62 and "Multi-statements" in status.message
        assert calls == []

    run(main, "a")


def test_an_error_before_execution_says_so() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")

        async def table_engine(table: TableName) -> str | None:
            raise SqlError(81, "Database d does not exist")

        bench.executors["a"].table_engine = table_engine  # type: ignore[method-assign]
        status = await bench.ddl(ADD)
        assert status.hosts[0].code == 81
        assert status.hosts[0].error.startswith("An error occurred before execution: Code: 81.")

    run(main, "a")


def test_a_pool_size_of_zero_is_refused() -> None:
    async def main(bench: Bench) -> None:
        bench.queue = DistributedDdl(pool_size=0)
        with pytest.raises(SqlError) as refusal:
            bench.start("a")
        assert refusal.value.code == 69

    run(main)


# --- crashes and sessions ---------------------------------------------------------------------------------


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


def test_a_lost_reply_to_the_report_is_found_in_the_queue() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "t1")
        bench.executors["a"].duration_s = (1.0, 1.0)
        submission = await bench.submit(ADD, "t2")
        await bench.env.sleep(0.75)  # the claim stands, the statement is under way
        for session in bench.server.session_ids("a"):
            bench.server.lose_next_reply(session)
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


def test_a_queue_that_was_made_anew_is_read_from_its_start() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "t1")
        bench.server.lose_data()
        await bench.env.sleep(20)
        status = await bench.ddl("CREATE TABLE d.other ON CLUSTER c (a Int8)", "t2")
        assert status.entry == "query-0000000000" and status.is_done_on_all_hosts

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
