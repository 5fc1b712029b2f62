"""Copying the log, fetching, dropping, replacing, committing; nothing is merged that is not asked for."""

from __future__ import annotations

import pytest

from engine.keeper.base import CreateMode, Keeper
from engine.keeper.session import RequestKind
from engine.replication.log_actions import (
    AlterMetadata,
    Cleared,
    ClearInRange,
    ClonePartFromShard,
    DropRange,
    MergeParts,
    RangeFate,
    ReplaceRange,
    SyncPinnedPartUuids,
)
from engine.replication.log_entry import LogEntry
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import drop_range
from engine.replication.part_store import MergeOptions, Part
from engine.replication.replica import log_puller
from engine.replication.replica.commit_part import commit_produced
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.queue.view import keeper_status, queue_rows
from engine.replication.replica.switches import Activity
from tests.unit.replication.support import PATHS, Bench, P, Replica, simulated


@simulated
async def test_an_insert_on_one_replica_is_on_all_with_the_same_bytes(bench: Bench) -> None:
    replicas = await bench.cluster(3)
    await replicas[0].insert(1, 2)
    await replicas[1].insert(3)
    await bench.quiet(*replicas)
    for replica in replicas:
        assert replica.active == ["all_0_0_0", "all_1_1_0"]
        assert replica.values == [1, 2, 3]
        assert await bench.parts(replica.name) == replica.active
    headers = {(await bench.admin.get(PATHS.replica(f"r{n}").part(P("all_0_0_0")))).data for n in (1, 2, 3)}
    assert len(headers) == 1


@simulated
async def test_a_pull_returns_the_version_of_the_log_and_moves_the_pointer_behind_the_last_entry(
    bench: Bench,
) -> None:
    (replica,) = await bench.cluster(1)
    await replica.insert(1)
    await bench.admin.set(PATHS.log, b"")
    assert await log_puller.pull(replica.ctx) == (await bench.admin.exists(PATHS.log)).version == 1
    status = await keeper_status(replica.ctx, replica.ctx.session())
    assert (status.log_max_index, status.log_pointer) == (0, 1)
    assert (status.total_replicas, status.active_replicas) == (1, 1)


@simulated
async def test_a_pull_whose_reply_is_lost_copies_each_entry_once(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.QUEUES)
    for key, what in enumerate(("reply", "reply_and_lag", "reply")):
        lose = getattr(bench.server, f"lose_next_{what}")
        lose(two.ctx.session().session_id, kind=RequestKind.MULTI)
        await one.insert(key)
    await bench.until(lambda: len(two.ctx.queue.entries) == 3)
    assert [entry.new_parts[0] for entry in await bench.queue("r2")] == [
        P(f"all_{n}_{n}_0") for n in range(3)
    ]
    two.ctx.switches.start(Activity.QUEUES)
    two.ctx.queue_changed.set()
    await bench.quiet(one, two)
    assert two.values == [0, 1, 2]


@simulated
async def test_a_replica_that_missed_inserts_fetches_the_merged_part_instead(bench: Bench) -> None:
    one, two, three = await bench.cluster(3)
    two.ctx.switches.stop(Activity.FETCHES)
    for key in range(4):
        await one.insert(key)
    await bench.quiet(one, three)
    await bench.log(MergeParts(tuple(P(f"all_{n}_{n}_0") for n in range(4)), P("all_0_3_1")))
    await bench.quiet(one, three)
    assert one.active == three.active == ["all_0_3_1"]
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.quiet(one, two, three)
    assert two.active == ["all_0_3_1"] and two.values == [0, 1, 2, 3]
    assert [part for _, node, part in bench.network.fetches if node == "r2"] == [P("all_0_3_1")]
    assert await bench.parts("r2") == ["all_0_3_1"]


@simulated
async def test_a_part_that_only_a_dead_replica_has_is_awaited_with_growing_pauses(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    await one.insert(1)
    await one.stop()
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.env.sleep(10)
    (row,) = queue_rows(two.ctx)
    assert row.type == "GET_PART" and row.new_part_name == "all_0_0_0"
    assert "NO_REPLICA_HAS_PART" in row.last_exception and 5 < row.num_tries < 20
    assert two.table.status.inserts_in_queue == 1 and two.table.status.absolute_delay_s >= 10
    back = await bench.start("r1", one.disk)
    await bench.quiet(back, two)
    assert two.values == [1] and two.table.status.absolute_delay_s == 0


@simulated
async def test_a_dropped_range_is_gone_everywhere_with_the_entries_that_would_have_filled_it(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    two.ctx.switches.stop(Activity.FETCHES)
    await one.insert(2)
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    span = drop_range("all", 2)
    assert span is not None
    await bench.log(DropRange(span))
    await bench.quiet(one, two)
    assert one.active == two.active == [] and await bench.parts("r1") == await bench.parts("r2") == []
    assert not list(two.ctx.queue.virtual_parts)


@simulated
async def test_a_detached_range_lies_in_detached_under_its_names(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    await bench.log(DropRange(P("all_0_0_0"), RangeFate.DETACH))
    await bench.quiet(one, two)
    assert one.active == two.active == []
    assert one.detached == two.detached == ["all_0_0_0"]


@simulated
async def test_a_part_that_is_dropped_while_it_is_being_fetched_does_not_appear_after(bench: Bench) -> None:
    """1. r2 fetches a part, slowly. 2. The partition is dropped. 3. The fetch is waited for, then dropped."""
    one, two = await bench.cluster(2)
    bench.network.faults.latency_s = (5.0, 5.0)
    await one.insert(1)
    await bench.until(lambda: bool(two.ctx.queue.entries) and two.ctx.queue.entries[-1].is_executing)
    span = drop_range("all", 1)
    assert span is not None
    await bench.log(DropRange(span))
    await bench.quiet(one, two)
    assert one.active == two.active == [] and two.staged == []
    assert await bench.parts("r2") == []


@simulated
async def test_a_replacement_whose_source_is_elsewhere_is_fetched_and_shown_at_one_moment(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    new = await one.store.write("all", [{"k": 9, "v": 0}])
    part = await one.store.stage_inserted(new, P("all_2_2_0"))
    await bench.admin.create(PATHS.replica("r1").part(part.name), part.header.to_bytes())
    span = drop_range("all", 2)
    assert span is not None
    checksum = part.digest.hash_text
    await bench.log(ReplaceRange(span, "d", "s", (P("all_7_7_0"),), (part.name,), (checksum,), 0))
    await bench.quiet(one, two)
    for replica in (one, two):
        assert replica.active == ["all_2_2_0"] and replica.values == [9]
        assert await bench.parts(replica.name) == ["all_2_2_0"]
    assert one.staged == two.staged == []


@simulated
async def test_a_replacement_whose_parts_are_merged_elsewhere_is_fetched_as_one_part(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    two.ctx.switches.stop(Activity.QUEUES)
    new = [await _staged(one, 8, "all_2_2_0"), await _staged(one, 9, "all_3_3_0")]
    span = drop_range("all", 2)
    assert span is not None
    names = tuple(part.name for part in new)
    checksums = tuple(part.digest.hash_text for part in new)
    await bench.log(ReplaceRange(span, "d", "s", (P("all_7_7_0"), P("all_8_8_0")), names, checksums, 0))
    await bench.log(MergeParts(names, P("all_2_3_1")))
    await bench.quiet(one)
    assert one.active == ["all_2_3_1"] and two.active == ["all_0_0_0"]
    two.ctx.switches.stop(Activity.MERGES)  # or the merge's entry would do half of it
    two.ctx.switches.start(Activity.QUEUES)
    two.ctx.queue_changed.set()
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    assert two.active == await bench.parts("r2") == ["all_2_3_1"]
    assert two.staged == [] and two.values == [8, 9]
    assert [part for _, node, part in bench.network.fetches if node == "r2"][1:] == [P("all_2_3_1")]
    two.ctx.switches.start(Activity.MERGES)
    two.ctx.queue_changed.set()
    await bench.quiet(one, two)
    assert two.active == ["all_2_3_1"]


@simulated
async def test_a_replacement_that_failed_after_a_fetch_takes_what_it_has_fetched(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.QUEUES)
    new = [await _staged(one, 7, "all_1_1_0"), await _staged(one, 8, "all_2_2_0")]
    last = await _staged(one, 9, "all_4_4_0")
    names = (*(part.name for part in new), last.name)
    checksums = tuple(part.digest.hash_text for part in (*new, last))
    sources = (P("all_7_7_0"), P("all_8_8_0"), P("all_9_9_0"))
    await bench.log(ReplaceRange(P("all_0_0_999999999"), "d", "s", sources, names, checksums, 0))
    await bench.log(MergeParts(names[:2], P("all_1_2_1")))
    await bench.quiet(one)
    await bench.admin.remove(PATHS.replica("r1").part(last.name))
    two.ctx.switches.stop(Activity.MERGES)
    two.ctx.switches.start(Activity.QUEUES)
    two.ctx.queue_changed.set()
    await bench.until(lambda: two.staged == ["all_1_2_1"])
    await bench.env.sleep(5)
    assert two.active == []
    await bench.admin.create(PATHS.replica("r1").part(last.name), last.header.to_bytes())
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    assert two.active == ["all_1_2_1", "all_4_4_0"] and two.values == [7, 8, 9] and two.staged == []
    assert bench.network.fetches.count(("r1", "r2", P("all_1_2_1"))) == 1


@simulated
async def test_what_an_insert_without_an_answer_has_left_in_a_replaced_range_goes(bench: Bench) -> None:
    """Its parts are staged, nobody holds them in flight any more, and Keeper may have a node of them."""
    (one,) = await bench.cluster(1)
    await one.insert(1)
    await bench.quiet(one)
    executed = await _staged(one, 2, "all_1_1_0")
    await bench.admin.create(PATHS.replica("r1").part(executed.name), executed.header.to_bytes())
    await _staged(one, 3, "all_2_2_0")
    new = await _staged(one, 9, "all_4_4_0")
    span = drop_range("all", 4)
    assert span is not None
    await bench.log(ReplaceRange(span, "d", "s", (P("all_7_7_0"),), (new.name,), (new.digest.hash_text,), 0))
    await bench.quiet(one)
    assert one.active == await bench.parts("r1") == ["all_4_4_0"]
    assert one.staged == [] and one.values == [9]


async def _staged(replica: Replica, key: int, name: str) -> Part:
    written = await replica.store.write("all", [{"k": key, "v": 0}])
    return await replica.store.stage_inserted(written, P(name))


@simulated
async def test_of_two_replicas_that_made_different_bytes_the_second_to_commit_is_refused(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await one.insert(1, 2)
    await bench.quiet(one, two)
    sources, result = [P("all_0_0_0"), P("all_1_1_0")], P("all_0_1_1")
    await one.store.merge(sources, result, MergeOptions())
    await commit_produced(one.ctx, result)
    await two.store.merge(sources, result, MergeOptions(deduplicate=True))
    with pytest.raises(PartDiffers):
        await commit_produced(two.ctx, result)
    assert two.staged == [] and two.active == ["all_0_0_0", "all_1_1_0"]
    assert await bench.parts("r2") == ["all_0_0_0", "all_1_1_0"]
    assert one.active == await bench.parts("r1") == ["all_0_1_1"]


@simulated
async def test_a_commit_whose_reply_is_lost_is_found_and_published(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    await one.insert(1)
    await one.insert(2)
    await bench.quiet(one)
    await one.store.merge([P("all_0_0_0"), P("all_1_1_0")], P("all_0_1_1"), MergeOptions())
    bench.server.lose_next_reply(one.ctx.session().session_id, kind=RequestKind.MULTI)
    await commit_produced(one.ctx, P("all_0_1_1"))
    assert one.active == await bench.parts("r1") == ["all_0_1_1"] and one.values == [1, 2]


@simulated
async def test_an_entry_that_is_removed_from_keeper_by_hand_is_done_with(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.QUEUES)
    await one.insert(1)
    await bench.until(lambda: len(two.ctx.queue.entries) == 1)
    (queued,) = two.ctx.queue.entries
    await bench.admin.remove(two.ctx.me.queue_entry(queued.name))
    two.ctx.switches.start(Activity.QUEUES)
    two.ctx.queue_changed.set()
    await bench.until(lambda: not two.ctx.queue.entries)
    assert two.values == [1]


@simulated
async def test_entries_that_cannot_be_executed_hold_nobody_up_and_say_what_to_do(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await bench.log(ClearInRange(Cleared.COLUMN, "v", P("all_0_100_999999999")))
    await bench.log(ClonePartFromShard(P("other_0_0_0"), "/other/shard"))
    await one.insert(1)
    await one.insert(2)
    await bench.log(MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1")))
    await bench.until(lambda: one.active == two.active == ["all_0_1_1"])
    await bench.until(lambda: all(queued.num_tries > 3 for queued in two.ctx.queue.entries))
    clear, clone = sorted(queue_rows(two.ctx), key=lambda row: row.node_name)  # who fails goes to the end
    assert "CLEAR COLUMN v IN PARTITION ID 'all'" in clear.last_exception
    assert "FETCH PART 'other_0_0_0'" in clone.last_exception
    for row in (clear, clone):
        path = two.ctx.me.queue_entry(row.node_name)
        assert path in row.last_exception
        await bench.admin.remove(path)
    await two.table.restart()
    await two.table.wait_until_active()
    assert not two.ctx.queue.entries


@simulated
async def test_a_damaged_part_of_a_peer_is_refused_and_another_peer_is_asked(bench: Bench) -> None:
    one, two, three = await bench.cluster(3)
    three.ctx.switches.stop(Activity.FETCHES)
    await one.insert(1)
    await bench.quiet(one, two)
    one.store.faults.damage_sent = 1.0
    three.ctx.switches.start(Activity.FETCHES)
    three.ctx.queue_changed.set()
    await bench.quiet(one, two, three)
    assert three.values == [1]
    assert [source for source, node, _ in bench.network.fetches if node == "r3"] == ["r2"]


@simulated
async def test_an_unknown_entry_stops_the_pull_and_is_shown(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await bench.admin.create(PATHS.log_prefix + "0000000000", b"format version: 99\n")
    await bench.until(lambda: "99" in two.table.status.last_queue_update_exception)
    assert not two.ctx.is_readonly and not one.ctx.queue.entries


@simulated
async def test_an_entry_whose_copy_a_server_that_lags_does_not_show_is_taken_over_all_the_same(
    bench: Bench,
) -> None:
    """1. An entry is copied, and no answer comes. 2. The queue is listed on a server that lags behind. 3. It
    catches up before the log pointer is read, which has passed the entry."""
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.FETCHES)
    session = two.ctx.session()
    listed = queue_loader.add_new_entries

    async def list_and_catch_up(ctx: ReplicaContext, keeper: Keeper) -> int:
        added = await listed(ctx, keeper)
        await keeper.sync(ctx.me.queue)
        return added

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_loader, "add_new_entries", list_and_catch_up)
        bench.server.lose_next_reply_and_lag(session.session_id, kind=RequestKind.MULTI)
        await one.insert(1)
        await bench.until(lambda: len(two.ctx.queue) == 1)
    two.ctx.switches.start(Activity.FETCHES)
    two.ctx.queue_changed.set()
    await bench.quiet(one, two)
    assert two.values == [1]


@simulated
async def test_an_entry_that_no_history_explains_stops_the_pull_for_as_long_as_it_is_there(
    bench: Bench,
) -> None:
    (one,) = await bench.cluster(1)
    for key in range(3):
        await one.insert(key)
    await bench.quiet(one)
    one.ctx.switches.stop(Activity.QUEUES)
    await bench.log(MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1")))
    await bench.log(MergeParts((P("all_1_1_0"), P("all_2_2_0")), P("all_1_2_1")))
    await bench.until(lambda: "intersects" in one.ctx.last_pull_error)
    one.ctx.switches.start(Activity.QUEUES)
    one.ctx.queue_changed.set()
    await bench.env.sleep(10)
    assert one.active == ["all_0_1_1", "all_2_2_0"] and one.values == [0, 1, 2]
    assert "intersects" in one.table.status.last_queue_update_exception


@simulated
async def test_what_comes_before_an_unknown_entry_is_done_and_the_rest_when_somebody_has_mended_it(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.PULLING)
    await one.insert(1)
    await bench.until(lambda: not one.ctx.own_inserts)
    poison = await bench.admin.create(
        PATHS.log_prefix, b"format version: 99\n", mode=CreateMode.PERSISTENT_SEQUENTIAL
    )
    await one.insert(2)
    two.ctx.switches.start(Activity.PULLING)
    two.ctx.log_changed.set()
    await bench.until(lambda: two.values == [1] and "version" in two.ctx.last_pull_error)
    harmless = LogEntry(SyncPinnedPartUuids(), "", "2026-11-21 12:00:00")
    await bench.admin.set(poison, harmless.to_bytes())
    await bench.quiet(one, two)
    assert two.values == one.values == [1, 2]
    assert (one.ctx.last_pull_error, two.ctx.last_pull_error) == ("", "")


@simulated
async def test_entries_too_large_for_one_request_are_copied_in_several(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    two.ctx.switches.stop(Activity.PULLING)
    await bench.env.sleep(1)
    two.ctx.switches.stop(Activity.QUEUES)
    one.ctx.switches.stop(Activity.QUEUES)
    for version in range(12):
        await bench.log(AlterMetadata(version + 1, False, "c" * 200_000, "m"))
    assert await log_puller.pull(two.ctx) == 0
    assert [queued.entry.action.alter_version for queued in two.ctx.queue.entries] == list(range(1, 13))  # type: ignore[union-attr]
    assert (await bench.admin.get(two.ctx.me.log_pointer)).data == b"12"
