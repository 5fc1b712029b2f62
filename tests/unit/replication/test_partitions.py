"""Commands on partitions and parts: what goes, what stays, what comes back, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.ddl.attempt import Attempt, Effect, Fence
from engine.errors import BadArguments, Code, MultiFailed, SqlError
from engine.keeper.base import Check, Create
from engine.replication.commands import drop_range, partitions
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.partitions import RangeFate, Sync
from engine.replication.fetching import PartFetcher, PartReceiver
from engine.replication.host import ReplicaHost
from engine.replication.log_actions import DropRange, MergeParts
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartsBroken
from engine.replication.paths import ReplicaPaths
from engine.replication.replica.block_numbers import allocate
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from tests.unit.replication.live_support import (
    PATHS,
    Live,
    P,
    check_equal,
    run,
    staged,
)
from tests.unit.replication.partitions_support import fill_before_log, lose_message_to_log

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


def test_what_is_left_staged_inside_a_dropped_range_goes_with_it_and_nothing_else_does() -> None:
    """As by an insert that never heard whether it was committed."""

    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for value in range(2):
            await replica.insert(value)
        for name in ("all_0_1_1", "all_9_9_0"):
            await replica.store.stage_copy(replica.store, P("all_0_0_0"), P(name))
        await partitions.drop_partition(replica.ctx, "all")
        assert (replica.keys(), staged(replica)) == ([], ["all_9_9_0"])

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


def _drop(ctx: ReplicaContext) -> Awaitable[object]:
    return partitions.drop_partition(ctx, "all", sync=Sync.ALL)


def _replace(ctx: ReplicaContext) -> Awaitable[object]:
    return partitions.replace_partition(ctx, "all", "d", "source", sync=Sync.ALL)


@pytest.mark.parametrize("remove", [_drop, _replace])
def test_an_insert_that_waits_for_a_quorum_does_not_wait_for_one_of_what_has_gone(
    remove: Callable[[ReplicaContext], Awaitable[object]],
) -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await live.plain_table("source", ("all", [{"k": 10, "v": 1}]))
        second.ctx.switches.stop(Activity.FETCHES)
        quorum = InsertOptions(quorum=2, quorum_parallel=False)
        waiting = asyncio.create_task(first.insert(1, options=quorum))
        while not live.has(PATHS.quorum_status):
            await live.env.sleep(0.01)
        await live.quiet(first)
        await remove(first.ctx)
        assert await waiting is not None
        second.ctx.switches.start(Activity.FETCHES)
        second.ctx.queue_changed.set()
        await first.insert(2, options=quorum)  # no other quorum is in its way
        await live.quiet()
        check_equal(first, second)
        assert set(first.keys()) - {10} == {2}

    run(main)


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


@pytest.mark.parametrize("what", ["reply", "reply_and_lag", "request"])
def test_a_lost_message_drops_once(what: str) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1)
        await live.quiet()
        written = lose_message_to_log(live, replicas[0], what)
        await partitions.drop_partition(replicas[0].ctx, "all", sync=Sync.ALL)
        assert len(written) == (2 if what == "request" else 1)
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
        dropped = [f"{PATHS.log}/{name}" for name in live.children(PATHS.log)[3:]]
        assert len({live.server.tree.nodes[path].czxid for path in dropped}) == 1, "at one moment"
        await replicas[0].insert(1, partition="a")
        assert replicas[0].keys() == [1], "the block of a dropped part is forgotten"

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


def test_a_truncation_records_all_partitions_of_one_transaction() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        keeper = await live.keeper()
        await keeper.create("/attempt")
        for partition in "abc":
            await replica.insert(1, partition=partition)
        fence = Fence(Check("/attempt"), "/attempt", Attempt("r1", "", Effect.NONE, number=1))
        await partitions.truncate(replica.ctx, fence_of=fence.step)
        node = await keeper.get("/attempt")
        recorded = Attempt.from_bytes(node.data)
        assert recorded is not None and recorded.steps == ("a", "b", "c")
        assert node.stat.version == 1

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


@pytest.mark.parametrize("others", [(), ("b",)], ids=["alone", "with another"])
@pytest.mark.parametrize("waiting_for", [Activity.PULLING, Activity.FETCHES], ids=["from log", "from queue"])
def test_a_drop_does_not_wait_for_a_part_on_its_way(waiting_for: Activity, others: Sequence[str]) -> None:
    """1. A part comes from a peer that never ends, and perhaps another one. 2. Its partition is dropped.
    3. So is the fetch, and what can go on does."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        fetcher = EndlessFetcher(two.ctx.fetcher, ("a_0_0_0", "b_0_0_0"))
        two.ctx.fetcher = fetcher
        two.ctx.switches.stop(waiting_for)
        for partition in ("a", *others):
            await one.insert(1, partition=partition)
        await live.env.sleep(1)
        two.ctx.switches.start(waiting_for)
        two.ctx.log_changed.set()
        await fetcher.begun.wait()
        async with asyncio.timeout(30):
            await partitions.drop_partition(one.ctx, "a", sync=Sync.ALL)
        assert fetcher.ended == ["a_0_0_0"] and two.keys() == []
        await one.insert(2, partition="c")
        while two.keys() != [2]:
            await live.env.sleep(1)

    run(main)


@pytest.mark.parametrize("waiting_for", [Activity.PULLING, Activity.FETCHES], ids=["from log", "from queue"])
def test_a_fetch_ends_when_fetches_are_stopped_and_begins_again_afterwards(waiting_for: Activity) -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        two.ctx.fetcher = fetcher = EndlessFetcher(two.ctx.fetcher, ["a_0_0_0"])
        two.ctx.switches.stop(waiting_for)
        await one.insert(1, partition="a")
        await live.env.sleep(1)
        two.ctx.switches.start(waiting_for)
        two.ctx.log_changed.set()
        await fetcher.begun.wait()
        await live.env.sleep(1)
        two.ctx.switches.stop(Activity.FETCHES)
        two.ctx.fetches.stop()
        await live.env.sleep(1)
        assert fetcher.ended == ["a_0_0_0"]
        (queued,) = two.ctx.queue.entries
        assert "fetches are stopped" in queued.postpone_reason and not queued.is_executing
        fetcher.endless.clear()
        two.ctx.switches.start(Activity.FETCHES)
        two.ctx.queue_changed.set()
        await live.quiet(two)
        assert two.keys() == [1]

    run(main)


class EndlessFetcher:
    """Parts of these names never come."""

    def __init__(self, fetcher: PartFetcher, endless: Sequence[str]) -> None:
        self._fetcher = fetcher
        self.endless = list(endless)
        self.begun = asyncio.Event()
        self.ended: list[str] = []

    async def fetch(
        self,
        source: ReplicaHost,
        replica: ReplicaPaths,
        part: PartName,
        *,
        into: PartReceiver,
        expected: PartHeader | None,
    ) -> Part:
        if str(part) not in self.endless:
            return await self._fetcher.fetch(source, replica, part, into=into, expected=expected)
        async with into.receive(part):
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.append(str(part))
        raise AssertionError


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


def test_freeze_has_a_part_whose_directory_is_gone_fetched_first() -> None:
    async def main(live: Live) -> None:
        first, _ = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        first.disk.gone.add(P("all_0_0_0"))
        with pytest.raises(PartsBroken, match="all_0_0_0"):
            await partitions.freeze(first.ctx, None, "backup")
        while first.disk.gone:
            await live.env.sleep(0.1)
        await live.quiet()
        await partitions.freeze(first.ctx, None, "backup")
        assert [str(part) for part in first.disk.shadow["backup"]] == ["all_0_0_0"]

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


@pytest.mark.parametrize(
    "command",
    [
        partitions.truncate,
        lambda ctx: partitions.replace_partition(ctx, "a", "d", "source"),
        lambda ctx: partitions.attach_partition(ctx, "c"),
        lambda ctx: partitions.clear_column(ctx, "v"),
    ],
    ids=["TRUNCATE", "REPLACE", "ATTACH", "CLEAR COLUMN"],
)
def test_a_command_that_keeper_refuses_as_a_whole_leaves_nothing(
    command: Callable[[ReplicaContext], Awaitable[object]],
) -> None:
    """Once there is room again: a number that stayed held would stop merges in its partition."""

    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for partition in ("a", "b", "c"):
            await replica.insert(1, partition=partition)
        await partitions.drop_partition(replica.ctx, "c", fate=RangeFate.DETACH)
        await live.plain_table("source", ("a", [{"k": 10, "v": 1}]))
        await live.quiet()
        make_room = fill_before_log(replica)
        with pytest.raises(BadArguments, match="full"):
            await command(replica.ctx)
        assert live.locks()
        make_room()
        await live.env.sleep(100)
        assert not live.locks() and not staged(replica)
        assert len(replica.parts()) == 2

    run(main)


@pytest.mark.slow
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
