"""Mutations: what they apply to, when they are done, and what becomes of them when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.errors import Code, SqlError
from engine.keeper.session import RequestKind
from engine.node.replicated.parts.parts_view import mutation_rows
from engine.replication.commands.mutate import create_mutation, kill_mutation, wait_for_mutation
from engine.replication.commands.partitions import clear_column
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import MutatePart
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.replica.block_numbers import allocate
from engine.replication.replica.execution.runner import MAX_MERGES_UNDER_WAY
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.disk import Damage
from engine.testing.replication.store import MemoryPartStore
from tests.unit.replication.live_support import NO_OWN_MERGES, PATHS, Live, LiveReplica, P, run


def entry_of(live: Live, number: int) -> MutationEntry:
    return MutationEntry.from_bytes(live.data(PATHS.mutation(number)))


async def mutate(replica: LiveReplica, commands: str, *, sync: Sync = Sync.ALL) -> int:
    number = await create_mutation(replica.ctx, commands)
    await wait_for_mutation(replica.ctx, number, sync=sync)
    return number


def test_it_concerns_what_was_there_before_in_every_partition() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1, partition="a")
        await first.insert(1, partition="b")
        number = await mutate(second, "UPDATE v = 5 WHERE k = 1")
        await first.insert(1, 2, partition="a")
        await live.quiet()
        entry = entry_of(live, number)
        assert entry.block_numbers == (("a", 1), ("b", 1))
        assert entry.source_replica == "r2"
        assert first.rows() == second.rows() == [(1, 0), (1, 5), (1, 5), (2, 0)]
        assert first.parts() == second.parts() == ["a_0_0_0_1", "a_2_2_0", "b_0_0_0_1"]
        assert live.data(first.ctx.me.mutation_pointer) == b"0000000000"
        assert not live.locks()

    run(main)


def test_a_replica_that_always_fetches_mutated_parts_makes_none() -> None:
    async def main(live: Live) -> None:
        first = await live.replica("r1")
        lazy = await live.replica("r2", settings=replace(NO_OWN_MERGES, always_fetch_mutated_part=1))
        await first.insert(1)
        await live.quiet()
        await mutate(first, "UPDATE v = 5 WHERE k = 1")
        assert lazy.rows() == [(1, 5)]
        assert not lazy.store.mutations

    run(main)


def test_in_one_partition() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1, partition="a")
        await replica.insert(1, partition="b")
        number = await create_mutation(replica.ctx, "DELETE WHERE k = 1", partition_ids=["b"])
        await wait_for_mutation(replica.ctx, number)
        assert entry_of(live, number).block_numbers == (("b", 1),)
        assert replica.parts() == ["a_0_0_0", "b_0_0_0_1"]
        assert replica.keys() == [1]

    run(main)


def test_while_results_wait_to_be_shown_others_are_made() -> None:
    class SlowToShow(MemoryPartStore):
        async def publish(self, add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
            if remove:
                await shown.wait()
            await super().publish(add, remove)

    shown = asyncio.Event()

    async def main(live: Live) -> None:
        replica = await live.replica(make_store=SlowToShow)
        for value in range(12):
            await replica.insert(value)
        await create_mutation(replica.ctx, "UPDATE v = 1 WHERE 1")
        await live.env.sleep(60)
        assert len(replica.store.mutations) == MAX_MERGES_UNDER_WAY
        shown.set()
        await live.quiet()
        assert replica.rows() == [(value, 1) for value in range(12)]

    run(main)


def test_two_mutations_are_applied_in_their_order_and_at_once() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        replica.ctx.switches.stop(Activity.MERGES)
        await create_mutation(replica.ctx, "UPDATE v = 1 WHERE k = 1")
        last = await create_mutation(replica.ctx, "UPDATE v = v + 10 WHERE k = 1")
        replica.ctx.switches.start(Activity.MERGES)
        replica.ctx.merge_wanted.set()
        await wait_for_mutation(replica.ctx, last)
        assert replica.rows() == [(1, 11)]
        assert live.actions(MutatePart) == ["mutate\nall_0_0_0\nto\nall_0_0_0_2"]

    run(main)


def test_an_insert_that_had_its_number_before_is_mutated_too() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        # 1. A number is taken. 2. The mutation is created, and cannot be done. 3. The number is given up.
        number = await allocate(replica.ctx, "all")
        mutation = await create_mutation(replica.ctx, "UPDATE v = 5 WHERE 1")
        waiting = asyncio.ensure_future(wait_for_mutation(replica.ctx, mutation))
        await live.env.sleep(60)
        assert replica.rows() == [(1, 5)]
        assert not waiting.done()
        assert not replica.ctx.queue.mutations[mutation].is_done
        await number.abandon()
        await waiting
        assert replica.ctx.queue.mutations[mutation].is_done

    run(main)


def test_while_pulling_is_stopped_no_mutation_is_done_and_nothing_is_copied() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await live.quiet()
        replica.ctx.switches.stop(Activity.PULLING)
        copied_up_to = replica.ctx.log_pointer
        number = await mutate(replica, "UPDATE v = 1 WHERE k = 7", sync=Sync.NONE)
        await live.env.sleep(60)
        assert not replica.ctx.queue.mutations[number].is_done
        assert replica.ctx.log_pointer == copied_up_to
        replica.ctx.switches.start(Activity.PULLING)
        for signal in (replica.ctx.log_changed, replica.ctx.merge_wanted):
            signal.set()
        await live.env.sleep(60)
        assert replica.ctx.queue.mutations[number].is_done

    run(main)


def test_merging_and_mutating_go_together() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(3, ReplicatedSettings())
        for value in range(20):
            await replicas[value % 3].insert(value, partition="ab"[value % 2])
            if value % 5 == 4:
                await create_mutation(replicas[value % 3].ctx, "UPDATE v = v + 1 WHERE 1")
        await wait_for_mutation(replicas[0].ctx, 3, sync=Sync.ALL)
        await live.quiet()
        expected = sorted((value, 4 - value // 5) for value in range(20))
        assert [replica.rows() for replica in replicas] == [expected] * 3
        assert replicas[0].parts() == replicas[1].parts() == replicas[2].parts()

    run(main)


def test_no_more_than_some_at_a_time_are_in_the_queue() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, replace(NO_OWN_MERGES, max_replicated_mutations_in_queue=2))
        for value in range(9):
            await replica.insert(value)
        await mutate(replica, "UPDATE v = 1 WHERE 1")
        assert replica.rows() == [(value, 1) for value in range(9)]
        assert len(live.actions(MutatePart)) == 9

    run(main)


def test_too_many_unfinished_mutations_are_refused() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, replace(NO_OWN_MERGES, number_of_mutations_to_throw=2))
        await replica.insert(1)
        replica.ctx.switches.stop(Activity.MERGES)
        for _ in range(2):
            await create_mutation(replica.ctx, "UPDATE v = 1 WHERE 1")
            await live.env.sleep(1)
        with pytest.raises(SqlError) as refused:
            await create_mutation(replica.ctx, "UPDATE v = 1 WHERE 1")
        assert refused.value.code == Code.TOO_MANY_MUTATIONS

    run(main)


@pytest.mark.parametrize("multis_before", [0, 1])
@pytest.mark.parametrize("what", ["reply", "reply_and_lag", "request"])
def test_a_lost_message_makes_one_mutation(what: str, multis_before: int) -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await mutate(replica, "UPDATE v = 10 WHERE 1")  # whoever looks for its own finds this, too
        await live.quiet()
        session = replica.ctx.session()
        lose = getattr(live.server, f"lose_next_{what}")
        real = session.multi
        seen = 0

        async def counted(ops):  # type: ignore[no-untyped-def]
            nonlocal seen
            seen += 1
            if seen == multis_before + 1:
                lose(session.session_id, kind=RequestKind.MULTI)
            return await real(ops)

        session.multi = counted  # type: ignore[method-assign]
        number = await create_mutation(replica.ctx, "UPDATE v = v + 1 WHERE 1")
        await wait_for_mutation(replica.ctx, number)
        assert seen > multis_before
        assert replica.rows() == [(1, 11)]
        assert number == 1 and len(live.children(PATHS.mutations)) == 2
        await replica.insert(2)  # whoever takes a number next removes what nobody knows
        assert not live.locks()

    run(main)


def test_a_session_that_ends_in_the_middle_makes_one_mutation_or_none() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        live.server.lose_next_reply(replica.ctx.session().session_id, kind=RequestKind.MULTI)
        creating = asyncio.ensure_future(create_mutation(replica.ctx, "UPDATE v = v + 1 WHERE 1"))
        await asyncio.sleep(0)
        live.server.expire_session(replica.ctx.session().session_id)
        try:
            await creating
        except SqlError as error:
            assert error.code == Code.TABLE_IS_READ_ONLY
        await replica.table.wait_until_active(timeout_s=60)
        for number in range(len(live.children(PATHS.mutations))):
            await wait_for_mutation(replica.ctx, number)
        assert replica.rows() == [(1, len(live.children(PATHS.mutations)))]
        assert len(live.children(PATHS.mutations)) <= 1

    run(main)


def test_waiting_names_the_replica_that_is_away() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        await second.stop()
        number = await create_mutation(first.ctx, "UPDATE v = 1 WHERE 1")
        await wait_for_mutation(first.ctx, number, sync=Sync.OWN)
        before = live.env.monotonic_s()
        with pytest.raises(SqlError, match="r2") as late:
            await wait_for_mutation(first.ctx, number, sync=Sync.ALL, inactive_timeout_s=30)
        assert late.value.code == Code.UNFINISHED
        assert live.env.monotonic_s() - before == pytest.approx(30, abs=1)
        with pytest.raises(SqlError, match="r2"):
            await wait_for_mutation(first.ctx, number, sync=Sync.ALL, inactive_timeout_s=0)
        waiting = asyncio.ensure_future(
            wait_for_mutation(first.ctx, number, sync=Sync.ALL, inactive_timeout_s=-1)
        )
        await live.env.sleep(3600)
        assert not waiting.done()
        await second.start()
        await waiting
        assert second.rows() == [(1, 1)]

    run(main)


def test_one_that_fails_tells_why_and_can_be_killed() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        number = await create_mutation(first.ctx, "NONSENSE")
        with pytest.raises(SqlError, match="does not understand") as failed:
            await wait_for_mutation(first.ctx, number, sync=Sync.ALL)
        assert failed.value.code == Code.UNFINISHED
        state = first.ctx.queue.mutations[number]
        assert state.latest_failed_part == "all_0_0_0"
        assert f"({state.latest_fail_error})" in state.latest_fail_reason
        assert await kill_mutation(first.ctx, number)
        await live.quiet()
        assert first.ctx.queue.mutations == second.ctx.queue.mutations == {}
        assert first.rows() == second.rows() == [(1, 0)]
        assert first.parts() == second.parts() == ["all_0_0_0_1"]
        assert not await kill_mutation(first.ctx, number)

    run(main)


@pytest.mark.parametrize("what", ["request", "reply", "reply_and_lag"])
def test_a_kill_whose_message_is_lost_has_killed(what: str) -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        number = await create_mutation(replica.ctx, "NONSENSE")
        session = replica.ctx.session().session_id
        lose = getattr(live.server, f"lose_next_{what}")
        lose(session, kind=RequestKind.REMOVE)
        assert await kill_mutation(replica.ctx, number)
        assert live.children(PATHS.mutations) == []
        await live.quiet()
        assert replica.ctx.queue.mutations == {}

    run(main)


def test_who_waits_behind_one_that_fails_is_told() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        failing = await create_mutation(replica.ctx, "NONSENSE")
        with pytest.raises(SqlError):
            await wait_for_mutation(replica.ctx, failing)
        behind = await create_mutation(replica.ctx, "UPDATE v = 1 WHERE 1")
        with pytest.raises(SqlError, match=f"mutation {failing:010}") as told:
            await wait_for_mutation(replica.ctx, behind)
        assert told.value.code == Code.UNFINISHED
        await kill_mutation(replica.ctx, failing)
        await wait_for_mutation(replica.ctx, behind)

    run(main)


def test_who_waits_for_a_killed_mutation_is_told() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        replica.ctx.switches.stop(Activity.MERGES)
        number = await create_mutation(replica.ctx, "UPDATE v = 1 WHERE 1")
        waiting = asyncio.ensure_future(wait_for_mutation(replica.ctx, number))
        await live.env.sleep(10)
        await kill_mutation(replica.ctx, number)
        with pytest.raises(SqlError, match="killed"):
            await waiting

    run(main)


def test_a_mutation_killed_between_two_replicas_leaves_them_equal() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        second.ctx.switches.stop(Activity.QUEUES)
        number = await create_mutation(first.ctx, "UPDATE v = 9 WHERE 1")
        await wait_for_mutation(first.ctx, number)
        await kill_mutation(first.ctx, number)
        await live.env.sleep(5)
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await live.quiet()
        assert first.parts() == second.parts() == ["all_0_0_0_1"]
        assert first.rows() == second.rows() == [(1, 9)]

    run(main)


def test_damage_in_a_part_whose_mutations_were_killed_gets_no_new_name() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        number = await create_mutation(first.ctx, "NONSENSE")
        with pytest.raises(SqlError, match="does not understand"):
            await wait_for_mutation(first.ctx, number, sync=Sync.ALL)
        first.store.disk.damage(P("all_0_0_0"), Damage.BIT_FLIP, 0)
        await kill_mutation(first.ctx, number)
        await live.quiet()
        assert first.parts() == second.parts() == ["all_0_0_0_1"]
        assert first.rows() == second.rows() == [(1, 0)]

    run(main)


def test_a_new_replica_mutates_what_it_has_fetched() -> None:
    async def main(live: Live) -> None:
        (first,) = await live.cluster(1)
        await first.insert(1)
        await mutate(first, "UPDATE v = 3 WHERE 1")
        second = await live.replica("r2")
        await live.quiet()
        await wait_for_mutation(second.ctx, 0, sync=Sync.ALL)
        assert second.rows() == [(1, 3)]
        assert second.parts() == ["all_0_0_0_1"]

    run(main)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_what_reading_a_damaged_part_ends_with_is_no_failure_of_the_mutation(is_damaged: bool) -> None:
    """1. One replica cannot read the part: another one's result is taken, and the part is checked. 2. Where
    the part is whole, the same error is the mutation's own."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        makes = second.store.mutate

        async def unreadable(source: PartName, result: PartName, commands: str) -> Part:
            if source == P("all_0_0_0"):
                raise SqlError(33, "Cannot read all data", name="CANNOT_READ_ALL_DATA")
            return await makes(source, result, commands)

        second.store.mutate = unreadable  # type: ignore[method-assign]
        if not is_damaged:
            with pytest.raises(SqlError, match="Cannot read all data") as said:
                await mutate(second, "UPDATE v = 5 WHERE 1")
            assert said.value.code == Code.UNFINISHED
            return
        second.store.disk.damage(P("all_0_0_0"), Damage.BIT_FLIP, 0)
        await mutate(second, "UPDATE v = 5 WHERE 1")
        await live.quiet()
        assert first.rows() == second.rows() == [(1, 5)]

    run(main)


def test_a_restart_remembers_what_is_done() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await live.env.sleep(100)
        before_s = live.env.now_s()
        number = await mutate(replica, "UPDATE v = 1 WHERE 1")
        (row,) = mutation_rows(replica.ctx)
        assert before_s - 1 <= row["finish_time"] <= live.env.now_s()  # type: ignore[operator]
        await live.env.sleep(100)
        await replica.stop()
        await replica.start()
        assert replica.ctx.queue.mutations[number].is_done
        assert not replica.ctx.queue.parts_to_do(number)
        assert list(mutation_rows(replica.ctx)) == [row]

    run(main)


def test_clear_column_is_a_mutation_of_some_partitions() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1, partition="a")
        await replica.insert(1, partition="b")
        number = await clear_column(replica.ctx, "v", ["a"])
        assert entry_of(live, number).commands == "CLEAR COLUMN `v`"
        assert replica.parts() == ["a_0_0_0_1", "b_0_0_0"]
        assert P("a_0_0_0_1") in replica.disk.active

    run(main)


def test_it_is_seen_at_once_where_it_was_created() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        number = await create_mutation(replica.ctx, "DELETE WHERE 1")
        assert number in replica.ctx.queue.mutations

    run(main)


def test_a_part_is_not_rewritten_without_a_mutation_that_is_not_known_yet() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        # 1. The second replica has the entry, 2. but not the mutation, as if it had read an old listing.
        for replica in (first, second):
            replica.ctx.switches.stop(Activity.QUEUES)
        await create_mutation(first.ctx, "UPDATE v = 9 WHERE 1")
        while not second.ctx.queue.count(MutatePart):
            await live.env.sleep(0.1)
        second.ctx.queue.set_mutations({})
        # 3. It executes the entry first.
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await live.quiet(second)
        assert second.rows() == [(1, 9)]

    run(main)


class Unable(MemoryPartStore):
    """Cannot do mutations of a kind that others can."""

    async def mutate(self, source: PartName, result: PartName, commands: str) -> Part:
        raise SqlError(Code.NOT_IMPLEMENTED, "not here")


def test_what_a_replica_cannot_do_it_takes_from_one_that_can() -> None:
    async def main(live: Live) -> None:
        unable = await live.replica("r1", make_store=Unable)
        await unable.insert(1)
        number = await create_mutation(unable.ctx, "UPDATE v = 5 WHERE 1")
        await live.env.sleep(600)
        # Nobody can: the part stays as it is, and everybody is told why.
        assert unable.rows() == [(1, 0)] and unable.parts() == ["all_0_0_0"]
        state = unable.ctx.queue.mutations[number]
        assert not state.is_done and "not here" in state.latest_fail_reason
        able = await live.replica("r2")
        await wait_for_mutation(able.ctx, number, sync=Sync.ALL)
        assert able.rows() == unable.rows() == [(1, 5)]
        assert not state.latest_fail_reason

    run(main)
