"""A part that is to be dropped is no source of anything: nobody could make the result."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.errors import Code, SqlError
from engine.replication.commands.drop_range import drop_part
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import DropRange, MergeParts
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.queue.queue import QueuedEntry
from tests.unit.replication.create_support import pause_before
from tests.unit.replication.live_support import Live, check_equal
from tests.unit.replication.live_support import run as run_live
from tests.unit.replication.replica_bench import Bench, run

P = PartName.parse


def test_a_part_whose_drop_is_queued_is_neither_merged_nor_mutated() -> None:
    async def main(bench: Bench) -> None:
        replica = await bench.replica("r1")
        keeper = replica.ctx.session()
        for number in range(3):
            await keeper.create(replica.ctx.me.part(P(f"all_{number}_{number}_0")))
        await queue_loader.load(replica.ctx, keeper)
        parts = [P(f"all_{number}_{number}_0") for number in range(3)]
        free = await load_predicate(replica.ctx)
        assert free.why_not_merged(parts) == ""

        entry = LogEntry(DropRange(P("all_1_1_0")), "r1", "2026-01-01 00:00:00")
        queued = QueuedEntry("queue-0000000000", entry, entry.to_bytes())
        replica.ctx.queue.add(queued)
        dropping = await load_predicate(replica.ctx)
        assert "is to be dropped" in dropping.why_not(P("all_1_1_0"))
        assert "is to be dropped" in dropping.why_not_merged(parts[:2])
        assert "is to be dropped" in dropping.why_not_merged(parts[1:])
        assert dropping.why_not(P("all_0_0_0")) == ""
        assert dropping.why_not_together(parts[0], parts[2]) != ""
        assert replace(dropping, dropping=frozenset()).why_not(P("all_1_1_0")) == ""

    run(main)


def test_a_merge_that_is_assigned_meanwhile_goes_before_the_drop_of_one_of_its_sources() -> None:
    """1. r1 looks at the part, which is free. 2. r2 assigns a merge of it. 3. r1 writes to the log."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        for key in (1, 2):
            await one.insert(key)
        await live.quiet()

        async def merge() -> None:
            await optimize(two.ctx, OptimizeOptions(extent=Extent.FINAL, sync=Sync.NONE))

        pause_before(one.ctx.session(), 1, merge)
        with pytest.raises(SqlError) as refused:
            await asyncio.wait_for(drop_part(one.ctx, P("all_0_0_0")), timeout=60)
        assert refused.value.code in (Code.PART_IS_TEMPORARILY_LOCKED, Code.NO_SUCH_DATA_PART)
        assert len(live.actions(MergeParts)) == 1 and live.actions(DropRange) == []
        await live.quiet()
        assert one.keys() == [1, 2]
        check_equal(one, two)

    run_live(main)
