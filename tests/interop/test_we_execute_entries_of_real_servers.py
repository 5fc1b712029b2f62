"""Real servers initiate, our worker executes as a host of their cluster, and the initiator believes it."""

from __future__ import annotations

import asyncio

import pytest

from engine.ddl.outcome import HostState
from engine.errors import Code, SqlError
from engine.keeper.base import CreateMode
from tests.interop.cluster import ModelExecutor

PATIENCE_S = 120


def _hosts(answer: str) -> set[tuple[str, int]]:
    rows = [line.split("\t") for line in answer.splitlines()]
    return {(row[0], int(row[1])) for row in rows}


async def test_a_real_initiator_sees_our_host_among_the_others(start_real, start_worker) -> None:
    real = await start_real(2, foreign=1)
    ours = ModelExecutor()
    await start_worker(real, ours)

    answer = await real.first.query(
        "CREATE TABLE t ON CLUSTER all (id UInt64, `odd name` String DEFAULT 'it''s\\n') ENGINE = Memory",
        settings={"distributed_ddl_task_timeout": "180"},
    )

    assert _hosts(answer) == {(host.host, host.port) for host in (*real.hosts, real.foreign[0].host_id)}
    assert {line.split("\t")[2] for line in answer.splitlines()} == {"0"}
    assert len(ours.executed) == 1
    text = ours.executed[0]
    assert "ON CLUSTER" not in text
    assert "default.t" in text
    assert "'it\\'s\\n'" in text
    await real.all_workers_answer()


async def test_our_failure_is_the_real_initiators_error_with_code_host_and_message(
    start_real, start_worker
) -> None:
    real = await start_real(2, foreign=1)
    ours = ModelExecutor(failures={"CREATE TABLE": SqlError(Code.TABLE_ALREADY_EXISTS, "No room for 't'.")})
    await start_worker(real, ours)

    with pytest.raises(SqlError) as failure:
        await real.first.query("CREATE TABLE t ON CLUSTER all (id UInt64) ENGINE = Memory")

    assert failure.value.code == Code.TABLE_ALREADY_EXISTS
    assert f"There was an error on [{real.foreign[0].host_id.readable}]" in failure.value.message
    assert "No room for 't'." in failure.value.message
    for server in real.servers:
        assert await real.tables(server) == ["t"]
    await real.all_workers_answer()


async def test_while_we_are_busy_the_real_initiator_times_out_and_afterwards_the_entry_is_complete(
    start_real, start_worker
) -> None:
    real = await start_real(2, foreign=1)
    ours = ModelExecutor()
    ours.may_go_on.clear()
    await start_worker(real, ours)

    with pytest.raises(SqlError) as timeout:
        await real.first.query(
            "CREATE TABLE t ON CLUSTER all (id UInt64) ENGINE = Memory",
            settings={"distributed_ddl_task_timeout": "1"},
        )

    assert timeout.value.code == Code.TIMEOUT_EXCEEDED
    assert "executing longer than distributed_ddl_task_timeout (=1) seconds" in timeout.value.message
    (entry,) = await real.client.list()
    expected = dict.fromkeys(real.hosts, HostState.DONE) | {real.foreign[0].host_id: HostState.RUNNING}
    async with asyncio.timeout(PATIENCE_S):
        async for status in real.client.watch(entry):
            if {outcome.host: outcome.state for outcome in status.hosts} == expected:
                break

    ours.may_go_on.set()
    assert (await real.outcome(entry)).is_done_on_all_hosts
    await real.all_workers_answer()


async def test_a_real_initiator_waits_for_us_until_we_come_and_we_run_everything_we_missed(
    start_real, start_worker
) -> None:
    real = await start_real(2, foreign=1)
    for i in range(5):
        await real.first.query(
            f"CREATE DATABASE db{i} ON CLUSTER all", settings={"distributed_ddl_task_timeout": "0"}
        )
    waiting = asyncio.create_task(
        real.first.query(
            "CREATE TABLE t ON CLUSTER all (id UInt64) ENGINE = Memory",
            settings={"distributed_ddl_task_timeout": "-1"},
        )
    )

    ours = ModelExecutor()
    await start_worker(real, ours)
    answer = await waiting

    assert len(answer.splitlines()) == 3
    assert ours.executed[:5] == [f"CREATE DATABASE db{i}" for i in range(5)]
    await real.all_workers_answer()


async def test_thirty_statements_of_real_servers_take_effect_here_once_each_and_in_order(
    start_real, start_worker
) -> None:
    real = await start_real(2, foreign=1)
    ours = ModelExecutor()
    await start_worker(real, ours)

    for i in range(15):
        server = real.servers[i % 2]
        await server.query(f"CREATE TABLE t{i} ON CLUSTER all (id UInt64) ENGINE = Memory")
        await server.query(f"DROP TABLE t{i} ON CLUSTER all")

    words = [sql.split("(")[0].split() for sql in ours.executed]
    assert [(w[0], w[2]) for w in words] == [
        pair for i in range(15) for pair in (("CREATE", f"default.t{i}"), ("DROP", f"default.t{i}"))
    ]
    await real.all_workers_answer()


async def test_an_entry_that_names_a_cluster_we_do_not_know_is_refused_with_a_status_real_servers_read(
    start_real, start_worker
) -> None:
    real = await start_real(1, foreign=1)
    await start_worker(real, ModelExecutor())
    # The initiator's checks are passed by an entry that was written by hand.
    prepared = real.prepared("CREATE DATABASE d ON CLUSTER all", token="unknown-cluster")
    data = prepared.data.replace(b"ON CLUSTER all", b"ON CLUSTER nobody_has")
    made = await real.keeper.create(
        real.queue.paths.entry_prefix, data, mode=CreateMode.PERSISTENT_SEQUENTIAL
    )

    status = await real.outcome(made.rpartition("/")[2])

    codes = {outcome.host: outcome.code for outcome in status.hosts}
    assert codes[real.foreign[0].host_id] == Code.INCONSISTENT_CLUSTER_DEFINITION
    assert codes[real.hosts[0]] == Code.INCONSISTENT_CLUSTER_DEFINITION
    await real.all_workers_answer()
