"""What is kept of an entry that was removed, and how it becomes truer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.ddl.abandonment import Abandoning, Abandonment, abandon
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import OutcomeRecord, correct_outcome_record, read_outcome_record
from engine.errors import Corrupt
from engine.keeper.recipes import create_ancestors
from tests.unit.ddl.support import PATHS, Bench, host, run

ENTRY = "query-0000000001"
DONE = HostOutcome(host("a"), HostState.DONE, finished_ms=1500, duration_ms=500)
FAILED = HostOutcome(host("b"), HostState.FAILED, 44, "no column", finished_ms=1700, duration_ms=700)
EXPIRED = HostOutcome(host("c"), HostState.EXPIRED)
ABANDONED = HostOutcome(host("d"), HostState.ABANDONED)
RECORD = OutcomeRecord(
    ENTRY, 17, 1000, "t", "a:9000", "DROP TABLE d.t ON CLUSTER c", (DONE, FAILED, EXPIRED, ABANDONED)
)


def test_a_record_is_read_as_it_was_written() -> None:
    assert OutcomeRecord.from_bytes(RECORD.to_bytes()) == RECORD
    status = RECORD.to_status()
    assert status.is_gone and status.hosts == RECORD.hosts
    assert (status.token, status.czxid, status.query) == ("t", 17, RECORD.query)
    for data in (b"", b"[]", b"{}", RECORD.to_bytes().replace(b"expired", b"nothing")):
        with pytest.raises(Corrupt):
            OutcomeRecord.from_bytes(data)


def outcome(name: str, state: HostState) -> HostOutcome:
    return HostOutcome(host(name), state)


@pytest.mark.parametrize(
    ("now", "earlier", "merged"),
    [
        (HostState.EXPIRED, HostState.DONE, HostState.DONE),
        (HostState.EXPIRED, HostState.FAILED, HostState.FAILED),
        (HostState.EXPIRED, HostState.ABANDONED, HostState.ABANDONED),
        (HostState.ABANDONED, HostState.DONE, HostState.DONE),
        (HostState.ABANDONED, HostState.EXPIRED, HostState.ABANDONED),
        (HostState.DONE, HostState.FAILED, HostState.DONE),
        (HostState.DONE, HostState.EXPIRED, HostState.DONE),
    ],
)
def test_what_an_earlier_record_of_the_entry_knows_is_not_forgotten(
    now: HostState, earlier: HostState, merged: HostState
) -> None:
    first = replace(RECORD, hosts=(outcome("a", earlier),))
    second = replace(RECORD, hosts=(outcome("a", now), outcome("b", HostState.EXPIRED)))
    assert [each.state for each in second.merged(first).hosts] == [merged, HostState.EXPIRED]
    assert second.merged(replace(first, czxid=16)) == second, "it is of another entry of that name"
    assert second.merged(None) == second


LATE = HostOutcome(host("c"), HostState.DONE, finished_ms=2000, duration_ms=1000)


async def written(bench: Bench) -> Any:
    """A session, and the record."""
    keeper = await bench.keeper()
    await create_ancestors(keeper, PATHS.outcome(ENTRY))
    await keeper.create(PATHS.outcome(ENTRY), RECORD.to_bytes())
    return keeper


def test_a_host_that_comes_late_says_what_is_true_and_changes_nothing_else() -> None:
    async def main(bench: Bench) -> None:
        keeper = await written(bench)
        assert not await correct_outcome_record(keeper, PATHS, "query-0000000009", 17, LATE)
        assert not await correct_outcome_record(keeper, PATHS, ENTRY, 16, LATE), "of another entry"
        for known in (DONE, replace(DONE, state=HostState.FAILED), replace(LATE, host=host("z"))):
            assert not await correct_outcome_record(keeper, PATHS, ENTRY, 17, known)
        assert await read_outcome_record(keeper, PATHS, ENTRY) == RECORD
        assert await correct_outcome_record(keeper, PATHS, ENTRY, 17, LATE)
        found = await read_outcome_record(keeper, PATHS, ENTRY)
        assert found == replace(RECORD, hosts=(DONE, FAILED, LATE, ABANDONED))

    run(main)


def test_hosts_that_come_late_at_the_same_time_are_all_heard() -> None:
    """1. c has read the record. 2. d puts it right. 3. c writes."""

    async def main(bench: Bench) -> None:
        keeper = await written(bench)
        other, put = await bench.keeper(), keeper.set
        late = HostOutcome(host("d"), HostState.FAILED, 60, "no table", finished_ms=2100, duration_ms=1100)

        async def overtaken(*arguments: Any, **options: Any) -> Any:
            keeper.set = put
            assert await correct_outcome_record(other, PATHS, ENTRY, 17, late)
            return await put(*arguments, **options)

        keeper.set = overtaken
        assert await correct_outcome_record(keeper, PATHS, ENTRY, 17, LATE)
        found = await read_outcome_record(keeper, PATHS, ENTRY)
        assert found is not None and found.hosts == (DONE, FAILED, LATE, late)

    run(main)


def test_a_person_s_word_about_one_host_of_a_removed_entry_leaves_the_others_as_they_are() -> None:
    async def main(bench: Bench) -> None:
        keeper = await written(bench)
        said = Abandonment("ann", "its disk is gone", 3000)
        assert await abandon(keeper, PATHS, ENTRY, host("c"), said) is Abandoning.ABANDONED
        found = await read_outcome_record(keeper, PATHS, ENTRY)
        given_up = replace(said.outcome(host("c")), duration_ms=2000)
        assert found == replace(RECORD, hosts=(DONE, FAILED, given_up, ABANDONED))

    run(main)


def test_a_host_that_speaks_while_a_person_gives_it_up_is_believed() -> None:
    """1. The person's program has read the record. 2. The host puts it right. 3. The program writes."""

    async def main(bench: Bench) -> None:
        keeper = await written(bench)
        other, put = await bench.keeper(), keeper.set

        async def overtaken(*arguments: Any, **options: Any) -> Any:
            keeper.set = put
            assert await correct_outcome_record(other, PATHS, ENTRY, 17, LATE)
            return await put(*arguments, **options)

        keeper.set = overtaken
        said = Abandonment("ann", "its disk is gone", 3000)
        assert await abandon(keeper, PATHS, ENTRY, host("c"), said) is Abandoning.HAS_OUTCOME
        found = await read_outcome_record(keeper, PATHS, ENTRY)
        assert found is not None and found.hosts == (DONE, FAILED, LATE, ABANDONED)

    run(main)
