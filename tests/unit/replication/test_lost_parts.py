"""A part that no replica has any more, and that no empty part can be made for."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Code, SqlError
from engine.keeper.base import Keeper
from engine.replication.commands.partitions import truncate
from engine.replication.log_actions import DropRange, MergeParts
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.quorum import LastQuorumParts
from engine.replication.replica import part_check
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.merging.assigner import Assigned, assign
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.switches import Activity
from engine.testing.replication.store import MemoryPartStore
from tests.unit.replication.live_support import PATHS, Live, LiveReplica, P, run


class StoreOfHashes(MemoryPartStore):
    """The id of a partition does not tell its value: an empty part is made of another part."""

    async def stage_empty(self, result: PartName) -> Part:
        if not any(name.partition_id == result.partition_id for name in self.active):
            raise SqlError(Code.NOT_IMPLEMENTED, "its value cannot be told from its id")
        return await super().stage_empty(result)


async def lose(live: Live, *parts: str, last: bytes = b"") -> tuple[LiveReplica, LiveReplica]:
    """1. r1 inserts parts that r2 does not fetch. 2. It loses them. 3. It starts again."""
    one, two = [await live.replica(name, make_store=StoreOfHashes) for name in ("r1", "r2")]
    await one.insert(0, partition="other")
    await live.quiet()
    two.ctx.switches.stop(Activity.FETCHES)
    for part in parts:
        assert await one.insert(P(part).min_block, partition=P(part).partition_id, token=part) == part
    await (await live.keeper()).set(PATHS.quorum_last_part, last)
    for part in parts:
        del one.disk.active[P(part)]
    await live.crash("r1")
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    return one, two


@pytest.mark.parametrize("parts", [("hash_0_0_0",), ("hash_0_0_0", "hash_1_1_0", "hash_2_2_0")])
def test_it_is_dropped_where_nothing_is_left_of_its_partition(parts: tuple[str, ...]) -> None:
    async def main(live: Live) -> None:
        one, two = await lose(live, *parts)
        await live.quiet()
        assert one.parts() == two.parts() == one.parts_in_keeper() == two.parts_in_keeper() == ["other_0_0_0"]
        assert live.data(PATHS.lost_part_count) == str(len(parts)).encode()
        assert len(live.actions(DropRange)) == len(parts)
        assert await two.insert(0, partition="hash", token=parts[0]) is not None, "its block id went with it"
        await live.quiet()
        assert one.keys() == two.keys() == [0, 0]

    run(main)


def test_it_is_waited_for_where_readers_look_for_it() -> None:
    """`select_sequential_consistency` would fail for ever with 289."""

    async def main(live: Live) -> None:
        last = LastQuorumParts((P("hash_0_0_0"),)).to_bytes()
        one, _ = await lose(live, "hash_0_0_0", last=last)
        await live.env.sleep(300)
        assert live.actions(DropRange) == [] and one.ctx.queue.producer_of(P("hash_0_0_0")) is not None

    run(main)


def test_an_empty_part_takes_its_place_where_another_part_tells_the_partition() -> None:
    async def main(live: Live) -> None:
        one, two = [await live.replica(name, make_store=StoreOfHashes) for name in ("r1", "r2")]
        two.ctx.switches.stop(Activity.FETCHES)
        await one.insert(0, partition="hash")
        await one.insert(1, partition="hash")
        del one.disk.active[P("hash_0_0_0")]
        await live.crash("r1")
        two.ctx.switches.start(Activity.FETCHES)
        two.ctx.queue_changed.set()
        await live.quiet()
        assert live.data(PATHS.lost_part_count) == b"1"
        assert "hash_1_1_0" in one.parts() and one.parts() == two.parts()
        assert one.keys() == two.keys() == [1]

    run(main)


def test_while_only_a_replica_that_is_away_has_another_part_of_its_partition_it_is_waited_for() -> None:
    async def main(live: Live) -> None:
        one, two = [await live.replica(name, make_store=StoreOfHashes) for name in ("r1", "r2")]
        two.ctx.switches.stop(Activity.FETCHES)
        await one.insert(0, partition="hash")
        await one.insert(1, partition="hash")
        await one.stop()
        del one.disk.active[P("hash_0_0_0")]
        await (await live.keeper()).remove(one.ctx.me.part(P("hash_0_0_0")))
        two.ctx.switches.start(Activity.FETCHES)
        two.ctx.queue_changed.set()
        await live.env.sleep(300)
        assert live.actions(DropRange) == [] and live.data(PATHS.lost_part_count) == b""
        await live.crash("r1")
        await live.quiet()
        assert live.data(PATHS.lost_part_count) == b"1"
        assert one.parts() == two.parts() and one.keys() == two.keys() == [1]

    run(main)


def test_what_was_to_be_merged_of_lost_parts_alone_is_dropped_with_them() -> None:
    """r2 has the merge in its queue, and nothing to make it of."""

    async def main(live: Live) -> None:
        one, two = [await live.replica(name, make_store=StoreOfHashes) for name in ("r1", "r2")]
        two.ctx.switches.stop(Activity.FETCHES)
        for value in range(2):
            await one.insert(value, partition="hash")
        while one.parts_in_keeper() != ["hash_0_0_0", "hash_1_1_0"]:
            await live.env.sleep(0.1)
        one.ctx.switches.stop(Activity.QUEUES)
        await assign_merge(one)
        one.disk.active.clear()
        await live.crash("r1")
        two.ctx.switches.start(Activity.FETCHES)
        two.ctx.queue_changed.set()
        await live.quiet()
        assert one.parts() == two.parts() == one.parts_in_keeper() == two.parts_in_keeper() == []

    run(main)


async def assign_merge(replica: LiveReplica) -> None:
    predicate = await load_predicate(replica.ctx)
    sources = (P("hash_0_0_0"), P("hash_1_1_0"))
    merge = MergeParts(sources, P("hash_0_1_1"))
    assert isinstance(await assign(replica.ctx, replica.ctx.session(), predicate, [merge]), Assigned)


@pytest.mark.parametrize("is_emptied", [True, False])
def test_what_was_dropped_while_it_was_looked_for_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, is_emptied: bool
) -> None:
    asked, may_go_on = asyncio.Event(), asyncio.Event()
    may_be_merged = part_check._may_be_merged_elsewhere

    async def slowly(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> bool:
        asked.set()
        await may_go_on.wait()
        return await may_be_merged(ctx, keeper, part)

    async def main(live: Live) -> None:
        one, two = [await live.replica(name) for name in ("r1", "r2")]
        two.ctx.switches.stop(Activity.FETCHES)
        await one.insert(0)
        one.disk.active.clear()
        await live.crash("r1")
        monkeypatch.setattr(part_check, "_may_be_merged_elsewhere", slowly)
        two.ctx.switches.start(Activity.FETCHES)
        two.ctx.queue_changed.set()
        await asked.wait()
        if is_emptied:
            await truncate(two.ctx)
            while one.ctx.queue.entries or two.ctx.queue.entries:
                await live.env.sleep(1)
        may_go_on.set()
        await live.env.sleep(60)
        await live.quiet()
        assert (live.data(PATHS.lost_part_count) == b"") is is_emptied
        assert one.parts() == two.parts() == one.parts_in_keeper() == two.parts_in_keeper() == []

    run(main)
