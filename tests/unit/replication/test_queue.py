"""What a replica will have, what it may do next, and why not something else. No I/O."""

from __future__ import annotations

import pytest

from engine.replication.log_actions import (
    Action,
    AlterMetadata,
    AttachPart,
    DropRange,
    GetPart,
    MergeParts,
    MutatePart,
    ReplaceRange,
)
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName, drop_range
from engine.replication.part_set import PartsIntersect
from engine.replication.replica.queue.queue import Limits, QueuedEntry, ReplicaQueue

P = PartName.parse
CHECKSUM = "0" * 32


def replica(*parts: str) -> ReplicaQueue:
    queue = ReplicaQueue()
    queue.reset(map(P, parts))
    return queue


def put(queue: ReplicaQueue, action: Action, *, at: str = "2026-11-21 12:00:00") -> QueuedEntry:
    """As the log puller does it: entries are numbered as they come."""
    number = max((queued.number for queued in queue.entries), default=-1) + 1
    queued = QueuedEntry(f"queue-{number:010}", LogEntry(action, "r1", at), b"")
    queue.add(queued)
    return queued


def chosen(queue: ReplicaQueue, **limits: object) -> list[QueuedEntry]:
    """Everything that may execute at the same time now."""
    found = []
    while (queued := queue.choose(Limits(**limits), now_s=100.0)) is not None:  # type: ignore[arg-type]
        found.append(queued)
    return found


def done(queue: ReplicaQueue, queued: QueuedEntry) -> None:
    queue.finished(queued)
    queue.remove(queued, is_done=True)


def get(part: str) -> GetPart:
    return GetPart(P(part))


def merge(*names: str) -> MergeParts:
    *sources, result = map(P, names)
    return MergeParts(tuple(sources), result)


def drop(partition_id: str, before: int) -> DropRange:
    span = drop_range(partition_id, before)
    assert span is not None
    return DropRange(span)


def alter(version: int, *, have_mutation: bool = False) -> AlterMetadata:
    return AlterMetadata(version, have_mutation, "columns", "metadata")


def mutation(number: int, *, alter_version: int = -1, partition_id: str = "all") -> MutationEntry:
    return MutationEntry(
        "2026-11-21 12:00:00", "r1", ((partition_id, number),), "DELETE WHERE 1", alter_version
    )


def names(parts: object) -> list[str]:
    return [str(part) for part in parts]  # type: ignore[attr-defined]


# -- virtual parts ------------------------------------------------------------------------------------------


def test_virtual_parts_are_what_will_be_there_when_all_is_done() -> None:
    queue = replica("all_0_0_0", "all_1_1_0")
    put(queue, get("all_2_2_0"))
    put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"))
    assert names(queue.virtual_parts) == ["all_0_1_1", "all_2_2_0"]
    assert names(queue.current_parts) == ["all_0_0_0", "all_1_1_0"]
    for queued in chosen(queue):
        done(queue, queued)
    assert names(queue.current_parts) == ["all_0_1_1", "all_2_2_0"]
    assert not queue.entries


def test_what_a_given_up_entry_would_have_covered_comes_to_light_again() -> None:
    queue = replica("all_0_0_0")
    awaited = put(queue, get("all_1_1_0"))
    merging = put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"))
    queue.remove(merging, is_done=False)
    assert names(queue.virtual_parts) == ["all_0_0_0", "all_1_1_0"]
    queue.remove(awaited, is_done=False)
    assert names(queue.virtual_parts) == ["all_0_0_0"]


def test_a_range_to_be_dropped_hides_its_parts_until_it_is_dropped() -> None:
    queue = replica("all_0_3_1", "all_4_4_0", "b_0_0_0")
    put(queue, get("all_5_5_0"))
    dropping = put(queue, drop("all", 6))
    assert names(queue.virtual_parts) == ["all_0_5_999999999_999999999", "b_0_0_0"]
    assert queue.is_to_be_dropped(P("all_4_4_0")) and not queue.is_to_be_dropped(P("b_0_0_0"))
    assert queue.choose(Limits(), now_s=0) is dropping
    for covered in queue.covered_by(P("all_0_5_999999999_999999999"), before=dropping):
        queue.remove(covered, is_done=False)
    done(queue, dropping)
    assert names(queue.virtual_parts) == ["b_0_0_0"]


def test_an_insert_of_this_replica_is_there_at_once_and_its_entry_adds_nothing() -> None:
    queue = replica()
    queue.add_virtual(P("all_0_0_0"))
    put(queue, get("all_0_0_0"))
    assert names(queue.virtual_parts) == names(queue.current_parts) == ["all_0_0_0"]


def test_a_part_that_is_forgotten_stays_virtual_only_if_an_entry_will_bring_it() -> None:
    queue = replica("all_0_0_0", "all_1_1_0")
    put(queue, get("all_0_0_0"))
    queue.forget(P("all_0_0_0"))
    queue.forget(P("all_1_1_0"))
    assert names(queue.virtual_parts) == ["all_0_0_0"]
    assert names(queue.current_parts) == []


def test_parts_that_no_merge_can_have_made_are_an_error() -> None:
    queue = replica("all_0_2_1")
    with pytest.raises(PartsIntersect):
        put(queue, get("all_2_3_1"))


# -- who may run beside whom --------------------------------------------------------------------------------


def test_entries_of_different_blocks_execute_at_once_in_the_order_of_the_log() -> None:
    queue = replica()
    entries = [put(queue, get(f"all_{n}_{n}_0")) for n in range(3)]
    assert chosen(queue) == entries
    assert all(queued.is_executing for queued in entries)


def test_nothing_is_made_beside_something_that_shares_a_block_with_it() -> None:
    queue = replica("all_0_0_0", "all_1_1_0")
    merging = put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"))
    further = put(queue, merge("all_0_1_1", "all_2_2_0", "all_0_2_2"))
    again = put(queue, get("all_1_1_0"))
    assert chosen(queue) == [merging]
    assert "all_0_1_1 is being made" in further.postpone_reason
    assert "all_0_1_1 is being made" in again.postpone_reason
    assert queue.is_in_production(P("all_1_1_0")) and not queue.is_in_production(P("all_2_2_0"))
    done(queue, merging)
    assert chosen(queue) == [further]


def test_a_merge_waits_while_a_source_is_being_made_but_not_while_it_is_only_queued() -> None:
    """A source that is far away in the queue: the merged part can be fetched instead of it."""
    queue = replica("all_0_0_0")
    put(queue, get("all_1_1_0"))
    merging = put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"))
    assert chosen(queue, free_fetches=0) == [merging]
    queue.finished(merging)
    assert [queued.name for queued in chosen(queue)] == ["queue-0000000000"]
    assert "all_1_1_0" in merging.postpone_reason and "being made" in merging.postpone_reason


def test_the_limits_are_on_fetches_and_on_merges_apart() -> None:
    queue = replica("all_0_0_0", "all_1_1_0", "b_0_0_0")
    fetching = put(queue, get("all_2_2_0"))
    attaching = put(queue, AttachPart(P("all_3_3_0"), CHECKSUM))
    merging = put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"))
    mutating = put(queue, MutatePart(P("b_0_0_0"), P("b_0_0_0_4")))
    dropping = put(queue, drop("c", 7))
    assert chosen(queue, free_fetches=0, free_merges=0) == [dropping]
    assert "fetched" in fetching.postpone_reason and "merged" in merging.postpone_reason
    assert attaching.num_postponed == mutating.num_postponed == 0, "they stand behind those two"
    assert chosen(queue, fetches_stopped=True, merges_stopped=True) == []
    for stopped in (fetching, attaching):
        assert "fetches are stopped" in stopped.postpone_reason
    for stopped in (merging, mutating):
        assert "merges and mutations are stopped" in stopped.postpone_reason


def test_an_entry_that_failed_waits_and_then_stands_behind_the_others() -> None:
    queue = replica()
    failing, other = put(queue, get("all_0_0_0")), put(queue, get("all_1_1_0"))
    assert queue.choose(Limits(), now_s=1.0) is failing
    queue.finished(failing)
    failing.not_before_s = 50.0
    assert chosen(queue, now_monotonic_s=49.0) == [other]
    queue.finished(other)
    assert chosen(queue, now_monotonic_s=50.0) == [failing, other]


def test_fetching_a_covering_part_claims_its_blocks() -> None:
    queue = replica()
    first, second = put(queue, get("all_1_1_0")), put(queue, get("all_2_2_0"))
    third = put(queue, get("all_7_7_0"))
    assert chosen(queue) == [first, second, third]
    assert "all_2_2_0 is being made" in queue.claim(first, P("all_0_5_1"))
    queue.finished(second)
    assert queue.claim(first, P("all_0_5_1")) == ""
    assert queue.is_in_production(P("all_4_4_0"))
    assert "all_0_5_1 is being made" in queue.claim(third, P("all_4_9_2"))
    assert chosen(queue) == []
    queue.finished(first)
    assert not queue.is_in_production(P("all_4_4_0"))


# -- drops and replacements ---------------------------------------------------------------------------------


def test_a_drop_goes_first_and_nothing_inside_it_starts() -> None:
    queue = replica("all_0_0_0")
    inside = put(queue, get("all_1_1_0"))
    put(queue, drop("all", 2))
    outside = put(queue, get("all_2_2_0"))
    assert queue.entries[0].dropped_range is not None
    started = chosen(queue)
    assert started[1:] == [outside] and isinstance(started[0].entry.action, DropRange)
    assert "drops" in inside.postpone_reason
    assert queue.covered_by(P("all_0_1_999999999_999999999"), before=started[0]) == [inside]


def test_entries_that_are_executing_inside_a_range_are_told_to_whoever_drops_it() -> None:
    queue = replica("all_0_0_0", "all_1_1_0")
    merging = put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"))
    assert chosen(queue) == [merging]
    dropping = put(queue, drop("all", 5))
    span = dropping.dropped_range
    assert span is not None and queue.executing_inside(span, besides=dropping) == [merging]
    told: list[str] = []
    merging.on_finished.append(lambda: told.append("over"))
    queue.finished(merging)
    assert told == ["over"] and queue.executing_inside(span, besides=dropping) == []


def test_what_comes_after_the_drop_of_a_part_and_spans_its_place_does_not_overtake_it() -> None:
    queue = replica("all_0_0_0", "all_1_1_0", "all_2_2_0")
    dropping = put(queue, DropRange(P("all_1_1_0")))
    merging = put(queue, merge("all_0_0_0", "all_2_2_0", "all_0_2_1"))
    assert chosen(queue) == [dropping]
    assert "drops all_1_1_0 first" in merging.postpone_reason
    done(queue, dropping)
    assert chosen(queue) == [merging]
    done(queue, merging)
    assert names(queue.virtual_parts) == ["all_0_2_1"]


def replace(before: int, *results: str) -> ReplaceRange:
    span = drop_range("all", before)
    assert span is not None
    parts = tuple(map(P, results))
    return ReplaceRange(span, "d", "t", parts, parts, (CHECKSUM,) * len(parts), 0)


def test_drops_and_replacements_that_meet_keep_the_order_of_the_log() -> None:
    queue = replica("all_0_0_0")
    replacing = put(queue, replace(2, "all_2_2_0", "all_9_9_0"))
    dropping = put(queue, drop("all", 9))
    elsewhere = put(queue, drop("b", 3))
    assert chosen(queue) == [elsewhere, replacing]
    assert f"{replacing.name} has to be done first" in dropping.postpone_reason
    done(queue, replacing)
    assert chosen(queue) == [dropping]


def test_a_replacement_of_which_nothing_will_remain_is_not_waited_for() -> None:
    """Its parts may be nowhere any more: replicas that were faster have dropped them."""
    queue = replica("all_0_0_0")
    replacing = put(queue, replace(2, "all_2_2_0", "all_3_3_0"))
    dropping = put(queue, drop("all", 9))
    assert chosen(queue) == [dropping]
    assert f"{dropping.name} has to be done first" in replacing.postpone_reason
    span = dropping.dropped_range
    assert span is not None and list(queue.covered_by(span, before=dropping)) == [replacing]


def test_a_single_part_moved_in_drops_nothing_and_goes_with_a_later_drop() -> None:
    queue = replica("all_0_0_0")
    moved = P("all_4_4_0")
    move = ReplaceRange(P("all_4_4_999999999_999999999"), "d", "s", (moved,), (moved,), (CHECKSUM,), 0)
    queued = put(queue, move)
    assert queued.dropped_range is None
    assert names(queue.virtual_parts) == ["all_0_0_0", "all_4_4_0"]
    dropping = put(queue, drop("all", 9))
    assert chosen(queue) == [dropping]
    span = dropping.dropped_range
    assert span is not None and list(queue.covered_by(span, before=dropping)) == [queued]


# -- ALTER and mutations ------------------------------------------------------------------------------------


def test_alters_are_executed_in_the_order_of_their_versions() -> None:
    queue = replica()
    second, first = put(queue, alter(2)), put(queue, alter(1))
    assert chosen(queue) == [first]
    assert "before version 1" in second.postpone_reason
    done(queue, first)
    assert chosen(queue) == [second]


def test_an_alter_waits_until_the_data_of_the_one_before_is_rewritten() -> None:
    queue = replica("all_0_0_0")
    first, second = put(queue, alter(1, have_mutation=True)), put(queue, alter(2))
    queue.set_mutations({0: mutation(1, alter_version=1)})
    rewriting = put(queue, MutatePart(P("all_0_0_0"), P("all_0_0_0_1"), alter_version=1))
    assert chosen(queue) == [first]
    assert "metadata version 1 is not applied" in rewriting.postpone_reason
    done(queue, first)
    assert chosen(queue) == [rewriting]
    assert "rewritten" in second.postpone_reason
    done(queue, rewriting)
    assert queue.parts_to_do(0) == []
    assert chosen(queue) == []
    queue.mutations[0].is_done = True
    assert chosen(queue) == [second]


def test_a_mutation_that_belongs_to_no_alter_holds_no_alter_up() -> None:
    queue = replica("all_0_0_0")
    queue.set_mutations({0: mutation(1)})
    altering = put(queue, alter(1))
    assert chosen(queue) == [altering]


def test_a_part_is_mutated_to_the_last_version_but_not_past_an_alter() -> None:
    queue = replica("all_0_0_0")
    queue.set_mutations({0: mutation(3), 1: mutation(5, alter_version=7), 2: mutation(8)})
    part = P("all_0_0_0")
    assert queue.target_version(part) == 5
    assert [state.number for state in queue.mutation_commands(part, 5)] == [0, 1]
    assert queue.target_version(part.mutated(5)) == 8
    assert queue.target_version(part.mutated(8)) is None
    assert queue.target_version(P("b_0_0_0")) is None
    assert queue.target_version(P("all_9_9_0")) is None


def test_a_mutation_is_to_be_done_on_all_parts_that_are_here_or_will_be_before_their_mutation() -> None:
    queue = replica("all_0_0_0", "all_9_9_0")
    queue.set_mutations({4: mutation(9)})
    fetching = put(queue, get("all_1_1_0"))
    assert names(queue.parts_to_do(4)) == ["all_0_0_0", "all_1_1_0"]
    mutating = put(queue, MutatePart(P("all_0_0_0"), P("all_0_0_0_9")))
    assert names(queue.parts_to_do(4)) == ["all_0_0_0", "all_1_1_0"]
    done(queue, mutating)
    assert names(queue.parts_to_do(4)) == ["all_1_1_0"]
    done(queue, fetching)
    assert names(queue.parts_to_do(4)) == ["all_1_1_0"]
    assert queue.parts_to_do(5) == []


def test_killed_mutations_are_told_and_those_that_stay_keep_their_state() -> None:
    queue = replica()
    queue.set_mutations({1: mutation(3), 2: mutation(4)})
    queue.mutations[2].is_done = True
    assert queue.set_mutations({2: mutation(4), 3: mutation(6)}) == [1]
    assert list(queue.mutations) == [2, 3] and queue.mutations[2].is_done


def test_the_oldest_insert_is_that_of_the_inserts_alone() -> None:
    queue = replica("all_0_0_0", "all_1_1_0")
    put(queue, merge("all_0_0_0", "all_1_1_0", "all_0_1_1"), at="2026-11-21 10:00:00")
    first = put(queue, get("all_2_2_0"), at="2026-11-21 11:30:00")
    put(queue, get("all_3_3_0"), at="2026-11-21 11:40:00")
    assert queue.oldest_insert() == "2026-11-21 11:30:00"
    assert queue.oldest_insert(besides=[first]) == "2026-11-21 11:40:00"
    assert queue.count(GetPart) == 2 and queue.count(GetPart, MergeParts) == 3


def test_of_entries_that_all_want_the_same_covering_part_the_first_gets_it() -> None:
    """1. Two entries execute and find only a part that covers both. 2. Each keeps the other from it. 3. Both
    end; only the first starts again, and may make it. What lies outside is not kept waiting."""
    queue = replica()
    first, second = put(queue, get("all_1_1_0")), put(queue, get("all_2_2_0"))
    covering = P("all_0_5_1")
    assert chosen(queue) == [first, second]
    assert queue.claim(first, covering) and queue.claim(second, covering)
    queue.finished(first)
    queue.finished(second)
    outside = put(queue, get("all_6_6_0"))
    assert chosen(queue) == [first, outside]
    assert f"{first.name} is about to make all_0_5_1" in second.postpone_reason
    assert queue.claim(first, covering) == ""
    done(queue, first)
    assert chosen(queue) == [second]
