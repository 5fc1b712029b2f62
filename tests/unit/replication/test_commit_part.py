"""How a staged part becomes the replica's: what is compared, what is asserted, and what readers see."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.errors import BadVersion, Code, MultiFailed, SqlError
from engine.keeper.base import Check
from engine.replication.fetching import Agreed
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.replica.commit_part import (
    commit_fetched,
    commit_parts,
    commit_produced,
    publish,
)
from tests.unit.replication.create_support import pause_before
from tests.unit.replication.replica_bench import Bench, Replica, run

FIRST, SECOND = map(PartName.parse, ("all_0_0_0", "all_1_1_0"))
BOTH = PartName.parse("all_0_1_1")


async def staged(replica: Replica, value: int, name: PartName = FIRST) -> PartHeader:
    """A part with one row, as somebody has made or fetched it."""
    part = await replica.store.stage_inserted(await replica.write(value), name)
    return part.header


async def pair(bench: Bench) -> tuple[Replica, Replica]:
    return await bench.replica("r1"), await bench.replica("r2")


def in_keeper(bench: Bench, replica: Replica, part: PartName = FIRST) -> PartHeader | None:
    path = replica.ctx.me.part(part)
    return PartHeader.from_bytes(bench.data(path)) if bench.has(path) else None


# --- what is compared, and asserted -----------------------------------------------------------------------


def test_what_another_replica_has_otherwise_is_thrown_away() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await staged(one, 1)
        await commit_produced(one.ctx, FIRST)
        await staged(two, 2)
        with pytest.raises(PartDiffers):
            await commit_produced(two.ctx, FIRST)
        assert not two.store.staged and two.values() == [] and in_keeper(bench, two) is None

    run(main)


def test_of_two_that_make_different_parts_of_one_name_at_the_same_time_the_second_is_refused() -> None:
    """1. r1 finds that nobody has the part. 2. r2 commits another one of this name. 3. r1 commits."""

    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await staged(one, 1)
        theirs = await staged(two, 2)
        pause_before(one.ctx.session(), 1, lambda: commit_produced(two.ctx, FIRST))
        with pytest.raises(PartDiffers):
            await commit_produced(one.ctx, FIRST)
        assert one.values() == [] and in_keeper(bench, one) is None
        assert two.values() == [2] and in_keeper(bench, two) == theirs

    run(main)


def test_a_replica_that_joins_and_makes_another_part_of_the_name_meanwhile_is_met() -> None:
    """1. r1 finds that nobody has the part. 2. r3 joins, and commits another one. 3. r1 commits."""

    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await staged(one, 1)

        async def join() -> None:
            three = await bench.replica("r3")
            await staged(three, 2)
            await commit_produced(three.ctx, FIRST)

        pause_before(one.ctx.session(), 1, join)
        with pytest.raises(PartDiffers):
            await commit_produced(one.ctx, FIRST)
        assert one.values() == [] and in_keeper(bench, one) is None

    run(main)


def test_a_replica_that_joins_meanwhile_is_no_obstacle() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        header = await staged(one, 1)
        pause_before(one.ctx.session(), 1, lambda: bench.replica("r3"))
        await commit_produced(one.ctx, FIRST)
        assert one.values() == [1] and in_keeper(bench, one) == header

    run(main)


@pytest.mark.parametrize("commit", [commit_fetched, commit_produced], ids=["with others", "by itself"])
def test_what_was_fetched_is_compared_anew_when_its_source_lost_it_meanwhile(commit: object) -> None:
    """Another replica may have put an empty part in its place by then."""

    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        header = await staged(one, 1)
        gone = bench.replicas["r2"].ctx.paths.replica("r3")
        await staged(two, 2)
        await commit_produced(two.ctx, FIRST)
        with pytest.raises(PartDiffers):
            if commit is commit_fetched:
                await commit_fetched(one.ctx, FIRST, Agreed(gone, header))
            else:
                await commit_produced(one.ctx, FIRST, agreed=Agreed(gone, header))
        assert one.values() == [] and in_keeper(bench, one) is None

    run(main)


@pytest.mark.parametrize("commit", [commit_fetched, commit_produced], ids=["with others", "by itself"])
def test_what_was_agreed_on_counts_only_for_a_part_that_is_so(commit: object) -> None:
    """The staged part is another one by now: it was made here while it was fetched."""

    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        theirs = await staged(two, 2)
        await commit_produced(two.ctx, FIRST)
        await staged(one, 1)
        with pytest.raises(PartDiffers):
            if commit is commit_fetched:
                await commit_fetched(one.ctx, FIRST, Agreed(two.ctx.me, theirs))
            else:
                await commit_produced(one.ctx, FIRST, agreed=Agreed(two.ctx.me, theirs))
        assert one.values() == [] and in_keeper(bench, one) is None

    run(main)


@pytest.mark.parametrize("others_have", [None, 1, 2])
def test_a_node_that_says_something_else_of_the_part_is_corrected_unless_others_say_so_too(
    others_have: int | None,
) -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        if others_have is not None:
            await staged(two, others_have)
            await commit_produced(two.ctx, FIRST)
        old = await staged(one, 2, SECOND)
        await one.ctx.session().create(one.ctx.me.part(FIRST), old.to_bytes())
        header = await staged(one, 1)
        if others_have == 2:
            with pytest.raises(PartDiffers):
                await commit_produced(one.ctx, FIRST)
            assert in_keeper(bench, one) == old and one.values() == []
        else:
            await commit_produced(one.ctx, FIRST)
            assert in_keeper(bench, one) == header and one.values() == [1]

    run(main)


def test_an_active_part_that_differs_stays_and_is_checked() -> None:
    async def main(bench: Bench) -> None:
        one, two = await pair(bench)
        await staged(one, 1)
        await one.store.publish([FIRST])
        await staged(two, 2)
        await commit_produced(two.ctx, FIRST)
        with pytest.raises(PartDiffers):
            await commit_produced(one.ctx, FIRST)
        assert one.values() == [1] and FIRST in one.ctx.parts_to_check

    run(main)


def test_what_the_caller_asserts_is_refused_to_it_at_once() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await staged(one, 1)
        with pytest.raises(MultiFailed) as failed:
            await commit_produced(one.ctx, FIRST, extra=[Check(one.ctx.me.host, 77)])
        assert isinstance(failed.value.error, BadVersion)
        assert one.values() == [] and FIRST in one.store.staged and in_keeper(bench, one) is None

    run(main)


def test_a_part_that_is_nowhere_is_not_committed() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        with pytest.raises(SqlError) as refused:
            await commit_produced(one.ctx, FIRST)
        assert refused.value.code == Code.NO_SUCH_DATA_PART and in_keeper(bench, one) is None

    run(main)


# --- what readers see -------------------------------------------------------------------------------------


async def with_both(replica: Replica) -> None:
    """The merged part is active; its sources come again."""
    await staged(replica, 1, BOTH)
    await commit_produced(replica.ctx, BOTH)


def test_a_part_that_is_covered_by_what_readers_see_does_not_show_its_rows_again() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await with_both(one)
        await staged(one, 1, FIRST)
        await publish(one.ctx, [FIRST])
        assert one.values() == [1] and list(one.store.active) == [BOTH] and not one.store.staged

    run(main)


def test_what_has_been_shown_may_be_shown_again() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await staged(one, 1)
        for _ in range(2):
            await commit_parts(one.ctx, [FIRST])
        assert one.values() == [1]

    run(main)


def test_parts_of_the_range_that_is_replaced_vanish_with_nothing_in_their_place() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await staged(one, 1)
        await commit_produced(one.ctx, FIRST)
        one.ctx.queue.current_parts.add(FIRST)
        await commit_parts(one.ctx, [], replacing=PartName.parse("all_0_5_999999999_999999999"))
        assert one.values() == [] and in_keeper(bench, one) is None

    run(main)


@pytest.mark.parametrize(
    ("shown", "still_checked"),
    [(FIRST, ["all_0_1_1", "all_1_1_0", "all_4_4_0"]), (BOTH, ["all_4_4_0"])],
    ids=str,
)
def test_checks_are_over_for_what_is_here_now_and_what_it_covers_and_for_nothing_else(
    shown: PartName, still_checked: Sequence[str]
) -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        for part in (FIRST, SECOND, BOTH, PartName.parse("all_4_4_0")):
            one.ctx.check_later(part)
        await staged(one, 1, shown)
        await commit_produced(one.ctx, shown)
        assert sorted(map(str, one.ctx.parts_to_check)) == still_checked

    run(main)


def test_a_part_that_was_here_before_is_still_to_be_checked() -> None:
    async def main(bench: Bench) -> None:
        one, _ = await pair(bench)
        await with_both(one)
        one.ctx.check_later(BOTH)
        await publish(one.ctx, [BOTH])
        assert list(one.ctx.parts_to_check) == [BOTH]

    run(main)
