"""From whom a replica takes parts, and how often it asks: fetches of the queue, and FETCH PARTITION."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.errors import Code, SqlError
from engine.replication.commands import partitions
from engine.replication.commands.fetch_partition import best_replica
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.partitions import Sync
from engine.replication.fetching import PartFetcher, PartReceiver, PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.log_actions import MergeParts
from engine.replication.log_entry import LogEntry
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.paths import ReplicaPaths
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from tests.unit.replication.live_support import PATHS, Live, P, check_equal, run, two_tables
from tests.unit.replication.support import PATHS as BENCH
from tests.unit.replication.support import Bench, simulated


class Asking:
    """Notes whom a replica asks for parts."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self.asked: list[str] = []
        self._inner: PartFetcher = ctx.fetcher
        ctx.fetcher = self

    async def fetch(
        self,
        source: ReplicaHost,
        replica: ReplicaPaths,
        part: PartName,
        *,
        into: PartReceiver,
        expected: PartHeader | None,
    ) -> Part:
        self.asked.append(replica.name)
        return await self._inner.fetch(source, replica, part, into=into, expected=expected)


# -- the queue -----------------------------------------------------------------------------------------------


@simulated
async def test_parts_are_fetched_from_the_active_replica_that_is_furthest_in_the_log(bench: Bench) -> None:
    one, two, three = await bench.cluster(3)
    three.ctx.switches.stop(Activity.FETCHES)
    for key in range(4):
        await one.insert(key)
    await bench.quiet(one, two)
    one.ctx.switches.stop(Activity.PULLING)
    await two.insert(9)
    await bench.quiet(two)
    three.ctx.switches.start(Activity.FETCHES)
    three.ctx.queue_changed.set()
    await bench.until(lambda: three.values == [0, 1, 2, 3, 9])
    assert {source for source, node, _ in bench.network.fetches if node == "r3"} == {"r2"}


@simulated
async def test_a_part_whose_quorum_was_given_up_is_not_fetched_from_one_that_shows_it_still(
    bench: Bench,
) -> None:
    """1. r2 is away, and what r1 inserted is given up. 2. r2 comes and finds the insert's entry. r3, which is
    new, has one of its own clone."""
    one, two = await bench.cluster(2)
    await two.stop()
    part = await one.insert(1)
    await bench.quiet(one)
    [name] = await bench.children(BENCH.log)
    entry = LogEntry.from_bytes((await bench.admin.get(BENCH.log_entry(name))).data)
    await bench.admin.set(BENCH.log_entry(name), replace(entry, quorum=2).to_bytes())
    await bench.admin.create(BENCH.failed_part(part))
    again, three = await bench.start("r2", two.disk), await bench.start("r3")
    await bench.quiet(again, three)
    assert one.values == [1] and bench.network.fetches == []
    for replica in (again, three):
        assert replica.active == replica.detached == await bench.parts(replica.name) == []
        assert not replica.ctx.queue.virtual_parts.get_containing(part)


@simulated
async def test_a_part_whose_quorum_is_given_up_while_it_is_on_its_way_is_set_aside(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.PULLING)
    part = await one.insert(1)
    [name] = await bench.children(BENCH.log)
    entry = LogEntry.from_bytes((await bench.admin.get(BENCH.log_entry(name))).data)
    await bench.admin.set(BENCH.log_entry(name), replace(entry, quorum=2).to_bytes())
    fetcher = two.ctx.fetcher

    class GivenUpMeanwhile:
        async def fetch(
            self,
            source: ReplicaHost,
            replica: ReplicaPaths,
            part: PartName,
            *,
            into: PartReceiver,
            expected: PartHeader | None,
        ) -> Part:
            fetched = await fetcher.fetch(source, replica, part, into=into, expected=expected)
            await bench.admin.create(BENCH.failed_part(part))
            return fetched

    two.ctx.fetcher = GivenUpMeanwhile()
    two.ctx.switches.start(Activity.PULLING)
    two.ctx.log_changed.set()
    await bench.quiet(two)
    assert two.active == await bench.parts("r2") == [] and two.detached == [f"noquorum_{part}"]
    assert not two.ctx.queue.virtual_parts.get_containing(part)


@simulated
async def test_of_those_that_are_as_far_the_one_with_the_shortest_queue_is_asked(bench: Bench) -> None:
    one, two, three = await bench.cluster(3)
    three.ctx.switches.stop(Activity.FETCHES)
    for key in range(4):
        await one.insert(key)
    await bench.quiet(one, two)
    one.ctx.switches.stop(Activity.QUEUES)
    await two.insert(9)
    await bench.quiet(two)
    await bench.until(lambda: len(one.ctx.queue.entries) == 1)
    pointers = [(await bench.admin.get(each.ctx.me.log_pointer)).data for each in (one, two)]
    assert pointers[0] == pointers[1]
    three.ctx.switches.start(Activity.FETCHES)
    three.ctx.queue_changed.set()
    await bench.until(lambda: three.values == [0, 1, 2, 3, 9])
    assert {source for source, node, _ in bench.network.fetches if node == "r3"} == {"r2"}


@simulated
async def test_of_several_parts_that_cover_the_wanted_one_the_largest_is_fetched(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    for key in range(4):
        await one.insert(key)
    await bench.log(MergeParts(tuple(P(f"all_{n}_{n}_0") for n in range(4)), P("all_0_3_2")))
    await bench.quiet(one)
    (whole,) = await bench.parts("r1")
    # A real server's replica keeps what was merged for another eight minutes.
    data = (await bench.admin.get(one.ctx.me.part(P(whole)))).data
    for name in ("all_0_1_1", "all_0_2_1"):
        await bench.admin.create(one.ctx.me.part(P(name)), data)
    (holder,) = await peers.active_holders(two.ctx, two.ctx.session(), P("all_0_0_0"))
    assert (holder.replica, holder.part) == (one.ctx.me, P("all_0_3_2"))


@simulated
async def test_one_try_of_an_entry_asks_no_more_replicas_than_the_setting_says(bench: Bench) -> None:
    bench.settings = bench.settings.changed({"max_fetch_partition_retries_count": "2"})
    one, two, three, four = await bench.cluster(4)
    four.ctx.switches.stop(Activity.QUEUES)
    asking = Asking(four.ctx)
    await one.insert(1)
    await bench.quiet(one, two, three)
    for replica in (one, two, three):
        replica.store.faults.damage_sent = 1.0
    (queued,) = four.ctx.queue.entries
    four.ctx.switches.start(Activity.QUEUES)
    four.ctx.queue_changed.set()
    await bench.until(lambda: queued.num_tries >= 3 and not queued.is_executing)
    assert len(asking.asked) == 2 * queued.num_tries
    assert all(first != second for first, second in zip(asking.asked[::2], asking.asked[1::2], strict=True))
    for replica in (one, two, three):
        replica.store.faults.damage_sent = 0.0
    await bench.quiet(four)
    assert four.values == [1]


@simulated
async def test_a_part_of_an_old_server_is_compared_with_what_it_has_written_below_its_node(
    bench: Bench,
) -> None:
    """18.16 leaves the part's node empty; columns and checksums are its children."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    for key in range(2):
        await one.insert(key)
    for number, part in enumerate((P("all_0_0_0"), P("all_1_1_0"))):
        path = one.ctx.me.part(part)
        digest = one.store.active[part].digest
        wrong = replace(digest, hash_of_uncompressed_files=bytes(16)) if number else digest
        await bench.admin.set(path, b"")
        await bench.admin.create(f"{path}/columns", one.disk.active[part].columns)
        await bench.admin.create(f"{path}/checksums", wrong.to_bytes())
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.until(lambda: two.values == [0])
    await bench.until(lambda: two.ctx.queue.entries[0].num_tries > 1)
    assert two.values == [0], "the other one is not what its server says"
    described = await peers.header(bench.admin, one.ctx.me, P("all_0_0_0"))
    assert described == one.store.active[P("all_0_0_0")].header


# -- FETCH PARTITION -----------------------------------------------------------------------------------------


def test_a_partition_of_another_table_is_fetched_into_detached() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        for value in range(3):
            await sources[0].insert(value, partition="a")
            await destinations[0].insert(10 + value, partition="a")
        await live.quiet()
        await optimize(sources[0].ctx, OptimizeOptions("a", Extent.FINAL, sync=Sync.ALL))
        ctx = destinations[1].ctx
        names = await partitions.fetch_partition(ctx, "a", PATHS.root)
        assert [str(name) for name in names] == ["a_0_2_1"] == sorted(destinations[1].disk.detached)
        assert destinations[1].keys() == [10, 11, 12]
        with pytest.raises(SqlError) as already:
            await partitions.fetch_partition(ctx, "a", PATHS.root)
        assert already.value.code == Code.PARTITION_ALREADY_EXISTS
        await partitions.attach_partition(ctx, "a", sync=Sync.ALL)
        check_equal(*destinations)
        assert destinations[0].keys() == [0, 1, 2, 10, 11, 12]

    run(main)


def test_fetching_what_is_not_there() -> None:
    async def main(live: Live) -> None:
        sources, destinations = await two_tables(live)
        await sources[0].insert(1, partition="a")
        await live.quiet()
        ctx = destinations[0].ctx
        with pytest.raises(SqlError) as no_partition:
            await partitions.fetch_partition(ctx, "b", PATHS.root)
        assert no_partition.value.code == Code.INVALID_PARTITION_VALUE
        with pytest.raises(SqlError) as no_table:
            await partitions.fetch_partition(ctx, "a", "/nowhere")
        assert no_table.value.code == Code.BAD_ARGUMENTS
        for source in sources:
            await source.stop()
        with pytest.raises(SqlError) as nobody:
            await partitions.fetch_part(ctx, P("a_0_0_0"), PATHS.root)
        assert nobody.value.code == Code.NO_ACTIVE_REPLICAS
        await sources[1].start()
        assert await partitions.fetch_part(ctx, P("a_0_0_0"), PATHS.root) == [P("a_0_0_0")]

    run(main)


def test_the_replica_that_has_copied_most_of_the_log_is_asked() -> None:
    async def main(live: Live) -> None:
        sources, (destination, _) = await two_tables(live)
        behind, ahead = sources
        await behind.insert(1, partition="a")
        await live.quiet()
        behind.ctx.switches.stop(Activity.PULLING)
        await ahead.insert(2, partition="b")
        await live.quiet(ahead)
        asking = Asking(destination.ctx)
        await partitions.fetch_partition(destination.ctx, "a", PATHS.root)
        assert asking.asked == [ahead.name]
        await ahead.stop()
        await partitions.drop_detached(destination.ctx, partition_id="a")
        await partitions.fetch_part(destination.ctx, P("a_0_0_0"), PATHS.root)
        assert asking.asked == [ahead.name, behind.name]

    run(main)


@pytest.mark.parametrize("busy", [0, 1])
def test_of_those_that_have_copied_as_much_the_one_with_less_to_do_is_asked(busy: int) -> None:
    async def main(live: Live) -> None:
        sources, _ = await two_tables(live)
        sources[busy].ctx.switches.stop(Activity.QUEUES)
        await sources[1 - busy].insert(1)
        await live.quiet(sources[1 - busy])
        async with asyncio.timeout(60):
            while not live.children(sources[busy].ctx.me.queue):
                await live.env.sleep(0.1)
        assert len({live.data(source.ctx.me.log_pointer) for source in sources}) == 1
        best = await best_replica(await live.keeper(), PATHS)
        assert best is not None and best.name == sources[1 - busy].name

    run(main)


@pytest.mark.parametrize(("given", "tried"), [(2, 2), (None, 4), (0, 1)])
def test_it_is_tried_as_often_as_the_statement_or_the_table_says(given: int | None, tried: int) -> None:
    async def main(live: Live) -> None:
        (source, other), (destination, _) = await two_tables(live)
        await source.insert(1, partition="a")
        await live.quiet()
        await other.stop()
        ctx = destination.ctx
        ctx.settings = ctx.settings.changed({"max_fetch_partition_retries_count": "4"})
        asking = Asking(ctx)
        live.network.detach(source.ctx.me)
        with pytest.raises(PartUnavailable):
            await partitions.fetch_partition(ctx, "a", PATHS.root, attempts=given)
        assert len(asking.asked) == tried
        assert not destination.disk.detached

    run(main)


def test_what_is_there_again_at_a_later_try_is_fetched() -> None:
    async def main(live: Live) -> None:
        (source, other), (destination, _) = await two_tables(live)
        await source.insert(1, partition="a")
        await live.quiet()
        await other.stop()
        asking = Asking(destination.ctx)
        live.network.detach(source.ctx.me)
        fetching = asyncio.create_task(partitions.fetch_partition(destination.ctx, "a", PATHS.root))
        async with asyncio.timeout(60):
            while len(asking.asked) < 2:
                await live.env.sleep(0.1)
        live.network.attach(source.name, source.ctx.me, source.store)
        assert await fetching == [P("a_0_0_0")]
        assert set(asking.asked) == {source.name}

    run(main)
