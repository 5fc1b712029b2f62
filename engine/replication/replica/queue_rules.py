"""Which entry of the queue has to wait, and for what: the words that `postpone_reason` shows.

Pure. What the rules are for:

1. Two executing entries never make parts that share a block, so the disk sees each part made by one of them.
2. Nothing is made that is about to be dropped, and nothing that comes after a drop in the log overtakes it
where
   the two meet. Drops and replacements that meet keep the order of the log among themselves.
3. A merge or mutation does not start while a source is being made.
4. ALTERs are applied one after another, in the order of their versions, each with its rewriting of data
   before the next: metadata n, data n, metadata n + 1.

Source: ClickHouse's ReplicatedMergeTreeQueue and AlterSequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.replication.log_actions import (
    AlterMetadata,
    AttachPart,
    ClonePartFromShard,
    DropRange,
    GetPart,
    MergeParts,
    MutatePart,
    ReplaceRange,
)
from engine.replication.part_name import PartName
from engine.replication.replica.mutation_book import MutationBook

if TYPE_CHECKING:
    from engine.replication.replica.queue import Limits, QueuedEntry


def reason_to_wait(
    queued: QueuedEntry, entries: Iterable[QueuedEntry], mutations: MutationBook, limits: Limits
) -> str:
    """Why `queued` may not run now; empty if it may."""
    if queued.not_before_s > limits.now_monotonic_s:
        return queued.postpone_reason or f"Not executing {_what(queued)} for a while because it failed"
    others = [other for other in entries if other is not queued]
    span = queued.dropped_range
    if span is not None and (reason := _reason_against_dropping(queued, span, others)):
        return reason
    for part in queued.entry.new_parts:
        if reason := reason_against(part, queued, others):
            return reason
    match queued.entry.action:
        case AlterMetadata(version):
            return _reason_against_alter(version, others, mutations)
        case GetPart() | AttachPart() | ClonePartFromShard():
            if limits.fetches_stopped:
                return f"Not executing {_what(queued)} because fetches are stopped now"
            if limits.free_fetches <= 0:
                return f"Not executing {_what(queued)} because as many parts are fetched as may be at once"
        case MergeParts() | MutatePart():
            return _reason_against_merging(queued, others, limits)
    return ""


def reason_against(part: PartName, queued: QueuedEntry, entries: Iterable[QueuedEntry]) -> str:
    """Why `queued` may not make `part` now, as far as other entries go."""
    for other in entries:
        if other is queued:
            continue
        if other.is_executing:
            for made in other.new_parts:
                if made.intersects(part):
                    return f"Not making part {part} because part {made} is being made by {other.name}"
        span = other.dropped_range
        if span is None or not span.intersects(part):
            continue
        is_later = other.number > queued.number
        if is_later and isinstance(queued.entry.action, ReplaceRange) and not _is_overtaken(queued, other):
            continue  # It brings the part, and the other drops it, in the order of the log.
        if span.contains(part) or other.number < queued.number:
            return f"Not making part {part} because {other.name} drops {span} first"
    return ""


def _reason_against_dropping(queued: QueuedEntry, span: PartName, others: Iterable[QueuedEntry]) -> str:
    for other in others:
        if not _meets(other, span):
            continue
        if other.is_executing or (other.number < queued.number and not _is_overtaken(other, queued)):
            return f"Not executing {_what(queued)} because {other.name} has to be done first"
    return ""


def _meets(other: QueuedEntry, span: PartName) -> bool:
    """Whether `other` drops or replaces something that has a block of `span`'s."""
    if other.dropped_range is not None and other.dropped_range.intersects(span):
        return True
    is_replacement = isinstance(other.entry.action, ReplaceRange)
    return is_replacement and any(part.intersects(span) for part in other.new_parts)


def _is_overtaken(other: QueuedEntry, queued: QueuedEntry) -> bool:
    """Whether `queued`, a drop, makes an earlier replacement pointless: all it would drop and bring goes.

    The parts that it would bring may be nowhere any more, so it must not be waited for.
    """
    span = queued.dropped_range
    if span is None or not isinstance(queued.entry.action, DropRange):
        return False
    if not isinstance(other.entry.action, ReplaceRange):
        return False
    dropped = other.dropped_range
    return (dropped is None or span.contains(dropped)) and all(
        span.contains(part) for part in other.entry.new_parts
    )


def _reason_against_alter(version: int, others: Iterable[QueuedEntry], mutations: MutationBook) -> str:
    earlier = [
        other.entry.action.alter_version
        for other in others
        if isinstance(other.entry.action, AlterMetadata) and other.entry.action.alter_version < version
    ]
    if earlier:
        return f"Cannot execute alter metadata with version {version} before version {min(earlier)}"
    rewriting = [pending for pending in mutations.pending_alters() if pending < version]
    if rewriting:
        return (
            f"Cannot execute alter metadata with version {version} while data is being rewritten for "
            f"version {min(rewriting)}"
        )
    return ""


def _reason_against_merging(queued: QueuedEntry, others: Iterable[QueuedEntry], limits: Limits) -> str:
    if limits.merges_stopped:
        return f"Not executing {_what(queued)} because merges and mutations are stopped now"
    action = queued.entry.action
    if isinstance(action, MutatePart) and action.alter_version is not None:
        for other in others:
            alter = other.entry.action
            if isinstance(alter, AlterMetadata) and alter.alter_version <= action.alter_version:
                return (
                    f"Cannot execute alter data with version {action.alter_version} because metadata version "
                    f"{alter.alter_version} is not applied yet"
                )
    for other in others:
        if not other.is_executing:
            continue
        for source in queued.sources:
            if any(made.intersects(source) for made in other.new_parts):
                return (
                    f"Not executing {_what(queued)} because part {source} is not ready yet (it is being made)"
                )
    if limits.free_merges <= 0:
        return f"Not executing {_what(queued)} because as much is merged and mutated as may be at once"
    return ""


def _what(queued: QueuedEntry) -> str:
    made = ", ".join(map(str, queued.entry.new_parts))
    return f"log entry {queued.name}" + (f" for part {made}" if made else "")
