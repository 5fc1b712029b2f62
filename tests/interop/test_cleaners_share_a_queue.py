"""Cleaning a queue that real servers work and clean, too: nobody's worker dies, nothing unfinished goes."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from engine.config.model import DistributedDdl
from engine.ddl.cleaner import DDLCleaner, Removal
from engine.ddl.client import SubmitOutcome
from engine.ddl.outcome import HostState
from engine.errors import Code, SqlError
from engine.keeper import zookeeper
from engine.keeper.base import CreateMode
from tests.interop.cluster import ENV, RealQueue

STATEMENT = "CREATE DATABASE IF NOT EXISTS d ON CLUSTER all"


def _cleaner(real: RealQueue, *, keep: int) -> DDLCleaner:
    return DDLCleaner(real.keeper, ENV, dataclasses.replace(real.queue, max_tasks_in_queue=keep))


async def _submit(real: RealQueue, count: int, *, first: int = 0) -> list[str]:
    """One after the other, each waited for."""
    entries = []
    for i in range(first, first + count):
        entries.append(await real.submit(STATEMENT, token=f"t{i}"))
        await real.outcome(entries[-1])
    return entries


def _cleaning_itself(path: str) -> DistributedDdl:
    """Real servers that clean whenever they may, once a second at the most."""
    return DistributedDdl(path=path, cleanup_delay_period_s=1, max_tasks_in_queue=5)


async def _submit_until_real_servers_clean(real: RealQueue) -> list[str]:
    """18.16 looks for old entries when a new one wakes it. Returns all names ever made."""
    entries: list[str] = []
    while len(await real.client.list()) == len(entries):
        assert len(entries) < 3000
        entries += await _submit(real, 1, first=len(entries))
    return entries


async def test_our_cleaner_removes_what_real_servers_have_done_and_their_workers_live_on(start_real) -> None:
    real = await start_real(3)
    entries = await _submit(real, 20)

    report = await _cleaner(real, keep=5).clean()

    assert list(report.removed) == entries[:14]
    assert list(await real.client.list()) == entries[14:]
    assert not any(cleaned.expired for cleaned in report.entries)
    await real.all_workers_answer()
    gone = await real.client.status(entries[0])
    assert gone.is_gone and gone.is_done_on_all_hosts


async def test_our_cleaner_at_work_all_the_time_kills_no_real_worker(start_real) -> None:
    real = await start_real(3)
    cleaner = _cleaner(real, keep=5)
    submitting = asyncio.create_task(_submit(real, 80))

    removed: list[str] = []
    while not submitting.done():
        removed += (await cleaner.clean()).removed

    entries = submitting.result()
    removed += (await cleaner.clean()).removed
    assert removed == entries[:-6]
    await real.all_workers_answer()


async def test_what_a_stopped_server_has_not_done_is_recorded_as_expired_and_it_starts_well_without(
    start_real,
) -> None:
    real = await start_real(2)
    await _submit(real, 1)
    await real.servers[1].stop()
    missed = "CREATE TABLE default.missed ON CLUSTER all (a UInt8) ENGINE = Memory"
    entries = [await real.submit(sql, token=f"later{n}") for n, sql in enumerate([missed, *[STATEMENT] * 3])]
    # The other one is through with them: a worker of 2018 may die of an entry that goes under its eyes.
    for entry in entries:
        while (await real.client.status(entry)).outcome(real.hosts[0]).state is not HostState.DONE:
            await ENV.sleep(0.01)

    report = await _cleaner(real, keep=1).clean()

    assert entries[0] in report.removed
    outcomes = {o.host: o.state for o in (await real.client.status(entries[0])).hosts}
    assert outcomes == {real.hosts[0]: HostState.DONE, real.hosts[1]: HostState.EXPIRED}
    await real.servers[1].start()
    await real.all_workers_answer()
    assert await real.tables(real.servers[1]) == []


async def test_an_entry_that_a_real_cleaner_has_locked_is_left_to_it(start_real) -> None:
    real = await start_real(1)
    (entry,) = await _submit(real, 1)
    other = await zookeeper.connect(real.zookeeper, ENV)
    lock = f"{real.queue.paths.entry(entry)}/lock"
    await other.create(lock, str(real.hosts[0]).encode(), mode=CreateMode.EPHEMERAL)

    locked = await _cleaner(real, keep=1).remove_entry(entry)
    await other.close()
    unlocked = await _cleaner(real, keep=1).remove_entry(entry)

    assert locked.removal is Removal.LOCKED
    assert unlocked.removal is Removal.REMOVED
    await real.all_workers_answer()


async def test_real_cleaners_remove_our_entries_and_a_token_is_still_used_up(start_real) -> None:
    real = await start_real(2, queue=_cleaning_itself(f"/interop/{ENV.new_uuid()}/ddl"))
    entries = await _submit_until_real_servers_clean(real)

    with pytest.raises(SqlError) as gone:
        await real.outcome(entries[0])
    assert gone.value.code == Code.UNFINISHED
    again = await real.client.submit(real.prepared(STATEMENT, token="t0"))
    assert again.outcome is SubmitOutcome.ATTACHED
    assert again.is_gone
    assert again.entry == entries[0]
    assert max(await real.client.list()) == entries[-1]
    await real.all_workers_answer()


async def test_our_cleaner_and_real_cleaners_at_once_kill_nobody(start_real) -> None:
    real = await start_real(3, queue=_cleaning_itself(f"/interop/{ENV.new_uuid()}/ddl"))
    cleaner = _cleaner(real, keep=10)
    entries: list[str] = []
    by_us: list[str] = []
    by_them: list[str] = []

    async def clean() -> None:
        while True:
            await cleaner.clean()

    cleaning = asyncio.create_task(clean())
    while (len(by_us) < 30 or len(by_them) < 30) and not cleaning.done():
        assert len(entries) < 3000
        entries += await _submit(real, 1, first=len(entries))
        gone = sorted(set(entries) - set(await real.client.list()))
        # Only ours leave a record of what became of the entry.
        records = await real.keeper.exists_many([real.queue.paths.outcome(name) for name in gone])
        by_us = [name for name, record in zip(gone, records, strict=True) if record is not None]
        by_them = [name for name, record in zip(gone, records, strict=True) if record is None]
    cleaning.cancel()
    await asyncio.gather(cleaning, return_exceptions=True)

    assert len(by_us) >= 30
    assert len(by_them) >= 30
    await real.all_workers_answer()
