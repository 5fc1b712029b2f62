"""What the start of a replica finds on its disk and in Keeper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.keeper.base import Create, Op, OpResult
from engine.keeper.session import RequestKind
from engine.replication.commands.alter import alter_table
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import AlterMetadata, DropRange, RangeFate
from engine.replication.part_name import drop_range
from engine.replication.part_store import MergeOptions
from engine.replication.replica.queue.view import keeper_status
from engine.replication.replica.switches import Activity
from engine.replication.table_metadata import TableMetadata
from engine.testing.replication.disk import Damage
from tests.unit.replication.support import PATHS, Bench, P, Replica, simulated


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
async def test_a_table_older_than_an_alter_keeps_the_replica_read_only_until_keeper_is_said_to_be_right(
    bench: Bench,
) -> None:
    """Its merges would take the new column's values from all replicas."""
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    old = two.disk.definition
    await alter_table(one.ctx, "ADD COLUMN w UInt64", sync=Sync.ALL)
    await two.stop()
    two.disk.definition = old
    again = await bench.start("r2", two.disk, is_awaited=False)
    await bench.until(lambda: "column w is in Keeper only" in again.ctx.readonly_reason)
    assert "(INCOMPATIBLE_COLUMNS)" in again.ctx.readonly_reason
    assert again.ctx.is_readonly and again.values == [1]
    assert await bench.admin.exists(two.ctx.me.is_active) is None
    await bench.admin.create(two.ctx.me.force_restore_data)
    await bench.until(lambda: not again.ctx.is_readonly)
    assert two.disk.definition.columns == one.disk.definition.columns
    await one.insert(2)
    await bench.quiet(one, again)
    assert again.values == [1, 2]


@simulated
async def test_a_keeper_older_than_an_alter_keeps_the_replica_read_only_with_its_columns(
    bench: Bench,
) -> None:
    (one,) = await bench.cluster(1)
    old = (await bench.admin.get(one.ctx.me.columns)).data
    await alter_table(one.ctx, "ADD COLUMN w UInt64", sync=Sync.ALL)
    await bench.quiet(one)
    await one.stop()
    await bench.admin.set(one.ctx.me.columns, old)
    again = await bench.start("r1", one.disk, is_awaited=False)
    await bench.until(lambda: "column w is not in Keeper" in again.ctx.readonly_reason)
    assert "w" in one.disk.definition.columns.by_name


@simulated
async def test_a_sorting_key_may_be_written_in_another_way_and_not_be_a_longer_one(bench: Bench) -> None:
    """As another version of chDB writes it; the longer one is an ALTER that this table has not seen."""
    (one,) = await bench.cluster(1)
    await one.stop()
    metadata = TableMetadata.from_bytes((await bench.admin.get(one.ctx.me.metadata)).data)
    here = replace(metadata, primary_key="k", sorting_key="-f(k, v)")
    one.disk.definition = replace(one.disk.definition, metadata=here)
    same = replace(here, sorting_key="negate(f(k, v))")
    await bench.admin.set(one.ctx.me.metadata, same.to_bytes())
    await (await bench.start("r1", one.disk)).stop()
    longer = replace(here, sorting_key="negate(f(k, v)), v")
    await bench.admin.set(one.ctx.me.metadata, longer.to_bytes())
    again = await bench.start("r1", one.disk, is_awaited=False)
    await bench.until(lambda: "its sorting key is (-f(k, v)) here" in again.ctx.readonly_reason)


@simulated
async def test_a_table_that_an_alter_of_the_queue_has_changed_already_is_as_it_should_be(
    bench: Bench,
) -> None:
    """1. The ALTER is in the queue. 2. The table gets its columns. 3. A crash, before Keeper is told."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.QUEUES)
    await alter_table(one.ctx, "ADD COLUMN w UInt64", sync=Sync.OWN)
    await bench.until(
        lambda: any(isinstance(each.entry.action, AlterMetadata) for each in two.ctx.queue.entries)
    )
    await two.stop()
    assert "w" not in two.disk.definition.columns.by_name
    two.disk.definition = one.disk.definition
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    stored = await bench.admin.get(again.ctx.me.columns)
    assert stored.data == (await bench.admin.get(one.ctx.me.columns)).data


@simulated
async def test_a_forced_start_makes_no_copy_of_replicas_that_cannot_help(bench: Bench) -> None:
    """Of one that has other parts, and of one that is lost itself."""
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    await one.stop()
    await two.stop()
    await bench.admin.remove(two.ctx.me.part(P("all_0_0_0")))
    await bench.admin.set(one.ctx.me.is_lost, b"1")
    await bench.create("r3")
    await bench.admin.set(PATHS.replica("r3").is_lost, b"0")
    await bench.admin.create(PATHS.replica("r3").part(P("other_0_0_0")))
    await bench.admin.create(two.ctx.me.force_restore_data)
    again = await bench.start("r2", two.disk)
    assert again.detached == ["ignored_all_0_0_0"] and again.active == []
    assert (await bench.admin.get(two.ctx.me.is_lost)).data == b"0"


@simulated
async def test_too_many_broken_parts_keep_the_replica_read_only_until_it_is_forced(bench: Bench) -> None:
    await _two_parts_are_broken(bench, "max_suspicious_broken_parts", "Suspiciously many (2) broken parts")


@simulated
async def test_too_many_broken_bytes_keep_the_replica_read_only_until_it_is_forced(bench: Bench) -> None:
    await _two_parts_are_broken(
        bench, "max_suspicious_broken_parts_bytes", "Suspiciously big size (2 parts, "
    )


@simulated
async def test_a_broken_part_is_set_aside_before_others_are_taken_away(bench: Bench) -> None:
    """Taking parts away puts all of their partition in another place: it would go with them, and not be kept.
    It is set aside also where something else keeps the replica read-only then."""
    (one,) = await bench.cluster(1)
    for key in range(3):
        await one.insert(key)
    await bench.quiet(one)
    await one.stop()
    one.disk.damage(P("all_0_0_0"), Damage.TRUNCATION, 3)
    for number in (1, 2):
        await bench.admin.remove(one.ctx.me.part(P(f"all_{number}_{number}_0")))
    again = await bench.start("r1", one.disk, is_awaited=False)
    await bench.until(lambda: "2 rows of 2 total rows" in again.ctx.readonly_reason)
    assert again.detached == ["broken-on-start_all_0_0_0"] and again.active == ["all_1_1_0", "all_2_2_0"]


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
async def test_a_part_that_was_not_shown_yet_is_detached_with_those_that_were(bench: Bench) -> None:
    """1. r2 has a part and is killed before it shows it. 2. The partition is detached. 3. r2 starts again."""
    one, two = await bench.cluster(2)
    await one.insert(1)
    await one.insert(2)
    await bench.quiet(one, two)
    await two.stop()
    name = P("all_1_1_0")
    two.disk.staged[name] = two.disk.active.pop(name)
    two.disk.staged[P("all_0_0_1")] = two.disk.staged[name]  # of which Keeper does not know
    span = drop_range("all", 2)
    assert span is not None
    await bench.log(DropRange(span, RangeFate.DETACH))
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert sorted(again.detached) == sorted(one.detached) == ["all_0_0_0", "all_1_1_0"]
    assert again.active == [] and not two.disk.staged and await bench.parts("r2") == []


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
