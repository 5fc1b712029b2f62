"""What a worker does with statements that fail."""

from __future__ import annotations

import errno
import json
import pathlib
import sqlite3
from uuid import UUID

import pytest

from engine.config.model import DistributedDdl
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Execution
from engine.ddl.intents import Intent
from engine.ddl.outcome import HostState
from engine.ddl.status import ExecutionStatus
from engine.errors import Code, Corrupt, SqlError, Unavailable
from engine.keeper.base import OPEN_ACL, Acl
from engine.names import TableName, entry_name
from engine.testing.ddl.process import ModelIntentStore
from tests.unit.ddl.support import PATHS, Bench, host, listen, run, status_on

READ = 1
"""Of the permissions that ZooKeeper knows."""
CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MergeTree"
REPLICATED = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree"
RENAME = "RENAME TABLE d.old TO d.new ON CLUSTER c"
ADD = "ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8"
CAPTURES = json.loads((pathlib.Path(__file__).parents[2] / "data" / "ddl_captures.json").read_text())


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


NO_MEMORY = SqlError(Code.MEMORY_LIMIT_EXCEEDED, "no memory")
NO_DESCRIPTOR = SqlError(Code.CANNOT_OPEN_FILE, "Cannot open file", errno=errno.EMFILE)


@pytest.mark.parametrize("error", [NO_MEMORY, NO_DESCRIPTOR], ids=["memory", "descriptors"])
@pytest.mark.parametrize("statement", [CREATE, "DROP TABLE d.old ON CLUSTER c", RENAME])
def test_what_runs_out_behind_an_effect_does_not_make_a_failure_of_it(
    error: SqlError, statement: str
) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE.replace("d.t", "d.old"), "before")
        executor = bench.executors["a"]
        execute, tries = executor.execute, 0

        async def fails_behind(execution: Execution) -> None:
            nonlocal tries
            tries += 1
            await execute(execution)
            raise error

        executor.execute = fails_behind  # type: ignore[method-assign]
        status = await bench.ddl(statement)
        assert (status.hosts[0].state, status.hosts[0].code) == (HostState.DONE, 0)
        assert (tries, len(bench.databases["a"].effects)) == (1, 2)

    run(main, "a")


@pytest.mark.parametrize("ask", ["definition_digest", "table_engine"])
def test_nothing_is_begun_while_memory_lacks_for_a_look_at_what_there_is(ask: str) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl(CREATE, "before")
        executor = bench.executors["a"]
        look, looks = getattr(executor, ask), 0

        async def finds_no_memory(*asked: object) -> object:
            nonlocal looks
            looks += 1
            if looks < 3:
                raise NO_MEMORY
            return await look(*asked)

        setattr(executor, ask, finds_no_memory)
        status = await bench.ddl(ADD)
        assert (status.hosts[0].state, status.hosts[0].code) == (HostState.DONE, 0)
        assert len(bench.databases["a"].effects) == 2 and executor.executed.count(status.entry) == 1

    run(main, "a")


def test_a_server_with_the_name_of_another_one_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", server_uuid=UUID(int=7))
        await bench.env.sleep(5)
        bench.start("copy", host_name="a")
        await bench.env.sleep(60)
        said = [each for each in caplog.messages if each.startswith("ddl.name_of_another_server")]
        assert said == [f"ddl.name_of_another_server host=a:9000 its_uuid={UUID(int=7)}"]
        # The other one goes, and the name is this one's.
        await bench.stop("a")
        await bench.env.sleep(60)
        active = await (await bench.keeper()).get(PATHS.replica_active(host("a")))
        assert active.data != str(UUID(int=7)).encode()

    run(main)


def test_a_queue_that_keeper_refuses_is_asked_for_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """A statement's own part of the queue belongs to somebody else for two minutes."""

    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        submission = await bench.submit(CREATE)
        active = PATHS.entry(f"{submission.entry}/active")
        await keeper.set_acl(active, (Acl(READ, "world", "anyone"),))
        bench.start("a")
        await bench.env.sleep(120)
        refusals = [each for each in caplog.messages if each.startswith("ddl.worker_starts_over")]
        assert 20 < len(refusals) < 60
        bench.server.tree.nodes[active].acl = OPEN_ACL
        await bench.env.sleep(10)
        assert await status_on(bench, submission.entry, "a") == ExecutionStatus()

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


def test_what_cannot_be_recorded_as_begun_is_begun_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(bench: Bench) -> None:
        is_full = True
        really_begin = ModelIntentStore.begin

        async def begin(store: ModelIntentStore, intent: Intent) -> None:
            if is_full:
                raise Unavailable("The intent record cannot be written.", code=Code.NOT_ENOUGH_SPACE)
            await really_begin(store, intent)

        monkeypatch.setattr(ModelIntentStore, "begin", begin)
        bench.start("a")
        calls = listen(bench, "a")
        submissions = [await bench.submit(CREATE.replace("d.t", f"d.{name}"), name) for name in ("t1", "t2")]
        entries = [submission.entry for submission in submissions]
        await bench.env.sleep(60)
        assert [await status_on(bench, entry, "a") for entry in entries] == [None, None] and not calls
        is_full = False
        await bench.env.sleep(20)
        assert [await status_on(bench, entry, "a") for entry in entries] == [ExecutionStatus()] * 2
        assert len(bench.databases["a"].effects) == 2

    run(main, "a")


def test_a_record_of_what_was_begun_that_is_broken_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it went on with it could do twice."""

    async def main(bench: Bench) -> None:
        async def begin(self: ModelIntentStore, intent: Intent) -> None:
            raise Corrupt("The intent record cannot be written: database disk image is malformed.")

        monkeypatch.setattr(ModelIntentStore, "begin", begin)
        bench.start("a")
        worker = bench._tasks.pop("a")
        entry = (await bench.submit(CREATE)).entry
        with pytest.raises(Corrupt, match="malformed"):
            await worker
        keeper = await bench.keeper()
        assert await status_on(bench, entry, "a") is None
        assert (await keeper.children(PATHS.active(entry))).names == (), "others see that it is not at it"
        assert bench.databases["a"].effects == []

    run(main, "a")


def test_a_worker_whose_session_ends_goes_on_in_another_one_at_once() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.env.sleep(5)
        for number in range(5):
            for session_id in bench.server.session_ids("a"):
                bench.server.expire_session(session_id)
            entry = (await bench.submit(f"DROP TABLE d.t{number} ON CLUSTER c", f"t{number}")).entry
            await bench.env.sleep(1)
            assert await status_on(bench, entry, "a") is not None

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


def test_a_statement_that_the_program_fails_at_before_it_runs_is_an_error_in_the_end_too() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        executor = bench.executors["a"]
        table_engine = executor.table_engine

        async def fails(table: TableName) -> str | None:
            if table.table == "t":
                raise ValueError("a defect")
            return await table_engine(table)

        executor.table_engine = fails  # type: ignore[method-assign]
        status = await bench.ddl(ADD, "t1")
        assert (status.hosts[0].code, "ValueError: a defect" in status.hosts[0].error) == (1002, True)
        assert (await bench.ddl("CREATE TABLE d.u ON CLUSTER c (a Int8)", "t2")).is_done_on_all_hosts

    run(main, "a")


def test_a_worker_goes_on_after_an_error_in_the_program() -> None:
    async def main(bench: Bench) -> None:
        clusters, bench.topology = bench.topology, None  # type: ignore[assignment]
        bench.start("a")
        await bench.env.sleep(60)
        bench.topology = clusters
        assert (await bench.ddl(CREATE)).is_done_on_all_hosts

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
