"""A person says that a host will never do its part of an entry: nobody waits, nothing looks like success."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.ddl.abandonment import Abandoning, Abandonment, abandon
from engine.ddl.cleaner import DDLCleaner, Expiry, Removal
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import correct_outcome_record
from engine.ddl.output import result_stream
from engine.errors import Code, NoNode, SqlError
from engine.keeper.base import Acl, CreateMode, Keeper, Op, OpResult
from engine.migrations.states import CellState
from tests.unit.ddl.support import PATHS, QUEUE, Bench, host, run

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8)"
ENTRY = "query-0000000000"
WORD = Abandonment("ada@here", "its machine burnt down", 1_700_000_000_000)
DAY_S = 86_400


async def say(bench: Bench, name: str, entry: str = ENTRY, word: Abandonment = WORD) -> Abandoning:
    return await abandon(await bench.keeper(), PATHS, entry, host(name), word)


def test_who_waits_is_told_at_once_and_the_reason_is_there() -> None:
    async def main(bench: Bench) -> None:
        client = await bench.client()
        await bench.submit(CREATE)
        keeper = await bench.keeper()
        waiting = asyncio.create_task(bench.last(client, ENTRY))
        await keeper.create(PATHS.finished(ENTRY, host("a")), b"0\n")
        await bench.env.sleep(60)
        assert not waiting.done()
        assert await say(bench, "b") is Abandoning.ABANDONED
        status = await waiting
        assert [o.state for o in status.hosts] == [HostState.DONE, HostState.ABANDONED]
        assert status.is_complete and not status.is_done_on_all_hosts
        (gone,) = status.abandoned
        assert gone.error == "Abandoned by ada@here: its machine burnt down" and gone.code == Code.UNFINISHED

    run(main)


def test_the_queue_itself_says_what_it_said_before() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        before = {path for path in bench.server.tree.nodes if path.startswith(PATHS.root)}
        await say(bench, "b")
        assert {path for path in bench.server.tree.nodes if path.startswith(PATHS.root)} == before

    run(main)


def test_a_host_whose_active_no_session_owns_is_not_executing() -> None:
    """It would be executing for ever, and nobody could say that it is gone."""

    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        await (await bench.keeper()).create(PATHS.active(ENTRY, host("b")))
        status = await (await bench.client()).status(ENTRY)
        assert status.outcome(host("b")).state is HostState.WAITING
        assert status.num_active == 0
        assert await say(bench, "b") is Abandoning.ABANDONED
        status = await (await bench.client()).status(ENTRY)
        assert status.outcome(host("b")).state is HostState.ABANDONED

    run(main)


def test_a_host_that_comes_back_after_all_is_done_and_not_abandoned() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        await say(bench, "b")
        keeper = await bench.keeper()
        active = PATHS.active(ENTRY, host("b"))
        await keeper.create(active, mode=CreateMode.EPHEMERAL)
        client = await bench.client()
        assert (await client.status(ENTRY)).outcome(host("b")).state is HostState.RUNNING
        await keeper.remove(active)
        await keeper.create(PATHS.finished(ENTRY, host("b")), b"0\n")
        assert (await client.status(ENTRY)).outcome(host("b")).state is HostState.DONE

    run(main)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", Abandoning.HAS_OUTCOME), ("b", Abandoning.ACTIVE), ("nobody", Abandoning.NOT_LISTED)],
)
def test_who_answers_or_was_never_asked_cannot_be_abandoned(name: str, expected: Abandoning) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        keeper = await bench.keeper()
        await keeper.create(PATHS.finished(ENTRY, host("a")), b"57\nthere is one")
        await keeper.create(PATHS.active(ENTRY, host("b")), mode=CreateMode.EPHEMERAL)
        assert await say(bench, name) is expected
        with pytest.raises(NoNode):
            await keeper.get(PATHS.abandoned(ENTRY))

    run(main)


def test_the_first_word_stays_and_an_unknown_entry_is_gone() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        assert await say(bench, "b") is Abandoning.ABANDONED
        assert await say(bench, "b", word=replace(WORD, by="somebody else")) is Abandoning.ALREADY
        outcome = (await (await bench.client()).status(ENTRY)).outcome(host("b"))
        assert "ada@here" in outcome.error
        assert await say(bench, "b", "query-0000000099") is Abandoning.GONE

    run(main)


def test_the_record_of_a_removed_entry_says_abandoned_and_the_word_goes_with_the_entry() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        await say(bench, "b")
        await bench.env.sleep(7 * DAY_S + 10)
        (cleaned,) = (await DDLCleaner(await bench.keeper(), bench.env, QUEUE).clean()).entries
        assert cleaned.removal is Removal.REMOVED and cleaned.expired == (host("a"),)
        status = await (await bench.client()).status(ENTRY)
        assert [o.state for o in status.hosts] == [HostState.EXPIRED, HostState.ABANDONED]
        assert not [path for path in bench.server.tree.nodes if path == PATHS.abandoned(ENTRY)]

    run(main)


def test_what_had_expired_can_be_abandoned_afterwards_and_the_truth_still_goes_before_it() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        await bench.env.sleep(7 * DAY_S + 10)
        keeper = await bench.keeper()
        await DDLCleaner(keeper, bench.env, QUEUE).clean()
        assert await say(bench, "b") is Abandoning.ABANDONED
        client = await bench.client()
        status = await client.status(ENTRY)
        assert [o.state for o in status.hosts] == [HostState.EXPIRED, HostState.ABANDONED]
        late = HostOutcome(host("b"), HostState.DONE)
        assert await correct_outcome_record(keeper, PATHS, ENTRY, status.czxid, late)
        assert (await client.status(ENTRY)).outcome(host("b")).state is HostState.DONE

    run(main)


async def made_anew(keeper: Keeper) -> None:
    """Another entry of the same name and text."""
    for path in (PATHS.active(ENTRY), PATHS.finished(ENTRY), PATHS.entry(ENTRY)):
        data = (await keeper.get(path)).data
        await keeper.remove(path)
    await keeper.create(PATHS.entry(ENTRY), data)


def test_a_word_about_an_earlier_entry_of_the_same_name_counts_for_nothing() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        await say(bench, "b")
        keeper = await bench.keeper()
        await made_anew(keeper)
        assert (await (await bench.client()).status(ENTRY)).outcome(host("b")).state is HostState.WAITING
        cleaned = await DDLCleaner(keeper, bench.env, QUEUE).remove_entry(ENTRY)
        assert cleaned.expired == (host("a"), host("b"))
        assert await keeper.exists(PATHS.abandoned(ENTRY)) is None

    run(main)


def test_a_word_about_an_entry_replaces_what_was_said_about_an_earlier_one_of_that_name() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        await say(bench, "b")
        keeper = await bench.keeper()
        await made_anew(keeper)
        assert await say(bench, "a") is Abandoning.ABANDONED
        status = await (await bench.client()).status(ENTRY)
        assert [o.state for o in status.hosts] == [HostState.ABANDONED, HostState.WAITING]

    run(main)


@pytest.mark.parametrize("seed", range(10))
def test_words_that_are_given_at_once_about_two_hosts_all_stay(seed: int) -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        for pair in ("ab", "cd"):  # the first word, and one more
            found = await asyncio.gather(*(say(bench, name) for name in pair))
            assert found == [Abandoning.ABANDONED] * 2
        status = await (await bench.client()).status(ENTRY)
        assert [o.state for o in status.hosts] == [HostState.ABANDONED] * 4

    run(main, "a b c d", seed=seed)


@pytest.mark.parametrize("is_first", [True, False], ids=["the first word", "one more"])
def test_an_entry_that_is_removed_while_the_word_is_given_has_it_in_its_record(is_first: bool) -> None:
    """1. The entry is there and waits for the host. 2. It is removed for its age. 3. The word is written."""

    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        if not is_first:
            await say(bench, "a")
        keeper = await bench.keeper()
        original = keeper.multi

        async def removed_meanwhile(ops: Sequence[Op]) -> list[OpResult]:
            keeper.multi = original  # type: ignore[method-assign]
            await DDLCleaner(await bench.keeper(), bench.env, QUEUE).remove_entry(ENTRY)
            return await original(ops)

        keeper.multi = removed_meanwhile  # type: ignore[method-assign]
        assert await abandon(keeper, PATHS, ENTRY, host("b"), WORD) is Abandoning.ABANDONED
        status = await (await bench.client()).status(ENTRY)
        assert status.is_gone and status.outcome(host("b")).state is HostState.ABANDONED
        assert await keeper.exists(PATHS.abandoned(ENTRY)) is None, "nothing is left behind"

    run(main)


def test_an_operators_cleaning_expires_by_age_and_not_by_number() -> None:
    async def main(bench: Bench) -> None:
        for number in range(6):
            await bench.submit(CREATE, f"t{number}")
        keeper = await bench.keeper()
        for entry in (ENTRY, "query-0000000001"):
            await keeper.create(PATHS.finished(entry, host("a")), b"0\n")
        await keeper.create(PATHS.finished(ENTRY, host("b")), b"0\n")
        await say(bench, "b", "query-0000000001")
        cleaner = DDLCleaner(keeper, bench.env, replace(QUEUE, max_tasks_in_queue=2))
        report = await cleaner.clean(expiry=Expiry.BY_AGE, lanes=4)
        assert [(e.entry, e.removal) for e in report.entries] == [
            (ENTRY, Removal.REMOVED),
            ("query-0000000001", Removal.REMOVED),
            ("query-0000000002", Removal.UNFINISHED),
        ]

    run(main)


def test_only_the_entries_that_were_named_are_looked_at_and_go() -> None:
    """An act of cleaning names a hundred of many thousands."""

    async def main(bench: Bench) -> None:
        for number in range(6):
            await bench.submit(CREATE, f"t{number}")
        bench.server.tree.nodes[PATHS.entry("query-0000000000")].acl = (Acl(31, "digest", "x:y"),)
        cleaner = DDLCleaner(await bench.keeper(), bench.env, replace(QUEUE, max_tasks_in_queue=2))
        report = await cleaner.clean(only={"query-0000000001", "query-0000000005"})
        assert report.removed == ("query-0000000001",)
        assert report.forbidden == ()

    run(main)


def test_a_statement_that_waits_gets_an_error_for_the_host_and_never_a_success() -> None:
    async def main(bench: Bench) -> None:
        await bench.submit(CREATE)
        keeper = await bench.keeper()
        await keeper.create(PATHS.finished(ENTRY, host("a")), b"0\n")
        rows = []

        async def wait() -> None:
            async for row in result_stream(keeper, bench.env, PATHS, ENTRY):
                rows.append((row.host, row.status))

        waiting = asyncio.create_task(wait())
        await bench.env.sleep(1)
        await say(bench, "b")
        with pytest.raises(SqlError, match="Abandoned by ada@here") as raised:
            await waiting
        assert raised.value.code == Code.UNFINISHED and rows == [("a", 0), ("b", Code.UNFINISHED)]

    run(main)


def test_a_migration_with_an_abandoned_host_has_failed_and_nobody_waits() -> None:
    assert CellState(HostState.ABANDONED.value).is_final and CellState.ABANDONED.is_failure
