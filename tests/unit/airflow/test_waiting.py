"""Waiting for the hosts of an entry, through broken connections, until a limit; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from engine.ddl.cleaner import DDLCleaner
from engine.ddl.outcome import EntryStatus, HostState
from engine.ddl.output import OutputMode
from engine.errors import Code, KeeperUnavailable, Refused
from engine.keeper.base import Keeper
from engine.keeper.recipes import create_ancestors
from oncluster_airflow.outcomes import WaitResult, WaitState
from oncluster_airflow.waiting import wait_for_hosts
from tests.unit.ddl.support import PATHS, QUEUE, Bench, run

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8)"


class Waiting:
    """`away` says for how many more times there is no Keeper; -1: always."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.away = 0
        self.looks: list[dict[str, HostState]] = []
        self.sessions: list[int] = []

    @contextlib.asynccontextmanager
    async def open_session(self) -> AsyncIterator[Keeper]:
        if self.away:
            self.away -= 1
            raise KeeperUnavailable("No server answers.")
        keeper = await self.bench.keeper("waiter")
        self.sessions.append(keeper.session_id)
        try:
            yield keeper
        finally:
            await keeper.close()

    async def seen(self, status: EntryStatus) -> None:
        self.looks.append({each.host.host: each.state for each in status.hosts})

    async def wait(
        self, entry: str, limit_s: float | None, *, mode: OutputMode = OutputMode.THROW, token: str = ""
    ) -> tuple[WaitResult, float]:
        """The result, and after how long."""
        env = self.bench.env
        began_s = env.monotonic_s()
        result = await wait_for_hosts(
            self.open_session,
            entry,
            paths=PATHS,
            mode=mode,
            limit_s=limit_s,
            env=env,
            token=token,
            seen=self.seen,
        )
        return result, env.monotonic_s() - began_s


def states(result: WaitResult) -> list[HostState]:
    return [each.state for each in result.hosts]


def test_a_wait_ends_when_the_last_host_is_done_and_every_change_is_seen() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        bench.executors["a"].duration_s = (10.0, 10.0)
        bench.executors["b"].duration_s = (20.0, 20.0)
        waiting = Waiting(bench)
        result, took_s = await waiting.wait((await bench.submit(CREATE)).entry, None)
        assert (result.state, result.at_limit) == (WaitState.DONE, False)
        assert 20 <= took_s < 22
        assert {"a": HostState.DONE, "b": HostState.RUNNING} in waiting.looks

    run(main)


def test_at_the_limit_it_is_said_how_far_the_hosts_are() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        bench.executors["b"].duration_s = (100.0, 100.0)
        result, took_s = await Waiting(bench).wait((await bench.submit(CREATE)).entry, 30.0)
        assert (result.state, result.at_limit, result.note) == (WaitState.TIMEOUT, True, "")
        assert states(result) == [HostState.DONE, HostState.RUNNING]
        assert 30 <= took_s < 32

    run(main)


def test_a_failure_that_is_known_is_not_hidden_by_the_limit() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        entry = (await bench.submit("DROP TABLE d.nope ON CLUSTER c")).entry
        result, _ = await Waiting(bench).wait(entry, 30.0)
        assert (result.state, result.at_limit) == (WaitState.FAILED, True)
        assert result.hosts[0].code == Code.UNKNOWN_TABLE

    run(main)


def test_keeper_that_is_away_and_sessions_that_end_are_lived_through() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        bench.executors["b"].duration_s = (60.0, 60.0)
        waiting = Waiting(bench)
        waiting.away = 3
        entry = (await bench.submit(CREATE)).entry

        async def seen(status: EntryStatus) -> None:
            await Waiting.seen(waiting, status)
            if len(waiting.sessions) < 3:
                bench.server.expire_session(waiting.sessions[-1])

        waiting.seen = seen  # type: ignore[method-assign]
        result, took_s = await waiting.wait(entry, 300.0)
        assert (result.state, result.at_limit, result.note) == (WaitState.DONE, False, "")
        assert len(waiting.sessions) == 3 and took_s < 75

    run(main)


def test_where_keeper_stays_away_the_limit_holds_and_the_note_says_why() -> None:
    async def main(bench: Bench) -> None:
        waiting = Waiting(bench)
        waiting.away = -1
        result, took_s = await waiting.wait((await bench.submit(CREATE)).entry, 60.0)
        assert (result.state, result.at_limit, result.hosts) == (WaitState.TIMEOUT, True, ())
        assert "No server answers" in result.note
        assert 60 <= took_s < 64

    run(main)


def test_what_was_done_while_keeper_was_away_is_done_at_the_last_moment() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        status = await bench.ddl(CREATE)
        waiting = Waiting(bench)
        waiting.away = -1
        env, sleep = bench.env, bench.env.sleep
        began_s = env.monotonic_s()

        async def until_the_limit(delay_s: float) -> None:
            left_s = 60 - (env.monotonic_s() - began_s)
            if left_s < delay_s:
                waiting.away = 0
            await sleep(delay_s)

        env.sleep = until_the_limit  # type: ignore[method-assign]
        result, took_s = await waiting.wait(status.entry, 60.0)
        assert (result.state, result.at_limit) == (WaitState.DONE, False)
        assert took_s >= 60

    run(main)


@pytest.mark.parametrize("record", ["there", "none"])
def test_an_entry_that_is_removed_ends_the_wait_with_what_is_known_of_it(record: str) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        entry = (await bench.submit(CREATE)).entry
        await bench.env.sleep(5)
        await DDLCleaner(await bench.keeper(), bench.env, QUEUE).remove_entry(entry)
        if record == "none":
            await (await bench.keeper()).remove(PATHS.outcome(entry))
        result, _ = await Waiting(bench).wait(entry, None)
        assert result.state is WaitState.GONE
        if record == "there":
            assert states(result) == [HostState.DONE, HostState.EXPIRED]
        else:
            assert result.hosts == () and entry in result.note

    run(main)


async def lose_the_entry(bench: Bench, entry: str) -> None:
    """Keeper loses its data and numbers its entries anew: another statement gets the name, and is done."""
    bench.server.partition("waiter")
    bench.server.lose_data()
    await create_ancestors(await bench.keeper(), "/some/others")  # its transactions have other numbers
    bench.start("a", "b")
    assert (await bench.ddl("CREATE TABLE d.u ON CLUSTER c (a Int8)", "another")).entry == entry
    bench.server.heal("waiter")


def test_what_became_of_another_entry_of_that_name_is_not_told_to_who_waited_for_this_one() -> None:
    async def main(bench: Bench) -> None:
        entry = (await bench.submit(CREATE)).entry
        waiting = Waiting(bench)
        wait = asyncio.create_task(waiting.wait(entry, None))
        await bench.env.sleep(1)
        assert waiting.looks == [dict.fromkeys("ab", HostState.WAITING)]
        waiting.away = 4
        await lose_the_entry(bench, entry)
        result, _ = await wait
        assert result.state is WaitState.GONE and entry in result.note
        assert states(result) == [HostState.WAITING] * 2

    run(main)


def test_it_is_not_told_at_the_limit_either() -> None:
    async def main(bench: Bench) -> None:
        entry = (await bench.submit(CREATE)).entry
        waiting = Waiting(bench)
        wait = asyncio.create_task(waiting.wait(entry, 5.0))
        await bench.env.sleep(1)
        waiting.away = 1_000_000
        await lose_the_entry(bench, entry)
        await bench.env.sleep(3.9)
        waiting.away = 0
        result, _ = await wait
        assert result.state is WaitState.TIMEOUT
        assert states(result) == [HostState.WAITING] * 2

    run(main)


def test_it_is_not_told_to_who_knows_the_token_and_comes_later() -> None:
    """In the triggerer, say, or by a task that is tried again."""

    async def main(bench: Bench) -> None:
        entry = (await bench.submit(CREATE, "own")).entry
        await lose_the_entry(bench, entry)
        result, _ = await Waiting(bench).wait(entry, None, token="own")
        assert result.state is WaitState.GONE and result.hosts == ()
        result, _ = await Waiting(bench).wait(entry, None, token="another")
        assert result.state is WaitState.DONE

    run(main)


def test_an_entry_that_was_never_there_is_not_waited_for() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        result, took_s = await Waiting(bench).wait("query-0000000077", None)
        assert result.state is WaitState.GONE and "query-0000000077" in result.note
        assert took_s < 30

    run(main)


def test_a_host_that_is_away_is_not_waited_for_where_only_active_ones_are_asked_for() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(CREATE)
        await bench.stop("b")
        entry = (await bench.submit("DROP TABLE d.t ON CLUSTER c", "drop")).entry
        result, took_s = await Waiting(bench).wait(entry, 300.0, mode=OutputMode.THROW_ONLY_ACTIVE)
        assert result.state is WaitState.DONE_ON_ACTIVE and took_s < 60
        assert states(result) == [HostState.DONE, HostState.INACTIVE]
        result, took_s = await Waiting(bench).wait(entry, 300.0)
        assert result.state is WaitState.TIMEOUT and took_s >= 300

    run(main)


def test_what_can_never_work_ends_the_wait_at_once() -> None:
    async def main(bench: Bench) -> None:
        async def refuses(status: EntryStatus) -> None:
            raise Refused("The ledger is another one's.")

        waiting = Waiting(bench)
        waiting.seen = refuses  # type: ignore[method-assign]
        entry = (await bench.submit(CREATE)).entry
        with pytest.raises(Refused, match="another one's"):
            await waiting.wait(entry, None)

    run(main)
