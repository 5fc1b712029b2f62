"""Patch parts, by which newer servers carry out lightweight UPDATEs, on a node that cannot apply them.

The first replica is the server here: whatever it is to have is put onto its disk by hand.
"""

from __future__ import annotations

from engine.replication.commands.drop_range import drop_part, truncate
from engine.replication.commands.mutate import create_mutation
from engine.replication.log_actions import MergeParts, MutatePart
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions
from engine.replication.replica.commit_part import commit_produced
from engine.replication.replica.merging.assigner import Assigned, assign
from engine.replication.replica.merging.predicate import load_predicate
from tests.unit.replication.live_support import Live, LiveReplica, P, run

PATCHES = "patch-a91299639375aea99cbde0a025c49ab7-all"
PATCH = P(f"{PATCHES}_0_0_0")


async def patched(live: Live) -> tuple[LiveReplica, LiveReplica]:
    """The first has parts of rows 1 and 2, and a patch for them; the second lacks the patch."""
    server, node = await live.cluster(2)
    await server.insert(1)
    await server.insert(2)
    await live.quiet()
    assert await server.insert(1, partition=PATCHES) == str(PATCH)
    await live.env.sleep(30)
    return server, node


def test_a_partition_may_be_one_of_patches() -> None:
    assert PATCH.patched_partition == "all"
    assert P("patch-a91299639375aea99cbde0a025c49ab7-2026-11_4_4_0_3").patched_partition == "2026-11"
    assert P("all_0_0_0").patched_partition == P("dispatch-1-2_0_0_0").patched_partition == ""


def test_a_patch_is_not_fetched_and_the_queue_says_why_until_it_is_gone() -> None:
    async def main(live: Live) -> None:
        server, node = await patched(live)
        assert node.parts() == ["all_0_0_0", "all_1_1_0"]
        (waiting,) = node.ctx.queue.entries
        assert "lightweight UPDATE" in waiting.last_error
        # Other entries do not wait for it.
        await server.insert(3)
        await live.env.sleep(5)
        assert node.parts() == ["all_0_0_0", "all_1_1_0", "all_2_2_0"]
        await drop_part(server.ctx, PATCH)
        await live.quiet()
        assert node.parts() == server.parts()

    run(main)


def test_a_part_that_patches_may_concern_is_mutated_by_who_has_them() -> None:
    async def main(live: Live) -> None:
        server, node = await patched(live)
        await create_mutation(node.ctx, "UPDATE v = 5 WHERE k = 1")
        await live.env.sleep(30)
        assert sorted(live.actions(MutatePart)) == [
            "mutate\nall_0_0_0\nto\nall_0_0_0_2",
            "mutate\nall_1_1_0\nto\nall_1_1_0_2",
        ], "patches are not mutated"
        assert node.parts() == ["all_0_0_0", "all_1_1_0"]
        for part in (P("all_0_0_0"), P("all_1_1_0")):
            await server.store.mutate(part, part.mutated(2), "UPDATE v = 6 WHERE k = 1")
            await commit_produced(server.ctx, part.mutated(2))
        await live.env.sleep(120)
        assert node.rows() == [(1, 6), (2, 0)]
        assert not node.store.mutations
        # Without patches it is made here again.
        await truncate(server.ctx)
        await live.quiet()
        await server.insert(1)
        await create_mutation(node.ctx, "UPDATE v = 7 WHERE k = 1")
        await live.quiet()
        assert node.rows() == [(1, 7)] and node.store.mutations

    run(main)


def test_a_merge_that_applies_patches_is_made_by_who_has_them() -> None:
    async def main(live: Live) -> None:
        server, node = await patched(live)
        sources, result = (P("all_0_0_0"), P("all_1_1_0")), PartName("all", 0, 1, 1)
        merge = MergeParts(sources, result, apply_patches=(str(PATCH),))
        done = await assign(server.ctx, server.ctx.session(), await load_predicate(server.ctx), [merge])
        assert isinstance(done, Assigned)
        await server.store.merge(sources, result, MergeOptions())
        await commit_produced(server.ctx, result)
        await live.env.sleep(120)
        assert node.parts() == [str(result)]
        assert not node.store.merges

    run(main)
