"""Which parts may be merged, who assigns it, and that every replica ends with the same bytes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Mapping, Sequence, Set
from dataclasses import replace

import pytest

from engine.errors import Code, SqlError
from engine.keeper.base import Create, CreateMode, Remove
from engine.keeper.memory_session import RequestKind
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import MergeParts, MutatePart
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_checksums import PartDigest
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.part_store import MergeOptions, Part
from engine.replication.replica import block_numbers
from engine.replication.replica.block_numbers import allocate
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.merging.assigner import (
    Assigned,
    NotAssigned,
    Round,
    assign,
    assign_round,
    why_not_alike,
)
from engine.replication.replica.merging.predicate import MergePredicate, load_predicate
from engine.replication.replica.queue.queue import QueuedEntry, ReplicaQueue
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.rows import rows_of
from engine.testing.replication.store import MemoryPartStore
from tests.unit.replication.live_support import NO_OWN_MERGES, PATHS, Live, LiveReplica, P, run

FINAL = OptimizeOptions(extent=Extent.FINAL, sync=Sync.ALL)


# -- the predicate -------------------------------------------------------------------------------------------


def predicate(
    *parts: str,
    committing: Mapping[str, Sequence[int]] | None = None,
    quorum: Sequence[str] = (),
    known: Sequence[str] | None = None,
) -> MergePredicate:
    """Of a replica that has `parts`."""
    queue = ReplicaQueue()
    queue.reset(P(part) for part in parts)
    return MergePredicate(
        queue=queue,
        known=ActivePartSet(P(part) for part in (parts if known is None else known)),
        committing=committing or {},
        awaiting_quorum=frozenset(P(part) for part in quorum),
        log_version=0,
    )


def test_neighbours_may_be_merged_also_over_numbers_that_nobody_has() -> None:
    allowed = predicate("all_0_0_0", "all_1_1_0", "all_5_5_0")
    assert allowed.why_not_together(P("all_0_0_0"), P("all_1_1_0")) == ""
    assert allowed.why_not_together(P("all_1_1_0"), P("all_5_5_0")) == ""
    assert allowed.why_not_merged([P("all_0_0_0"), P("all_1_1_0"), P("all_5_5_0")]) == ""


def test_nothing_is_merged_over_a_number_that_is_still_being_inserted() -> None:
    inserting = predicate("all_0_0_0", "all_2_2_0", committing={"all": [1]})
    assert "block number 1" in inserting.why_not_together(P("all_0_0_0"), P("all_2_2_0"))
    behind = predicate("all_0_0_0", "all_2_2_0", committing={"all": [3], "other": [1]})
    assert behind.why_not_together(P("all_0_0_0"), P("all_2_2_0")) == ""


def test_nothing_is_merged_where_nobody_has_asked_which_numbers_are_being_inserted() -> None:
    looked_at = predicate("a_0_0_0", "a_2_2_0", "b_0_0_0", "b_2_2_0")
    in_a = replace(looked_at, partitions=frozenset({"a"}))
    assert in_a.why_not_together(P("a_0_0_0"), P("a_2_2_0")) == ""
    assert "was not looked at" in in_a.why_not_together(P("b_0_0_0"), P("b_2_2_0"))
    assert in_a.why_not(P("b_0_0_0")) == "", "it may be mutated"


def test_nothing_is_merged_over_a_part_that_is_to_come() -> None:
    there = predicate("all_0_0_0", "all_1_1_0", "all_2_2_0")
    assert "all_1_1_0" in there.why_not_together(P("all_0_0_0"), P("all_2_2_0"))


def test_a_part_that_appeared_after_the_look_is_not_merged_yet() -> None:
    fresh = predicate("all_0_0_0", "all_1_1_0", known=["all_0_0_0"])
    assert "does not exist" in fresh.why_not_together(P("all_0_0_0"), P("all_1_1_0"))


def test_a_part_is_assigned_once() -> None:
    queue = ReplicaQueue()
    queue.reset([P("all_0_0_0"), P("all_1_1_0"), P("all_2_2_0")])
    action = MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1"))
    entry = LogEntry(action, "r2", "2020-01-01 00:00:00")
    queue.add(QueuedEntry("queue-0000000000", entry, entry.to_bytes()))
    known = ActivePartSet([P("all_0_0_0"), P("all_1_1_0"), P("all_2_2_0")])
    busy = MergePredicate(queue, known, {}, frozenset(), 0)
    assert "all_0_1_1" in busy.why_not(P("all_1_1_0"))
    assert busy.why_not(P("all_2_2_0")) == ""


def test_a_part_that_waits_for_its_quorum_is_not_merged() -> None:
    waiting = predicate("all_0_0_0", "all_1_1_0", quorum=["all_1_1_0"])
    assert "quorum" in waiting.why_not_together(P("all_0_0_0"), P("all_1_1_0"))
    assert "quorum" in waiting.why_not_merged([P("all_1_1_0")]), "nor with itself"
    assert waiting.why_not_merged([P("all_0_0_0")]) == ""


def test_parts_on_two_sides_of_a_mutation_are_not_merged() -> None:
    mutated = predicate("all_0_0_0_2", "all_1_1_0", "all_3_3_0")
    mutated.queue.set_mutations({0: MutationEntry("", "r1", (("all", 2),), "DELETE WHERE 1")})
    assert "mutation versions" in mutated.why_not_together(P("all_0_0_0_2"), P("all_1_1_0"))
    assert mutated.queue.mutation_version(P("all_1_1_0")) == 0
    assert (
        mutated.queue.mutation_version(P("all_0_0_0_2"))
        == mutated.queue.mutation_version(P("all_3_3_0"))
        == 2
    )


def test_old_mutations_of_many_partitions_cost_nothing_while_merges_are_looked_for() -> None:
    """The last hundred are kept: each look took seconds, in which the node answered nobody."""
    partitions = [f"p{number:04}" for number in range(1000)]
    parts = [f"{each}_{block}_{block}_0_900" for each in partitions for block in range(3)]
    there = predicate(*parts)
    mutations = {
        number: MutationEntry("", "r1", tuple((each, 100 + number) for each in partitions), "DELETE WHERE 1")
        for number in range(100)
    }
    there.queue.set_mutations(mutations)
    begin_s = time.process_time()
    for _ in range(20):
        there.queue.set_mutations(mutations)  # with each pull
    reasons = {there.why_not_together(left, right) for left, right in itertools.pairwise(map(P, parts))}
    assert there.queue.parts_to_do(99) == []
    assert time.process_time() - begin_s < 1.0
    assert "" in reasons


def test_parts_of_two_partitions_are_not_merged() -> None:
    assert "partitions" in predicate("a_0_0_0", "b_1_1_0").why_not_together(P("a_0_0_0"), P("b_1_1_0"))


# -- assigning -----------------------------------------------------------------------------------------------


def test_parts_with_other_projections_are_not_merged() -> None:
    def part(name: str, *projections: str) -> Part:
        return Part(P(name), PartDigest(0, 0, b"", b"", b""), b"", 1, 1, 0.0, None, frozenset(projections))

    old, new, newer = part("all_0_0_0"), part("all_1_1_0", "q", "p"), part("all_2_2_0", "p", "q")
    assert why_not_alike([old]) == why_not_alike([new, newer]) == ""
    assert why_not_alike([old, new, newer]) == (
        "projections of parts all_0_0_0 and all_1_1_0 differ: none and p, q"
    )


def test_replicas_merge_by_themselves_and_agree() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(3, ReplicatedSettings())
        for value in range(12):
            await replicas[value % 3].insert(value)
        while not live.actions(MergeParts):
            await live.env.sleep(0.1)
        await live.quiet()
        for replica in replicas:
            assert replica.parts() == replicas[0].parts() == replica.parts_in_keeper()
            assert replica.keys() == list(range(12))
        assert len(replicas[0].parts()) < 12
        digests = [[part.digest for part in replica.store.active.values()] for replica in replicas]
        assert digests[0] == digests[1] == digests[2]

    run(main)


def test_of_two_that_choose_at_once_one_is_refused() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        for value in range(3):
            await first.insert(value)
        await live.quiet()
        # 1. Both look.
        seen_first, seen_second = await load_predicate(first.ctx), await load_predicate(second.ctx)
        left, right = (P("all_0_0_0"), P("all_1_1_0")), (P("all_1_1_0"), P("all_2_2_0"))
        # 2. The first assigns. 3. The second, who has not seen it, chose a part of the same.
        keeper = first.ctx.session()
        done = await assign(first.ctx, keeper, seen_first, [MergeParts(left, P("all_0_1_1"))])
        late = await assign(
            second.ctx, second.ctx.session(), seen_second, [MergeParts(right, P("all_1_2_1"))]
        )
        assert isinstance(done, Assigned)
        assert late is NotAssigned.LOG_CHANGED
        await live.quiet()
        assert first.parts() == second.parts() == ["all_0_1_1", "all_2_2_0"]

    run(main)


def test_an_insert_under_way_keeps_its_neighbours_apart() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        number = await allocate(replica.ctx, "all")
        await replica.insert(2)
        with pytest.raises(SqlError) as refused:
            await optimize(replica.ctx, replace(FINAL, throw_if_noop=True))
        assert refused.value.code == Code.CANNOT_ASSIGN_OPTIMIZE
        assert f"block number {number.number}" in refused.value.message
        await number.abandon()
        await optimize(replica.ctx, FINAL)
        assert replica.parts() == ["all_0_2_1"]

    run(main)


def test_a_lost_reply_does_not_assign_twice() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for value in range(3):
            await replica.insert(value)
        await live.quiet()
        seen = await load_predicate(replica.ctx)
        parts = tuple(sorted(replica.store.active))
        live.server.lose_next_reply(replica.ctx.session().session_id, kind=RequestKind.MULTI)
        done = await assign(replica.ctx, replica.ctx.session(), seen, [MergeParts(parts, P("all_0_2_1"))])
        assert isinstance(done, Assigned)
        assert [entry.name for entry in done.entries] == ["log-0000000003"]
        live.server.lose_next_request(replica.ctx.session().session_id, kind=RequestKind.MULTI)
        await live.quiet()
        again = await assign(
            replica.ctx,
            replica.ctx.session(),
            await load_predicate(replica.ctx),
            [MergeParts((P("all_0_2_1"),), P("all_0_2_2"))],
        )
        assert again is NotAssigned.LOG_CHANGED or isinstance(again, Assigned)
        await live.quiet()
        assert len(live.actions(MergeParts)) == 1 + isinstance(again, Assigned)

    run(main)


def test_a_part_that_is_not_in_keeper_is_not_merged() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for value in range(2):
            await replica.insert(value)
        seen = await load_predicate(replica.ctx)
        keeper = await live.keeper()
        await keeper.remove(replica.ctx.me.part(P("all_0_0_0")))
        action = MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1"))
        refused = await assign(replica.ctx, replica.ctx.session(), seen, [action])
        assert refused is NotAssigned.PART_MISSING
        assert not live.actions(MergeParts)

    run(main)


def test_parts_are_merged_as_soon_as_no_more_come() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, ReplicatedSettings(merge_selecting_sleep_ms=60_000))
        for value in range(12):
            await replica.insert(value)
        assert not live.actions(MergeParts)
        await live.env.sleep(2)
        assert live.actions(MergeParts)

    run(main)


def test_a_few_parts_wait_for_more_although_none_come() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, ReplicatedSettings(merge_selecting_sleep_ms=60_000))
        for value in range(8):
            await replica.insert(value)
        await live.env.sleep(20)
        assert not live.actions(MergeParts)
        await live.env.sleep(100)
        assert live.actions(MergeParts)

    run(main)


def test_where_an_old_server_elects_nobody_else_assigns() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, ReplicatedSettings(max_merge_selecting_sleep_ms=5000))
        keeper = await live.keeper()
        node = f"{PATHS.leader_election}/leader_election-"
        elected = await keeper.create(node, b"old", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        await live.env.sleep(1)
        for value in range(12):
            await replica.insert(value)
        await live.env.sleep(600)
        assert not replica.ctx.is_leader
        assert not live.actions(MergeParts)
        with pytest.raises(SqlError) as refused:
            await optimize(replica.ctx, FINAL)
        assert refused.value.code == Code.NOT_A_LEADER
        await keeper.remove(elected)
        await live.env.sleep(30)
        assert replica.ctx.is_leader
        assert live.actions(MergeParts)

    run(main)


def test_when_the_last_old_server_has_gone_every_replica_leads_again() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        keeper = await live.keeper()
        for replica in (first, second):
            await replica.stop()
        (ours,) = live.children(PATHS.leader_election)
        path = f"{PATHS.leader_election}/leader_election-"
        election = Create(path, b"old", CreateMode.EPHEMERAL_SEQUENTIAL)
        await keeper.multi([Remove(f"{PATHS.leader_election}/{ours}"), election])
        (elected,) = live.children(PATHS.leader_election)
        for replica in (first, second):
            await replica.start()
        assert live.children(PATHS.leader_election) == [elected]
        for value in range(3):
            await first.insert(value)
        await live.quiet()
        for replica in (first, second):
            with pytest.raises(SqlError) as refused:
                await optimize(replica.ctx, FINAL)
            assert refused.value.code == Code.NOT_A_LEADER
        await keeper.remove(f"{PATHS.leader_election}/{elected}")
        await live.env.sleep(1)
        await optimize(second.ctx, FINAL)
        await live.quiet()
        assert first.parts() == second.parts() == ["all_0_2_1"]
        (name,) = live.children(PATHS.leader_election)
        assert b"multiple leaders" in live.data(f"{PATHS.leader_election}/{name}")
        assert first.ctx.is_leader and second.ctx.is_leader

    run(main)


def test_a_replica_that_must_not_lead_does_not() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, ReplicatedSettings(replicated_can_become_leader=0))
        for value in range(12):
            await replica.insert(value)
        await live.env.sleep(600)
        assert not replica.ctx.is_leader
        assert not live.actions(MergeParts)

    run(main)


def test_numbers_being_inserted_are_read_where_something_is_to_be_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition is a question to Keeper, and a table may have thousands."""
    asked: list[Set[str] | None] = []
    committing = block_numbers.committing

    def noted(ctx: ReplicaContext, partitions: Set[str] | None = None) -> Awaitable[Mapping[str, set[int]]]:
        asked.append(partitions)
        return committing(ctx, partitions)

    monkeypatch.setattr(block_numbers, "committing", noted)

    async def main(live: Live) -> None:
        asked.clear()
        (replica,) = await live.cluster(1)
        for value in range(12):
            await replica.insert(value, partition="a")
        for partition in ("b", "c", "d"):
            await replica.insert(1, partition=partition)
        await live.quiet()
        held = await allocate(replica.ctx, "a")
        await replica.insert(12, partition="a")
        asked.clear()
        replica.ctx.settings = ReplicatedSettings()
        assert await assign_round(replica.ctx) is Round.ASSIGNED
        assert asked == [{"a"}]
        assert len(live.actions(MergeParts)) == 1
        replica.ctx.settings = NO_OWN_MERGES
        await held.abandon()
        await live.quiet()
        assert P(f"a_{held.number + 1}_{held.number + 1}_0") in replica.store.active  # not merged over `held`
        asked.clear()
        await wait_for_mutation(replica.ctx, await create_mutation(replica.ctx, "DELETE WHERE k = 1"))
        assert {each for each in asked if each is not None} == {frozenset()}
        assert len(live.actions(MutatePart)) == 5

    run(main)


def test_an_idle_table_asks_keeper_nothing_about_merges() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await live.quiet()
        assert await assign_round(replica.ctx) is Round.NOTHING
        before = sum(live.server.operations["r1"].values())
        assert await assign_round(replica.ctx) is Round.NOTHING
        assert sum(live.server.operations["r1"].values()) == before

    run(main)


def test_a_mutation_of_many_partitions_does_not_ask_each_of_them_again_and_again() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        for partition in range(60):
            await replica.insert(1, partition=str(partition))
        before = live.server.operations["r1"][RequestKind.CHILDREN]
        number = await create_mutation(replica.ctx, "UPDATE v = 1 WHERE 1")
        await wait_for_mutation(replica.ctx, number)
        asked = live.server.operations["r1"][RequestKind.CHILDREN] - before
        assert asked < 60 * 8, "60 partitions are mutated in at least eight rounds"

    run(main)


@pytest.mark.parametrize("stopped", [Activity.MERGES, Activity.PULLING])
def test_stopped_merges_are_not_assigned_nor_is_the_log_copied_for_them(stopped: Activity) -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, ReplicatedSettings())
        replica.ctx.switches.stop(stopped)
        await live.quiet()
        copied_up_to = replica.ctx.log_pointer
        for value in range(12):
            await replica.insert(value)
        await live.env.sleep(120)
        assert not live.actions(MergeParts)
        with pytest.raises(SqlError) as refused:
            await optimize(replica.ctx, FINAL)
        assert refused.value.code == Code.ABORTED
        assert (replica.ctx.log_pointer == copied_up_to) == (stopped is Activity.PULLING)
        replica.ctx.switches.start(stopped)
        replica.ctx.merge_wanted.set()
        await live.env.sleep(120)
        assert live.actions(MergeParts)

    run(main)


# -- executing -----------------------------------------------------------------------------------------------


class StrangeStore(MemoryPartStore):
    """Merges otherwise than the others, as another version of the server might."""

    async def merge(self, sources: Sequence[PartName], result: PartName, options: MergeOptions) -> Part:
        await super().merge(sources, result, options)
        stored = self.disk.staged[result]
        rows = (*stored.rows(str(result)), *rows_of([{"k": 666, "v": 0}]))
        self.disk.staged[result] = type(stored).of_rows(rows, stored.columns, stored.marks, 0.0)
        return self.staged[result]


async def merged_otherwise(live: Live, settings: ReplicatedSettings = NO_OWN_MERGES) -> LiveReplica:
    """A replica that has merged three parts after r1, and otherwise."""
    usual = await live.replica("r1")
    strange = await live.replica("r2", make_store=StrangeStore, settings=settings)
    for value in range(3):
        await usual.insert(value)
    await live.quiet()
    strange.ctx.switches.stop(Activity.QUEUES)
    await optimize(usual.ctx, replace(FINAL, sync=Sync.OWN))
    strange.ctx.switches.start(Activity.QUEUES)
    strange.ctx.queue_changed.set()
    await live.quiet()
    return strange


def test_a_result_that_differs_is_thrown_away_and_fetched() -> None:
    async def main(live: Live) -> None:
        strange = await merged_otherwise(live)
        assert strange.parts() == ["all_0_2_1"]
        assert strange.keys() == [0, 1, 2]
        assert ("r1", "r2", P("all_0_2_1")) in live.network.fetches
        assert strange.store.disk.list_detached() == []

    run(main)


def test_a_result_that_differs_is_kept_where_somebody_wants_to_look_at_it() -> None:
    async def main(live: Live) -> None:
        strange = await merged_otherwise(live, replace(NO_OWN_MERGES, detach_not_byte_identical_parts=1))
        assert strange.keys() == [0, 1, 2]
        [kept] = strange.store.disk.list_detached()
        assert (kept.directory, kept.name) == ("merge-not-byte-identical_all_0_2_1", P("all_0_2_1"))

    run(main)


def test_a_replica_without_the_sources_fetches_the_result() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(0)
        await live.quiet()
        second.ctx.switches.stop(Activity.QUEUES)
        for value in range(1, 3):
            await first.insert(value)
        await optimize(first.ctx, replace(FINAL, sync=Sync.OWN))
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await live.quiet()
        assert second.parts() == ["all_0_2_1"]
        assert second.keys() == [0, 1, 2]
        assert not second.store.merges

    run(main)


def test_always_fetch_merged_part() -> None:
    async def main(live: Live) -> None:
        first = await live.replica("r1")
        lazy = await live.replica("r2", settings=replace(NO_OWN_MERGES, always_fetch_merged_part=1))
        for value in range(3):
            await first.insert(value)
        await live.quiet()
        await optimize(first.ctx, FINAL)
        assert lazy.parts() == ["all_0_2_1"]
        assert not lazy.store.merges

    run(main)


# -- old parts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_partitions", [0, 1])
def test_parts_are_merged_at_the_age_that_the_setting_says(of_partitions: int) -> None:
    settings = ReplicatedSettings(
        min_age_to_force_merge_seconds=600, min_age_to_force_merge_on_partition_only=of_partitions
    )

    async def main(live: Live) -> None:
        one, two = await live.cluster(2, settings)
        await one.insert(1)
        await one.insert(2)
        await live.env.sleep(500)
        assert one.parts() == two.parts() == ["all_0_0_0", "all_1_1_0"], "not worth it, and not old"
        await live.env.sleep(500)
        assert one.parts() == two.parts() == ["all_0_1_1"]

    run(main)
