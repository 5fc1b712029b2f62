"""OPTIMIZE: which parts it merges, what it waits for, and for how long."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.errors import Code, SqlError
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.partitions import truncate
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import MergeParts
from engine.replication.replica.merging.assigner import (
    assign,
)
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.live_support import Live, LiveReplica, P, run

FINAL = OptimizeOptions(extent=Extent.FINAL, sync=Sync.ALL)


async def filled(live: Live, count: int = 2) -> list[LiveReplica]:
    replicas = await live.cluster(count)
    for value in range(4):
        await replicas[0].insert(value, partition="a")
        await replicas[-1].insert(value, partition="b")
    return replicas


def test_final_leaves_one_part_in_each_partition_of_each_replica() -> None:
    async def main(live: Live) -> None:
        replicas = await filled(live)
        await optimize(replicas[1].ctx, FINAL)
        assert [replica.parts() for replica in replicas] == [["a_0_3_1", "b_0_3_1"]] * 2
        await optimize(replicas[0].ctx, replace(FINAL, partition_id="a"))
        assert [replica.parts() for replica in replicas] == [["a_0_3_2", "b_0_3_1"]] * 2

    run(main)


def test_final_waits_for_merges_that_were_assigned_before() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for value in range(4):
            await replica.insert(value)
        replica.store.faults.write_s = (1.0, 1.0)
        some = MergeParts((P("all_1_1_0"), P("all_2_2_0")), P("all_1_2_1"))
        await assign(replica.ctx, replica.ctx.session(), await load_predicate(replica.ctx), [some])
        await optimize(replica.ctx, FINAL)
        assert replica.parts() == ["all_0_3_2"]

    run(main)


@pytest.mark.parametrize("stopped", [Activity.FETCHES, Activity.QUEUES])
def test_final_does_not_wait_for_parts_that_may_not_come(stopped: Activity) -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        second.ctx.switches.stop(stopped)
        for value in range(2):
            await first.insert(value)
        await live.env.sleep(10)
        began_s = live.env.monotonic_s()
        with pytest.raises(SqlError, match="there are no parts in partition all") as refused:
            await optimize(second.ctx, replace(FINAL, sync=Sync.NONE, throw_if_noop=True))
        assert refused.value.code == Code.CANNOT_ASSIGN_OPTIMIZE
        assert live.env.monotonic_s() - began_s < 10
        second.ctx.switches.start(stopped)
        await optimize(second.ctx, FINAL)
        assert [replica.parts() for replica in (first, second)] == [["all_0_1_1"]] * 2

    run(main)


def test_without_final_a_single_part_is_left_alone() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        one = OptimizeOptions(partition_id="all")
        await optimize(replica.ctx, one)
        assert replica.parts() == ["all_0_0_0"]
        with pytest.raises(SqlError, match="only one part") as refused:
            await optimize(replica.ctx, replace(one, throw_if_noop=True))
        assert refused.value.code == Code.CANNOT_ASSIGN_OPTIMIZE
        with pytest.raises(SqlError, match="no parts"):
            await optimize(replica.ctx, replace(one, partition_id="none", throw_if_noop=True))
        await truncate(replica.ctx)
        await optimize(replica.ctx, OptimizeOptions(extent=Extent.FINAL, throw_if_noop=True))

    run(main)


def test_without_final_the_best_merge_is_made_even_if_it_is_not_worth_its_writing() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, ReplicatedSettings())
        for value in range(2):
            await replica.insert(value)
        some = OptimizeOptions(throw_if_noop=True)
        await optimize(replica.ctx, some)
        assert replica.parts() == ["all_0_1_1"]
        with pytest.raises(SqlError, match="no parts can be merged") as refused:
            await optimize(replica.ctx, some)
        assert refused.value.code == Code.CANNOT_ASSIGN_OPTIMIZE

    run(main)


def test_optimize_waits_for_a_part_that_keeper_does_not_know_yet() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for value in range(2):
            await replica.insert(value)
        keeper = await live.keeper()
        path = replica.ctx.me.part(P("all_0_0_0"))
        header = (await keeper.get(path)).data
        await keeper.remove(path)
        optimizing = asyncio.create_task(optimize(replica.ctx, FINAL))
        await live.env.sleep(5)
        assert not optimizing.done() and not live.actions(MergeParts)
        await keeper.create(path, header)
        await optimizing
        assert replica.parts() == ["all_0_1_1"]

    run(main)


def test_optimize_does_not_wait_long_for_a_part_whose_node_somebody_has_removed() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for value in range(2):
            await replica.insert(value)
        await (await live.keeper()).remove(replica.ctx.me.part(P("all_0_0_0")))
        began_s = live.env.monotonic_s()
        with pytest.raises(SqlError, match="not in Keeper") as said:
            await optimize(replica.ctx, replace(FINAL, throw_if_noop=True))
        assert said.value.code == Code.CANNOT_ASSIGN_OPTIMIZE
        assert live.env.monotonic_s() - began_s < 30

    run(main)


def test_deduplicate_reaches_the_merge() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        for token in ("x", "y"):
            await replicas[0].insert(1, 2, token=token)
        options = replace(FINAL, deduplicate=True, deduplicate_by_columns=("k", "v"))
        await optimize(replicas[1].ctx, options)
        assert [replica.keys() for replica in replicas] == [[1, 2], [1, 2]]
        assert "deduplicate_by_columns: 'k','v'" in live.actions(MergeParts)[0]

    run(main)


def test_cleanup_needs_a_table_that_can_be_cleaned_up() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        with pytest.raises(SqlError, match="needs a ReplacingMergeTree table"):
            await optimize(replica.ctx, replace(FINAL, cleanup=True))

    run(main)
