"""What becomes of an INSERT when Keeper, its session, the disk or its caller does not wait for it."""

from __future__ import annotations

import asyncio
import enum
import errno
import random
import sys
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.errors import BadArguments, Code, ConnectionLoss, OnclusterError, SqlError
from engine.keeper.base import ANY_VERSION, Keeper, Op, OpResult, Remove
from engine.keeper.faults import FaultPlan
from engine.keeper.session import RequestKind
from engine.keeper.tree import Caller
from engine.replication.commands import insert_transaction
from engine.replication.commands.drop import drop_dead_replica
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.part_name import PartName
from engine.replication.part_store import NewPart, Part
from engine.replication.replica.block_numbers import (
    cancel_committing,
)
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum_waiting import any_session
from tests.unit.replication.insert_support import DEDUP, PLAIN, insert, name
from tests.unit.replication.live_support import Live, check_equal
from tests.unit.replication.live_support import run as run_live
from tests.unit.replication.replica_bench import PATHS, Bench, Replica, run


class Lost(enum.Enum):
    REQUEST = "request"
    REPLY = "reply"
    REPLY_AND_LAG = "reply_and_lag"
    LATE = "late"


@pytest.mark.parametrize("lost", [Lost.REPLY, Lost.REPLY_AND_LAG])
@pytest.mark.parametrize("options", [DEDUP, PLAIN], ids=["dedup", "plain"])
def test_the_answer_to_the_commit_is_lost_and_the_insert_finds_out_that_it_happened(
    options: InsertOptions, lost: Lost
) -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0, options=options)  # makes the partition
        lose_nth_multi(bench, replica, 2, lost)
        (done,) = await insert(replica, 1, options=options)
        assert not done.is_duplicate and replica.values() == [0, 1]
        assert len(bench.log()) == 2 and bench.locks() == []

    run(main)


@pytest.mark.parametrize("options", [DEDUP, PLAIN], ids=["dedup", "plain"])
def test_the_commit_is_lost_and_the_insert_starts_over_with_another_number(options: InsertOptions) -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0, options=options)
        lose_nth_multi(bench, replica, 2, Lost.REQUEST)
        (done,) = await insert(replica, 1, options=options)
        assert str(done.name) == "all_2_2_0" and not done.is_duplicate
        assert replica.values() == [0, 1] and bench.locks() == [] and not replica.store.staged
        assert bench.inserted() == ["all_0_0_0", "all_2_2_0"]

    run(main)


@pytest.mark.parametrize("lost", [Lost.REPLY, Lost.REPLY_AND_LAG])
def test_the_answer_to_the_allocation_is_lost_and_no_number_stays_held(lost: Lost) -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        lose_nth_multi(bench, replica, 1, lost)
        (done,) = await insert(replica, 1)
        assert not done.is_duplicate and bench.locks() == [] and replica.values() == [0, 1]

    run(main)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_the_session_ends_with_the_commit_and_a_new_one_finds_out(committed: bool) -> None:
    """1. The commit is sent. 2. Its answer is lost, or it is. 3. Before the client is back, the server ends
    the session. 4. A new session looks, and the replica is active again."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0, options=PLAIN)
        session_id = replica.session_id

        def then_expire() -> None:
            bench.server.expire_session(session_id)

        lose_nth_multi(bench, replica, 2, Lost.REPLY if committed else Lost.REQUEST, then=then_expire)
        task = asyncio.create_task(insert(replica, 1, options=PLAIN))
        while not replica.ctx.is_readonly:
            await bench.env.sleep(0.05)
        await bench.env.sleep(0.3)
        await replica.activate()
        (done,) = await task
        assert str(done.name) == ("all_1_1_0" if committed else "all_2_2_0")
        assert replica.values() == [0, 1] and len(bench.log()) == 2 and bench.locks() == []

    run(main)


def test_rows_that_readers_see_in_a_merged_part_when_the_insert_finds_out_are_not_shown_again() -> None:
    """1. The insert is committed, its answer lost, and its session over. 2. The replica has been away for so
    long that it is made like another one, which has merged the part. 3. A new session looks."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0, options=PLAIN)
        lose_nth_multi(bench, replica, 2, Lost.REPLY, then=lambda: bench.server.partition("r1"))
        task = asyncio.create_task(insert(replica, 1, options=PLAIN))
        while not replica.ctx.is_readonly:
            await bench.env.sleep(0.05)
        assert list(replica.store.staged) == [name("all_1_1_0")]
        both = await replica.store.write("all", [{"k": 0, "v": 0}, {"k": 1, "v": 0}])
        await replica.store.stage_inserted(both, name("all_0_1_1"))
        await replica.store.publish([name("all_0_1_1")], [name("all_0_0_0")])
        bench.server.heal("r1")
        await replica.activate()
        (done,) = await task
        assert str(done.name) == "all_1_1_0"
        assert replica.values() == [0, 1] and not replica.store.staged

    run(main)


def test_an_insert_that_was_executed_by_a_replica_that_is_dropped_does_not_say_that_it_was_not() -> None:
    """1. The insert is committed, its answer lost. 2. Somebody drops the replica, which is away. 3. A new
    session looks, and finds no replica. Its entry of the log is there, and others may have the part."""

    async def main(bench: Bench) -> None:
        replica, _ = await bench.replica("r1"), await bench.replica("r2")
        await insert(replica, 0, options=PLAIN)
        lose_nth_multi(bench, replica, 2, Lost.REPLY, then=lambda: bench.server.partition("r1"))
        task = asyncio.create_task(insert(replica, 1, options=PLAIN))
        while not replica.ctx.is_readonly or bench.has(replica.ctx.me.is_active):
            await bench.env.sleep(0.05)
        assert bench.inserted() == ["all_0_0_0", "all_1_1_0"]
        await drop_dead_replica(await bench.keeper(), PATHS, "r1")
        bench.server.heal("r1")
        with pytest.raises(SqlError) as caught:
            await task
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT

    run(main)


@pytest.mark.slow
def test_a_commit_that_arrives_late_is_not_executed_after_the_insert_started_over() -> None:
    """1. The commit is on its way, the client takes its connection for lost. 2. It looks what became of it.
    3. At some moment from then on the commit arrives. Whenever that is, the row is there once."""
    outcomes: set[str] = set()
    for steps in range(120):

        async def main(bench: Bench, steps: int = steps) -> None:
            replica = await bench.replica()
            await insert(replica, 0, options=PLAIN)
            late = lose_nth_multi(bench, replica, 2, Lost.LATE, late_by=steps // 10)
            (done,) = await insert(replica, 1, options=PLAIN)
            await asyncio.wait(late)
            assert [task.exception() is None for task in late] == [str(done.name) == "all_1_1_0"]
            assert replica.values() == [0, 1] and len(bench.log()) == 2 and bench.locks() == []
            outcomes.add(str(done.name))

        run(main, seed=steps)
    assert outcomes == {"all_1_1_0", "all_2_2_0"}


def test_an_insert_recognises_its_own_block_even_if_its_part_was_merged_away() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)

        def merge_away() -> None:
            bench.server.tree.write(Remove(replica.ctx.me.part(name("all_1_1_0"))), Caller(0, frozenset(), 0))

        lose_nth_multi(bench, replica, 2, Lost.REPLY, then=merge_away)
        (done,) = await insert(replica, 1)
        assert str(done.name) == "all_1_1_0" and not done.is_duplicate
        assert bench.inserted() == ["all_0_0_0", "all_1_1_0"] and not replica.store.staged

    run(main)


def test_keeper_stays_away_and_the_outcome_is_319_and_the_part_is_left_for_the_check() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        lose_nth_multi(bench, replica, 2, Lost.REPLY, then=bench.server.stop)
        with pytest.raises(SqlError) as caught:
            await insert(replica, 1)
        assert caught.value.code == Code.UNKNOWN_STATUS_OF_INSERT
        assert name("all_1_1_0") in replica.store.staged
        assert name("all_1_1_0") in replica.ctx.parts_to_check
        assert name("all_1_1_0") not in replica.ctx.in_flight

    run(main)


def test_without_keeper_an_insert_ends_with_nothing_inserted() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        await replica.expire()
        with pytest.raises(SqlError) as caught:
            await insert(replica, 1)
        assert caught.value.code == Code.TABLE_IS_READ_ONLY
        with pytest.raises(SqlError) as caught:
            await Inserter(replica.ctx).check(DEDUP)
        assert caught.value.code == Code.TABLE_IS_READ_ONLY
        assert replica.values() == [0] and not replica.store.staged and not replica.disk.temporary

    run(main)


def test_a_read_only_replica_that_comes_back_soon_takes_the_insert() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await replica.expire()
        task = asyncio.create_task(insert(replica, 1))
        await bench.env.sleep(3)
        await replica.activate()
        assert not (await task)[0].is_duplicate and replica.values() == [1]

    run(main)


def test_a_number_that_was_taken_away_is_replaced() -> None:
    """As DROP PARTITION does it: 1. the insert has number 1; 2. all numbers below 2 are cancelled; 3. the
    insert commits, and is refused; 4. it starts over above the dropped range."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        fence = await replica.bench.keeper()
        before_staging(replica, lambda: cancel_committing(fence, PATHS, "all", below=2))
        (done,) = await insert(replica, 1)
        assert str(done.name) == "all_2_2_0" and replica.values() == [0, 1]
        assert bench.inserted() == ["all_0_0_0", "all_2_2_0"] and bench.locks() == []
        assert not replica.store.staged

    run(main)


def test_a_part_between_two_names_is_no_leftover() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        fence = await replica.bench.keeper()
        before_staging(replica, lambda: cancel_committing(fence, PATHS, "all", below=2))
        task = asyncio.create_task(insert(replica, 1))
        seen = False
        while not task.done():
            await bench.env.sleep(0.001)
            held = [part for part in replica.store.staged if part not in replica.ctx.in_flight]
            assert held == []
            seen |= bool(replica.store.staged)
        assert seen and name("all_1_1_0") not in replica.ctx.in_flight

    run(main)


def test_a_cancelled_insert_leaves_no_lock_and_knows_what_it_did() -> None:
    outcomes: set[bool] = set()
    for steps in range(60):

        async def main(bench: Bench, steps: int = steps) -> None:
            replica = await bench.replica()
            await insert(replica, 0)
            task = asyncio.create_task(insert(replica, 1))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await insert(replica, 2)  # sends what a lost reply left behind away, too
            assert bench.locks() == []
            assert not replica.store.staged
            assert set(bench.inserted()) == {str(part) for part in replica.store.active}
            outcomes.add(1 in replica.values())
            assert replica.values() in ([0, 1, 2], [0, 2])

        run(main, seed=steps)
    assert outcomes == {True, False}


def test_an_insert_that_is_cancelled_while_keeper_does_not_answer_ends_soon_and_leaves_its_part_staged() -> (
    None
):
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        lose_nth_multi(bench, replica, 2, Lost.REQUEST, then=lambda: bench.server.partition("r1"))
        task = asyncio.create_task(insert(replica, 1))
        await bench.env.sleep(1)
        task.cancel()
        started_s = bench.env.monotonic_s()
        await asyncio.wait([task])
        assert task.cancelled() and bench.env.monotonic_s() - started_s <= 12
        part = name("all_1_1_0")
        assert part in replica.store.staged and part in replica.ctx.parts_to_check
        assert part not in replica.ctx.in_flight
        bench.server.heal("r1")
        await bench.env.sleep(30)
        if replica.ctx.is_readonly:
            await replica.activate()
        await replica.settle_staged()
        await insert(replica, 1)
        assert replica.values() == [0, 1] and bench.locks() == []

    run(main)


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_term_that_begins_while_an_insert_is_in_doubt_leaves_its_part_to_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start throws away what is staged and not in Keeper; this insert comes back to it."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(0, options=PLAIN)
        session = one.ctx.session()
        real = session.multi

        async def lost_for_long(ops: Sequence[Op]) -> list[OpResult]:
            if any(op.path == PATHS.log_prefix for op in ops):
                getattr(live.server, f"lose_next_{what}")(session.session_id, kind=RequestKind.MULTI)
                try:
                    return await real(ops)
                finally:
                    live.server.partition("r1")
            return await real(ops)

        async def when_the_term_has_begun(ctx: ReplicaContext, *, timeout_s: float | None = None) -> Keeper:
            while ctx.is_readonly or not live.has(ctx.me.is_active):
                await live.env.sleep(0.1)
            return await any_session(ctx, timeout_s=timeout_s)

        monkeypatch.setattr(insert_transaction, "any_session", when_the_term_has_begun)
        session.multi = lost_for_long  # type: ignore[method-assign]
        inserting = asyncio.create_task(one.insert(1, options=PLAIN))
        while not one.ctx.is_readonly or live.has(one.ctx.me.is_active):
            await live.env.sleep(0.1)
        live.server.heal("r1")
        assert await inserting == ("all_1_1_0" if what == "reply" else "all_2_2_0")
        await live.quiet()
        assert one.keys() == two.keys() == [0, 1]
        check_equal(one, two)

    run_live(main)


def test_rows_that_are_stored_and_could_not_be_shown_are_reported_and_shown_later() -> None:
    """Keeper has the part; what fails is to let readers see it."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        publish = one.store.publish
        failures = 0

        async def failing(*args: object, **kwargs: object) -> None:
            nonlocal failures
            failures += 1
            raise OSError(28, "No space left on device")

        one.store.publish = failing  # type: ignore[method-assign,assignment]
        with pytest.raises(SqlError, match="could not be shown") as told:
            await one.insert(1)
        assert told.value.code == Code.UNKNOWN_STATUS_OF_INSERT
        assert failures and one.keys() == []
        await live.quiet(two)
        assert two.keys() == [1]
        one.store.publish = publish  # type: ignore[method-assign]
        await live.env.sleep(600)
        assert one.keys() == [1] and one.parts() == one.parts_in_keeper()
        assert await one.insert(1) is None, "and once"

    run_live(main)


@pytest.mark.parametrize(
    "error",
    [SqlError(Code.MEMORY_LIMIT_EXCEEDED, "no memory"), OSError(errno.EMFILE, "Too many open files")],
    ids=["memory", "descriptors"],
)
def test_what_runs_out_while_rows_are_shown_does_not_make_the_insert_s_end_unknown(error: Exception) -> None:
    async def main(live: Live) -> None:
        [one] = await live.cluster(1)
        publish, failures = one.store.publish, 0

        async def failing_at_first(add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
            nonlocal failures
            failures += 1
            if failures <= 3:
                raise error
            await publish(add, remove)

        one.store.publish = failing_at_first  # type: ignore[method-assign]
        assert await one.insert(1) is not None
        assert one.keys() == [1] and one.parts() == one.parts_in_keeper()

    run_live(main)


def test_a_full_disk_fails_the_insert_and_frees_its_number() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        part = await replica.write(1)
        replica.store.faults.disk_full = 1.0
        with pytest.raises(SqlError) as caught:
            await Inserter(replica.ctx).commit([part], DEDUP)
        assert caught.value.code == Code.NOT_ENOUGH_SPACE
        assert bench.locks() == [] and not replica.disk.temporary and not bench.log()
        replica.store.faults.calm()
        assert not (await insert(replica, 1))[0].is_duplicate

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_whatever_keeper_does_each_acknowledged_row_is_there_once(seed: int) -> None:
    """Faults on every request; what ended with 319 may be there or not, all else is known."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        bench.server.faults = plan = FaultPlan.rough(random.Random(seed), rate=0.3)
        keeping = asyncio.create_task(keep_active(replica))
        known: set[int] = set()
        unknown: set[int] = set()
        for value in range(12):
            options = DEDUP if value % 2 else PLAIN
            try:
                await insert(replica, value, 100 + value, options=options)
                known |= {value, 100 + value}
            except OnclusterError as error:
                if error.code == Code.UNKNOWN_STATUS_OF_INSERT:
                    unknown |= {value, 100 + value}
        plan.calm()
        await bench.env.sleep(60)
        await insert(replica, 1000)
        keeping.cancel()
        values = replica.values()
        assert len(values) == len(set(values))
        assert known <= set(values) <= known | unknown | {1000}
        parts = {str(part) for part in replica.store.active}
        stored = set(bench.children(replica.ctx.me.parts))
        doubtful = {str(part) for part in replica.ctx.parts_to_check}
        assert parts <= stored <= parts | doubtful
        assert set(bench.inserted()) == stored
        assert bench.locks() == [] and known

    print(f"seed={seed}")
    run(main, seed=seed)


def test_a_commit_that_keeper_refuses_as_a_whole_is_no_doubt() -> None:
    """As an etcd does that is full: not one operation of it was refused."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        fill_before_nth_multi(replica, 2)
        with pytest.raises(BadArguments, match="full"):
            await insert(replica, 1)
        assert not replica.ctx.parts_to_check and not replica.store.staged
        make_room(replica)
        await insert(replica, 1)
        assert replica.values() == [0, 1]

    run(main)


def test_a_keeper_that_is_full_behind_a_lost_commit_is_asked_again_until_there_is_room() -> None:
    """1. The answer to the commit is lost. 2. Keeper does not even remove the lock of the number. 3. Somebody
    makes room, and the insert finds out."""

    async def main(bench: Bench) -> None:
        replica = await bench.replica()
        await insert(replica, 0)
        lose_nth_multi(bench, replica, 2, Lost.REQUEST)
        refused = refuse_removals(replica, times=3)
        (done,) = await insert(replica, 1)
        assert len(refused) == 3 and str(done.name) == "all_2_2_0" and replica.values() == [0, 1]
        assert bench.locks() == []

    run(main)


# --- helpers ----------------------------------------------------------------------------------------------


def lose_nth_multi(
    bench: Bench,
    replica: Replica,
    number: int,
    lost: Lost,
    *,
    then: Callable[[], None] | None = None,
    late_by: int = 0,
) -> list[asyncio.Task[object]]:
    """The replica's `number`-th multi from here on is not executed, or not answered, or executed some turns
    of the loop after it was given up (the result is its task); `then` comes right after it was executed or
    lost."""
    late: list[asyncio.Task[object]] = []

    async def arrive(ops: Sequence[Op]) -> object:
        for _ in range(late_by):
            await asyncio.sleep(0)
        return await plain(ops)

    keeper = replica.ctx.session()
    plain = keeper.multi
    count = 0

    async def multi(ops: Sequence[Op]) -> list[OpResult]:
        nonlocal count
        count += 1
        if count != number:
            return await plain(ops)
        if lost is Lost.LATE:
            late.append(asyncio.create_task(arrive(ops)))
            await asyncio.sleep(0)
            raise ConnectionLoss("given up")
        lose = getattr(bench.server, f"lose_next_{lost.value}")
        lose(replica.session_id, kind=RequestKind.MULTI)
        try:
            return await plain(ops)
        finally:
            if then is not None:
                then()

    keeper.multi = multi  # type: ignore[method-assign]
    return late


def fill_before_nth_multi(replica: Replica, number: int) -> None:
    """Keeper refuses the replica's `number`-th multi from here on as a whole, and all behind it, until
    `make_room`."""
    keeper = replica.ctx.session()
    plain = keeper.multi
    count = 0

    async def multi(ops: Sequence[Op]) -> list[OpResult]:
        nonlocal count
        count += 1
        if count < number:
            return await plain(ops)
        refuse_removals(replica, times=sys.maxsize)
        raise BadArguments(ops[0].path, "full")

    keeper.multi = multi  # type: ignore[method-assign]


def refuse_removals(replica: Replica, *, times: int) -> list[str]:
    """The first of the replica's removals from here on; the result is which have been refused."""
    keeper = replica.ctx.session()
    plain = keeper.remove
    refused: list[str] = []

    async def remove(path: str, *, version: int = ANY_VERSION) -> None:
        if len(refused) < times:
            refused.append(path)
            raise BadArguments(path, "full")
        await plain(path, version=version)

    keeper.remove = remove  # type: ignore[method-assign]
    return refused


def make_room(replica: Replica) -> None:
    keeper = replica.ctx.session()
    del keeper.multi, keeper.remove


def before_staging(replica: Replica, action: Callable[[], Awaitable[object]]) -> None:
    """Something happens once, when the next insert has its number and has not committed yet."""
    plain = replica.store.stage_inserted

    async def stage_inserted(new: NewPart, part: PartName) -> Part:
        replica.store.stage_inserted = plain  # type: ignore[method-assign]
        await action()
        return await plain(new, part)

    replica.store.stage_inserted = stage_inserted  # type: ignore[method-assign]


async def keep_active(replica: Replica) -> None:
    """What a term's loop does: a new session and activation whenever the old one is over."""
    while True:
        if replica.ctx.is_readonly:
            try:
                await replica.activate()
            except OnclusterError:
                pass
        await replica.bench.env.sleep(0.2)
