"""Parts that are broken, missing or unexpected: looked at, fetched again, replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import Code, SqlError
from engine.replication.commands.drop import drop_replica
from engine.replication.log_actions import DropRange, GetPart, MergeParts
from engine.replication.part_name import PartName, drop_range
from engine.replication.part_store import PartsBroken
from engine.replication.replica import log_puller, part_check, peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.part_check import Verdict
from engine.replication.replica.switches import Activity
from engine.testing.replication.disk import Damage
from tests.unit.replication.support import PATHS, WITHOUT_MERGES, Bench, P, Replica, simulated


@simulated
async def test_a_broken_part_is_moved_aside_and_fetched_again(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    assert (await part_check.check_part(two.ctx, P("all_0_0_0"))).verdict is Verdict.FINE
    two.disk.damage(P("all_0_0_0"), Damage.BIT_FLIP, 5)
    assert (await part_check.check_part(two.ctx, P("all_0_0_0"))).verdict is Verdict.FETCHED
    await bench.quiet(one, two)
    assert two.values == [1] and two.detached == ["broken_all_0_0_0"]


@simulated
async def test_broken_parts_of_which_none_can_go_without_the_other_go_together(bench: Bench) -> None:
    """To take one away the store has to read those that stay."""
    one, two = await bench.cluster(2, loops=WITHOUT_MERGES)
    parts = [await one.insert(value) for value in (1, 2, 3)]
    await bench.quiet(one, two)
    remove = two.store.remove

    async def remove_all_broken(names: Sequence[PartName], **options: Any) -> None:
        if missing := [part for part in parts[:2] if part not in names]:
            raise PartsBroken(two.ctx.name, missing)
        await remove(names, **options)

    two.disk.damage(parts[0], Damage.BIT_FLIP, 5)
    two.disk.damage(parts[1], Damage.BIT_FLIP, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two.store, "remove", remove_all_broken)
        assert (await part_check.check_part(two.ctx, parts[0])).verdict is Verdict.FETCHED
    await bench.quiet(one, two)
    assert two.values == [1, 2, 3]
    assert sorted(two.detached) == [f"broken_{part}" for part in parts[:2]]


@simulated
async def test_a_check_that_fails_keeps_no_other_part_waiting(bench: Bench) -> None:
    one, two = await bench.cluster(2, loops=WITHOUT_MERGES)
    first, second = [await one.insert(value) for value in (1, 2)]
    await bench.quiet(one, two)
    verify = two.store.verify

    async def verify_second(part: PartName) -> None:
        if part == first:
            raise SqlError(Code.NOT_IMPLEMENTED, f"{part} cannot be checked")
        await verify(part)

    two.disk.damage(second, Damage.BIT_FLIP, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two.store, "verify", verify_second)
        for part in (first, second):
            two.ctx.check_later(part)
        await bench.until(lambda: two.detached == [f"broken_{second}"])
        await bench.quiet(one, two)
        assert list(two.ctx.parts_to_check) == [first], "it is tried again"
    await bench.until(lambda: not two.ctx.parts_to_check)
    assert two.values == [1, 2]


@simulated
async def test_a_part_that_comes_while_it_is_looked_for_stays_the_replicas_own(bench: Bench) -> None:
    """1. r2 lacks a part, and checks it. 2. It is fetched and committed. 3. The check asks Keeper, which says
    that the replica has it. Taken out of `parts/` and put there again it would count for nobody meanwhile."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    part = await one.insert(1)
    await bench.until(lambda: bool(two.ctx.queue.entries))

    async def pull(ctx: ReplicaContext) -> None:
        ctx.switches.start(Activity.FETCHES)
        ctx.queue_changed.set()
        await bench.until(lambda: part in ctx.store.active)

    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(log_puller, "pull", pull)
        checked = await part_check.check_part(two.ctx, part)
    assert checked.verdict is Verdict.AGAIN
    stat = await bench.admin.exists(two.ctx.me.parts)
    assert stat is not None and stat.cversion == 1, "it was made once and never removed"


@simulated
async def test_a_part_that_is_not_what_keeper_says_of_it_is_fetched_again(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    part = await one.insert(1)
    await bench.quiet(one, two)
    right = one.store.active[part].header
    other = replace(right.digest, hash_of_uncompressed_files=bytes(16))
    for wrong in (replace(right, columns_hash=bytes(16)), replace(right, digest=other)):
        await bench.admin.set(two.ctx.me.part(part), wrong.to_bytes())
        assert (await part_check.check_part(two.ctx, part)).verdict is Verdict.FETCHED
        await bench.quiet(one, two)
        assert two.values == [1]
        assert (await bench.admin.get(two.ctx.me.part(part))).data == right.to_bytes()
    assert len(two.detached) == 2


@simulated
async def test_a_part_that_is_being_made_or_about_to_go_is_left_to_that(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    part = await one.insert(1)
    await bench.quiet(one, two)
    two.ctx.switches.stop(Activity.QUEUES)
    await bench.admin.remove(two.ctx.me.part(part))
    await bench.log(DropRange(part))
    await bench.until(lambda: two.ctx.queue.is_to_be_dropped(part))
    await bench.env.sleep(600)
    assert (await part_check.check_part(two.ctx, part)).verdict is Verdict.FINE
    assert two.active == [str(part)] and two.detached == []
    two.ctx.switches.start(Activity.QUEUES)
    two.ctx.queue_changed.set()
    await bench.quiet(one, two)
    assert two.active == [] and two.detached == []


@simulated
async def test_a_part_that_an_operation_has_in_flight_is_looked_at_when_that_is_over(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    part = await one.insert(1)
    await bench.quiet(one)
    one.disk.damage(part, Damage.BIT_FLIP, 5)
    async with one.ctx.in_flight.hold(part):
        one.ctx.check_later(part)
        await bench.env.sleep(60)
        assert one.active == [str(part)] and one.detached == []
    await bench.until(lambda: one.detached == [f"broken_{part}"])


@simulated
async def test_a_part_that_keeper_does_not_know_is_moved_aside_when_it_is_old_enough(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    await one.insert(1)
    await bench.quiet(one)
    await bench.admin.remove(one.ctx.me.part(P("all_0_0_0")))
    one.ctx.check_later(P("all_0_0_0"))
    await bench.env.sleep(60)
    assert one.active == ["all_0_0_0"]
    await bench.env.sleep(300)
    assert one.active == [] and one.detached == ["unexpected_all_0_0_0"]


@simulated
async def test_a_part_that_is_merged_while_it_is_checked_is_not_taken_from_readers(bench: Bench) -> None:
    """1. The check begins. 2. A merge is committed, and Keeper knows its source no more. 3. The check asks
    Keeper. 4. The merge is shown to readers."""
    (one,) = await bench.cluster(1)
    first, second = [await one.insert(value) for value in (1, 2)]
    await bench.quiet(one)
    await bench.env.sleep(part_check.MAX_AGE_OF_UNKNOWN_PART_S + 1)
    one.ctx.switches.stop(Activity.QUEUES)
    await bench.log(MergeParts((first, second), P("all_0_1_1")))
    await bench.until(lambda: len(one.ctx.queue) == 1)
    header, publish, may_show = peers.header, one.store.publish, asyncio.Event()

    async def header_behind_the_merge(*asked: Any) -> Any:
        one.ctx.switches.start(Activity.QUEUES)
        one.ctx.queue_changed.set()
        await bench.until(lambda: _is_gone(bench, one.ctx.me.part(first)))
        return await header(*asked)

    async def publish_later(add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
        await may_show.wait()
        await publish(add, remove)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "header", header_behind_the_merge)
        patch.setattr(one.store, "publish", publish_later)
        assert (await part_check.check_part(one.ctx, first)).verdict is Verdict.AGAIN
        assert one.values == [1, 2]
        may_show.set()
        await bench.quiet(one)
    assert one.active == ["all_0_1_1"] and one.values == [1, 2] and one.detached == []


async def _is_gone(bench: Bench, path: str) -> bool:
    return await bench.admin.exists(path) is None


@simulated
async def test_a_part_that_no_replica_has_is_replaced_with_an_empty_one_and_counted(bench: Bench) -> None:
    """1. Only r1 has the part. 2. Its disk is lost; what it has of the part is a name in Keeper."""
    one, two, three = await bench.cluster(3)
    await one.insert(1)
    await bench.quiet(one, two, three)
    for replica in (two, three):
        replica.ctx.switches.stop(Activity.FETCHES)
    await one.insert(2)
    await one.stop()
    for replica in (two, three):
        replica.ctx.switches.start(Activity.FETCHES)
        replica.ctx.queue_changed.set()
    await bench.env.sleep(100)
    assert two.active == ["all_0_0_0"], "a dead replica has it still"
    one.disk.active.pop(P("all_1_1_0"))
    back = await bench.start("r1", one.disk)
    await bench.quiet(back, two, three)
    for replica in (back, two, three):
        assert replica.active == ["all_0_0_0", "all_1_1_0"] and replica.values == [1]
    assert (await bench.admin.get(PATHS.lost_part_count)).data == b"1"


async def _awaiting(bench: Bench) -> tuple[Replica, Replica]:
    """r1 has two parts and is down; r2 looks for them again in a minute."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    for key in (1, 2):
        await one.insert(key)
    await one.stop()
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.env.sleep(10)
    dates = two.ctx.parts_to_check
    assert sorted(dates) == [P("all_0_0_0"), P("all_1_1_0")]
    assert all(due_s > two.ctx.env.monotonic_s() + 10 for due_s in dates.values())
    return one, two


@simulated
async def test_nobody_looks_for_a_part_any_more_that_has_come(bench: Bench) -> None:
    one, two = await _awaiting(bench)
    await bench.quiet(await bench.start("r1", one.disk), two)
    assert two.active == ["all_0_0_0", "all_1_1_0"]
    assert two.ctx.parts_to_check == {}


@simulated
async def test_nobody_looks_for_a_part_any_more_that_is_covered(bench: Bench) -> None:
    one, two = await _awaiting(bench)
    two.ctx.switches.stop(Activity.FETCHES)
    await bench.log(MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1")))
    await bench.quiet(await bench.start("r1", one.disk))
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.quiet(two)
    assert two.active == ["all_0_1_1"]
    assert two.ctx.parts_to_check == {}


@simulated
async def test_nobody_looks_for_a_part_any_more_that_was_dropped(bench: Bench) -> None:
    _, two = await _awaiting(bench)
    dropped = drop_range("all", 2)
    assert dropped is not None
    await bench.log(DropRange(dropped))
    await bench.quiet(two)
    assert two.active == []
    assert two.ctx.parts_to_check == {}


@simulated
async def test_a_part_that_nothing_needs_is_not_replaced(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    checked = await part_check.check_part(one.ctx, P("all_5_5_0"))
    assert checked.verdict is Verdict.FINE and one.active == []
    await bench.log(GetPart(P("all_5_5_0")))
    await bench.quiet(one)
    assert one.active == ["all_5_5_0"] and one.values == []


@simulated
async def test_a_part_that_was_fetched_does_not_come_beside_the_empty_one_that_replaced_it(
    bench: Bench,
) -> None:
    """1. r3 fetches a part from r2, slowly. 2. r2 is dropped. 3. r1 finds it lost. 4. r3 has all of it."""
    one, two, three = await bench.cluster(3)
    one.ctx.switches.stop(Activity.FETCHES)
    bench.network.faults.latency_s = (1.0, 1.0)
    part = await two.insert(1)
    await bench.until(lambda: any(queued.is_executing for queued in three.ctx.queue.entries))
    await bench.until(lambda: one.ctx.queue.producer_of(part) is not None)
    await two.table.stop()
    await drop_replica(bench.admin, PATHS, two.ctx.me)
    assert (await part_check.check_part(one.ctx, part)).verdict is Verdict.LOST
    one.ctx.switches.start(Activity.FETCHES)
    one.ctx.queue_changed.set()
    await bench.quiet(one, three)
    assert one.active == three.active == [str(part)]
    assert one.values == three.values == []


@simulated
async def test_what_a_cancelled_operation_has_staged_is_settled_by_what_keeper_says(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    for key in range(2):
        new = await one.store.write("all", [{"k": key, "v": 0}])
        await one.store.stage_inserted(new, P(f"all_{key}_{key}_0"))
    header = one.store.staged[P("all_0_0_0")].header.to_bytes()
    await bench.admin.create(one.ctx.me.part(P("all_0_0_0")), header)
    async with one.ctx.in_flight.hold(P("all_1_1_0")):
        await bench.until(lambda: one.values == [0])
        assert one.staged == ["all_1_1_0"]
    await bench.until(lambda: one.staged == [])
    assert one.active == ["all_0_0_0"]
