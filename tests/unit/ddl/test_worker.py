"""What a worker does with entries: its own, other people's, and those nobody can read."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry
from engine.ddl.identity import FixedResolver
from engine.ddl.initiator import without_token
from engine.ddl.status import ExecutionStatus
from engine.errors import Code, KeeperUnavailable
from engine.keeper.base import OPEN_ACL, Acl, Keeper
from engine.keeper.recipes import remove_recursive
from engine.names import TableName
from tests.unit.ddl.support import PATHS, PORT, Bench, host, listen, run, status_on, topology

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MergeTree"
DROP = "DROP TABLE d.t ON CLUSTER c"
REPLICATED = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree"
ADD = "ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8"
CAPTURES = json.loads((pathlib.Path(__file__).parents[2] / "data" / "ddl_captures.json").read_text())


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


def test_what_waits_behind_a_long_statement_is_not_shown_as_running() -> None:
    """It was claimed together with the statement: a cleaner may remove it, and nobody waits for its end."""

    async def main(bench: Bench) -> None:
        for number in range(5):
            await bench.submit(f"CREATE TABLE d.t{number} ON CLUSTER c (a Int8)", f"t{number}")
        entries = await (await bench.client()).list()
        bench.start("a")
        bench.executors["a"].duration_s = (60, 60)
        await bench.env.sleep(10)
        keeper = await bench.keeper()
        claims = await keeper.exists_many([PATHS.active(entry, host("a")) for entry in entries])
        assert [stat is not None for stat in claims] == [True, False, False, False, False]
        await bench.env.sleep(600)
        finished = await keeper.exists_many([PATHS.finished(entry, host("a")) for entry in entries])
        assert None not in finished

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


def test_an_entry_that_was_removed_is_not_looked_for_any_more() -> None:
    """The queue was listed ten times a second, by every host, until each was started anew."""

    async def main(bench: Bench) -> None:
        name = await bench.put(DDLLogEntry(1, CREATE, (host("nowhere"),)).to_bytes())
        bench.start("a")
        await bench.env.sleep(40)  # by then it is looked at once a minute
        await remove_recursive(await bench.keeper(), PATHS.entry(name))
        await bench.env.sleep(60)
        asked = bench.server.operations["a"].total()
        await bench.env.sleep(600)
        # The queue is cleaned meanwhile, each time that somebody has looked at it.
        assert bench.server.operations["a"].total() - asked < 50

    run(main)


def test_an_entry_that_keeper_lets_nobody_read_holds_up_no_other_and_is_refused_when_it_can_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(bench: Bench) -> None:
        name = await bench.put(DDLLogEntry(1, CREATE, (host("a"),)).to_bytes())
        node = bench.server.tree.nodes[PATHS.entry(name)]
        node.acl = (Acl(31, "digest", "somebody:else"),)
        bench.start("a", "b")
        assert (await bench.ddl(CREATE)).is_done_on_all_hosts
        assert [each for each in caplog.messages if name in each] == 2 * [f"ddl.not_readable entry={name}"]

        node.acl = OPEN_ACL
        await bench.env.sleep(90)
        status = await status_on(bench, name, "a")
        assert status is not None and status.code == Code.UNFINISHED

    run(main)


def test_a_worker_whose_name_dns_takes_for_another_machine_at_first_executes_all_in_order() -> None:
    """A container that is started again has another address, and DNS says the one before for a while."""

    async def main(bench: Bench) -> None:
        table = {"a": "10.0.0.9"}
        bench.start("container", resolver=FixedResolver(table, local=frozenset({"10.0.0.1"})))
        first = await bench.put(DDLLogEntry(1, CREATE, (host("a"),)).to_bytes())
        second = await bench.put(DDLLogEntry(1, DROP, (host("a"),)).to_bytes())
        await bench.env.sleep(10)
        assert await status_on(bench, first, "a") is None
        table["a"] = "10.0.0.1"
        await bench.env.sleep(10)
        third = await bench.put(DDLLogEntry(1, CREATE, (host("a"),)).to_bytes())
        await bench.env.sleep(90)
        for name in (first, second, third):
            assert await status_on(bench, name, "a") == ExecutionStatus()

    run(main, "a")


def test_what_a_worker_has_missed_is_not_executed_behind_what_it_has_executed_since() -> None:
    async def main(bench: Bench) -> None:
        table = {"a": "10.0.0.9", "own": "10.0.0.1"}
        bench.start("container", resolver=FixedResolver(table, local=frozenset({"10.0.0.1"})))
        missed = await bench.put(DDLLogEntry(1, CREATE, (host("a"),)).to_bytes())
        await bench.put(DDLLogEntry(1, DROP, (host("own"),)).to_bytes())
        await bench.env.sleep(10)
        table["a"] = "10.0.0.1"
        await bench.env.sleep(90)
        latest = await bench.put(DDLLogEntry(1, CREATE, (host("a"),)).to_bytes())
        await bench.env.sleep(10)
        assert await status_on(bench, latest, "a") == ExecutionStatus()
        status = await status_on(bench, missed, "a")
        assert status is not None and status.code == Code.UNFINISHED

    run(main, "a", "own")


def test_a_worker_finds_itself_behind_another_name() -> None:
    async def main(bench: Bench) -> None:
        bench.start(
            "a", resolver=FixedResolver({"a": "10.0.0.1", "alias": "10.0.0.1"}, local=frozenset({"10.0.0.1"}))
        )
        name = await bench.put(DDLLogEntry(1, CREATE, (host("alias"),)).to_bytes())
        await bench.env.sleep(1)
        assert await status_on(bench, name, "alias") == ExecutionStatus()

    run(main, "a")


def test_a_worker_that_waits_for_keeper_ends_without_waiting_longer() -> None:
    async def main(bench: Bench) -> None:
        asked = asyncio.Event()

        async def never() -> Keeper:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        bench.start("a")
        bench.workers["a"]._factory = never
        await asked.wait()
        began_s = bench.env.monotonic_s()
        await bench.stop("a")
        assert bench.env.monotonic_s() == began_s

    run(main)


def test_a_keeper_that_refuses_sessions_at_once_is_asked_less_and_less_often() -> None:
    async def main(bench: Bench) -> None:
        asked = 0

        async def refuse() -> Keeper:
            nonlocal asked
            asked += 1
            raise KeeperUnavailable("full")

        bench.start("a")
        bench.workers["a"]._factory = refuse
        await bench.env.sleep(60)
        assert 30 <= asked < 70

    run(main)
