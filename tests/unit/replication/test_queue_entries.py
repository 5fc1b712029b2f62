"""What is kept beside the order of a queue's entries is what a look at each of them would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.replication.log_actions import Action, AlterMetadata, AttachPart, DropRange, GetPart, MergeParts
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName, drop_range
from engine.replication.replica.queue.entries import QueueEntries
from engine.replication.replica.queue.entry import Place, QueuedEntry

P = PartName.parse
PARTS = [P("all_0_0_0"), P("all_1_1_0"), P("b_0_0_0")]
KINDS = (GetPart, AttachPart, MergeParts, DropRange, AlterMetadata)
STEPS = ("append", "prepend", "execute", "finish", "remove", "finish after remove")


def action_of(number: int) -> Action:
    part = PARTS[number % len(PARTS)]
    dropped = drop_range(part.partition_id, number + 1)
    assert dropped is not None
    actions: list[Action] = [
        GetPart(part),
        AttachPart(part, "0" * 32),
        MergeParts((P("b_7_7_0"),), part),
        DropRange(dropped),
        AlterMetadata(number, False, "columns", "metadata"),
    ]
    return actions[number % len(actions)]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30)), max_size=40))
def test_the_index_follows_the_entries(steps: list[tuple[str, int]]) -> None:
    entries = QueueEntries()
    model: list[QueuedEntry] = []
    for number, (step, pick) in enumerate(steps):
        if step in ("append", "prepend"):
            at = f"2026-11-28 12:00:{pick:02}" if pick else ""
            queued = QueuedEntry(f"queue-{number:010}", LogEntry(action_of(number + pick), "r1", at), b"")
            model.insert(len(model) if step == "append" else 0, queued)
            (entries.append if step == "append" else entries.prepend)(queued)
        elif model:
            queued = model[pick % len(model)]
            if step == "execute" and not queued.is_executing:
                entries.execute(queued)
                model.remove(queued)
                model.append(queued)
            elif step == "finish" and queued.is_executing:
                entries.finish(queued)
                model.remove(queued)
                model.append(queued)
            elif "remove" in step:
                entries.remove(queued)
                model.remove(queued)
                if "finish" in step:
                    entries.finish(queued)
        check(entries, model)


def check(entries: QueueEntries, model: list[QueuedEntry]) -> None:
    assert list(entries) == model and len(entries) == len(model)
    assert list(entries.waiting(Place)) == [queued for queued in model if not queued.is_executing]
    for place in Place:
        mine = [queued for queued in model if queued.place is place and not queued.is_executing]
        assert list(entries.waiting([place])) == mine
        assert entries.first_waiting(place) == next(iter(mine), None)
    assert set(entries.executing) == {queued for queued in model if queued.is_executing}
    for part in PARTS:
        assert set(entries.makers(part)) == {queued for queued in model if part in queued.entry.new_parts}
    for partition_id in ("all", "b"):
        assert set(entries.dropping(partition_id)) == {
            queued
            for queued in model
            if queued.dropped_range is not None and queued.dropped_range.partition_id == partition_id
        }
    assert len(entries.surroundings().alters) == entries.count(AlterMetadata)
    for kind in KINDS:
        assert entries.count(kind) == sum(isinstance(queued.entry.action, kind) for queued in model)
    inserts = [
        queued
        for queued in model
        if isinstance(queued.entry.action, GetPart | AttachPart) and queued.entry.create_time
    ]
    assert entries.oldest_insert() == min((each.entry.create_time for each in inserts), default="")
    assert entries.oldest_insert(besides=inserts[:1]) == min(
        (each.entry.create_time for each in inserts[1:]), default=""
    )
