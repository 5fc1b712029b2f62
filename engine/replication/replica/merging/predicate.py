"""Which parts may be merged or mutated now, so that no replica ever has to make a part that cannot be made.

Safety argument. Block numbers rise within a partition, and a part covers every block between its first and
its last. Two neighbours may be merged only if nothing will ever appear between them:

1. `known` is a copy of what the replica will have, taken first.
2. Then the block numbers are read that are allocated and not yet committed (by holders that live). A number
   between two parts of `known` was allocated before the right one appeared, so it is among these, or was
   given up, or was committed before this reading.
3. Then the log is pulled: what was committed is in `queue.virtual_parts` now.
4. `log_version` is the version that `log` had when it was pulled. Whoever assigns a merge or a mutation, or
   drops a range, raises it; an assignment that sets `log` with this version is refused if another came
   between.
   Inserts do not raise it and need not: by 2 and 3 none of them lies between known neighbours.

So of any number of replicas that assign at once, each assignment is one that the next one has seen. A crash
at any point leaves nothing: this module only reads. It never looks at parts on the disk.

Source: ClickHouse's ReplicatedMergeTreeMergePredicate.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from engine.errors import NoNode
from engine.keeper.base import Children, Keeper
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.replica import block_numbers, log_puller
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replica.quorum import readable_status


@dataclass(frozen=True, slots=True)
class MergePredicate:
    """Valid as long as `log` has version `log_version`. `queue` is live: it only makes the answers stricter.

    `committing` are block numbers by partition, ascending, of `partitions` only, if that is not None:
    elsewhere no two parts may be merged. `awaiting_quorum` are parts of inserts whose quorum is not reached;
    `dropping` are parts that a DROP_PART in the queue takes away: they are still among the virtual parts,
    because nothing covers them, but who executes the entry first cannot make anything of them.
    """

    queue: ReplicaQueue
    known: ActivePartSet
    committing: Mapping[str, Sequence[int]]
    awaiting_quorum: AbstractSet[PartName]
    log_version: int
    dropping: AbstractSet[PartName] = frozenset()
    partitions: AbstractSet[str] | None = None

    def why_not(self, part: PartName) -> str:
        """Why `part` can be neither merged nor mutated now; empty if it can."""
        if self.known.get_containing(part) is None:
            return f"part {part} does not exist in the queue yet"
        if part in self.awaiting_quorum:
            return f"quorum insert of part {part} is in progress"
        if part in self.dropping:
            return f"part {part} is to be dropped"
        covering = self.queue.virtual_parts.get_containing(part)
        if covering != part:
            return f"part {part} has already been assigned a merge into {covering}"
        return ""

    def why_not_together(self, left: PartName, right: PartName) -> str:
        """Why the neighbours `left` and `right` cannot be merged now; empty if they can."""
        return self.why_not(left) or self.why_not(right) or self.why_not_beside(left, right)

    def why_not_beside(self, left: PartName, right: PartName) -> str:
        """As `why_not_together`, of two that may each be merged (`why_not`)."""
        if self.queue.why_no_merges:
            return self.queue.why_no_merges
        if left.partition_id != right.partition_id:
            return f"parts {left} and {right} belong to different partitions"
        if self.partitions is not None and left.partition_id not in self.partitions:
            return f"partition {left.partition_id} was not looked at"
        first, last = left.max_block + 1, right.min_block - 1
        if first <= last:
            numbers = self.committing.get(left.partition_id, ())
            at = bisect.bisect_left(numbers, first)
            if at < len(numbers) and numbers[at] <= last:
                return f"block number {numbers[at]} is still being inserted between parts {left} and {right}"
            gap = PartName(left.partition_id, first, last, 0)
            if between := self.queue.virtual_parts.intersecting(gap):
                return f"there are parts (such as {between[0]}) between {left} and {right}"
        # A later mutation would not know which half of the result an earlier one was applied to.
        of_left, of_right = self.queue.mutation_version(left), self.queue.mutation_version(right)
        if of_left != of_right:
            return f"current mutation versions of parts {left} and {right} differ: {of_left} and {of_right}"
        return ""

    def why_not_merged(self, parts: Sequence[PartName]) -> str:
        """Why `parts`, in order, cannot be merged into one; empty if they can. One part needs to be free."""
        if len(parts) == 1:
            return self.why_not(parts[0])
        for left, right in itertools.pairwise(parts):
            if reason := self.why_not_together(left, right):
                return reason
        return ""

    def wanted_version(self, part: PartName) -> int | None:
        """To which data version `part` has to be mutated; None if it need not or cannot be."""
        return None if self.why_not(part) else self.queue.target_version(part)

    def is_finished(self, number: int, entry: MutationEntry) -> bool:
        """Whether nothing that mutation `number` applies to exists, is coming, or can still be inserted."""
        assert self.partitions is None
        for partition_id, block_number in entry.block_numbers:
            numbers = self.committing.get(partition_id, ())
            if numbers and numbers[0] < block_number:
                return False
        return not self.queue.parts_to_do(number)


async def load_predicate(ctx: ReplicaContext, partitions: AbstractSet[str] | None = None) -> MergePredicate:
    """Read what is needed, in the order that the safety argument asks for. Each partition in which parts may
    be merged is a question to Keeper: `partitions` are those, where it is known."""
    keeper = ctx.session()
    known = ctx.queue.virtual_parts.copy()
    # A part of `known` has its quorum's node already, if it has one: that may be read any time from now on.
    (committing, log_version), awaiting = await asyncio.gather(
        _committing_and_log(ctx, partitions), parts_awaiting_quorum(ctx, keeper)
    )
    return MergePredicate(
        queue=ctx.queue,
        known=known,
        committing={partition_id: sorted(numbers) for partition_id, numbers in committing.items()},
        awaiting_quorum=awaiting,
        log_version=log_version,
        dropping=frozenset(
            queued.dropped_range for queued in ctx.queue.entries if queued.dropped_range is not None
        ),
        partitions=partitions,
    )


async def _committing_and_log(
    ctx: ReplicaContext, partitions: AbstractSet[str] | None
) -> tuple[Mapping[str, AbstractSet[int]], int]:
    """Steps 2 and 3, in this order."""
    committing = await block_numbers.committing(ctx, partitions)
    return committing, await log_puller.pull(ctx)


async def parts_awaiting_quorum(ctx: ReplicaContext, keeper: Keeper) -> frozenset[PartName]:
    """The parts of quorum inserts under way or given up.

    Also of parallel ones, other than in ClickHouse: a part that was merged before its quorum is given up
    would stay in the result, its block id would be forgotten, and a repeated insert would store it twice.
    One that was given up stays here until whoever has it has set it aside. Given up is read last: a part is
    in one of the three at any time until the quorum is reached.
    """
    awaiting: set[PartName] = set()
    try:
        node = await keeper.get(ctx.paths.quorum_status)
        status = readable_status(node.data, ctx.paths.quorum_status)
        if status is not None:
            awaiting.add(status.part)
    except NoNode:
        pass
    listed = await keeper.children_many([ctx.paths.quorum_parallel, ctx.paths.quorum_failed_parts])
    for children in listed:
        if isinstance(children, Children):
            names = map(PartName.try_parse, children.names)
            awaiting.update(name for name in names if name is not None)
        elif not isinstance(children, NoNode):
            raise children
    return frozenset(awaiting)
