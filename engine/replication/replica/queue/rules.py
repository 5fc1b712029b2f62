"""Which entry of the queue has to wait, and for what: the words that `postpone_reason` shows.

Pure. What the rules are for:

1. Two executing entries never make parts that share a block, so the disk sees each part made by one of them.
2. Nothing is made that is about to be dropped, and nothing that comes after a drop in the log overtakes it
   where the two meet. Drops and replacements that meet keep the order of the log among themselves.
3. A merge or mutation does not start while a source is being made.
4. Of entries that all want to make the same larger part instead of their own, the first gets its chance: the
   others do not start, or each would keep all others from it for ever.
5. ALTERs are applied one after another, in the order of their versions, each with its rewriting of data
   before the next: metadata n, data n, metadata n + 1.

Source: ClickHouse's ReplicatedMergeTreeQueue and AlterSequence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.replication.log_actions import (
    AlterMetadata,
    DropRange,
    MergeParts,
    MutatePart,
    RangeFate,
    ReplaceRange,
)
from engine.replication.part_name import PartName
from engine.replication.replica.merging.mutation_book import MutationBook
from engine.replication.replica.queue.entry import Limits, Place, QueuedEntry


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The entries that others have to wait for: few, even where the queue is long."""

    executing: Collection[QueuedEntry]
    dropping: Mapping[str, Collection[QueuedEntry]]
    """By partition, those that drop or replace, waiting or running."""
    alters: Collection[AlterMetadata]
    wanting: Collection[QueuedEntry]
    """For each part that entries want to make instead of their own, the first of those entries."""


def full_places(limits: Limits) -> Collection[Place]:
    """Of what there is no place left, so that nothing that needs one has to be looked at."""
    is_full = {
        Place.FETCH: limits.free_fetches <= 0 and not limits.fetches_stopped,
        Place.MERGE: limits.free_merges <= 0 and not limits.merges_stopped,
    }
    return [place for place, full in is_full.items() if full]


def reason_to_wait(queued: QueuedEntry, around: Surroundings, mutations: MutationBook, limits: Limits) -> str:
    """Why `queued` may not run now; empty if it may."""
    if queued.not_before_s > limits.now_monotonic_s:
        return queued.postpone_reason or f"Not executing {_what(queued)} for a while because it failed"
    if reason := _reason_of_limits(queued.place, limits):
        return reason
    span = queued.dropped_range
    if span is not None and (reason := _reason_against_dropping(queued, span, around)):
        return reason
    for part in queued.entry.new_parts:
        if reason := reason_against(part, queued, around):
            return reason
        for other in around.wanting:
            wanted = other.wanted_part
            if other.number < queued.number and wanted is not None and wanted.contains(part):
                return f"Not making part {part} because {other.name} is about to make {wanted}"
    match queued.entry.action:
        case AlterMetadata(version):
            # The entry of a clone has no source and takes several ALTERs at once. What was rewritten for them
            # is fetched, and their mutations are not done before their metadata is: it must not wait.
            is_of_clone = not queued.entry.source_replica
            return _reason_against_alter(version, around, MutationBook() if is_of_clone else mutations)
        case MergeParts() | MutatePart():
            return _reason_against_merging(queued, around)
    return ""


def _reason_of_limits(place: Place, limits: Limits) -> str:
    """Asked first, and in words that need no entry."""
    if place is Place.FETCH:
        if limits.fetches_stopped:
            return "Not executing because fetches are stopped now"
        if limits.free_fetches <= 0:
            return "Not executing because as many parts are fetched now as may be at once"
    elif place is Place.MERGE:
        if limits.merges_stopped:
            return "Not executing because merges and mutations are stopped now"
        if limits.free_merges <= 0:
            return "Not executing because as much is merged and mutated now as may be at once"
    return ""


def reason_against(part: PartName, queued: QueuedEntry, around: Surroundings) -> str:
    """Why `queued` may not make `part` now, as far as other entries go."""
    for other in around.executing:
        if other is queued:
            continue
        for made in other.new_parts:
            if made.intersects(part):
                return f"Not making part {part} because part {made} is being made by {other.name}"
    for other in around.dropping.get(part.partition_id, ()):
        span = other.dropped_range
        if other is queued or span is None or not span.intersects(part):
            continue
        is_later = other.number > queued.number
        if is_later and isinstance(queued.entry.action, ReplaceRange) and not _is_overtaken(queued, other):
            continue  # It brings the part, and the other drops it, in the order of the log.
        if span.contains(part) or not is_later:
            return f"Not making part {part} because {other.name} drops {span} first"
    return ""


def is_being_made(part: PartName, queued: QueuedEntry, around: Surroundings) -> bool:
    """Whether an entry other than `queued` makes something with a block of `part`'s now."""
    return any(
        made.intersects(part) for other in around.executing if other is not queued for made in other.new_parts
    )


def _reason_against_dropping(queued: QueuedEntry, span: PartName, around: Surroundings) -> str:
    for other in around.dropping.get(span.partition_id, ()):
        if other is queued or not _meets(other, span):
            continue
        if other.is_executing or (other.number < queued.number and not _is_pointless(other, queued, around)):
            return f"Not executing {_what(queued)} because {other.name} has to be done first"
    return ""


def _meets(other: QueuedEntry, span: PartName) -> bool:
    """Whether `other` drops or replaces something that has a block of `span`'s."""
    if other.dropped_range is not None and other.dropped_range.intersects(span):
        return True
    is_replacement = isinstance(other.entry.action, ReplaceRange)
    return is_replacement and any(part.intersects(span) for part in other.new_parts)


def _is_pointless(other: QueuedEntry, queued: QueuedEntry, around: Surroundings) -> bool:
    """Whether `queued`, a drop, need not wait for an earlier entry, because all of it goes anyway.

    An earlier drop inside it is, too. One that detaches, or comes before a detaching, is only if it waits
    itself for a replacement that is overtaken: all three would wait for each other for ever.
    """
    if _is_overtaken(other, queued):
        return True
    action, earlier = queued.entry.action, other.entry.action
    if not isinstance(action, DropRange) or not isinstance(earlier, DropRange):
        return False
    if not action.range.contains(earlier.range):
        return False
    if action.fate is RangeFate.DROP and earlier.fate is RangeFate.DROP:
        return True
    return any(
        isinstance(third.entry.action, ReplaceRange)
        and third.number < other.number
        and _meets(third, earlier.range)
        and _is_overtaken(third, queued)
        for third in around.dropping.get(earlier.range.partition_id, ())
    )


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


def _reason_against_alter(version: int, around: Surroundings, mutations: MutationBook) -> str:
    if mutations.unreadable:  # perhaps one of an earlier ALTER, or of this one
        return f"Cannot execute alter metadata with version {version}: {mutations.reason}"
    earlier = [alter.alter_version for alter in around.alters if alter.alter_version < version]
    if earlier:
        return f"Cannot execute alter metadata with version {version} before version {min(earlier)}"
    rewriting = [pending for pending in mutations.pending_alters() if pending < version]
    if rewriting:
        return (
            f"Cannot execute alter metadata with version {version} while data is being rewritten for "
            f"version {min(rewriting)}"
        )
    return ""


def _reason_against_merging(queued: QueuedEntry, around: Surroundings) -> str:
    action = queued.entry.action
    if isinstance(action, MutatePart) and action.alter_version is not None:
        for alter in around.alters:
            if alter.alter_version <= action.alter_version:
                return (
                    f"Cannot execute alter data with version {action.alter_version} because metadata version "
                    f"{alter.alter_version} is not applied yet"
                )
    for other in around.executing:
        for source in queued.sources:
            if any(made.intersects(source) for made in other.new_parts):
                return (
                    f"Not executing {_what(queued)} because part {source} is not ready yet (it is being made)"
                )
    return ""


def _what(queued: QueuedEntry) -> str:
    made = ", ".join(map(str, queued.entry.new_parts))
    return f"log entry {queued.name}" + (f" for part {made}" if made else "")
