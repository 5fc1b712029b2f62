"""Parts that come straight from the log: one transaction, and what becomes of it when something fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.errors import Code, SqlError
from engine.keeper.session import RequestKind
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.waiting import Sync
from engine.replication.part_name import PartName
from engine.replication.replica import log_puller
from engine.replication.replica.switches import Activity
from engine.testing.replication.store_events import Visible
from tests.unit.replication.support import PATHS, Bench, Replica, simulated


async def entries_copied(bench: Bench, replica: Replica) -> int:
    """How many entries have been made in its queue, ever. Each was removed again."""
    changes = (await bench.admin.get(PATHS.replica(replica.name).queue)).stat.cversion
    return changes // 2


async def has_all(bench: Bench, replica: Replica, *keys: int) -> None:
    """Readers see these rows, Keeper has these parts, the pointer has passed the log, and nothing is left."""
    await bench.quiet(replica)
    await bench.until(lambda: replica.values == sorted(keys))
    assert await bench.parts(replica.name) == replica.active
    assert not replica.staged
    assert not replica.ctx.unsettled
    assert not [part for part in replica.ctx.store.active if part in replica.ctx.in_flight]


@simulated
async def test_the_part_of_an_insert_comes_in_one_transaction_with_the_pointer(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    before = bench.server.operations["r2"]["multi"]
    await one.insert(1)
    await has_all(bench, two, 1)
    assert bench.server.operations["r2"]["multi"] - before == 1
    assert await entries_copied(bench, two) == 0
    assert two.ctx.max_processed_insert_s > 0


@simulated
async def test_inserts_of_both_replicas_are_passed_together(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.PULLING)
    await one.insert(1)
    await two.insert(2)
    await one.insert(3)
    two.ctx.switches.start(Activity.PULLING)
    two.ctx.log_changed.set()
    await has_all(bench, two, 1, 2, 3)
    await has_all(bench, one, 1, 2, 3)
    assert await entries_copied(bench, two) == 0


@simulated
async def test_several_inserts_join_their_partition_each_by_itself(bench: Bench) -> None:
    """To show several parts of a partition at one moment is a swap of all that it has."""
    one, two = await bench.cluster(2)
    shown: list[Visible] = []
    two.store._on_visible = shown.append
    two.ctx.switches.stop(Activity.PULLING)
    for key in (1, 2, 3):
        await one.insert(key)
    two.ctx.switches.start(Activity.PULLING)
    two.ctx.log_changed.set()
    await has_all(bench, two, 1, 2, 3)
    assert await entries_copied(bench, two) == 0
    assert [len(each.added) for each in shown] == [1, 1, 1]


@simulated
async def test_entries_that_no_request_has_room_for_come_behind_those_that_were_fetched(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.PULLING)
    for key in (1, 2, 3):
        await one.insert(key)
    two.ctx.switches.start(Activity.PULLING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_puller, "MAX_BATCH_BYTES", 1)  # one entry at a time
        two.ctx.log_changed.set()
        await has_all(bench, two, 1, 2, 3)
    assert two.ctx.log_pointer == int((await bench.admin.get(PATHS.replica("r2").log_pointer)).data)


@simulated
async def test_a_lost_reply_to_the_transaction_is_looked_after_at_once(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    bench.server.lose_next_reply(two.ctx.session().session_id, kind=RequestKind.MULTI)
    await one.insert(1)
    await has_all(bench, two, 1)
    assert await entries_copied(bench, two) == 0


@simulated
async def test_a_lost_request_is_sent_again(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    bench.server.lose_next_request(two.ctx.session().session_id, kind=RequestKind.MULTI)
    await one.insert(1)
    await has_all(bench, two, 1)


@simulated
async def test_a_quorum_a_stopped_queue_and_stopped_fetches_have_entries_copied(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1, quorum=2)
    await has_all(bench, two, 1)
    assert await entries_copied(bench, two) == 1
    for activity in (Activity.QUEUES, Activity.FETCHES):
        two.ctx.switches.stop(activity)
        await one.insert(2 if activity is Activity.QUEUES else 3)
        await bench.until(lambda: len(two.ctx.queue.entries) == 1)
        two.ctx.switches.start(activity)
        two.ctx.queue_changed.set()
        await bench.quiet(two)
    await has_all(bench, two, 1, 2, 3)
    assert await entries_copied(bench, two) == 3


@simulated
async def test_a_transfer_that_fails_leaves_the_entry_to_the_queue(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    bench.network.cut_both("r1", "r2")
    await one.insert(1)
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    assert two.values == []
    bench.network.heal_all()
    await has_all(bench, two, 1)


@simulated
async def test_a_slow_transfer_holds_the_log_up_for_a_moment_and_is_not_begun_again(
    bench: Bench,
) -> None:
    """1. r2 fetches a part, slowly. 2. Its entry is copied meanwhile, so that the next pull goes on. 3. The
    transfer ends, and the entry is executed with what it has brought."""
    one, two = await bench.cluster(2)
    bench.network.faults.latency_s = (0.5, 0.5)
    await one.insert(1)
    began_s = bench.env.monotonic_s()
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    assert bench.env.monotonic_s() - began_s < 0.4
    assert two.values == []
    await has_all(bench, two, 1)
    assert [node for _, node, _ in bench.network.fetches] == ["r2"]


@simulated
async def test_what_was_committed_and_not_published_is_published_by_the_next_pull(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    publish, refused = two.store.publish, 0

    async def fail_once(add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise SqlError(Code.NOT_ENOUGH_SPACE, "The disk is full")
        await publish(add, remove)

    two.store.publish = fail_once  # type: ignore[method-assign]
    await one.insert(1)
    await bench.until(lambda: refused == 1)
    assert await bench.parts("r2") == ["all_0_0_0"] and two.values == []
    await has_all(bench, two, 1)
    assert refused == 2


@simulated
async def test_a_term_that_ends_before_the_part_is_published_leaves_it_to_the_next(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    publish = two.store.publish

    async def lose_session(add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
        two.store.publish = publish  # type: ignore[method-assign]
        bench.server.expire_session(two.ctx.session().session_id)
        await bench.env.sleep(3600)

    two.store.publish = lose_session  # type: ignore[method-assign]
    await one.insert(1)
    await has_all(bench, two, 1)
    assert await entries_copied(bench, two) == 0


@simulated
async def test_parts_that_come_while_optimize_looks_are_merged_too(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.PULLING)
    for key in (1, 2):
        await one.insert(key)
    two.ctx.switches.start(Activity.PULLING)
    two.ctx.log_changed.set()
    await optimize(two.ctx, OptimizeOptions(extent=Extent.FINAL, sync=Sync.ALL))
    assert len(one.active) == len(two.active) == 1
    assert await entries_copied(bench, two) == 1, "the merge; both inserts came directly"
