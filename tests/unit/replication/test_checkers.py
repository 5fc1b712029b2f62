"""Each checker of the replication simulation finds the bad history that it is there for, and no other."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.replication.log_actions import Action, AttachPart, DropRange, GetPart, MergeParts, MutatePart
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName, drop_range, merged
from engine.testing.keeper_history import Created, Removed
from engine.testing.replication.checkers import violations
from engine.testing.replication.disk import Damage, StoredPart, model_definition
from engine.testing.replication.history import (
    FinalReplica,
    History,
    Insert,
    LostReplica,
    Outcome,
    Read,
    SeenStaged,
    SeenVisible,
)
from engine.testing.replication.model import Block, TableModel
from engine.testing.replication.rows import mutated, rows_of
from engine.testing.replication.store_events import Origin

COLUMNS = model_definition().columns.to_bytes()


def part(text: str) -> PartName:
    return PartName.parse(text)


def stored(*ks: int, v: int = 0) -> StoredPart:
    return StoredPart.of_rows(rows_of([{"k": k, "v": v} for k in ks]), COLUMNS, (), 0.0)


class Story:
    """A good history, step by step; a test spoils one of them."""

    def __init__(self) -> None:
        self.history = History()
        self.logged = 0
        self.active: dict[str, list[PartName]] = {"r1": [], "r2": []}
        self.content: dict[PartName, StoredPart] = {}

    def log(self, action: Action) -> None:
        data = LogEntry(action, "r1", "2026-01-01 00:00:00").to_bytes()
        self.history.record(0.0, [Created(f"/t/log/log-{self.logged:010}", data)])
        self.logged += 1

    def stage(self, name: str, content: StoredPart, origin: Origin = Origin.INSERTED) -> None:
        self.history.staged.append(SeenStaged(self.history.tick(), "r1", part(name), origin, content))
        self.content[part(name)] = content

    def show(self, name: str, *replicas: str, removing: tuple[str, ...] = ()) -> None:
        removed = tuple(part(each) for each in removing)
        for replica in replicas or ("r1", "r2"):
            left = [each for each in self.active[replica] if each not in removed]
            added = (part(name),) if name else ()
            self.active[replica] = sorted([*left, *added])
            self.history.visible.append(
                SeenVisible(
                    self.history.tick(),
                    replica,
                    tuple((each, self.content[each]) for each in added),
                    removed,
                    tuple(self.active[replica]),
                )
            )

    def insert(
        self,
        name: str,
        *ks: int,
        quorum: int = 0,
        holders: tuple[str, ...] = (),
        outcome: Outcome = Outcome.OK,
        no_keeper: bool = False,
        stores: bool = True,
    ) -> None:
        started = self.history.tick()
        if stores:
            self.stage(name, stored(*ks))
            self.log(GetPart(part(name)))
            self.show(name)
        rows = rows_of([{"k": k, "v": 0} for k in ks])
        self.history.inserts.append(
            Insert(
                f"insert {ks}",
                "r1",
                part(name).partition_id,
                rows,
                started,
                self.history.tick(),
                outcome,
                quorum=quorum,
                holders=frozenset(holders),
                no_keeper=no_keeper,
            )
        )

    def merge(self, *names: str) -> PartName:
        sources = tuple(part(name) for name in names)
        result = merged(sources)
        rows = [row for source in sources for row in self.content[source].rows("")]
        self.content[result] = StoredPart.of_rows(tuple(sorted(rows, key=repr)), COLUMNS, (), 0.0)
        self.log(MergeParts(sources, result))
        self.show(str(result), removing=names)
        return result

    def mutate(self, number: int, commands: str, *names: str) -> None:
        entry = MutationEntry("2026-01-01 00:00:00", "r1", (("all", number),), commands)
        self.history.record(0.0, [Created("/t/mutations/0000000000", entry.to_bytes())])
        for name in names:
            result = part(name).mutated(number)
            rows = mutated(self.content[part(name)].rows(""), commands).rows
            self.content[result] = StoredPart.of_rows(rows, COLUMNS, (), 0.0)
            self.log(MutatePart(part(name), result))
            self.show(str(result), removing=(name,))

    def end(self) -> History:
        for replica, names in self.active.items():
            rows = [row for name in names for row in self.content[name].rows("")]
            self.history.final[replica] = FinalReplica(
                {name: self.content[name].digest("").hash_text for name in names},
                Counter(rows),
                frozenset(names),
            )
        return self.history

    def broken_promises(self) -> list[str]:
        return sorted({violation.promise for violation in violations(self.end())})


def good() -> Story:
    story = Story()
    story.insert("all_0_0_0", 1, 2, quorum=2, holders=("r1", "r2"))
    story.insert("all_1_1_0", 3)
    story.merge("all_0_0_0", "all_1_1_0")
    story.mutate(2, "UPDATE v = v + 1 WHERE k = 1", "all_0_1_1")
    story.insert("all_3_3_0", 4)
    return story


def test_a_good_history_breaks_nothing() -> None:
    assert not violations(good().end())


def test_a_dropped_partition_may_be_filled_again_with_the_same_rows() -> None:
    story = good()
    dropped = drop_range("all", 5)
    assert dropped is not None
    story.log(DropRange(dropped))
    story.show("", removing=("all_0_1_1_2", "all_3_3_0"))
    story.insert("all_6_6_0", 4)
    assert not violations(story.end())


def test_r1_a_quorum_that_was_not_there() -> None:
    story = good()
    story.insert("all_4_4_0", 5, quorum=2, holders=("r1",))
    assert story.broken_promises() == ["R1"]


def test_r1_an_acknowledged_quorum_part_that_is_declared_failed() -> None:
    story = good()
    story.history.record(0.0, [Created("/t/quorum/failed_parts/all_0_0_0")])
    assert "R1" in story.broken_promises()


def test_r2_an_insert_stored_twice() -> None:
    story = good()
    story.insert("all_4_4_0", 3)
    assert story.broken_promises() == ["R2"]


def test_r2_an_acknowledged_insert_that_nobody_stored() -> None:
    story = good()
    story.insert("all_4_4_0", 5, stores=False)
    assert story.broken_promises() == ["R2"]


def test_r2_an_insert_swallowed_by_data_that_was_dropped_before() -> None:
    story = good()
    dropped = drop_range("all", 5)
    assert dropped is not None
    story.log(DropRange(dropped))
    story.show("", removing=("all_0_1_1_2", "all_3_3_0"))
    story.insert("all_3_3_0", 4, stores=False)
    assert story.broken_promises() == ["R2"]


def test_r3_rows_that_one_replica_does_not_have() -> None:
    story = good()
    story.stage("all_4_4_0", stored(5))
    story.log(GetPart(part("all_4_4_0")))
    story.show("all_4_4_0", "r1")
    assert story.broken_promises() == ["R3"]


def test_r3_another_digest_for_the_same_part() -> None:
    story = good()
    history = story.end()
    final = history.final["r2"]
    final.parts[part("all_3_3_0")] = "0" * 32
    assert {violation.promise for violation in violations(history)} == {"R3"}


def test_r3_a_part_that_keeper_does_not_know() -> None:
    story = good()
    history = story.end()
    final = history.final["r2"]
    history.final["r2"] = FinalReplica(final.parts, final.rows, frozenset())
    assert {violation.promise for violation in violations(history)} == {"R3"}


def test_r3_readers_miss_rows_for_a_moment() -> None:
    story = good()
    story.show("", "r1", removing=("all_3_3_0",))
    story.show("all_3_3_0", "r1")
    assert story.broken_promises() == ["R3"]


def test_r4_a_block_number_used_twice() -> None:
    story = good()
    story.insert("all_3_3_0", 5)
    assert "R4" in story.broken_promises()


def test_r4_a_merge_that_leaves_out_a_block() -> None:
    story = Story()
    for number in range(3):
        story.insert(f"all_{number}_{number}_0", number)
    story.merge("all_0_0_0", "all_2_2_0")
    assert "R4" in story.broken_promises()


def test_r4_two_merges_that_overlap() -> None:
    story = Story()
    for number in range(3):
        story.insert(f"all_{number}_{number}_0", number)
    story.merge("all_0_0_0", "all_1_1_0")
    story.log(MergeParts((part("all_1_1_0"), part("all_2_2_0")), part("all_1_2_1")))
    assert story.broken_promises() == ["R4"]


def test_r4_a_block_committed_after_its_range_was_dropped() -> None:
    story = good()
    dropped = drop_range("all", 5)
    assert dropped is not None
    story.log(DropRange(dropped))
    story.show("", removing=("all_0_1_1_2", "all_3_3_0"))
    story.insert("all_4_4_0", 5)
    assert "R4" in story.broken_promises()


def test_r5_a_damaged_part_that_readers_see() -> None:
    story = good()
    story.stage("all_4_4_0", stored(5))
    story.log(GetPart(part("all_4_4_0")))
    good_part = story.content[part("all_4_4_0")]
    story.content[part("all_4_4_0")] = good_part.damaged(Damage.BIT_FLIP, 100)
    story.show("all_4_4_0")
    story.content[part("all_4_4_0")] = good_part
    assert story.broken_promises() == ["R5"]


def test_r5_a_mutation_applied_to_newer_rows() -> None:
    story = good()
    name = part("all_3_3_0")
    story.content[name] = stored(4, v=1)
    story.show("all_3_3_0")
    assert "R5" in story.broken_promises()


@pytest.mark.parametrize("what", ["acknowledged", "read", "readonly"])
def test_r6_without_keeper(what: str) -> None:
    story = good()
    if what == "acknowledged":
        story.insert("all_4_4_0", 5, no_keeper=True)
    elif what == "read":
        story.history.reads.append(Read(story.history.tick(), "r1", None, "no answer"))
    history = story.end()
    if what == "readonly":
        final = history.final["r1"]
        history.final["r1"] = FinalReplica(final.parts, final.rows, final.in_keeper, is_readonly=True)
    assert {violation.promise for violation in violations(history)} == {"R6"}


def test_r7_a_queue_that_never_ends() -> None:
    story = good()
    history = story.end()
    final = history.final["r1"]
    history.final["r1"] = FinalReplica(final.parts, final.rows, final.in_keeper, queue=("queue-1",))
    assert {violation.promise for violation in violations(history)} == {"R7"}


# --- after Keeper has lost the table ------------------------------------------------------------------------


def restored(story: Story, *contents: StoredPart) -> Story:
    """Keeper loses the table; RESTORE on r1 makes it anew with these parts, and r2 joins: numbers begin anew.
    The log's numbers go on here, which nothing looks at."""
    history = story.history
    seen = Counter(row for name in story.active["r1"] for row in story.content[name].rows(""))
    for replica in ("r1", "r2"):
        history.lost.append(LostReplica(history.tick(), replica, seen))
    gone = ["/t/log", "/t/replicas/r1", "/t/replicas/r2"]
    history.record(0.0, [Removed(path) for path in gone])
    for replica in ("r1", "r2"):  # step 1 of RESTORE
        removed, story.active[replica] = tuple(story.active[replica]), []
        history.visible.append(SeenVisible(history.tick(), replica, (), removed, ()))
    story.content.clear()
    history.record(0.0, [Created("/t/log"), Created("/t/replicas/r1")])
    history.record(0.0, [Created("/t/replicas/r2")])
    for number, content in enumerate(contents):
        name = f"all_{number}_{number}_0"
        story.stage(name, content, Origin.ATTACHED)
        entry = LogEntry(
            AttachPart(part(name), "0" * 32), "r1", "2026-01-01 00:00:00", block_id=f"all_{number}_{number}"
        )
        history.record(0.0, [Created(f"/t/log/log-{story.logged:010}", entry.to_bytes())])
        story.logged += 1
        story.show(name)
    return story


def before_the_loss() -> Story:
    story = Story()
    # The table's first birth, of which the simulation's own history tells, too.
    story.history.record(0.0, [Created("/t/log"), Created("/t/replicas/r1"), Created("/t/replicas/r2")])
    story.insert("all_0_0_0", 1, 2)
    story.insert("all_1_1_0", 3)
    return story


def test_a_table_that_was_restored_whole_breaks_nothing_although_names_begin_anew() -> None:
    assert not violations(restored(before_the_loss(), stored(3), stored(1, 2)).end())


def test_r3_a_restored_table_lacks_rows_of_the_replica_that_made_it() -> None:
    assert restored(before_the_loss(), stored(1, 2)).broken_promises() == ["R3"]


def test_r3_a_restored_part_is_attached_twice() -> None:
    story = restored(before_the_loss(), stored(1, 2), stored(3), stored(3))
    assert story.broken_promises() == ["R3"]


def test_r2_what_was_acknowledged_after_the_restore_has_to_be_there() -> None:
    story = restored(before_the_loss(), stored(1, 2), stored(3))
    story.insert("all_2_2_0", 9, stores=False)
    assert story.broken_promises() == ["R2"]


def test_blocks_with_rows_in_common_are_explained_by_a_choice_for_all_of_them() -> None:
    """A killed UPDATE may have met the first block; the second one came later, with the first one's rows."""
    before, after = rows_of([{"k": 0, "v": 0}]), rows_of([{"k": 0, "v": 1}])
    killed = MutationEntry("2026-01-01 00:00:00", "r1", (("all", 1),), "UPDATE v = v + 1 WHERE 1")
    model = TableModel(log=[], killed=[killed])
    for number, rows in enumerate([before, after, before]):
        name = part(f"all_{number * 2}_{number * 2}_0")
        model.blocks["all", name.min_block] = Block(number, name, rows, Origin.INSERTED)
    merge = part("all_0_4_1_1")
    assert model.explains(merge, Counter([*after, *after, *before]))
    assert model.explains(merge, Counter([*before, *after, *before]))
    assert not model.explains(merge, Counter([*after, *after, *after]))
    assert not model.explains(merge, Counter([*before, *after]))
