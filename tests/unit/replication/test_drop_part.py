"""A part that is to be dropped is no source of anything: nobody could make the result."""

from __future__ import annotations

from dataclasses import replace

from engine.replication.log_actions import DropRange
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.queue.queue import QueuedEntry
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
