"""Does a history of replicated tables keep its promises? One checker for each, pure.

R1  an insert acknowledged with quorum q is on q disks at that moment, and is never given up
R2  the same insert is stored once however often it is acknowledged, and no acknowledgement stands on data
    that had been dropped before the insert began
R3  in the end all replicas have the same parts with the same digests, Keeper knows the same, and the rows are
    those that the log says; on the way readers miss no row and see none twice
R4  block numbers and part names are used once; merges cover neighbours; nothing is committed below a drop
R5  what readers see is whole, and is what its name says
R6  without Keeper nothing is acknowledged and reads are answered; in the end every replica takes inserts
R7  in the end no queue has an entry left
R8  in the end all replicas have the definition that Keeper has, which is that of all ALTERs one after
    another, the acknowledged ones among them; parts have the columns that they were inserted with, and ALTERs
    made of them
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from engine.replication.log_actions import MergeParts, MutatePart
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName, merged
from engine.replication.part_set import ActivePartSet, PartsIntersect
from engine.testing.replication.alter_checker import check_r8
from engine.testing.replication.epochs import check_restored, epochs
from engine.testing.replication.history import History, Insert, Outcome
from engine.testing.replication.model import Block, Drop, TableModel
from engine.testing.replication.rows import Rows
from engine.testing.replication.store_events import Origin
from engine.testing.simulation_report import Violation


def _stored(model: TableModel) -> dict[tuple[str, Rows], list[Block]]:
    """Blocks that inserts wrote, by partition and rows, in the order of the log."""
    found: dict[tuple[str, Rows], list[Block]] = defaultdict(list)
    for block in sorted([*model.blocks.values(), *model.repeated], key=lambda each: each.at):
        if block.origin is Origin.INSERTED:
            found[block.part.partition_id, block.rows].append(block)
    return found


def check_r1(history: History, model: TableModel) -> Iterator[Violation]:
    stored = _stored(model)
    for insert in history.inserts:
        if insert.outcome is not Outcome.OK or insert.quorum < 2:
            continue
        blocks = [b for b in stored[insert.partition_id, insert.rows] if b.at <= insert.ended_at]
        if any(drop.at <= insert.ended_at for block in blocks for drop in model.drops_of(block)):
            continue
        wiped = {replica for at, replica in history.wiped if at <= insert.ended_at}
        if len(insert.holders | wiped) < insert.quorum:
            holders = ", ".join(sorted(insert.holders)) or "nobody"
            yield Violation(
                "R1", f"insert {insert.block} was acknowledged with quorum {insert.quorum}, held by {holders}"
            )
        for block in blocks[-1:]:
            if model.is_failed(block):
                yield Violation("R1", f"{block.part} of acknowledged insert {insert.block} is a failed part")
            hurt = {replica for _, replica in history.wiped} | {
                replica for _, replica, part in history.harmed if Drop(0, part).covers(block.part)
            }
            if model.may_be_given_up(block) and len(hurt) < insert.quorum:
                yield Violation("R1", f"{block.part} of acknowledged insert {insert.block} was given up")


def check_r1_of_reads(history: History, model: TableModel) -> Iterator[Violation]:
    """A sequential read has the rows of every insert that was acknowledged before it began, where all inserts
    have a quorum and none runs in parallel: other rows may hide theirs, as in ClickHouse."""
    stored = _stored(model)
    are_sequential = all(insert.is_sequential and insert.quorum > 1 for insert in history.inserts)
    if not are_sequential or any(block.origin is not Origin.INSERTED for block in model.blocks.values()):
        return
    for read in history.sequential_reads:
        for insert in history.inserts:
            if insert.outcome is not Outcome.OK or insert.ended_at >= read.started_at:
                continue
            blocks = [b for b in stored[insert.partition_id, insert.rows] if b.at <= insert.ended_at]
            was_dropped = any(d.at < read.ended_at for block in blocks for d in model.drops_of(block))
            seen = any(Drop(0, part).covers(block.part) for part in read.parts for block in blocks[-1:])
            if not seen and not was_dropped:
                yield Violation("R1", f"a sequential read at {read.replica} missed insert {insert.block}")


def check_r2(history: History, model: TableModel) -> Iterator[Violation]:
    stored = _stored(model)
    keys = {(i.partition_id, i.rows): i.block for i in history.inserts if i.deduplicate}
    for key, name in sorted(keys.items(), key=lambda each: each[1]):
        blocks = [block for block in stored[key] if not model.is_failed(block)]
        for earlier, later in itertools.pairwise(blocks):
            made_room = any(d.covers(earlier.part) and not d.covers(later.part) for d in model.drops)
            if not made_room and not model.may_be_given_up(earlier):
                yield Violation("R2", f"insert {name} is stored twice: {earlier.part} and {later.part}")
    attempts = Counter((i.partition_id, i.rows) for i in history.inserts if not i.deduplicate)
    for key, count in attempts.items():
        if len(stored[key]) > count:
            parts = ", ".join(str(block.part) for block in stored[key])
            yield Violation("R2", f"rows that were inserted {count} times are stored in {parts}")
    for insert in history.inserts:
        if insert.outcome is Outcome.OK and not _stands(insert, stored, model):
            yield Violation(
                "R2", f"insert {insert.block} at {insert.replica} was acknowledged and is not stored"
            )


def _stands(insert: Insert, stored: dict[tuple[str, Rows], list[Block]], model: TableModel) -> bool:
    for block in stored[insert.partition_id, insert.rows]:
        dropped_before = any(drop.at < insert.started_at for drop in model.drops_of(block))
        if block.at <= insert.ended_at and not dropped_before and not model.is_failed(block):
            return True
    return False


def check_r3(history: History, model: TableModel) -> Iterator[Violation]:
    yield from _check_visible_blocks(history, model)
    if model.given_up and not history.harmed and not history.wiped:
        parts = ", ".join(sorted(map(str, model.given_up)))
        yield Violation("R3", f"{parts}: given up although no disk was ever hurt")
    expected = model.expected_rows()
    reference = next(iter(sorted(history.final)), "")
    for replica, final in sorted(history.final.items()):
        first = history.final[reference]
        if final.parts.keys() != first.parts.keys():
            difference = sorted(map(str, final.parts.keys() ^ first.parts.keys()))
            yield Violation("R3", f"{replica} and {reference} have different parts: {', '.join(difference)}")
        for name in sorted(final.parts.keys() & first.parts.keys()):
            if final.parts[name] != first.parts[name]:
                yield Violation("R3", f"{name} has another digest on {replica} than on {reference}")
        if final.in_keeper != final.parts.keys():
            difference = sorted(map(str, final.in_keeper ^ final.parts.keys()))
            yield Violation("R3", f"Keeper and the disk of {replica} differ: {', '.join(difference)}")
        # What a killed mutation has rewritten stays; each part is judged by its name in R5.
        if final.rows != (first.rows if model.killed else expected):
            missing, extra = expected - final.rows, final.rows - expected
            yield Violation(
                "R3",
                f"{replica} misses {_some(missing)} and has {_some(extra)} too many, by the log",
            )


def _some(rows: Counter[tuple[tuple[str, int | str], ...]]) -> str:
    shown = [str(dict(row)) for row in sorted(rows.elements(), key=repr)[:3]]
    return f"{rows.total()} rows ({', '.join(shown)})" if rows else "none"


def _check_visible_blocks(history: History, model: TableModel) -> Iterator[Violation]:
    """A block that readers of a replica have seen stays until the log says that it goes."""
    shown: dict[tuple[str, str], set[int]] = defaultdict(set)
    reset = sorted(history.wiped)
    for seen in history.visible:
        while reset and reset[0][0] < seen.at:
            _, replica = reset.pop(0)
            for key in [key for key in shown if key[0] == replica]:
                del shown[key]
        if not seen.active and not seen.removed:
            continue
        if history.lost and history.is_absent(seen.replica, seen.at):
            for key in [key for key in shown if key[0] == seen.replica]:
                del shown[key]
            continue
        partition_id = (seen.active or seen.removed)[0].partition_id
        now = {block.part.min_block for part in seen.active for block in model.inside(part)}
        for number in sorted(shown[seen.replica, partition_id] - now):
            block = model.blocks[partition_id, number]
            is_gone = any(drop.at < seen.at for drop in model.drops_of(block)) or model.is_failed(block)
            was_harmed = any(
                replica == seen.replica and at < seen.at and Drop(0, part).covers(block.part)
                for at, replica, part in history.harmed
            )
            if not is_gone and not was_harmed:
                yield Violation("R3", f"readers of {seen.replica} lost the rows of {block.part}")
        shown[seen.replica, partition_id] = now


def check_r4(history: History, model: TableModel) -> Iterator[Violation]:
    for block in model.repeated:
        yield Violation("R4", f"block number of {block.part} was used twice")
    for block in model.blocks.values():
        if block.origin is None:
            yield Violation("R4", f"nobody staged {block.part} before the log got it")
        for drop in model.drops:
            if drop.at < block.at and drop.range.is_range and drop.covers(block.part):
                yield Violation("R4", f"{block.part} was committed after {drop.range} was dropped")
    names: set[PartName] = set()
    parts = ActivePartSet()
    for logged in model.log:
        for part in logged.entry.new_parts:
            if part in names:
                yield Violation("R4", f"{part} is made by two entries of the log")
            names.add(part)
            try:
                parts.add(part)
            except PartsIntersect as error:
                yield Violation("R4", error.message)
        match logged.entry.action:
            case MergeParts(sources=sources, result=result):
                yield from _check_merge(sources, result, logged.at, model)
            case MutatePart(source=source, result=result):
                if result.mutation <= source.data_version or source != _without_mutation(result, source):
                    yield Violation("R4", f"{source} cannot become {result} by a mutation")
            case _:
                pass
    for seen in history.visible:
        for left, right in zip(seen.active, seen.active[1:], strict=False):
            if left.intersects(right):
                yield Violation("R4", f"readers of {seen.replica} see {left} and {right} at once")


def _without_mutation(result: PartName, source: PartName) -> PartName:
    return PartName(result.partition_id, result.min_block, result.max_block, result.level, source.mutation)


def _check_merge(
    sources: tuple[PartName, ...], result: PartName, at: int, model: TableModel
) -> Iterator[Violation]:
    try:
        expected = merged(sources)
    except ValueError as error:
        yield Violation("R4", f"merge into {result}: {error}")
        return
    if expected != result:
        yield Violation("R4", f"the merge of {sources[0]} … {sources[-1]} is called {result}")
    for left, right in itertools.pairwise(sources):
        gap = range(left.max_block + 1, right.min_block)
        for number in gap:
            block = model.blocks.get((left.partition_id, number))
            if block is None or model.is_failed(block) or model.may_be_given_up(block):
                continue
            if not any(drop.at < at for drop in model.drops_of(block)):
                yield Violation("R4", f"the merge into {result} leaves out {block.part}")


def check_r5(history: History, model: TableModel) -> Iterator[Violation]:
    judged: dict[PartName, Counter[tuple[tuple[str, int | str], ...]]] = {}
    for seen in history.visible:
        for name, stored in seen.added:
            try:
                rows = Counter(stored.rows(str(name)))
            except PartDiffers:
                yield Violation("R5", f"{seen.replica} shows damaged part {name}")
                continue
            if judged.get(name) == rows:
                continue
            judged[name] = rows
            if not (model.explains(name, rows) or (not rows and name in model.given_up)):
                yield Violation("R5", f"{name} on {seen.replica} does not hold what its name says")
    for replica, final in sorted(history.final.items()):
        for name in final.damaged:
            yield Violation("R5", f"{name} on {replica} is damaged, and nobody has noticed")


def check_r6(history: History, model: TableModel) -> Iterator[Violation]:
    for insert in history.inserts:
        if insert.no_keeper and insert.outcome is Outcome.OK:
            yield Violation("R6", f"insert {insert.block} was acknowledged without Keeper")
    for read in history.reads:
        if read.rows is None:
            yield Violation("R6", f"a read at {read.replica} failed: {read.error}")
    for replica, final in sorted(history.final.items()):
        if final.is_readonly:
            yield Violation("R6", f"{replica} does not take inserts again")


def check_r7(history: History, model: TableModel) -> Iterator[Violation]:
    for replica, final in sorted(history.final.items()):
        if final.queue:
            yield Violation("R7", f"{replica} still has to do: {'; '.join(final.queue[:5])}")
    for note in history.notes:
        yield Violation("R7", note)


Checker = Callable[[History, TableModel], Iterator[Violation]]
CHECKERS: dict[str, Checker] = {
    "R1": check_r1,
    "R1 of reads": check_r1_of_reads,
    "R2": check_r2,
    "R3": check_r3,
    "R4": check_r4,
    "R5": check_r5,
    "R6": check_r6,
    "R7": check_r7,
    "R8": check_r8,
}


def violations(history: History) -> list[Violation]:
    """All broken promises, in the order of the promises."""
    found: list[Violation] = []
    for epoch in epochs(history):
        model = TableModel.of(epoch.history)
        found += [violation for check in CHECKERS.values() for violation in check(epoch.history, model)]
        if epoch.founder:
            found += check_restored(history, epoch, model)
    return found
