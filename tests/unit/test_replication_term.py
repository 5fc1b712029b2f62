"""Activation, the end of a session, and what a start finds on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import deepcopy as copy_of
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import Code, SqlError
from engine.keeper.base import Create, Keeper, Op, OpResult
from engine.keeper.session import RequestKind
from engine.replication.commands.drop import drop_replica
from engine.replication.log_actions import DropRange, GetPart, MergeParts, RangeFate
from engine.replication.part_name import PartName, drop_range
from engine.replication.part_store import MergeOptions, PartsBroken
from engine.replication.replica import log_puller, part_check
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.part_check import Verdict
from engine.replication.replica.queue_view import delays_s, keeper_status, queue_rows
from engine.replication.replica.switches import Activity
from engine.testing.replication_disk import Damage
from tests.unit.replication_support import (
    PATHS,
    SESSION_TIMEOUT_S,
    WITHOUT_MERGES,
    Bench,
    P,
    Replica,
    simulated,
)


@simulated
async def test_an_active_replica_shows_its_identity_and_its_address(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    node = await bench.admin.get(one.ctx.me.is_active)
    assert node.data == f"UUID_{one.ctx.server_uuid}".encode()
    assert node.stat.ephemeral_owner == one.ctx.session().session_id
    assert (await bench.admin.get(one.ctx.me.host)).data.startswith(b"host: r1\nport: 9009\n")
    assert (await bench.admin.get(one.ctx.me.root)).data == b""
    one.ctx.host_id = "n1:9000"  # its name in the clusters
    await one.table.stop()
    assert await bench.admin.exists(one.ctx.me.is_active) is None
    assert one.ctx.is_readonly
    await one.table.start()
    assert await one.table.wait_until_active(timeout_s=5)
    assert (await bench.admin.get(one.ctx.me.root)).data == b"n1:9000"


@simulated
async def test_without_a_session_the_replica_is_read_only_at_once_and_comes_back_by_itself(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    bench.server.partition("r1")
    await bench.until(lambda: one.ctx.is_readonly)
    with pytest.raises(SqlError) as refused:
        one.ctx.session()
    assert refused.value.code == 242
    assert one.values == [1]
    await two.insert(2)
    bench.server.heal("r1")
    await bench.quiet(one, two)
    assert one.values == [1, 2] and not one.ctx.is_readonly
    await one.insert(3)


@simulated
async def test_an_expired_session_ends_the_term_before_anything_else_is_done_with_it(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    before = one.ctx.session()
    seen: list[bool] = []
    before.on_expired(lambda: seen.append(one.ctx.is_readonly))
    bench.server.expire_session(before.session_id)
    await bench.until(lambda: bool(seen) and not one.ctx.is_readonly)
    assert seen == [True] and one.ctx.session() is not before


@simulated
async def test_two_nodes_that_claim_one_replica_name_are_never_active_both(bench: Bench) -> None:
    """1. r1 runs on node r1. 2. Another server has the same macros: read-only. 3. The first goes away."""
    (one,) = await bench.cluster(1)
    other = await bench.start("r1", create=False, is_awaited=False, server_uuid=99, node="r9", disk=one.disk)
    await bench.env.sleep(30)
    assert other.ctx.is_readonly and "(REPLICA_IS_ALREADY_ACTIVE)" in other.ctx.readonly_reason
    assert not one.ctx.is_readonly
    await one.stop()
    await bench.until(lambda: not other.ctx.is_readonly)


@simulated
async def test_what_an_earlier_session_of_the_same_server_left_is_taken_over(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    await one.insert(1)
    await bench.crash(one)
    again = await bench.start("r1", one.disk, node="r1b", address="r1", is_awaited=False)
    await bench.until(lambda: not again.ctx.is_readonly, timeout_s=SESSION_TIMEOUT_S / 2)
    assert again.values == [1]


@simulated
async def test_of_a_server_and_one_with_a_copy_of_its_data_directory_one_is_active(bench: Bench) -> None:
    """They have the same identity, too, and would take the replica from each other again and again, each with
    rows that the other does not have."""
    (one,) = await bench.cluster(1)
    await one.insert(1)
    copy = await bench.start("r1", copy_of(one.disk), node="r9", is_awaited=False)
    began = asyncio.ensure_future(one.ctx.term_began.wait())
    await bench.env.sleep(60)
    assert not began.done() and not one.ctx.is_readonly
    assert copy.ctx.is_readonly and "(REPLICA_IS_ALREADY_ACTIVE)" in copy.ctx.readonly_reason
    await bench.crash(one)
    await bench.until(lambda: not copy.ctx.is_readonly)
    began.cancel()


@simulated
async def test_a_replica_whose_is_active_is_removed_by_somebody_activates_anew(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    again = asyncio.ensure_future(one.ctx.term_began.wait())
    await asyncio.sleep(0)
    await bench.admin.remove(one.ctx.me.is_active)
    await again
    assert await bench.admin.exists(one.ctx.me.is_active) is not None


@simulated
async def test_a_replica_that_is_not_in_keeper_is_read_only_and_says_so(bench: Bench) -> None:
    one = await bench.start("r1", create=False, is_awaited=False)
    await bench.env.sleep(5)
    assert one.ctx.is_readonly and "No metadata in Keeper" in one.ctx.readonly_reason
    await bench.create("r1")
    await bench.until(lambda: not one.ctx.is_readonly)


@simulated
async def test_an_error_in_the_program_ends_the_term_and_not_the_replica(bench: Bench) -> None:
    failures = 0

    async def fails_once(_ctx: ReplicaContext) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise KeyError("a bug")
        await asyncio.Event().wait()

    one = await bench.start("r1", loops=(*WITHOUT_MERGES, fails_once), is_awaited=False)
    await bench.until(lambda: bool(one.table.program_errors))
    assert one.ctx.is_readonly and "a bug" in one.ctx.readonly_reason
    await bench.until(lambda: not one.ctx.is_readonly)
    await one.insert(1)
    one.table.program_errors.clear()
    await one.stop()


@simulated
async def test_a_loop_that_was_cancelled_by_what_it_waited_for_ends_the_term_and_not_the_replica(
    bench: Bench,
) -> None:
    failures = 0

    async def waits_for_what_is_given_up(_ctx: ReplicaContext) -> None:
        nonlocal failures
        failures += 1
        given_up = asyncio.get_running_loop().create_future()
        if failures == 1:
            given_up.cancel()
        await given_up

    one = await bench.start("r1", loops=(*WITHOUT_MERGES, waits_for_what_is_given_up), is_awaited=False)
    await bench.until(lambda: failures == 2 and not one.ctx.is_readonly)
    await one.insert(1)
    assert "was cancelled" in repr(one.table.program_errors.pop())
    await one.stop()


@simulated
async def test_an_activation_that_was_cancelled_by_what_it_waited_for_is_tried_again(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    await one.table.stop()
    holder, asked = one.ctx.holder, 0
    get = holder.get

    async def given_up_once() -> Keeper:
        nonlocal asked
        asked += 1
        if asked == 1:
            given_up: asyncio.Future[Keeper] = asyncio.get_running_loop().create_future()
            given_up.cancel()
            return await given_up
        return await get()

    holder.get = given_up_once  # type: ignore[method-assign]
    await one.table.start()
    await bench.until(lambda: not one.ctx.is_readonly)
    assert "cancelled" in repr(one.table.program_errors.pop())


# -- what a start finds -------------------------------------------------------------------------------------


async def with_merged_part(bench: Bench) -> Replica:
    """A replica with two parts, and a staged merge of them."""
    (one,) = await bench.cluster(1)
    await one.insert(1)
    await one.insert(2)
    await bench.quiet(one)
    await one.store.merge([P("all_0_0_0"), P("all_1_1_0")], P("all_0_1_1"), MergeOptions())
    return one


@simulated
async def test_a_staged_part_that_keeper_does_not_know_is_thrown_away_at_start(bench: Bench) -> None:
    one = await with_merged_part(bench)
    await one.stop()
    again = await bench.start("r1", one.disk)
    assert again.staged == [] and again.active == ["all_0_0_0", "all_1_1_0"]


@simulated
async def test_a_staged_part_that_keeper_knows_is_published_at_start(bench: Bench) -> None:
    one = await with_merged_part(bench)
    header = one.store.staged[P("all_0_1_1")].header.to_bytes()
    await one.stop()
    for name in one.active:
        await bench.admin.remove(one.ctx.me.part(P(name)))
    await bench.admin.create(one.ctx.me.part(P("all_0_1_1")), header)
    again = await bench.start("r1", one.disk)
    assert again.active == ["all_0_1_1"] and again.staged == [] and again.values == [1, 2]


@simulated
async def test_a_missing_part_is_fetched_again(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await one.insert(2)
    await bench.quiet(one, two)
    await two.stop()
    del two.disk.active[P("all_0_0_0")]
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert again.values == [1, 2] and await bench.parts("r2") == ["all_0_0_0", "all_1_1_0"]


@simulated
async def test_a_missing_part_is_asked_for_once_though_the_reply_is_lost(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    await two.stop()
    del two.disk.active[P("all_0_0_0")]
    again = await bench.start("r2", two.disk, is_awaited=False)
    again.ctx.switches.stop(Activity.QUEUES)
    enqueued: list[Sequence[Op]] = []
    session = await again.holder.get()
    real = session.multi

    async def losing(ops: Sequence[Op]) -> list[OpResult]:
        if any(isinstance(op, Create) and op.path == again.ctx.me.queue_prefix for op in ops):
            enqueued.append(ops)
            bench.server.lose_next_reply(session.session_id, kind=RequestKind.MULTI)
        return await real(ops)

    session.multi = losing  # type: ignore[method-assign]
    await bench.until(lambda: not again.ctx.is_readonly)
    assert len(enqueued) == 1 and len(await bench.queue("r2")) == 1
    assert await bench.parts("r2") == []
    again.ctx.switches.start(Activity.QUEUES)
    again.ctx.queue_changed.set()
    await bench.quiet(one, again)
    assert again.values == [1] and await bench.parts("r2") == ["all_0_0_0"]


@simulated
async def test_few_unexpected_parts_are_moved_aside_and_many_keep_the_replica_read_only(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    for key in range(3):
        await one.insert(key)
    await bench.quiet(one)
    await one.stop()
    await bench.admin.remove(one.ctx.me.part(P("all_0_0_0")))
    again = await bench.start("r1", one.disk)
    assert again.detached == ["ignored_all_0_0_0"] and again.values == [1, 2]
    await again.stop()
    await bench.admin.remove(one.ctx.me.part(P("all_1_1_0")))
    await bench.admin.remove(one.ctx.me.part(P("all_2_2_0")))
    insane = await bench.start("r1", one.disk, is_awaited=False)
    await bench.env.sleep(30)
    assert insane.ctx.is_readonly and "2 rows of 2 total rows" in insane.ctx.readonly_reason
    assert "(TOO_MANY_UNEXPECTED_DATA_PARTS)" in insane.ctx.readonly_reason
    assert insane.active == ["all_1_1_0", "all_2_2_0"], "nothing is touched"
    assert await bench.admin.exists(one.ctx.me.is_active) is None
    await bench.admin.create(one.ctx.me.force_restore_data)
    await bench.until(lambda: not insane.ctx.is_readonly)
    assert insane.active == [] and len(insane.detached) == 3
    assert await bench.admin.exists(one.ctx.me.force_restore_data) is None


@simulated
async def test_a_replica_whose_parts_keeper_has_forgotten_is_forced_to_be_a_copy_of_another(
    bench: Bench,
) -> None:
    """Not to be without the rows: nothing in the log would bring them again."""
    one, two = await bench.cluster(2)
    for key in range(3):
        await one.insert(key)
    await bench.quiet(one, two)
    await two.stop()
    for part in await bench.parts("r2"):
        await bench.admin.remove(two.ctx.me.part(P(part)))
    await one.insert(3)
    again = await bench.start("r2", two.disk, is_awaited=False)
    await bench.until(lambda: "3 rows of 3 total rows" in again.ctx.readonly_reason)
    status = await keeper_status(again.ctx, bench.admin)
    assert "(TOO_MANY_UNEXPECTED_DATA_PARTS)" in status.exception
    await bench.admin.create(two.ctx.me.force_restore_data)
    await bench.until(lambda: not again.ctx.is_readonly)
    await bench.quiet(one, again)
    assert again.values == one.values == [0, 1, 2, 3] and again.detached == []
    assert await bench.parts("r2") == await bench.parts("r1")
    assert (await bench.admin.get(two.ctx.me.is_lost)).data == b"0"


@simulated
async def test_too_many_broken_parts_keep_the_replica_read_only_until_it_is_forced(bench: Bench) -> None:
    await _two_parts_are_broken(bench, "max_suspicious_broken_parts", "Suspiciously many (2) broken parts")


@simulated
async def test_too_many_broken_bytes_keep_the_replica_read_only_until_it_is_forced(bench: Bench) -> None:
    await _two_parts_are_broken(
        bench, "max_suspicious_broken_parts_bytes", "Suspiciously big size (2 parts, "
    )


async def _two_parts_are_broken(bench: Bench, setting: str, text: str) -> None:
    one, two = await bench.cluster(2)
    for key in range(3):
        await one.insert(key)
    await bench.quiet(one, two)
    await two.stop()
    for number in range(2):
        two.disk.damage(P(f"all_{number}_{number}_0"), Damage.TRUNCATION, 3)
    again = await bench.start("r2", two.disk, is_awaited=False, settings={setting: 1})
    await bench.env.sleep(20)
    assert again.ctx.is_readonly and text in again.ctx.readonly_reason
    await again.table.stop()
    await again.table.start(force=True)
    await bench.quiet(one, again)
    assert again.values == [0, 1, 2]
    assert len([name for name in again.detached if name.startswith("broken-on-start")]) == 2


@simulated
async def test_parts_of_an_interrupted_drop_are_neither_missing_nor_unexpected(bench: Bench) -> None:
    """1. r2 has a DROP_RANGE in its queue. 2. It dies between the disk and Keeper. 3. It starts again."""
    one, two = await bench.cluster(2)
    await one.insert(1)
    await one.insert(2)
    await bench.quiet(one, two)
    two.ctx.switches.stop(Activity.QUEUES)
    span = drop_range("all", 2)
    assert span is not None
    await bench.log(DropRange(span))
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    await two.stop()
    del two.disk.active[P("all_0_0_0")]
    await bench.admin.remove(two.ctx.me.part(P("all_1_1_0")))
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert again.active == [] and again.detached == [] and await bench.parts("r2") == []


# -- checking parts -----------------------------------------------------------------------------------------


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


# -- what a replica shows of itself -------------------------------------------------------------------------


@simulated
async def test_a_restart_reads_everything_anew(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    two.ctx.queue.add_virtual(P("all_7_7_0"))
    await two.table.restart()
    assert await two.table.wait_until_active(timeout_s=10)
    assert [str(part) for part in two.ctx.queue.virtual_parts] == ["all_0_0_0"]
    await one.insert(2)
    await bench.quiet(one, two)
    assert two.values == [1, 2]


@simulated
async def test_the_relative_delay_is_that_behind_the_best_active_replica(bench: Bench) -> None:
    one, two, three = await bench.cluster(3)
    for replica in (two, three):
        replica.ctx.switches.stop(Activity.QUEUES)
    await one.insert(1)
    await bench.env.sleep(200)
    absolute_s, relative_s = await delays_s(two.ctx)
    assert 195 < absolute_s < 205 and relative_s == absolute_s
    await one.stop()
    assert (await delays_s(two.ctx))[1] < 2, "r3 is as far behind, and nobody else is active"
    status = two.table.status
    assert status.inserts_in_queue == 1 and status.oldest_part_to_get == "all_0_0_0"
    assert status.queue_size == 1 and status.merges_in_queue == 0 and not status.is_readonly


@simulated
async def test_the_queue_is_shown_entry_by_entry(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.QUEUES)
    await one.insert(1)
    await bench.log(MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1")), source="r9")
    await bench.log(DropRange(P("all_5_5_0"), RangeFate.DETACH))
    await bench.until(lambda: len(two.ctx.queue.entries) == 3)
    rows = {row.type: row for row in queue_rows(two.ctx)}
    assert [row.position for row in rows.values()] == [0, 1, 2]
    assert rows["DROP_PART"].is_detach and rows["DROP_PART"].position == 0, "drops go first"
    merge = rows["MERGE_PARTS"]
    assert (merge.source_replica, merge.merge_type) == ("r9", "REGULAR")
    assert merge.parts_to_merge == ("all_0_0_0", "all_1_1_0") and merge.new_part_name == "all_0_1_1"
    assert rows["GET_PART"].source_replica == "r1" and rows["GET_PART"].create_time_s >= 1.7e9
