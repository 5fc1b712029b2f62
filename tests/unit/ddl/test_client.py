"""Submitting by token, attaching, and watching an entry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from engine.ddl.cleaner import DDLCleaner
from engine.ddl.client import DDLQueueClient, SubmitOutcome
from engine.ddl.entry import DDLLogEntry
from engine.ddl.outcome import EntryStatus, HostState
from engine.ddl.status_reader import NeverEnqueued
from engine.errors import MalformedEntry, Refused, SessionExpired, SqlError
from engine.keeper.base import Create, CreateMode, Keeper, Remove, Stat
from engine.keeper.faults import Direction
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder, create_ancestors, remove_recursive
from tests.unit.ddl.support import PATHS, QUEUE, Bench, host, run, topology

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8)"
DROP = "DROP TABLE d.t ON CLUSTER c"
SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL


def test_a_token_is_enqueued_once_and_attached_to_after_that() -> None:
    async def main(bench: Bench) -> None:
        first = await bench.submit(CREATE, "t1")
        again = await bench.submit(CREATE, "t1")
        assert (first.outcome, again.outcome) == (SubmitOutcome.ENQUEUED, SubmitOutcome.ATTACHED)
        assert again.entry == first.entry == "query-0000000000"
        assert again.hosts == (host("a"), host("b"))
        assert await (await bench.client()).list() == ("query-0000000000",)

    run(main)


def test_submitting_uses_no_entry_numbers_of_its_own() -> None:
    async def main(bench: Bench) -> None:
        names = [(await bench.submit(CREATE, f"t{number}")).entry for number in range(3)]
        assert names == ["query-0000000000", "query-0000000001", "query-0000000002"]

    run(main)


def test_the_same_token_from_many_at_once_is_one_entry() -> None:
    async def main(bench: Bench) -> None:
        clients = [await bench.client() for _ in range(5)]
        found = await asyncio.gather(*(client.submit(bench.prepared(CREATE, "t")) for client in clients))
        assert len({submission.entry for submission in found}) == 1
        assert sum(s.outcome is SubmitOutcome.ENQUEUED for s in found) == 1

    run(main)


@pytest.mark.parametrize("fault", ["lose_next_request", "lose_next_reply", "lose_next_reply_and_lag"])
def test_a_lost_request_or_reply_still_leaves_one_entry(fault: str) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "earlier")  # the directories are there
        keeper = await bench.keeper("initiator")
        getattr(bench.server, fault)(keeper.session_id)
        submission = await DDLQueueClient(keeper, bench.env, PATHS).submit(bench.prepared(DROP, "t"))
        assert submission.entry == "query-0000000001"
        assert await (await bench.client()).list() == ("query-0000000000", "query-0000000001")

    run(main)


def test_a_token_of_another_statement_is_refused() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "t")
        with pytest.raises(Refused, match="another statement"):
            await bench.submit(DROP, "t")

    run(main)


def test_the_initiator_that_died_before_it_named_the_entry_is_found_by_transaction() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await create_ancestors(keeper, PATHS.entry("x"))
        await create_ancestors(keeper, PATHS.token("x"))
        for number in range(3):
            data = bench.prepared(CREATE, f"t{number}").data
            await keeper.multi(
                [
                    Create(PATHS.token(f"t{number}")),
                    Create(PATHS.entry_prefix, data, CreateMode.PERSISTENT_SEQUENTIAL),
                ]
            )
        submission = await bench.submit(CREATE, "t1")
        assert (submission.entry, submission.outcome) == ("query-0000000001", SubmitOutcome.ATTACHED)
        named = json.loads((await keeper.get(PATHS.token("t1"))).data)
        assert named["entry"] == "query-0000000001"
        assert set((await keeper.children(PATHS.entry("query-0000000001"))).names) == {"active", "finished"}

    run(main)


def test_an_entry_its_directories_and_its_name_are_one_transaction() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "earlier")  # the queue is there, so that a name can be guessed
        entry = (await bench.submit(CREATE, "t")).entry
        keeper = await bench.keeper()
        paths = [PATHS.token("t"), PATHS.entry(entry), PATHS.active(entry), PATHS.finished(entry)]
        made = {stat.czxid for stat in await keeper.exists_many(paths) if stat is not None}
        assert len(made) == 1
        named = await keeper.get(PATHS.token("t"))
        assert (json.loads(named.data)["entry"], named.stat.version) == (entry, 0)

    run(main)


@pytest.mark.parametrize("directories", ["whole", "without directories"])
def test_whoever_is_overtaken_by_another_initiator_gets_the_next_name(directories: str) -> None:
    async def main(bench: Bench) -> None:
        # 1. we look at the queue, 2. another initiator puts an entry into it, 3. we submit
        await bench.submit(CREATE, "earlier")
        other = await bench.keeper("another initiator")

        class Overtaken:
            def __init__(self, keeper: Keeper) -> None:
                self._keeper = keeper

            def __getattr__(self, name: str) -> object:
                return getattr(self._keeper, name)

            async def exists(self, path: str) -> Stat | None:
                stat = await self._keeper.exists(path)
                if path == PATHS.root:
                    name = (await other.create(PATHS.entry_prefix, b"x", mode=SEQUENTIAL)).rsplit("/", 1)[1]
                    if directories == "whole":
                        await other.multi([Create(PATHS.active(name)), Create(PATHS.finished(name))])
                return stat

        client = DDLQueueClient(cast(Keeper, Overtaken(await bench.keeper("initiator"))), bench.env, PATHS)
        submission = await client.submit(bench.prepared(CREATE, "t"))
        assert submission.entry == "query-0000000002"
        assert json.loads((await other.get(PATHS.token("t"))).data)["entry"] == submission.entry
        for entry in ("query-0000000001", "query-0000000002"):
            assert set((await other.children(PATHS.entry(entry))).names) == {"active", "finished"}

    run(main)


def test_the_initiator_that_died_after_it_guessed_wrong_is_found_by_transaction() -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        others = await bench.submit(CREATE, "t0")
        wrong = (await keeper.get(PATHS.token("t0"))).data
        create = Create(PATHS.entry_prefix, bench.prepared(DROP, "t1").data, SEQUENTIAL)
        await keeper.multi([Create(PATHS.token("t1"), wrong), create])
        submission = await bench.submit(DROP, "t1")
        assert others.entry == "query-0000000000"
        assert (submission.entry, submission.outcome) == ("query-0000000001", SubmitOutcome.ATTACHED)
        assert json.loads((await keeper.get(PATHS.token("t1"))).data)["entry"] == submission.entry

    run(main)


def test_a_token_whose_entry_was_removed_is_gone_and_not_enqueued_again() -> None:
    async def main(bench: Bench) -> None:
        first = await bench.submit(CREATE, "t")
        keeper = await bench.keeper()
        await keeper.multi(
            [
                Remove(PATHS.active(first.entry)),
                Remove(PATHS.finished(first.entry)),
                Remove(PATHS.entry(first.entry)),
            ]
        )
        again = await bench.submit(CREATE, "t")
        assert (again.is_gone, again.outcome, again.entry) == (True, SubmitOutcome.ATTACHED, first.entry)
        assert again.hosts == first.hosts
        assert await (await bench.client()).list() == ()

    run(main)


async def _without_a_name(bench: Bench, token: str, data: bytes = b"") -> str:
    """An entry of whoever ended before the name was in the token, or wrote another one there."""
    keeper = await bench.keeper()
    create = Create(PATHS.entry_prefix, bench.prepared(DROP, token).data, SEQUENTIAL)
    return str((await keeper.multi([Create(PATHS.token(token), data), create]))[1]).rpartition("/")[2]


async def _removed(bench: Bench, entry: str, how: str) -> None:
    if how == "with a record":
        await DDLCleaner(await bench.keeper(), bench.env, QUEUE).remove_entry(entry)
    elif how == "without":
        await remove_recursive(await bench.keeper(), PATHS.entry(entry))


@pytest.mark.parametrize("ours", ["stays", "with a record", "without"])
@pytest.mark.parametrize("others", ["stays", "with a record", "without"])
def test_a_token_that_names_somebody_else_s_entry_never_tells_what_became_of_that(
    others: str, ours: str
) -> None:
    """1. We guessed a name. 2. Another entry got it, and ours the next one. 3. We ended before that was put
    right. 4. Entries are removed."""

    async def main(bench: Bench) -> None:
        other = (await bench.submit(CREATE, "t0")).entry
        wrong = (await (await bench.keeper()).get(PATHS.token("t0"))).data
        entry = await _without_a_name(bench, "t1", wrong)
        await _removed(bench, other, others)
        await _removed(bench, entry, ours)
        found = await bench.submit(DROP, "t1")
        assert found.is_gone == (ours != "stays")
        if ours == "stays":
            assert found.entry == entry
        elif others != "without":
            assert found.entry == "", "nobody knows it any more"

    run(main)


@pytest.mark.parametrize("how", ["with a record", "without"])
def test_an_entry_that_was_found_by_its_transaction_is_known_by_its_name_when_it_is_gone(how: str) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "t0")
        entry = await _without_a_name(bench, "t1")
        client = await bench.client()
        found = await client.find("t1")
        assert found is not None and (found.entry, found.is_gone) == (entry, False)
        await _removed(bench, entry, how)
        found = await client.find("t1")
        assert found is not None and (found.entry, found.is_gone) == (entry, True)
        assert found.hosts == (host("a"), host("b"))

    run(main)


def test_an_entry_that_was_gone_before_anybody_knew_its_name_has_none() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "t0")
        await _removed(bench, await _without_a_name(bench, "t1"), "without")
        found = await bench.submit(DROP, "t1")
        assert (found.entry, found.is_gone) == ("", True)

    run(main)


def test_a_token_that_the_server_of_the_session_has_yet_to_hear_of_is_found() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "earlier")
        keeper = await bench.keeper("initiator")
        bench.server.stale_reads(keeper.session_id)
        submission = await bench.submit(DROP, "t")
        found = await DDLQueueClient(keeper, bench.env, PATHS).find("t")
        assert found is not None and (found.entry, found.is_gone) == (submission.entry, False)

    run(main)


def test_a_token_that_was_never_submitted_is_not_found() -> None:
    async def main(bench: Bench) -> None:
        assert await (await bench.client()).find("never") is None

    run(main)


def test_directories_of_the_hosts_are_made_for_newer_servers() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "t")
        names = (await (await bench.keeper()).children(PATHS.replicas_root)).names
        assert names == ("a:9000", "b:9000")

    run(main)


def states(status: EntryStatus) -> list[HostState]:
    return [outcome.state for outcome in status.hosts]


def test_watching_shows_each_host_as_it_goes() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        watching = (await bench.client()).watch(submission.entry)
        assert states(await anext(watching)) == [HostState.WAITING, HostState.WAITING]
        bench.start("a")
        seen = [status async for status in _until(watching, lambda s: s.hosts[0].state is HostState.DONE)]
        assert seen[-1].hosts[0].duration_ms is not None
        bench.start("b")
        rest = [status async for status in watching]
        assert rest[-1].is_complete and rest[-1].is_done_on_all_hosts

    run(main)


async def _until(
    watching: AsyncIterator[EntryStatus], is_enough: Callable[[EntryStatus], bool]
) -> AsyncIterator[EntryStatus]:
    async for status in watching:
        yield status
        if is_enough(status):
            return


def test_a_status_says_whose_entry_it_is_and_when_what_happened() -> None:
    """By its token whoever waits knows that it is still their own: names begin again in a queue made anew."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        bench.executors["a"].duration_s = (10.0, 10.0)
        entry = (await bench.submit(CREATE, "t", initiator="me:9000")).entry
        client, keeper = await bench.client(), await bench.keeper()
        made = (await keeper.get(PATHS.entry(entry))).stat
        await bench.env.sleep(5)
        status = await client.status(entry)
        assert (status.token, status.czxid, status.initiator) == ("t", made.czxid, "me:9000")
        assert status.entry_created_ms == made.ctime_ms and "ON CLUSTER" in status.query
        began_ms = (await keeper.get(PATHS.active(entry, host("a")))).stat.ctime_ms
        assert status.outcome(host("a")).started_ms == began_ms
        await bench.env.sleep(10)
        ended_ms = (await keeper.get(PATHS.finished(entry, host("a")))).stat.ctime_ms
        ended = (await client.status(entry)).outcome(host("a"))
        assert (ended.state, ended.finished_ms) == (HostState.DONE, ended_ms)
        assert ended.duration_ms == ended_ms - made.ctime_ms

    run(main)


def test_a_failure_shows_its_code_and_text() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        status = await bench.ddl(DROP, "t")
        assert states(status) == [HostState.FAILED, HostState.FAILED]
        assert status.failed[0].code == 60 and "doesn't exist" in status.failed[0].error

    run(main)


def test_a_host_that_was_there_and_is_away_is_inactive_and_one_never_seen_is_waiting() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.env.sleep(1)
        await bench.stop("a")
        submission = await bench.submit(CREATE, "t")
        client = await bench.client()
        assert states(await client.status(submission.entry)) == [HostState.INACTIVE, HostState.WAITING]
        watching = client.watch(submission.entry)
        seen = [status async for status in _until(watching, lambda s: HostState.INACTIVE in states(s))]
        assert states(seen[-1]) == [HostState.INACTIVE, HostState.WAITING]

    run(main)


def test_watching_survives_sessions_when_it_has_a_holder() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        holder = SessionHolder(bench.server.factory(client="watcher"), bench.env)
        watching = DDLQueueClient(holder, bench.env, PATHS).watch(submission.entry)
        await anext(watching)
        for session in bench.server.session_ids("watcher"):
            bench.server.expire_session(session)
        bench.start("a", "b")
        statuses = [status async for status in watching]
        assert statuses[-1].is_done_on_all_hosts
        await holder.close()

    run(main)


def test_an_entry_that_the_server_of_a_new_session_does_not_know_yet_is_not_taken_for_gone() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE, "earlier")
        keeper = await bench.keeper("watcher")
        bench.server.stale_reads(keeper.session_id)
        submission = await bench.submit(DROP, "t")
        watching = DDLQueueClient(keeper, bench.env, PATHS).watch(submission.entry)
        assert states(await anext(watching)) == [HostState.WAITING] * 2
        bench.start("a", "b")
        assert (await _all(watching))[-1].is_complete

    run(main)


def test_a_status_is_as_new_as_the_question_whatever_the_server_of_the_session_knows() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        keeper = await bench.keeper()
        bench.server.stale_reads(keeper.session_id)
        bench.start("a", "b")
        await bench.last(await bench.client(), submission.entry)
        status = await DDLQueueClient(keeper, bench.env, PATHS).status(submission.entry)
        assert status.is_done_on_all_hosts

    run(main)


def test_the_record_of_a_removed_entry_is_found_whatever_another_session_knows() -> None:
    """The holder of sessions has a new one whenever it is asked, and its server has yet to hear of the
    removal."""

    async def main(bench: Bench) -> None:
        submission = await bench.submit(DROP, "t")
        sessions = [await bench.keeper(), await bench.keeper()]
        bench.server.stale_reads(sessions[1].session_id)
        await DDLCleaner(await bench.keeper(), bench.env, QUEUE).remove_entry(submission.entry)

        class Source:
            async def session(self) -> Keeper:
                return sessions.pop(0)

        assert (await DDLQueueClient(Source(), bench.env, PATHS).status(submission.entry)).is_gone

    run(main)


@pytest.mark.parametrize("seed", range(5))
def test_an_outcome_that_comes_while_a_look_has_no_answer_is_not_forgotten(seed: int) -> None:
    """1 one host is waited for, 2 requests get through no more, but events do, 3 the watcher asks who is
    there, 4 the outcome comes, and is told, 5 its connection breaks meanwhile, 6 there is another."""

    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        keeper = await bench.keeper("watcher")
        watching = DDLQueueClient(keeper, bench.env, PATHS).watch(submission.entry)
        bench.start("a")
        [_ async for _ in _until(watching, lambda s: s.hosts[0].state is HostState.DONE)]
        rest = asyncio.create_task(_all(watching))
        bench.server.partition("watcher", direction=Direction.TO_KEEPER)
        await bench.env.sleep(1)
        bench.start("b")
        await bench.env.sleep(2)
        assert not rest.done()
        bench.server.break_connection(keeper.session_id)
        bench.server.heal("watcher")
        async with asyncio.timeout(60):
            assert (await rest)[-1].is_done_on_all_hosts

    run(main, seed=seed)


def test_what_hosts_did_of_another_entry_of_that_name_is_not_told_to_who_watches_this_one() -> None:
    """Keeper has lost its data while nobody was connected, and numbers its entries anew."""

    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        holder = SessionHolder(bench.server.factory(client="watcher"), bench.env)
        watching = DDLQueueClient(holder, bench.env, PATHS).watch(submission.entry)
        assert states(await anext(watching)) == [HostState.WAITING] * 2
        bench.server.partition("watcher")
        bench.server.lose_data()
        await create_ancestors(await bench.keeper(), "/some/others")  # its transactions have other numbers
        assert (await bench.submit(DROP, "another")).entry == submission.entry
        bench.start("a", "b")
        await bench.last(await bench.client(), submission.entry)
        bench.server.heal("watcher")
        with pytest.raises(SqlError) as refusal:
            await _all(watching)
        assert refusal.value.code == 341
        await holder.close()

    run(main)


async def _all(watching: AsyncIterator[EntryStatus]) -> list[EntryStatus]:
    return [status async for status in watching]


def test_with_one_session_its_end_is_told() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        keeper = await bench.keeper("watcher")
        watching = DDLQueueClient(keeper, bench.env, PATHS).watch(submission.entry)
        await anext(watching)
        bench.server.expire_session(keeper.session_id)
        with pytest.raises(SessionExpired):
            await anext(watching)

    run(main)


def test_an_entry_that_vanishes_ends_the_watch_with_unfinished() -> None:
    async def main(bench: Bench) -> None:
        submission = await bench.submit(CREATE, "t")
        client, keeper = await bench.client(), await bench.keeper()
        watching = client.watch(submission.entry)
        await anext(watching)
        await keeper.multi(
            [
                Remove(PATHS.active(submission.entry)),
                Remove(PATHS.finished(submission.entry)),
                Remove(PATHS.entry(submission.entry)),
            ]
        )
        with pytest.raises(SqlError) as refusal:
            await anext(watching)
        assert refusal.value.code == 341
        with pytest.raises(SqlError) as refusal:
            await client.status("query-0000009999")
        assert refusal.value.code == 341

    run(main)


def test_an_entry_without_directories_can_be_watched_from_the_start() -> None:
    async def main(bench: Bench) -> None:
        name = await bench.put(DDLLogEntry(1, CREATE, (host("a"), host("b"))).to_bytes())
        watching = (await bench.client()).watch(name)
        assert states(await anext(watching)) == [HostState.WAITING, HostState.WAITING]
        bench.start("a", "b")
        statuses = [status async for status in watching]
        assert statuses[-1].is_done_on_all_hosts

    run(main)


def test_the_cost_of_watching_grows_with_the_hosts_and_not_faster() -> None:
    def reads(count: int) -> int:
        async def main(bench: Bench) -> int:
            names = [f"h{number}" for number in range(count)]
            bench.topology = topology(" ".join(names))
            submission = await bench.submit(CREATE, "t")
            bench.server.operations.clear()
            watching = (await bench.client()).watch(submission.entry)
            await anext(watching)
            keeper = await bench.keeper("hosts")
            for name in names:
                await keeper.create(PATHS.finished(submission.entry, host(name)), b"0\n")
            async for _ in watching:
                pass
            counts = bench.server.operations["initiator"]
            return counts["get"] + counts["children"] + counts["exists"]

        return run(main)

    small, large = reads(20), reads(200)
    assert large <= 11 * small


def test_who_waits_for_the_last_host_is_told_with_one_round_trip_and_no_pause() -> None:
    async def main(bench: Bench) -> None:
        bench.server = MemoryKeeperServer(bench.env, latency_s=(0.5, 0.5))
        submission = await bench.submit(CREATE, "t")
        watching = (await bench.client()).watch(submission.entry)
        keeper = await bench.keeper("hosts")
        await anext(watching)
        await keeper.create(PATHS.finished(submission.entry, host("a")), b"0\n")
        async for _ in _until(watching, lambda s: s.hosts[0].state is HostState.DONE):
            pass
        began_s = bench.env.monotonic_s()
        await keeper.create(PATHS.finished(submission.entry, host("b")), b"0\n")
        async for _ in watching:
            pass
        # Half a second until the outcome is there, half a second until the watch tells, and the look.
        assert bench.env.monotonic_s() - began_s == pytest.approx(2.0)

    run(main)


def test_the_queue_table_has_a_row_for_each_host() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        client = await bench.client()
        await client.submit(bench.prepared(DROP, "t", settings={"max_threads": "1"}))
        await bench.put(b"garbage")
        await bench.env.sleep(1)
        rows = await client.queue_rows()
        first, second, garbage = rows
        assert (first.entry, first.host, first.status, first.exception_code) == (
            "query-0000000000",
            "a",
            "Finished",
            60,
        )
        assert (first.cluster, first.settings, first.query) == ("c", {"max_threads": "1"}, DROP)
        assert (second.host, second.port, second.status) == ("b", 9000, "Inactive")
        assert second.exception_code is None and second.query_finish_time is None
        assert (garbage.entry_version, garbage.status, garbage.host) == (None, "Finished", "a")

    run(main)


def test_statuses_of_a_long_queue_cost_one_sync_and_name_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        await bench.submit(DROP, "t")
        await bench.put(b"garbage")
        for _ in range(300):
            await bench.put(bench.prepared(DROP, "x").data)
        client, syncs = DDLQueueClient(keeper, bench.env, PATHS), 0
        sync = keeper.sync

        async def counted(path: str) -> None:
            nonlocal syncs
            syncs += 1
            await sync(path)

        monkeypatch.setattr(keeper, "sync", counted)
        names = await client.list()
        statuses = await client.status_many([*names, "query-0000009999"])
        assert [s.entry for s in statuses if isinstance(s, EntryStatus)] == [names[0], *names[2:]]
        assert [type(s) for s in statuses if not isinstance(s, EntryStatus)] == [
            MalformedEntry,
            NeverEnqueued,
        ]
        assert syncs == 1

    run(main)
