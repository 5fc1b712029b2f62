"""Which parts are to be merged because something in them has expired, or has to be recompressed.

Parts that have expired as a whole come first; then the part in which something expired earliest, then the one
that should have another codec since the earliest time, each with the neighbours on both sides of which the
same is true. After a merge in a partition the next one waits `merge_with_ttl_timeout`: rows of one block
expire one after another, and each merge writes all the others again. Where whole parts go nothing is written,
and the next one waits a minute; recompression waits for itself (`merge_with_recompression_ttl_timeout`). Of
what this replica has in its queue only `max_replicated_merges_with_ttl_in_queue` are such merges.

Expired is judged by this node's clock here, and again by chDB's where the merge is made: a replica whose
clock is behind makes another part, and fetches.

Source: ClickHouse's TTLPartDropMergeSelector, TTLRowDeleteMergeSelector and TTLRecompressMergeSelector,
MergeTreeDataMergerMutator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.replication.log_actions import MergeParts, MergeType
from engine.replication.merge_selector import Candidate
from engine.replication.part_name import PartName, merged
from engine.replication.part_store import PartTtl
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.merging.recompression import (
    Recompression,
    due_since_s,
    may_be_due,
    recompressions_of,
)
from engine.replication.replica.switches import Activity

_DROP_PAUSE_S = 60.0
DateOf = Callable[[PartTtl], int]
"""When a part is due, in Unix time; 0 for never."""


class TtlMerges:
    """Chooses them for one replica, and remembers when each partition had its last one."""

    def __init__(self) -> None:
        self._not_before_s: dict[tuple[bool, str], float] = {}
        self._rules: tuple[Recompression, ...] = ()
        self._rules_version = -1

    def may_choose(self, ctx: ReplicaContext) -> bool:
        """Without looking at parts. `choose` is to be called only then."""
        if ctx.switches.is_stopped(Activity.TTL_MERGES):
            return False
        queued = sum(
            isinstance(each.entry.action, MergeParts)
            and each.entry.action.merge_type is not MergeType.REGULAR
            for each in ctx.queue.entries
        )
        return queued < ctx.settings.max_replicated_merges_with_ttl_in_queue

    async def learn(self, ctx: ReplicaContext) -> None:
        """What `choose` has to know of the table, if it has to know anything. Raises SqlError."""
        now_s, version = ctx.env.now_s(), ctx.metadata_version
        if self._rules_version == version or not any(
            may_be_due(part.ttl, now_s) for part in ctx.store.active.values()
        ):
            return
        definition = await ctx.store.definition()
        self._rules, self._rules_version = recompressions_of(definition.metadata.ttl), version

    def choose(self, ctx: ReplicaContext, runs: Sequence[Sequence[Candidate]]) -> MergeParts | None:
        """`runs` are parts of which any neighbours may be merged, as for `select_merge`."""
        now_s, monotonic_s = ctx.env.now_s(), ctx.env.monotonic_s()
        kinds: list[tuple[MergeType, DateOf]] = [(MergeType.TTL_DROP, lambda ttl: ttl.whole_s)]
        if not ctx.settings.ttl_only_drop_parts:
            kinds.append((MergeType.TTL_DELETE, lambda ttl: ttl.first_s))
        if self._rules:
            kinds.append((MergeType.TTL_RECOMPRESS, lambda ttl: due_since_s(ttl, self._rules, now_s)))
        for kind, date_of in kinds:
            not_before_s = self._not_before_s.get
            free = [
                [each.part for each in run]
                for run in runs
                if not_before_s(_waits_for(kind, run[0].part.partition_id), 0.0) <= monotonic_s
            ]
            if found := _earliest(ctx, free, date_of, now_s):
                parts = _with_neighbours(ctx, *found, date_of, now_s)
                return MergeParts(parts, merged(parts), merge_type=kind)
        return None

    def assigned(self, ctx: ReplicaContext, action: MergeParts) -> None:
        """It stands in the log: the partition waits now."""
        kind = action.merge_type
        pause_s = ctx.settings.merge_with_ttl_timeout
        if kind is MergeType.TTL_DROP:
            pause_s = min(pause_s, _DROP_PAUSE_S)
        elif kind is MergeType.TTL_RECOMPRESS:
            pause_s = ctx.settings.merge_with_recompression_ttl_timeout
        self._not_before_s[_waits_for(kind, action.result.partition_id)] = ctx.env.monotonic_s() + pause_s


async def has_ttl(ctx: ReplicaContext) -> bool:
    """Whether the table still has a TTL: its parts may be older than an ALTER that removed it."""
    definition = await ctx.store.definition()
    return bool(definition.metadata.ttl) or any(column.ttl for column in definition.columns.columns)


def _waits_for(kind: MergeType, partition_id: str) -> tuple[bool, str]:
    """Merges of these kinds in this partition wait for one another."""
    return kind is MergeType.TTL_RECOMPRESS, partition_id


def _earliest(
    ctx: ReplicaContext, runs: Sequence[Sequence[PartName]], date_of: DateOf, now_s: float
) -> tuple[Sequence[PartName], int] | None:
    best: tuple[float, Sequence[PartName], int] | None = None
    for run in runs:
        for at, part in enumerate(run):
            ttl = ctx.store.active[part].ttl
            date_s = 0 if ttl is None else date_of(ttl)
            if 0 < date_s <= now_s and (best is None or date_s < best[0]):
                best = date_s, run, at
    return None if best is None else best[1:]


def _with_neighbours(
    ctx: ReplicaContext, run: Sequence[PartName], at: int, date_of: DateOf, now_s: float
) -> tuple[PartName, ...]:
    settings = ctx.settings
    first = last = at
    room_bytes = settings.max_bytes_to_merge_at_max_space_in_pool - ctx.store.active[run[at]].size_bytes

    def fits(position: int) -> bool:
        if not 0 <= position < len(run) or last - first + 1 >= settings.max_parts_to_merge_at_once:
            return False
        part = ctx.store.active[run[position]]
        return part.ttl is not None and 0 < date_of(part.ttl) <= now_s and part.size_bytes <= room_bytes

    while fits(first - 1):
        first -= 1
        room_bytes -= ctx.store.active[run[first]].size_bytes
    while fits(last + 1):
        last += 1
        room_bytes -= ctx.store.active[run[last]].size_bytes
    return tuple(run[first : last + 1])
