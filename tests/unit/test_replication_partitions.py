"""Commands on partitions and parts: what goes, what stays, what comes back, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.ddl.attempt import Attempt, Effect, Fence
from engine.errors import Code, MultiFailed, SqlError
from engine.keeper.base import Check, Create, Op, OpResult
from engine.keeper.session import RequestKind
from engine.replication.commands import drop_range, partitions
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.mutate import create_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.partitions import Placement, RangeFate, Sync
from engine.replication.log_actions import AttachPart, DropRange, GetPart, MergeParts, ReplaceRange
from engine.replication.replica.block_numbers import allocate
from engine.replication.replica.switches import Activity
from engine.testing.replication_disk import COLUMNS, Damage
from tests.unit.replication_live_support import (
    OTHER,
    PATHS,
    Live,
    LiveReplica,
    P,
    check_equal,
    run,
    staged,
    two_tables,
)


def lose_message_to_log(live: Live, replica: LiveReplica, what: str) -> list[Sequence[Op]]:
    """The first transaction of the replica that writes to the log loses its request or its reply. Returns a
    list to which every such transaction is added."""
    session = replica.ctx.session()
    lose = live.server.lose_next_reply if what == "reply" else live.server.lose_next_request
    real = session.multi
    written: list[Sequence[Op]] = []

    async def watched(ops: Sequence[Op]) -> list[OpResult]:
        if any(isinstance(op, Create) and op.path == PATHS.log_prefix for op in ops):
            written.append(ops)
            if len(written) == 1:
                lose(session.session_id, kind=RequestKind.MULTI)
        return await real(ops)

    session.multi = watched  # type: ignore[method-assign]
    return written


# -- DROP, DETACH, TRUNCATE ----------------------------------------------------------------------------------


def test_a_dropped_partition_is_gone_on_all_replicas_and_no_other() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1, partition="a")
        await replicas[1].insert(2, partition="a")
        await replicas[0].insert(3, partition="b")
        await live.quiet()
        await partitions.drop_partition(replicas[1].ctx, "a", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].keys() == [3]
        assert live.actions(DropRange) == ["drop\na_0_1_999999999_999999999"]
        assert not live.locks()
        await replicas[0].insert(4, partition="a")
        await live.quiet()
        assert replicas[1].parts() == ["a_3_3_0", "b_0_0_0"]

    run(main)


def test_more_blocks_than_fit_into_one_transaction_are_forgotten_with_their_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drop_range, "_MAX_REMOVALS", 2)

    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(7):
            await replicas[value % 2].insert(value, partition="a")
        await replicas[0].insert(9, partition="b")
        await partitions.drop_partition(replicas[1].ctx, "a", sync=Sync.ALL)
        assert [name[0] for name in live.children(PATHS.blocks)] == ["b"]
        for value in range(7):
            assert await replicas[value % 2].insert(value, partition="a") is not None
        await live.quiet()
        check_equal(*replicas)
        assert replicas[0].keys() == [*range(7), 9]

    run(main)


def test_what_was_dropped_does_not_swallow_the_same_insert() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1, token="x", partition="a")
        await replicas[0].insert(1, token="x", partition="b")
        await partitions.drop_partition(replicas[0].ctx, "a", sync=Sync.ALL)
        assert await replicas[1].insert(1, token="x", partition="b") is None
        assert await replicas[1].insert(1, token="x", partition="a") == "a_2_2_0"
        await live.quiet()
        assert replicas[0].parts() == ["a_2_2_0", "b_0_0_0"]

    run(main)


@pytest.mark.parametrize("seed", range(8))
def test_inserts_during_a_drop_are_stored_behind_it_or_dropped_whole(seed: int) -> None:
    """An acknowledged insert is either dropped, and can be repeated, or it is there, once."""

    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(0)
        numbers = range(1, 9)
        await asyncio.gather(
            *(replicas[number % 2].insert(number, token=f"t{number}") for number in numbers),
            partitions.drop_partition(replicas[0].ctx, "all"),
        )
        await live.quiet()
        assert 0 not in set(replicas[0].keys())
        for number in numbers:
            await replicas[0].insert(number, token=f"t{number}")
        await live.quiet()
        assert replicas[0].keys() == list(numbers)
        check_equal(*replicas)

    run(main, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_two_drops_at_once(seed: int) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(3):
            await replicas[0].insert(value)
        await asyncio.gather(
            *(partitions.drop_partition(replica.ctx, "all", sync=Sync.ALL) for replica in replicas)
        )
        check_equal(*replicas)
        assert replicas[0].keys() == []
        assert not live.locks()

    run(main, seed=seed)


def test_a_merge_chosen_before_the_drop_is_refused() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(3):
            await replicas[0].insert(value)
        await live.quiet()
        await asyncio.gather(
            partitions.drop_partition(replicas[0].ctx, "all", sync=Sync.ALL),
            optimize(replicas[1].ctx, OptimizeOptions(extent=Extent.FINAL, sync=Sync.ALL)),
        )
        await live.quiet()
        check_equal(*replicas)
        assert replicas[0].keys() == []

    run(main)


def test_dropping_what_never_was_does_nothing() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await partitions.drop_partition(replica.ctx, "nowhere")
        assert not live.log()
        assert not live.has(PATHS.partition_block_numbers("nowhere"))

    run(main)


@pytest.mark.parametrize("what", ["reply", "request"])
def test_a_lost_message_drops_once(what: str) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1)
        await live.quiet()
        written = lose_message_to_log(live, replicas[0], what)
        await partitions.drop_partition(replicas[0].ctx, "all", sync=Sync.ALL)
        assert len(written) == (1 if what == "reply" else 2)
        assert len(live.actions(DropRange)) == 1
        check_equal(*replicas)
        assert not live.locks()

    run(main)


def test_truncate_is_a_drop_of_every_partition() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for partition in "abc":
            await replicas[0].insert(1, partition=partition)
        await partitions.truncate(replicas[1].ctx, sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].parts() == []
        assert len(live.actions(DropRange)) == 3

    run(main)


def test_the_fence_is_part_of_the_transaction() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        with pytest.raises(MultiFailed):
            await partitions.drop_partition(replica.ctx, "all", fence=[Create("/no/where")])
        with pytest.raises(MultiFailed):
            await partitions.truncate(replica.ctx, fence_of=lambda name, *, of: [Create("/no/where")])
        await live.quiet()
        assert replica.keys() == [1]
        assert not live.locks()
        await partitions.truncate(replica.ctx, fence_of=lambda name, *, of: [Create(f"/{name}-1-of-{of}")])
        assert live.has("/all-1-of-1")

    run(main)


def test_a_truncation_that_goes_on_after_a_crash_leaves_what_came_since() -> None:
    """1. Partition a is dropped, and that is recorded. 2. The process is killed. 3. A row comes into a.
    4. Who goes on drops b."""

    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        keeper = await live.keeper()
        await keeper.create("/attempt")
        for partition in "ab":
            await replica.insert(1, partition=partition)
        begun = Attempt("r1", "", Effect.NONE, number=1)

        def fence() -> Fence:
            return Fence(Check("/attempt"), "/attempt", begun)

        first = fence()
        ops = first.step("a", of=2)
        await partitions.drop_partition(replica.ctx, "a", fence=ops or ())
        await replica.insert(2, partition="a")
        recorded = Attempt.from_bytes((await keeper.get("/attempt")).data)
        assert recorded is not None
        begun = recorded.begun_again("r1", "", 2)
        await partitions.truncate(replica.ctx, fence_of=fence().step)
        await live.quiet()
        assert replica.keys() == [2]

    run(main)


def test_a_part_is_dropped_and_its_block_can_be_inserted_again() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(3):
            await replicas[0].insert(value, token=f"t{value}")
        await live.quiet()
        await partitions.drop_part(replicas[1].ctx, P("all_1_1_0"), sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].parts() == ["all_0_0_0", "all_2_2_0"]
        assert live.actions(DropRange) == ["drop\nall_1_1_0"]
        assert await replicas[0].insert(0, token="t0") is None
        assert await replicas[0].insert(1, token="t1") == "all_3_3_0"
        await optimize(replicas[0].ctx, OptimizeOptions(extent=Extent.FINAL, sync=Sync.ALL))
        check_equal(*replicas)
        assert replicas[0].parts() == ["all_0_3_1"]

    run(main)


def test_which_parts_cannot_be_dropped() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(2):
            await replicas[0].insert(value)
        await replicas[0].insert(5, partition="q", options=InsertOptions(quorum=2, quorum_parallel=False))
        await live.quiet()
        ctx = replicas[0].ctx
        with pytest.raises(SqlError) as missing:
            await partitions.drop_part(ctx, P("all_7_7_0"))
        assert missing.value.code == Code.NO_SUCH_DATA_PART
        with pytest.raises(SqlError) as quorum:
            await partitions.drop_part(ctx, P("q_0_0_0"))
        assert quorum.value.code == Code.NOT_IMPLEMENTED
        replicas[0].ctx.switches.stop(Activity.QUEUES)
        await optimize(replicas[1].ctx, OptimizeOptions("all", Extent.FINAL))
        with pytest.raises(SqlError) as locked:
            await partitions.drop_part(ctx, P("all_0_0_0"))
        assert locked.value.code == Code.PART_IS_TEMPORARILY_LOCKED

    run(main)


# -- DETACH and ATTACH ---------------------------------------------------------------------------------------


def test_what_was_detached_comes_back_on_all_replicas() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(3)
        for value in range(3):
            await replicas[0].insert(value)
        await partitions.drop_partition(replicas[0].ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[2].parts() == []
        assert sorted(replicas[2].disk.detached) == ["all_0_0_0", "all_1_1_0", "all_2_2_0"]
        names = await partitions.attach_partition(replicas[1].ctx, "all", sync=Sync.ALL)
        check_equal(*replicas)
        assert [str(name) for name in names] == replicas[0].parts()
        assert replicas[0].keys() == [0, 1, 2]
        assert not replicas[1].disk.detached
        assert len(live.actions(AttachPart)) == 3
        assert len(live.actions(GetPart)) == 3
        assert len(live.network.fetches) == 6  # those of the inserts: everybody had it in detached/
        assert await partitions.attach_partition(replicas[1].ctx, "all") == []

    run(main)


def test_a_detached_part_with_the_same_data_and_other_columns_gives_way_to_that_of_the_others() -> None:
    """As after an ALTER that only one of them has seen, which leaves the data as it is."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        stored = second.disk.detached["all_0_0_0"]
        other = {**stored.files, COLUMNS: stored.columns.replace(b"Int", b"UInt")}
        assert other != stored.files
        second.disk.detached["all_0_0_0"] = replace(stored, files=other)
        (name,) = await partitions.attach_partition(first.ctx, "all", sync=Sync.ALL)
        check_equal(first, second)
        assert second.disk.active[name].columns == stored.columns

    run(main)


def test_attached_parts_are_not_deduplicated() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await partitions.drop_part(replica.ctx, P("all_0_0_0"), fate=RangeFate.DETACH)
        assert str(await partitions.attach_part(replica.ctx, "all_0_0_0")) == "all_1_1_0"
        assert replica.keys() == [1]
        with pytest.raises(SqlError) as missing:
            await partitions.attach_part(replica.ctx, "all_0_0_0")
        assert missing.value.code == Code.BAD_DATA_PART_NAME

    run(main)


def test_the_same_attach_at_once_attaches_once() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await partitions.drop_partition(replica.ctx, "all", fate=RangeFate.DETACH)
        done = await asyncio.gather(*(partitions.attach_partition(replica.ctx, "all") for _ in range(3)))
        assert sorted(len(names) for names in done) == [0, 0, 1]
        assert replica.keys() == [1]

    run(main)


@pytest.mark.parametrize("what", ["reply", "request"])
def test_a_lost_message_attaches_once(what: str) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1)
        await partitions.drop_partition(replicas[0].ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        lose_message_to_log(live, replicas[0], what)
        await partitions.attach_partition(replicas[0].ctx, "all", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].keys() == [1]
        assert len(live.actions(AttachPart)) == 1
        assert not live.locks()

    run(main)


def test_a_damaged_detached_part_is_refused() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        replica.disk.damage(P("all_0_0_0"), Damage.TRUNCATION, 1)
        replica.disk.detached["all_0_0_0"] = replica.disk.active[P("all_0_0_0")]
        with pytest.raises(Exception, match="all_0_0_0"):
            await partitions.attach_part(replica.ctx, "all_0_0_0")
        assert not staged(replica)
        assert not live.locks()
        assert not live.actions(AttachPart)

    run(main)


def test_detached_parts_can_be_dropped() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for partition in "abc":
            await replica.insert(1, partition=partition)
            await partitions.drop_partition(replica.ctx, partition, fate=RangeFate.DETACH)
        assert await partitions.drop_detached(replica.ctx, partition_id="a") == ["a_0_0_0"]
        assert await partitions.drop_detached(replica.ctx, directory="b_0_0_0") == ["b_0_0_0"]
        with pytest.raises(SqlError):
            await partitions.drop_detached(replica.ctx, directory="b_0_0_0")
        assert await partitions.drop_detached(replica.ctx) == ["c_0_0_0"]

    run(main)


# -- REPLACE, ATTACH FROM, MOVE ------------------------------------------------------------------------------


def test_a_partition_is_replaced_by_that_of_a_plain_table() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1, token="x", partition="a")
        await replicas[1].insert(2, partition="b")
        await live.quiet()
        rows = [("a", [{"k": 10, "v": 1}]), ("a", [{"k": 11, "v": 1}]), ("b", [{"k": 12, "v": 1}])]
        await live.plain_table("source", *rows)
        new = await partitions.replace_partition(replicas[0].ctx, "a", "d", "source", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[1].keys() == [2, 10, 11]
        assert [str(part) for part in new] == ["a_2_2_0", "a_3_3_0"]
        (text,) = live.actions(ReplaceRange)
        assert "drop_range_name: a_0_1_999999999_999999999\nfrom_database: d\nfrom_table: source" in text
        assert not live.locks()
        # The rows that were replaced do not swallow the insert that made them.
        assert await replicas[1].insert(1, token="x", partition="a") is not None

    run(main)


def test_replacing_an_empty_partition_or_by_an_empty_one() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await live.plain_table("source", ("a", [{"k": 10, "v": 1}]))
        await partitions.replace_partition(replicas[0].ctx, "a", "d", "source", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].keys() == [10]
        await replicas[0].insert(1, partition="b")
        await partitions.replace_partition(replicas[0].ctx, "b", "d", "source", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].keys() == [10]

    run(main)


def test_readers_see_the_old_rows_or_the_new_ones() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(4):
            await replicas[0].insert(value)
        await live.quiet()
        await live.plain_table("source", *(("all", [{"k": 10 + n, "v": 1}]) for n in range(4)))
        seen: list[list[int]] = []
        for replica in replicas:
            real = replica.store._switch

            def switching(add, remove, real=real, replica=replica):  # type: ignore[no-untyped-def]
                real(add, remove)
                seen.append(replica.keys())

            replica.store._switch = switching  # type: ignore[method-assign]
        await partitions.replace_partition(replicas[0].ctx, "all", "d", "source", sync=Sync.ALL)
        assert seen == [[10, 11, 12, 13]] * 2

    run(main)


def test_attach_from_adds_and_adds_the_same_part_once() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1)
        await live.plain_table("source", ("all", [{"k": 10, "v": 1}]))
        for attempt in range(2):
            added = await partitions.replace_partition(
                replicas[0].ctx, "all", "d", "source", placement=Placement.ADD, sync=Sync.ALL
            )
            assert len(added) == 1 - attempt
        check_equal(*replicas)
        assert replicas[0].keys() == [1, 10]
        await partitions.drop_partition(replicas[0].ctx, "all", sync=Sync.ALL)
        added = await partitions.replace_partition(
            replicas[0].ctx, "all", "d", "source", placement=Placement.ADD, sync=Sync.ALL
        )
        assert len(added) == 1

    run(main)


def test_a_table_can_replace_its_partition_by_itself() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(3):
            await replicas[0].insert(value)
        live.others["d", "t"] = replicas[0].store
        await partitions.replace_partition(replicas[0].ctx, "all", "d", "t", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[1].keys() == [0, 1, 2]
        assert replicas[1].parts() == ["all_4_4_0", "all_5_5_0", "all_6_6_0"]

    run(main)


def test_a_source_that_does_not_fit_is_refused() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        with pytest.raises(SqlError) as missing:
            await partitions.replace_partition(replica.ctx, "all", "d", "nowhere")
        assert missing.value.code == Code.UNKNOWN_TABLE
        source = await live.plain_table("source")
        plan = await source.plan_alter("ADD COLUMN w UInt64")
        await source.apply_alter(plan.definition.columns, plan.definition.metadata, {})
        with pytest.raises(SqlError) as different:
            await partitions.replace_partition(replica.ctx, "all", "d", "source")
        assert different.value.code == Code.INCOMPATIBLE_COLUMNS

    run(main)


@pytest.mark.parametrize("what", ["reply", "request"])
def test_a_lost_message_replaces_once(what: str) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1)
        await live.quiet()
        await live.plain_table("source", ("all", [{"k": 10, "v": 1}]))
        lose_message_to_log(live, replicas[0], what)
        await partitions.replace_partition(replicas[0].ctx, "all", "d", "source", sync=Sync.ALL)
        check_equal(*replicas)
        assert replicas[0].keys() == [10]
        assert len(live.actions(ReplaceRange)) == 1
        assert not live.locks()

    run(main)


def test_a_partition_moves_to_another_table_of_the_node() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        await sources[0].insert(1, 2, token="x", partition="a")
        await sources[1].insert(3, partition="a")
        await sources[1].insert(4, partition="b")
        await destinations[0].insert(5, partition="a")
        # The first replica has not fetched all of it when it is asked to move it.
        await partitions.move_partition(sources[0].ctx, "a", destinations[0].ctx, sync=Sync.ALL)
        check_equal(*sources)
        check_equal(*destinations)
        assert sources[0].keys() == [4]
        assert destinations[1].keys() == [1, 2, 3, 5]
        assert len(live.actions(DropRange)) == 1
        assert len(live.actions(ReplaceRange, OTHER)) == 1
        assert await sources[0].insert(1, 2, token="x", partition="a") is not None

    run(main)


def test_a_partition_that_is_not_all_here_does_not_move() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        sources[0].ctx.switches.stop(Activity.FETCHES)
        await sources[1].insert(1)
        with pytest.raises(SqlError) as refused:
            await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx)
        assert refused.value.code == Code.PART_IS_TEMPORARILY_LOCKED
        assert not live.locks()
        assert not staged(*destinations)
        sources[0].ctx.switches.start(Activity.FETCHES)
        sources[0].ctx.queue_changed.set()
        await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx, sync=Sync.ALL)
        assert destinations[1].keys() == [1]

    run(main)


def test_what_is_moved_has_its_mutations_done() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        await sources[0].insert(1)
        await live.quiet()
        await create_mutation(sources[1].ctx, "UPDATE v = 9 WHERE 1")
        await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx, sync=Sync.ALL)
        assert destinations[1].rows() == [(1, 9)]

    run(main)


# -- FREEZE -------------------------------------------------------------------------------------------------


def test_freeze_keeps_what_is_there() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1, partition="a")
        await replica.insert(2, partition="b")
        await partitions.freeze(replica.ctx, ["a"], "backup")
        await partitions.truncate(replica.ctx)
        assert [str(part) for part in replica.disk.shadow["backup"]] == ["a_0_0_0"]

    run(main)


def test_a_held_number_does_not_survive_a_refused_command() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        held = await allocate(replica.ctx, "all")
        await partitions.drop_partition(replica.ctx, "all")
        assert not live.locks()  # the number of an insert under way was taken away
        await held.abandon()
        assert not live.actions(MergeParts)

    run(main)


@pytest.mark.parametrize("steps", range(0, 200, 8))
def test_a_cancelled_command_is_carried_out_whole_or_not_at_all(steps: int) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(2):
            await replicas[0].insert(value, partition="a")
            await replicas[0].insert(value, partition="b")
        await live.quiet()
        await partitions.drop_partition(replicas[0].ctx, "b", fate=RangeFate.DETACH, sync=Sync.ALL)
        await live.plain_table("source", ("a", [{"k": 10, "v": 1}]), ("a", [{"k": 11, "v": 1}]))
        ctx = replicas[0].ctx
        commands = [
            asyncio.ensure_future(partitions.replace_partition(ctx, "a", "d", "source")),
            asyncio.ensure_future(partitions.attach_partition(ctx, "b")),
        ]
        for _ in range(steps):
            await asyncio.sleep(0)
        for command in commands:
            command.cancel()
        await asyncio.gather(*commands, return_exceptions=True)
        await live.env.sleep(10)
        await live.quiet()
        check_equal(*replicas)
        keys = replicas[0].keys()
        assert [key for key in keys if key >= 10] in ([], [10, 11])
        # The parts that are attached have left detached/, and the others are still there.
        attached = len([part for part in replicas[0].parts() if part.startswith("b_")])
        assert attached + len(replicas[0].disk.detached) == 2
        assert not live.locks()

    run(main, seed=steps)
