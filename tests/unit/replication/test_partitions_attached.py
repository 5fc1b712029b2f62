"""Parts and partitions that come from elsewhere: ATTACH, REPLACE, ATTACH FROM and MOVE."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from engine.errors import BadArguments, Code, SqlError
from engine.keeper import Create
from engine.keeper.base import Op, OpResult
from engine.replication.commands import partitions, replace_range
from engine.replication.commands.copied_parts import most_copies
from engine.replication.commands.mutate import create_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.partitions import Placement, RangeFate, Sync
from engine.replication.log_actions import AttachPart, DropRange, GetPart, ReplaceRange
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartsBroken
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from engine.testing.replication.disk import COLUMNS, Damage
from tests.unit.replication.live_support import (
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
from tests.unit.replication.partitions_support import lose_message_to_log

# -- DETACH and ATTACH ---------------------------------------------------------------------------------------


def test_what_was_detached_comes_back_on_all_replicas() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(3)
        for value in range(3):
            await replicas[0].insert(value)
        await live.quiet()  # what is dropped is not fetched any more
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


def test_a_part_is_found_among_many_in_detached_and_none_of_the_others_is_touched() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        for value in range(20):
            await first.insert(value)
        await live.quiet()
        await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        (last,) = [each for each in second.disk.detached if each.startswith("all_19_")]
        fetched, stage = len(live.network.fetches), second.store.stage_detached
        touched = []

        async def stage_detached(directory: str, result: PartName) -> Part:
            touched.append(directory)
            return await stage(directory, result)

        second.store.stage_detached = stage_detached  # type: ignore[method-assign]
        await partitions.attach_part(first.ctx, last, sync=Sync.ALL)
        check_equal(first, second)
        assert (touched, len(live.network.fetches)) == ([last], fetched)

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


def test_what_a_replica_took_from_its_own_detached_goes_also_if_keeper_did_not_take_it_at_once() -> None:
    """1. A replica stages what it has in detached/. 2. Keeper refuses the commit, and takes the next one.
    3. The partition is detached and attached once more."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        session = second.ctx.session()
        real, refused = session.multi, list[Sequence[Op]]()

        async def refuse_once(ops: Sequence[Op]) -> list[OpResult]:
            if any(isinstance(op, Create) and op.path.startswith(second.ctx.me.parts) for op in ops):
                del session.multi
                refused.append(ops)
                raise BadArguments(ops[0].path, "full")
            return await real(ops)

        session.multi = refuse_once  # type: ignore[method-assign]
        await partitions.attach_partition(first.ctx, "all", sync=Sync.ALL)
        check_equal(first, second)
        assert refused and not second.disk.detached
        await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        await partitions.attach_partition(second.ctx, "all", sync=Sync.ALL)
        check_equal(first, second)
        assert second.keys() == [1]

    run(main)


def test_attaching_a_partition_takes_what_a_user_detached_of_it_and_nothing_twice() -> None:
    """Not what was set aside as broken or unexpected, nor a part whose rows are in another one, too."""

    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        detached = replica.disk.detached
        for value, (partition, directory) in enumerate(
            [("a", "a_3_3_0"), ("a", "ignored_a_4_4_0"), ("a", "a_5_7_1"), ("a", "a_6_6_0"), ("b", "b_3_3_0")]
        ):
            name = P(str(await replica.insert(value, partition=partition)))
            detached[directory] = replica.disk.active[name]
            await partitions.drop_partition(replica.ctx, partition)
        assert len(await partitions.attach_partition(replica.ctx, "a")) == 2
        assert replica.keys() == [0, 2]
        assert sorted(detached) == ["a_6_6_0", "b_3_3_0", "ignored_a_4_4_0"]

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


def test_a_part_whose_directory_is_gone_is_fetched_before_it_can_be_detached() -> None:
    """Each replica keeps its own parts in `detached/`: this one would come back without these rows."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await first.insert(2)
        await live.quiet()
        first.disk.gone.add(P("all_0_0_0"))
        with pytest.raises(PartsBroken, match="all_0_0_0"):
            await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH)
        assert live.actions(DropRange) == []
        while first.disk.gone:
            await live.env.sleep(0.1)
        await live.quiet()
        await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        assert len(await partitions.attach_partition(first.ctx, "all")) == 2
        await live.quiet()
        check_equal(first, second)
        assert sorted(first.keys()) == [1, 2]

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


def test_what_a_killed_attach_has_attached_is_not_there_to_be_attached_again() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)

        async def dies(directory: str) -> None:
            raise asyncio.CancelledError

        for replica in (first, second):  # each has come as far as its last step
            replica.store.remove_detached = dies  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await partitions.attach_partition(first.ctx, "all")
        await live.env.sleep(5)
        assert first.keys() == second.keys() == [1]
        assert list(first.disk.detached) == list(second.disk.detached) == ["all_0_0_0"]
        for replica in (first, second):
            await live.crash(replica.name)
            assert not replica.disk.detached
            assert await partitions.attach_partition(replica.ctx, "all", sync=Sync.ALL) == []
        check_equal(first, second)
        assert first.keys() == [1]

    run(main)


def test_what_an_attach_that_was_killed_earlier_has_not_attached_stays() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await partitions.drop_partition(replica.ctx, "all", fate=RangeFate.DETACH)
        await replica.store.stage_detached("all_0_0_0", P("all_5_5_0"))  # and it gets no further
        await live.crash("r1")
        assert list(replica.disk.detached) == ["all_0_0_0"]
        assert not replica.store.attaching
        assert len(await partitions.attach_partition(replica.ctx, "all")) == 1
        assert replica.keys() == [1]

    run(main)


@pytest.mark.parametrize("what", ["reply", "reply_and_lag", "request"])
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


def test_what_was_still_to_be_fetched_of_a_replaced_partition_is_not_waited_for() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        second.ctx.switches.stop(Activity.FETCHES)
        await first.insert(1)
        await live.plain_table("source", ("all", [{"k": 10, "v": 1}]))
        await partitions.replace_partition(first.ctx, "all", "d", "source", sync=Sync.ALL)
        await live.quiet()
        check_equal(first, second)
        assert second.keys() == [10]

    run(main)


def test_what_nobody_has_any_more_is_taken_from_detached() -> None:
    """As after RESTORE REPLICA of those that had the copies, where the other table is gone."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()
        await two.stop()
        await live.plain_table("source", ("all", [{"k": 10, "v": 1}]), ("all", [{"k": 11, "v": 1}]))
        for new in await partitions.replace_partition(one.ctx, "all", "d", "source"):
            two.disk.detached[str(new)] = one.disk.active[new]
        live.others.clear()
        await one.stop()
        two.begin()
        await two.start()
        await live.quiet(two)
        assert two.keys() == [10, 11]
        assert two.parts() == two.parts_in_keeper()
        assert not two.disk.detached

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


def seen_by_readers(replicas: Sequence[LiveReplica]) -> list[list[int]]:
    """A list that gets the keys in a replica each time that what its readers see has changed."""
    seen: list[list[int]] = []
    for replica in replicas:
        real = replica.store._switch

        def switching(add, remove, real=real, replica=replica):  # type: ignore[no-untyped-def]
            real(add, remove)
            seen.append(replica.keys())

        replica.store._switch = switching  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    ("placement", "after"),
    [(Placement.REPLACE, [10, 11, 12, 13]), (Placement.ADD, [0, 1, 2, 3, 10, 11, 12, 13])],
)
def test_readers_see_the_old_rows_or_the_new_ones(placement: Placement, after: list[int]) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for value in range(4):
            await replicas[0].insert(value)
        await live.quiet()
        await live.plain_table("source", *(("all", [{"k": 10 + n, "v": 1}]) for n in range(4)))
        seen = seen_by_readers(replicas)
        await partitions.replace_partition(
            replicas[0].ctx, "all", "d", "source", placement=placement, sync=Sync.ALL
        )
        assert seen == [after] * 2

    run(main)


def test_readers_see_all_rows_that_were_moved_or_none() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        for value in range(3):
            await sources[0].insert(value)
        await live.quiet()
        came, went = seen_by_readers(destinations), seen_by_readers(sources)
        await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx, sync=Sync.ALL)
        assert (came, went) == ([[0, 1, 2]] * 2, [[]] * 2)

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


def test_more_parts_than_one_transaction_carries_are_added_in_several() -> None:
    async def main(live: Live) -> None:
        paths = TablePaths(f"{PATHS.root}/{'long/' * 500}t")
        replicas = [await live.replica(name, paths=paths) for name in ("r1", "r2")]
        ctx, count = replicas[0].ctx, most_copies(paths) + 20
        await live.plain_table("source", *(("all", [{"k": k, "v": 1}]) for k in range(count)))
        with pytest.raises(SqlError, match=f"{count} parts are more") as refused:
            await partitions.replace_partition(ctx, "all", "d", "source")
        assert refused.value.code == Code.TOO_MANY_PARTS and not staged(*replicas)
        once = [Create("/recorded")]
        with pytest.raises(SqlError, match="parts are more"):
            await partitions.replace_partition(ctx, "all", "d", "source", placement=Placement.ADD, fence=once)
        added = await partitions.replace_partition(
            ctx, "all", "d", "source", placement=Placement.ADD, sync=Sync.ALL
        )
        assert len(added) == count and len(live.actions(ReplaceRange, paths)) == 2
        check_equal(*replicas)
        assert replicas[1].keys() == list(range(count))

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


@pytest.mark.parametrize("what", ["reply", "reply_and_lag", "request"])
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


def test_a_partition_does_not_move_between_two_replicas_of_one_table() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        replicas[1].ctx.holder = replicas[0].ctx.holder  # of one node
        with pytest.raises(SqlError, match="both are the table at /") as refused:
            await partitions.move_partition(replicas[0].ctx, "all", replicas[1].ctx)
        assert refused.value.code == Code.BAD_ARGUMENTS

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


def test_a_mutation_that_is_made_while_a_partition_moves_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Nothing is to be done in the partition. 2. The other replica takes a mutation on. 3. The move is
    committed: what it has copied is older."""

    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        await sources[0].insert(1)
        await live.quiet()
        sources[0].ctx.switches.stop(Activity.QUEUES)  # it has the old part for as long as it likes
        until_whole, asked = replace_range.until_whole, 0

        async def mutation_behind_it(ctx: ReplicaContext, span: PartName) -> None:
            nonlocal asked
            await until_whole(ctx, span)
            asked += 1
            if asked == 1:
                await create_mutation(sources[1].ctx, "UPDATE v = 7 WHERE k = 1")
                ctx.switches.start(Activity.QUEUES)
                ctx.queue_changed.set()

        monkeypatch.setattr(replace_range, "until_whole", mutation_behind_it)
        await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx, sync=Sync.ALL)
        await live.quiet()
        check_equal(*destinations)
        assert (sources[0].rows(), destinations[0].rows()) == ([], [(1, 7)])

    run(main)


def test_a_partition_moves_while_a_merge_of_it_waits() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        for value in range(3):
            await sources[0].insert(value)
        await live.quiet()
        sources[0].ctx.switches.stop(Activity.MERGES)
        await optimize(sources[1].ctx, OptimizeOptions(extent=Extent.FINAL, sync=Sync.NONE))
        began_s = live.env.monotonic_s()
        await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx)
        assert live.env.monotonic_s() - began_s < 60
        sources[0].ctx.switches.start(Activity.MERGES)
        await live.quiet()
        check_equal(*sources)
        check_equal(*destinations)
        assert sources[1].keys() == []
        assert destinations[1].keys() == [0, 1, 2]

    run(main)


def test_a_partition_waits_for_a_merge_that_somebody_wants_rows_to_go_in() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        for value in range(2):
            await sources[0].insert(value)
        await live.quiet()
        sources[0].ctx.switches.stop(Activity.MERGES)
        deduplicate = OptimizeOptions(extent=Extent.FINAL, deduplicate=True, sync=Sync.NONE)
        await optimize(sources[1].ctx, deduplicate)
        with pytest.raises(SqlError, match=r"all_0_1_1 .* is not here yet"):
            await partitions.move_partition(sources[0].ctx, "all", destinations[0].ctx)

    run(main)


def test_a_statement_may_limit_how_many_parts_move_at_once() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        for value in range(3):
            await sources[0].insert(value)
        move = partial(partitions.move_partition, sources[0].ctx, "all", destinations[0].ctx, sync=Sync.ALL)
        with pytest.raises(SqlError, match="Cannot move 3 parts at once, the limit is 2") as refused:
            await move(most_parts=2)
        assert refused.value.code == Code.TOO_MANY_PARTS
        assert not live.locks()
        assert len(await move(most_parts=3)) == 3

    run(main)
