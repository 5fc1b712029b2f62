"""What is put off: the removal of executed entries, and the copies of a replica's own inserts."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import BadArguments
from engine.keeper.base import Op, OpResult
from engine.keeper.recipes import try_remove
from engine.keeper.session import RequestKind
from engine.replication.log_actions import DropRange, GetPart
from engine.replication.part_name import drop_range
from engine.replication.replica.switches import Activity
from tests.unit.replication.support import PATHS, Bench, Replica, simulated


async def executed_and_not_removed(bench: Bench) -> Replica:
    """The second of two replicas, when it has fetched three parts and their entries are still there."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)  # or no entry would come to the queue
    for key in range(3):
        await one.insert(key)
    await bench.until(lambda: len(two.ctx.queue.entries) == 3)
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    while two.values != [0, 1, 2]:
        await bench.env.sleep(0.001)
    assert two.ctx.queue.entries
    return two


@simulated
async def test_entries_are_removed_once_when_the_reply_is_lost(bench: Bench) -> None:
    two = await executed_and_not_removed(bench)
    bench.server.lose_next_reply(two.ctx.session().session_id, kind=RequestKind.MULTI)
    await bench.until(lambda: not two.ctx.queue.entries)
    assert not await bench.queue("r2")
    assert two.values == [0, 1, 2]


@simulated
async def test_entries_are_removed_when_the_request_is_lost(bench: Bench) -> None:
    two = await executed_and_not_removed(bench)
    bench.server.lose_next_request(two.ctx.session().session_id, kind=RequestKind.MULTI)
    await bench.until(lambda: not two.ctx.queue.entries)
    assert not await bench.queue("r2")


@simulated
async def test_an_entry_that_somebody_else_removed_does_not_keep_the_others(bench: Bench) -> None:
    two = await executed_and_not_removed(bench)
    await try_remove(bench.admin, two.ctx.me.queue_entry(two.ctx.queue.entries[0].name))
    await bench.until(lambda: not two.ctx.queue.entries)
    assert not await bench.queue("r2")


@simulated
async def test_entries_whose_removal_keeper_refuses_are_tried_again_and_the_replica_goes_on(
    bench: Bench,
) -> None:
    """As an etcd does that is full."""
    two = await executed_and_not_removed(bench)
    session = two.ctx.session()
    real, refused = session.multi, list[Sequence[Op]]()

    async def refuse_twice(ops: Sequence[Op]) -> list[OpResult]:
        if len(refused) == 2:
            return await real(ops)
        refused.append(ops)
        raise BadArguments(ops[0].path, "full")

    session.multi = refuse_twice  # type: ignore[method-assign]
    await bench.until(lambda: not two.ctx.queue.entries)
    assert len(refused) == 2 and not await bench.queue("r2")
    assert two.values == [0, 1, 2] and two.ctx.session() is session


@simulated
async def test_the_times_in_keeper_are_those_of_inserts(bench: Bench) -> None:
    """Of the oldest that is not here yet, and of the latest that is. What is dropped meanwhile is neither."""
    one, two = await bench.cluster(2)
    oldest, latest = two.ctx.me.min_unprocessed_insert_time, two.ctx.me.max_processed_insert_time
    two.ctx.switches.stop(Activity.FETCHES)
    inserted = []
    for key in range(2):
        inserted.append(str(int(bench.env.now_s())).encode())
        await one.insert(key)
        await bench.env.sleep(100)
    span = drop_range("other", 1)
    assert span is not None
    await bench.log(DropRange(span))
    await bench.until(lambda: two.ctx.queue.count(GetPart) == len(two.ctx.queue) == 2)
    assert (await bench.admin.get(oldest)).data == inserted[0]
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.until(lambda: not two.ctx.queue.entries)
    assert (await bench.admin.get(oldest)).data == b""
    assert (await bench.admin.get(latest)).data == inserted[1]


@simulated
async def test_what_is_dropped_before_it_was_fetched_is_no_oldest_insert_any_more(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    await one.insert(1)
    await bench.until(lambda: two.ctx.queue.count(GetPart) == 1)
    assert (await bench.admin.get(two.ctx.me.min_unprocessed_insert_time)).data
    span = drop_range("all", 1)
    assert span is not None
    await bench.log(DropRange(span))
    await bench.until(lambda: not two.ctx.queue.entries and two.ctx.log_pointer == 2)
    assert (await bench.admin.get(two.ctx.me.min_unprocessed_insert_time)).data == b""


@simulated
async def test_own_inserts_are_passed_in_the_end_and_at_once_with_those_of_others(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    before = (await bench.admin.get(PATHS.replica("r1").queue)).stat.cversion
    await one.insert(1)
    pointer = PATHS.replica("r1").log_pointer
    assert (await bench.admin.get(pointer)).data in (b"", b"0")
    began_s = bench.env.monotonic_s()
    await two.insert(2)
    await bench.until(lambda: one.values == [1, 2])
    assert bench.env.monotonic_s() - began_s < 0.1
    await one.insert(3)
    await bench.quiet(one, two)
    assert (await bench.admin.get(pointer)).data == b"3"
    assert not one.ctx.own_inserts
    assert one.values == two.values == [1, 2, 3]
    after = (await bench.admin.get(PATHS.replica("r1").queue)).stat.cversion
    assert after == before, "nothing was copied to the queue"


@simulated
async def test_the_term_that_follows_copies_what_was_inserted_in_the_one_before(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    one.ctx.switches.stop(Activity.PULLING)
    await one.insert(1)
    assert one.ctx.own_inserts
    bench.server.expire_session(one.ctx.session().session_id)
    one.ctx.switches.start(Activity.PULLING)
    await bench.quiet(one, two)
    assert not one.ctx.own_inserts and (await bench.admin.get(one.ctx.me.log_pointer)).data == b"1"
    assert one.values == two.values == [1]
