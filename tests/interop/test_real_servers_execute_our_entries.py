"""We initiate, real servers execute: entries of version 1 written by our client."""

from __future__ import annotations

import asyncio

from engine.ddl.client import SubmitOutcome
from engine.ddl.outcome import HostState

COLUMNS = "(id UInt64, name String DEFAULT 'it''s', day Date) ENGINE = MergeTree(day, id, 8192)"


async def test_every_real_server_executes_our_entry_and_we_read_its_status(start_real) -> None:
    real = await start_real(2, 1)

    entry = await real.submit(f"CREATE TABLE t ON CLUSTER all {COLUMNS}", token="one")
    states = [status async for status in real.client.watch(entry)]

    last = states[-1]
    assert last.is_complete and not last.failed
    assert {outcome.host for outcome in last.hosts} == set(real.hosts)
    assert {outcome.state for outcome in last.hosts} == {HostState.DONE}
    assert all(outcome.duration_ms is not None and outcome.duration_ms >= 0 for outcome in last.hosts)
    for server in real.servers:
        assert await real.tables(server) == ["t"]
        kept = await server.query(
            "SELECT default_expression FROM system.columns WHERE table = 't' AND name = 'name'"
        )
        assert kept == "\\'it\\\\\\'s\\'\n"
    await real.all_workers_answer()


async def test_fifty_entries_in_a_row_kill_no_worker_and_all_succeed(start_real) -> None:
    real = await start_real(3)

    entries = []
    for i in range(25):
        entries.append(await real.submit(f"CREATE TABLE t{i} ON CLUSTER all {COLUMNS}", token=f"create-{i}"))
        entries.append(await real.submit(f"DROP TABLE t{i} ON CLUSTER all", token=f"drop-{i}"))
    for entry in entries:
        last = [status async for status in real.client.watch(entry)][-1]
        assert [o.state for o in last.hosts] == [HostState.DONE] * 3, last

    await real.all_workers_answer()
    assert await real.tables(real.first) == []


async def test_fifty_entries_waited_for_one_by_one_kill_no_worker(start_real) -> None:
    """The race that kills 18.16's worker: it looks at an entry before its directories are all there."""
    real = await start_real(3)

    for i in range(50):
        statement = f"CREATE TABLE t{i}" if i % 2 == 0 else f"DROP TABLE t{i - 1}"
        columns = COLUMNS if i % 2 == 0 else ""
        entry = await real.submit(f"{statement} ON CLUSTER all {columns}", token=f"{i}")
        last = [status async for status in real.client.watch(entry)][-1]
        assert [o.state for o in last.hosts] == [HostState.DONE] * 3, last

    await real.all_workers_answer()


async def test_the_same_token_twice_is_one_entry_and_one_effect(start_real) -> None:
    real = await start_real(2)
    prepared = real.prepared(f"CREATE TABLE t ON CLUSTER all {COLUMNS}", token="once")

    first, second = await asyncio.gather(real.client.submit(prepared), real.client.submit(prepared))
    third = await real.client.submit(prepared)

    assert first.entry == second.entry == third.entry
    assert third.outcome is SubmitOutcome.ATTACHED
    last = [status async for status in real.client.watch(first.entry)][-1]
    assert {o.state for o in last.hosts} == {HostState.DONE}  # a second CREATE would have failed with 57
    await real.all_workers_answer()


async def test_a_statement_that_fails_on_one_real_server_shows_its_code_and_message(start_real) -> None:
    real = await start_real(2)
    await real.servers[1].query(f"CREATE TABLE t {COLUMNS}")

    entry = await real.submit(f"CREATE TABLE t ON CLUSTER all {COLUMNS}", token="fails")
    last = [status async for status in real.client.watch(entry)][-1]

    by_host = {outcome.host: outcome for outcome in last.hosts}
    assert by_host[real.hosts[0]].state is HostState.DONE
    failed = by_host[real.hosts[1]]
    assert failed.state is HostState.FAILED
    assert failed.code == 57
    assert "Table default.t already exists" in failed.error
    assert last.is_complete and last.failed
    await real.all_workers_answer()


async def test_a_real_server_that_was_down_catches_up_and_its_outcome_arrives(start_real) -> None:
    real = await start_real(2)
    await real.servers[1].stop()

    entry = await real.submit(f"CREATE TABLE t ON CLUSTER all {COLUMNS}", token="late")
    seen = []
    async for status in real.client.watch(entry):
        states = {outcome.host: outcome.state for outcome in status.hosts}
        seen.append(states)
        if states[real.hosts[0]] is HostState.DONE and not real.servers[1].process.is_running:
            await real.servers[1].start()

    assert seen[-1] == {real.hosts[0]: HostState.DONE, real.hosts[1]: HostState.DONE}
    assert any(states[real.hosts[1]] in (HostState.WAITING, HostState.INACTIVE) for states in seen)
    assert await real.tables(real.servers[1]) == ["t"]
    await real.all_workers_answer()
