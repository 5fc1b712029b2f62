"""Each of these bugs, put in on purpose, must be caught by the checker that is there for it.

A bug is a patch of the real code. The test runs seeds until the named promise is broken; not finding it is
the failure. The list is also a list of what must not be simplified away.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import OnclusterError
from engine.keeper.base import CreateMode, Keeper
from engine.replication.commands import consistent_read, drop_range, insert, insert_transaction
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.paths import ReplicaPaths
from engine.replication.replica import (
    block_numbers,
    clone,
    commit_part,
    direct_fetch,
    log_puller,
    part_check,
    peers,
    quorum,
    startup_check,
)
from engine.replication.replica.cleanup import log as cleanup_log
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import get as execute_get
from engine.replication.replica.execution import ranges as execute_ranges
from engine.replication.replica.execution import runner
from engine.replication.replica.merging import assigner as merge_assigner
from engine.replication.replica.merging import predicate as merge_predicate
from engine.replication.replica.merging.mutation_book import MutationBook, MutationState
from engine.replication.replica.merging.predicate import MergePredicate
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.queue import rules as queue_rules
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.quorum_waiting import QuorumEnd
from engine.testing.replication import transfer as replication_transfer
from engine.testing.replication.disk import StoredPart
from engine.testing.replication.simulation import Scenario, simulate
from engine.testing.simulation_loop import SimulationStuck
from tests.few import few_first
from tests.simulation.deliberate_bugs import Bugs, search

BUGS = Bugs()


# --- inserts ----------------------------------------------------------------------------------------------


@BUGS.add("R3", first=35, fault_rate=0.03)
def an_insert_without_answer_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_out(self: Any) -> bool:
        return False

    monkeypatch.setattr(insert_transaction.InsertTransaction, "_find_out", find_out)


@BUGS.add("R3", first=41, fault_rate=0.03)
def rows_are_shown_before_keeper_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = insert_transaction.InsertTransaction._stage

    async def shown(self: Any, pending: Any, name: PartName) -> Part:
        part = await stage(self, pending, name)
        await self._ctx.store.publish([name])
        return part

    monkeypatch.setattr(insert_transaction.InsertTransaction, "_stage", shown)


@BUGS.add("R4")
def a_block_number_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = block_numbers._ask

    async def halved(*args: Any) -> Any:
        return tuple(replace(each, number=each.number // 2) for each in await ask(*args))

    monkeypatch.setattr(block_numbers, "_ask", halved)


@BUGS.add("R1", has_quorum=True)
def an_insert_does_not_wait_for_its_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reached(*args: Any, **kwargs: Any) -> QuorumEnd:
        return QuorumEnd.REACHED

    monkeypatch.setattr(insert, "wait_for_quorum", reached)


@BUGS.add("R1", has_quorum=True, has_damaged_transfers=True, has_merges=False)
def a_replica_counts_for_the_quorum_before_it_has_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = execute_get.execute

    async def early(ctx: ReplicaContext, queued: QueuedEntry) -> None:
        if queued.entry.quorum:
            await quorum.part_is_here(ctx, queued.entry.new_parts[0])
        await execute(ctx, queued)

    monkeypatch.setattr(runner.execute_get, "execute", early)


@BUGS.add(
    "R1", first=124, has_quorum=True, is_sequential=True, has_partition_commands=False, steps=14, seeds=400
)
def a_sequential_read_looks_at_the_last_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(*args: Any) -> None:
        return None

    monkeypatch.setattr(consistent_read, "_check_earlier", trusting)


@BUGS.add(
    "R7",
    first=3,
    replicas=2,
    keeper_latency_s=0.2,
    has_slow_replica=True,
    has_merges=True,
    partitions=1,
    steps=14,
)
def fetches_of_one_covering_part_keep_each_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*args: Any) -> bool:
        return False

    monkeypatch.setattr(queue_rules, "is_being_made", nobody)


@BUGS.add("R3", first=14, has_quorum=True, fault_rate=0.03, is_network_cut=True, is_expired=True, seeds=400)
def a_part_without_quorum_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kept(*args: Any) -> None:
        return None

    monkeypatch.setattr(quorum, "set_failed_aside", kept)
    monkeypatch.setattr(insert, "set_failed_aside", kept)


@BUGS.add(
    "R3",
    first=12,
    fault_rate=0.0,
    kill_gates=(),
    is_partitioned=False,
    is_network_cut=False,
    is_stopped=False,
    is_expired=False,
    has_quorum=True,
    has_isolated_inserts=True,
    has_mutations=True,
    has_partition_commands=False,
    has_impatient_users=False,
    has_operators=False,
    steps=14,
    partitions=1,
)
def a_part_is_merged_before_its_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*args: Any) -> frozenset[PartName]:
        return frozenset()

    monkeypatch.setattr(merge_predicate, "parts_awaiting_quorum", nothing)


# --- merges and mutations ---------------------------------------------------------------------------------


@BUGS.add("R4", first=88, fault_rate=0.03, has_merges=True, steps=14, seeds=400)
def a_merge_is_assigned_on_an_old_log(monkeypatch: pytest.MonkeyPatch) -> None:
    load = merge_predicate.load_predicate

    async def unchecked(ctx: ReplicaContext, partitions: Set[str] | None = None) -> MergePredicate:
        return replace(await load(ctx, partitions), log_version=-1)

    monkeypatch.setattr(merge_assigner, "load_predicate", unchecked)


@BUGS.add("R4", first=215, has_merges=True, has_slow_replica=True, steps=14, seeds=400)
def a_merge_leaves_out_a_block_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(ctx: ReplicaContext, partitions: Set[str] | None = None) -> dict[str, set[int]]:
        return {}

    monkeypatch.setattr(merge_predicate.block_numbers, "committing", none)


@BUGS.add("R5", first=23, has_mutations=True, steps=14)
def a_mutation_is_applied_again_to_what_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def commands(self: MutationBook, source: PartName, target_version: int) -> Sequence[MutationState]:
        mutations = self._by_partition.get(source.partition_id, [])
        return [state for block, state in mutations if block <= target_version]

    monkeypatch.setattr(MutationBook, "commands", commands)


@BUGS.add("R5", first=29, has_mutations=True, steps=14)
def a_mutation_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = MutationBook.commands

    def last_only(self: MutationBook, source: PartName, target_version: int) -> Sequence[MutationState]:
        return commands(self, source, target_version)[-1:]

    monkeypatch.setattr(MutationBook, "commands", last_only)


@BUGS.add("R7", first=160, fault_rate=0.1, has_mutations=True, replicas=1, steps=20, seeds=900)
def a_lost_answer_about_the_leader_counts_as_no(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_given(self: Any, ctx: ReplicaContext, keeper: Keeper) -> bool:
        if not self._is_known:
            self._is_known = True
            self._nobody_elects = await merge_assigner.nobody_elects(ctx, keeper)
        ctx.is_leader = self._nobody_elects
        return ctx.is_leader

    monkeypatch.setattr(merge_assigner.Leadership, "is_given", is_given)


# --- partitions -------------------------------------------------------------------------------------------


@BUGS.add("R2", first=8, has_partition_commands=True, steps=14)
def dropped_rows_still_swallow_inserts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*args: Any) -> list[Any]:
        return []

    monkeypatch.setattr(drop_range, "removals_of_blocks", none)


@BUGS.add("R4", first=46, has_partition_commands=True, has_slow_replica=True, steps=14, seeds=400)
def a_dropped_range_lets_inserts_into_it_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(*args: Any, **kwargs: Any) -> None:
        return None

    monkeypatch.setattr(drop_range, "cancel_committing", leave)


@BUGS.add("R3", has_partition_commands=True, steps=14, seeds=300)
def a_dropped_range_stays_in_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(*args: Any) -> None:
        return None

    monkeypatch.setattr(execute_ranges, "forget_parts", forget)


@BUGS.add("R7", first=27, has_partition_commands=True, has_quorum=True, steps=14, seeds=400)
def a_quorum_of_dropped_rows_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(*args: Any) -> None:
        return None

    monkeypatch.setattr(quorum, "forget_dropped", forget)


# --- replication ------------------------------------------------------------------------------------------


@BUGS.add("R5", has_damaged_transfers=True)
def what_a_peer_sends_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def finish(self: replication_transfer.Incoming, expected: PartHeader | None) -> Part:
        return await self._stage(self._name, StoredPart(dict(self._files), 0.0))

    monkeypatch.setattr(replication_transfer.Incoming, "finish", finish)


@BUGS.add("R3")
def a_merged_part_comes_after_its_sources_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(
        ctx: ReplicaContext, parts: Sequence[PartName], *, replacing: PartName | None = None
    ) -> None:
        spans = [*parts, *([replacing] if replacing else [])]
        hidden = [
            name
            for name in ctx.store.active
            if name not in parts and any(span.contains(name) for span in spans)
        ]
        await ctx.store.publish([], hidden)
        await ctx.store.publish([part for part in parts if part in ctx.store.staged])

    monkeypatch.setattr(commit_part, "publish", publish)


@BUGS.add("R4")
def a_merged_part_is_shown_beside_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(
        ctx: ReplicaContext, parts: Sequence[PartName], *, replacing: PartName | None = None
    ) -> None:
        await ctx.store.publish([part for part in parts if part in ctx.store.staged])

    monkeypatch.setattr(commit_part, "publish", publish)


@BUGS.add("R7", first=65, fault_rate=0.03, seeds=400)
def copied_entries_are_forgotten_with_a_lost_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = log_puller._copy

    async def forgetful(ctx: ReplicaContext, *args: Any) -> int:
        try:
            return await copy(ctx, *args)
        finally:
            ctx.is_queue_in_doubt = False

    monkeypatch.setattr(log_puller, "_copy", forgetful)


@BUGS.add("R3", first=58, fault_rate=0.03, kill_gates=(40, 60, 80), seeds=400)
def the_log_pointer_goes_before_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def copy(
        ctx: ReplicaContext, keeper: Keeper, names: Sequence[str], version: int, known: object
    ) -> int:
        nodes = [await keeper.get(ctx.paths.log_entry(name)) for name in names]
        await keeper.set(ctx.me.log_pointer, str(int(names[-1][-10:]) + 1).encode(), version=version)
        for node in nodes:
            await keeper.create(ctx.me.queue_prefix, node.data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await queue_loader.add_new_entries(ctx, keeper)
        ctx.queue_changed.set()
        return len(names)

    monkeypatch.setattr(log_puller, "_copy", copy)


@BUGS.add("R3", has_damaged_transfers=True, has_merges=False, seeds=400)
def the_log_pointer_passes_an_insert_whose_part_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = direct_fetch.DirectFetches._fetch

    async def passing(self: Any, keeper: Keeper, part: PartName) -> Any:
        agreed = await fetch(self, keeper, part)
        if agreed is None:
            pointer = await keeper.get(self._ctx.me.log_pointer)
            behind = str(int(pointer.data or b"0") + 1).encode()
            await keeper.set(self._ctx.me.log_pointer, behind, version=pointer.stat.version)
        return agreed

    monkeypatch.setattr(direct_fetch.DirectFetches, "_fetch", passing)


@BUGS.add("R3", first=14, fault_rate=0.05, steps=14)
def who_was_refused_among_others_counts_as_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claimed(self: commit_part._Commit) -> bool:
        with suppress(OnclusterError):
            await send(self)
        return True

    send = commit_part._Commit.send_agreed
    monkeypatch.setattr(commit_part._Commit, "send_agreed", claimed)


@BUGS.add("R3", first=10, fault_rate=0.05, is_expired=True, steps=14, seeds=600)
def a_clone_counts_as_whole_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clone_from = clone._clone_from

    async def early(ctx: ReplicaContext, keeper: Keeper, *args: Any) -> None:
        await keeper.set(ctx.me.is_lost, b"0")
        await clone_from(ctx, keeper, *args)

    monkeypatch.setattr(clone, "_clone_from", early)


@BUGS.add(
    "R7", first=360, has_short_log=True, has_slow_replica=True, is_partitioned=True, steps=14, seeds=400
)
def the_log_is_cleaned_past_slow_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: cleanup_log._Replicas, pointer: int) -> None:
        return None

    monkeypatch.setattr(cleanup_log._Replicas, "keep", keep)


# --- start and checks -------------------------------------------------------------------------------------


@BUGS.add("R3", first=17, kill_gates=(40, 60, 80, 100, 120), seeds=600)
def a_start_throws_away_what_keeper_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle(ctx: ReplicaContext, expected: frozenset[PartName]) -> None:
        for part in sorted(ctx.store.staged):
            if part not in ctx.in_flight:
                await ctx.store.discard(part)

    monkeypatch.setattr(startup_check, "_settle_staged", settle)


@BUGS.add("R3", has_absent_holders=True, seeds=40)
def a_part_is_lost_because_its_replica_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as one that has the part, nor as one that has what it is to be made of."""
    others = peers.others

    async def active(ctx: ReplicaContext, keeper: Keeper) -> Sequence[ReplicaPaths]:
        listed = await others(ctx, keeper)
        return [replica for replica in listed if await keeper.exists(replica.is_active) is not None]

    monkeypatch.setattr(peers, "others", active)


@BUGS.add("R5", has_damaged_disks=True, steps=14, has_merges=False)
def nobody_looks_at_damaged_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fine(ctx: ReplicaContext, part: PartName) -> part_check.Checked:
        return part_check.Checked(part, part_check.Verdict.FINE)

    monkeypatch.setattr(part_check, "check_part", fine)


RARE = {
    "a_dropped_range_stays_in_keeper",
    "a_part_without_quorum_is_kept",
    "copied_entries_are_forgotten_with_a_lost_reply",
    "fetches_of_one_covering_part_keep_each_other_from_it",
    "nobody_looks_at_damaged_parts",
    "rows_are_shown_before_keeper_has_them",
    "the_log_is_cleaned_past_slow_replicas",
    "the_log_pointer_goes_before_the_entries",
    "the_log_pointer_passes_an_insert_whose_part_did_not_come",
}
"""So many seeds go well with them that they are looked for in CI only."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", few_first(sorted(BUGS, key=lambda name: (name in RARE, name)), few=len(BUGS) - len(RARE))
)
def test_this_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name].patch(monkeypatch)
    symptoms: dict[type[Exception], str] = {
        SimulationStuck: "R7",  # it runs on and on and never becomes quiet
        KeyError: "crash",  # two operations hold one part: a bug may also show like this
    }
    search(BUGS[name], simulate, _scenario_of_seed, symptoms=symptoms)


def _scenario_of_seed(seed: int) -> Scenario:
    """Without what has bugs of its own (`test_replication_restore_bugs`): it would cost time here."""
    scenario = Scenario.of_seed(seed)
    return replace(scenario, has_keeper_loss=False, has_rare_commands=False, has_isolated_inserts=False)
