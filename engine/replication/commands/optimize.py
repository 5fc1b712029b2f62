"""OPTIMIZE TABLE: assign merges now, and wait for them.

Safety argument: that of `replica.merge_assigner`. The same predicate, the same multi under the version of the
log, for all partitions at once. What this adds is patience: with FINAL it waits until parts of the
partition that are being made are here, so that one part is left and not two; not for parts that cannot come
because somebody has stopped fetches or the queue.

Source: ClickHouse's StorageReplicatedMergeTree::optimize.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass

from engine.errors import Code, ConnectionLoss, OperationTimeout, SessionExpired, SqlError
from engine.keeper.base import Op
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync, in_term, wait_for_entries
from engine.replication.log_actions import MergeParts
from engine.replication.part_name import PartName, merged
from engine.replication.replica import log_puller
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged
from engine.replication.replica.merging.assigner import (
    Assigned,
    NotAssigned,
    assign,
    nobody_elects,
    select_regular_merge,
    why_not_alike,
)
from engine.replication.replica.merging.predicate import MergePredicate, load_predicate
from engine.replication.replica.switches import Activity
from engine.replication.table_metadata import MergingMode

log = logging.getLogger(__name__)

_PATIENCE_WITH_KEEPER_S = 10.0
"""How long a part may be here and not in Keeper. Longer, somebody has removed its node: the part check, not
OPTIMIZE, sees to that."""
_PATIENCE_S = 600.0
_RECHECK_S = 1.0
_PAUSE_S = 0.2
_BATCH = 100
_TRIES_WORTH_WAITING = 2
_ANY_MERGE = 1.0
"""The base for which no merge is too much writing."""


class Extent(enum.Enum):
    """What OPTIMIZE merges."""

    BEST = "best"
    """The best merge anywhere, worth its writing or not, or with a partition all of its parts if they are
    several."""
    FINAL = "final"
    """All parts of each partition, a single one with itself."""


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """`partition_id` None is the whole table. `throw_if_noop` is `optimize_throw_if_noop`."""

    partition_id: str | None = None
    extent: Extent = Extent.BEST
    deduplicate: bool = False
    deduplicate_by_columns: tuple[str, ...] = ()
    cleanup: bool = False
    skip_merged: bool = False
    """FINAL leaves a partition of one part alone that is the result of a merge."""
    throw_if_noop: bool = False
    sync: Sync = Sync.OWN
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S
    fence: tuple[Op, ...] = ()


async def optimize(ctx: ReplicaContext, options: OptimizeOptions) -> None:
    """Raises SqlError 388 CANNOT_ASSIGN_OPTIMIZE if there is nothing to merge and that is to be told, 529
    NOT_A_LEADER if this replica may not assign merges, 236 ABORTED while merges are stopped, 242, 341."""
    await _check(ctx, options)
    wanted = None if options.partition_id is None else [options.partition_id]
    entries: list[Logged] = []
    reasons: list[str] = []
    done: set[str] = set()
    async with AsyncExitStack() as prepared:
        while True:
            fence = () if entries else options.fence
            found = await _assign(ctx, options, wanted, done, fence, prepared)
            entries += found.entries
            reasons += found.reasons
            done.update(found.partitions)
            if not found.is_more:
                break
        if not entries and options.fence:
            await ctx.session().multi(options.fence)
        await wait_for_entries(ctx, entries, sync=options.sync, inactive_timeout_s=options.inactive_timeout_s)
    if not entries and reasons and options.throw_if_noop:
        raise SqlError(
            Code.CANNOT_ASSIGN_OPTIMIZE, f"Cannot select parts for optimization: {'; '.join(reasons)}"
        )


async def _check(ctx: ReplicaContext, options: OptimizeOptions) -> None:
    may_lead = bool(ctx.settings.replicated_can_become_leader)
    ctx.session()
    if not ctx.is_leader and (
        not may_lead or not await in_term(ctx, lambda keeper: nobody_elects(ctx, keeper))
    ):
        raise SqlError(
            Code.NOT_A_LEADER,
            f"OPTIMIZE of {ctx.name} cannot be executed because this replica is not a leader",
            hint="replicated_can_become_leader is 0 here, or servers before 20.6 elect a leader.",
        )
    if ctx.switches.is_stopped(Activity.MERGES):
        raise SqlError(
            Code.ABORTED,
            f"Cancelled merging parts of {ctx.name}: merges are stopped",
            hint="SYSTEM START MERGES",
        )
    if ctx.switches.is_stopped(Activity.PULLING):
        raise SqlError(
            Code.ABORTED,
            f"The log of {ctx.name} is not copied: pulling it was stopped.",
            hint="SYSTEM START PULLING REPLICATION LOG lets it go on.",
        )
    if options.cleanup:
        metadata = (await ctx.store.definition()).metadata
        if metadata.mode is not MergingMode.REPLACING:
            raise SqlError(Code.CANNOT_ASSIGN_OPTIMIZE, "OPTIMIZE … CLEANUP needs a ReplacingMergeTree table")
        if not ctx.settings.allow_experimental_replacing_merge_with_cleanup:
            raise SqlError(
                Code.SUPPORT_IS_DISABLED,
                "Experimental merges with CLEANUP are not allowed.",
                hint="The table's setting allow_experimental_replacing_merge_with_cleanup allows them.",
            )


@dataclass(frozen=True, slots=True)
class _Found:
    """What was assigned in which partitions, why nothing was, and whether there are more partitions."""

    entries: tuple[Logged, ...]
    reasons: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    is_more: bool = False


async def _assign(
    ctx: ReplicaContext,
    options: OptimizeOptions,
    wanted: Sequence[str] | None,
    done: AbstractSet[str],
    fence: Sequence[Op],
    prepared: AsyncExitStack,
) -> _Found:
    """Assign what can be assigned: in the partitions `wanted`; without them with FINAL in some of those that
    are not `done`, and otherwise the best merge anywhere. The last one that is assigned alone is `prepared`
    meanwhile."""
    is_patient = options.extent is Extent.FINAL
    began_s = ctx.env.monotonic_s()
    give_up_at_s = began_s + _PATIENCE_S
    while True:
        keeper = ctx.session()
        try:
            if not is_patient:
                await log_puller.pull(ctx)  # parts that were inserted a moment ago are known then
            predicate = await load_predicate(ctx, frozenset(wanted) if wanted else None)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(_PAUSE_S)
            continue
        partitions = list(wanted or ())
        if wanted is None and is_patient:
            partitions = [name for name in ctx.queue.virtual_parts.partition_ids if name not in done]
        is_more = len(partitions) > _BATCH
        partitions = partitions[:_BATCH]
        if wanted is None and is_patient and not partitions:
            return _Found((), ())
        if is_patient and ctx.env.monotonic_s() < give_up_at_s:
            if not _is_settled(ctx, partitions):
                await _next_change(ctx)
                continue
            if not _is_about_all(ctx, predicate, partitions):
                continue
        chosen, reasons = _choose(ctx, predicate, partitions, options)
        if not chosen:
            return _Found((), tuple(reasons), tuple(partitions), is_more)
        actions = [
            MergeParts(
                parts,
                merged(parts),
                deduplicate=options.deduplicate,
                deduplicate_by_columns=options.deduplicate_by_columns,
                cleanup=options.cleanup,
            )
            for parts in chosen
        ]
        if len(actions) == 1 and options.sync is not Sync.NONE:
            await prepared.aclose()  # what was prepared for an assignment that was not made
            [action] = actions
            await prepared.enter_async_context(ctx.store.preparing_merge(action.sources, action.result))
        try:
            outcome = await assign(ctx, keeper, predicate, actions, fence=fence)
        except (ConnectionLoss, OperationTimeout, SessionExpired):  # before anything was sent
            await ctx.env.sleep(_PAUSE_S)
            continue
        match outcome:
            case Assigned(entries):
                return _Found(entries, tuple(reasons), tuple(partitions), is_more)
            case NotAssigned.LOG_CHANGED:
                continue
            case NotAssigned.PART_MISSING:
                if ctx.env.monotonic_s() >= began_s + _PATIENCE_WITH_KEEPER_S:
                    return _Found((), ("a part is not in Keeper yet",), tuple(partitions), is_more)
                await _next_change(ctx)


def _choose(
    ctx: ReplicaContext, predicate: MergePredicate, partitions: Sequence[str], options: OptimizeOptions
) -> tuple[list[tuple[PartName, ...]], list[str]]:
    """What to merge, and why not where nothing can be."""
    extent = options.extent
    if not partitions:
        selected = select_regular_merge(ctx, predicate, base=_ANY_MERGE)
        return ([selected.parts], []) if selected is not None else ([], ["no parts can be merged now"])
    chosen: list[tuple[PartName, ...]] = []
    reasons: list[str] = []
    here: dict[str, list[PartName]] = {partition_id: [] for partition_id in partitions}
    for part in ctx.store.active:
        if part.partition_id in here:
            here[part.partition_id].append(part)
    for partition_id in partitions:
        parts = tuple(sorted(here[partition_id]))
        if not parts:
            reason = f"there are no parts in partition {partition_id}"
        elif len(parts) == 1 and extent is not Extent.FINAL:
            reason = f"there is only one part in partition {partition_id}"
        elif options.skip_merged and len(parts) == 1 and _is_merged(ctx, parts[0]):
            continue  # it is as it should be, of which `throw_if_noop` does not complain
        else:
            reason = predicate.why_not_merged(parts)
            reason = reason or why_not_alike([ctx.store.active[part] for part in parts])
        if reason:
            reasons.append(reason)
        else:
            chosen.append(parts)
    return chosen, reasons


def _is_merged(ctx: ReplicaContext, part: PartName) -> bool:
    """Whether a part, alone in its partition, gains nothing by a merge: none of its rows can have expired."""
    return part.level > 0 and ctx.store.active[part].ttl is None


def _is_settled(ctx: ReplicaContext, partitions: Sequence[str]) -> bool:
    """Whether all parts are here that are to come, but for those that have failed to come or may not come."""
    if ctx.switches.is_stopped(Activity.FETCHES) or ctx.switches.is_stopped(Activity.QUEUES):
        return True
    for partition_id in partitions:
        for part in ctx.queue.virtual_parts.in_partition(partition_id):
            if part.is_range:
                return False
            producer = None if part in ctx.store.active else ctx.queue.producer_of(part)
            if producer is not None and producer.num_tries <= _TRIES_WORTH_WAITING:
                return False
    return True


def _is_about_all(ctx: ReplicaContext, predicate: MergePredicate, partitions: Sequence[str]) -> bool:
    """Whether no part has come, straight from the log, since the predicate began to be made."""
    wanted = frozenset(partitions)
    here = (part for part in ctx.store.active if part.partition_id in wanted)
    return all(predicate.known.get_containing(part) is not None for part in here)


async def _next_change(ctx: ReplicaContext) -> None:
    try:
        async with asyncio.timeout(_RECHECK_S):
            await ctx.mutation_news.wait()
    except TimeoutError:
        return
