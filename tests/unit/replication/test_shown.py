"""What a replica shows of itself: restarts, delays, its queue."""

from __future__ import annotations

from engine.replication.log_actions import DropRange, MergeParts, RangeFate
from engine.replication.replica.queue.view import delays_s, queue_rows
from engine.replication.replica.switches import Activity
from tests.unit.replication.support import Bench, P, simulated


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
