"""Decides what is merged and mutated, and writes it into the log for all replicas.

Safety argument. Every replica that may lead does this at the same time; there is no lock and no election.

1. `load_predicate` reads what exists, what is being inserted, and the version of `log`.
2. A choice is made in memory: it looks at nothing that is not in 1 or came later.
3. One multi appends the entries and sets `log` with that version. If anybody assigned or dropped something
   since, it is refused as a whole, and 1 begins anew at once. So of two that choose the same sources, one is
   refused.
4. After a lost reply the log is searched for the entry (`log_commit`). A crash before 3 leaves nothing, after
   3 an entry like any other.

Servers before 20.6 elect one leader, who assigns without looking at the version of `log`. Where such a server
stands in `leader_election`, nothing is assigned here. It never assigns what a replica could not make: all
sources are this replica's in Keeper.

Source: ClickHouse's StorageReplicatedMergeTree::mergeSelectingTask.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.errors import BadVersion, MultiFailed, NodeExists, NoNode, NotEmpty
from engine.keeper.base import Keeper, Op, SetData, Stat, Watch, WatchEvent
from engine.replication.creation import leader_election_ops
from engine.replication.log_actions import MergeParts, MutatePart
from engine.replication.log_entry import LogEntry
from engine.replication.merge_selector import (
    Candidate,
    Selected,
    SelectorSettings,
    select_merge,
    select_old_partition,
    worth_merging,
)
from engine.replication.part_name import PartName, merged
from engine.replication.part_store import Part
from engine.replication.replica.background import keep_running
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged, commit_logged, log_op
from engine.replication.replica.merging.predicate import MergePredicate, load_predicate
from engine.replication.replica.merging.ttl_merges import TtlMerges, has_ttl
from engine.replication.replica.switches import Activity
from engine.replication.text import time_text

log = logging.getLogger(__name__)

MISSING_PART_PATIENCE_S = 300.0
"""A part that is not in Keeper may be one that is being committed, unless it is older than that."""

_MULTIPLE_LEADERS = b"(multiple leaders Ok)"
_BATCH = 100
_SETTLE_S = 0.01
"""After a wake-up replicas wait up to this long, so that not all of them choose at the same moment."""
_LOOK_S = 0.25
"""How often the parts are counted meanwhile."""
_CROWDED = 100
"""Parts of a partition that do not wait to be merged."""
_WORTH_A_LULL = 10
"""New parts that are merged as soon as no others come between two looks: nobody is kept waiting then, and a
replica that comes back fetches their merge instead of each of them."""

_STOPPING = (Activity.MERGES, Activity.PULLING)
"""An assignment has to know the whole log, and so copies it first."""


class NotAssigned(enum.Enum):
    """Why an assignment was not made."""

    LOG_CHANGED = "somebody else assigned or dropped something: look again at once"
    PART_MISSING = "a source is not this replica's in Keeper"


class Round(enum.Enum):
    """What a round of the loop came to."""

    ASSIGNED = "assigned"
    LOG_CHANGED = "log changed"
    NOTHING = "nothing to do"


@dataclass(frozen=True, slots=True)
class Assigned:
    """`log_version` is that of `log` after the assignment, None if it is not known."""

    entries: tuple[Logged, ...]
    log_version: int | None


Action = MergeParts | MutatePart


async def run(ctx: ReplicaContext) -> None:
    """Until cancelled or until the session is over (SessionExpired)."""
    ctx.is_leader = False
    leadership = Leadership()
    pause = _Pause()
    ttl_merges = TtlMerges()

    async def step(ctx: ReplicaContext) -> None:
        if not await leadership.is_given(ctx, ctx.session()):
            pause_s = ctx.settings.max_merge_selecting_sleep_ms / 1e3
            await _comes_within(pause_s, ctx.merge_wanted.wait())
            return
        outcome = await assign_round(ctx, ttl_merges)
        if outcome is Round.NOTHING:
            if await _comes_within(pause.next_s(ctx), ctx.merge_wanted.wait()):
                await _gather(ctx)
            await ctx.env.sleep(_SETTLE_S * ctx.env.rng.random())
        else:
            pause.reset()

    try:
        await keep_running(ctx, "assign merges", step)
    finally:
        ctx.is_leader = False


class Leadership:
    """Whether this replica may assign: asked once, and again when `leader_election` changes."""

    def __init__(self) -> None:
        self._is_known = False
        self._nobody_elects = False

    async def is_given(self, ctx: ReplicaContext, keeper: Keeper) -> bool:
        """Sets `ctx.is_leader`, too."""
        if not self._is_known:
            has_changed = False

            def changed(_event: WatchEvent) -> None:
                nonlocal has_changed
                has_changed = True
                self._is_known = False
                ctx.merge_wanted.set()

            self._nobody_elects = await nobody_elects(ctx, keeper, changed)
            # Only now: a question without answer is asked again. And the event may be here before this task.
            self._is_known = not has_changed
        ctx.is_leader = self._nobody_elects and bool(ctx.settings.replicated_can_become_leader)
        return ctx.is_leader


async def nobody_elects(ctx: ReplicaContext, keeper: Keeper, watch: Watch | None = None) -> bool:
    """Whether `leader_election` says that all replicas lead. Where it is empty (the last server that elected
    has gone) it is made to say so."""
    directory = ctx.paths.leader_election
    while True:
        children = await keeper.children(directory, watch=watch)
        nodes = await keeper.get_many([f"{directory}/{name}" for name in children.names])
        values = [node.data for node in nodes if not isinstance(node, Exception)]
        if values:
            return all(_MULTIPLE_LEADERS in value for value in values)
        try:
            await keeper.multi(leader_election_ops(ctx.paths))
        except MultiFailed as failed:
            if not isinstance(failed.error, NotEmpty | NodeExists | NoNode):
                raise


async def assign_round(ctx: ReplicaContext, ttl_merges: TtlMerges | None = None) -> Round:
    """One look, and one assignment if there is something to assign; for a TTL only with `ttl_merges`."""
    settings, queue = ctx.settings, ctx.queue
    merges, mutations = queue.count(MergeParts), queue.count(MutatePart)
    room = settings.max_replicated_merges_in_queue - merges - mutations
    if room <= 0 or any(map(ctx.switches.is_stopped, _STOPPING)):
        return Round.NOTHING
    room_for_mutations = min(room, settings.max_replicated_mutations_in_queue - mutations, _BATCH)
    if ttl_merges is not None and not ttl_merges.may_choose(ctx):
        ttl_merges = None
    if ttl_merges is not None:
        await ttl_merges.learn(ctx)
    guess = MergePredicate(queue, queue.virtual_parts, {}, frozenset(), -1)
    if ttl_merges is not None and (not ttl_merges.choose(ctx, runs_of(ctx, guess)) or not await has_ttl(ctx)):
        ttl_merges = None
    partitions = None if ttl_merges is not None else _partitions_to_merge(ctx, guess)
    if partitions == frozenset() and not _choose_mutations(ctx, guess, room_for_mutations):
        return Round.NOTHING  # without asking Keeper: what it knows beyond the queue only forbids more
    keeper = ctx.session()
    predicate = await load_predicate(ctx, partitions)
    actions: Sequence[Action] = ()
    expired = None if ttl_merges is None else ttl_merges.choose(ctx, runs_of(ctx, predicate))
    if expired is not None:
        actions = [expired]
    elif parts := _choose_merge(ctx, predicate):
        actions = [MergeParts(parts, merged(parts))]
    else:
        actions = _choose_mutations(ctx, predicate, room_for_mutations)
    if not actions:
        return Round.NOTHING
    match await assign(ctx, keeper, predicate, actions):
        case Assigned():
            if ttl_merges is not None and expired is not None:
                ttl_merges.assigned(ctx, expired)
            return Round.ASSIGNED
        case NotAssigned.LOG_CHANGED:
            return Round.LOG_CHANGED
        case NotAssigned.PART_MISSING:
            return Round.NOTHING


async def assign(
    ctx: ReplicaContext,
    keeper: Keeper,
    predicate: MergePredicate,
    actions: Sequence[Action],
    *,
    fence: Sequence[Op] = (),
) -> Assigned | NotAssigned:
    """Append entries for `actions`, all or none. `fence` goes into the same multi, behind everything else.

    Raises MultiFailed if the fence refuses.
    """
    sources = [source for action in actions for source in sources_of(action)]
    stats = await keeper.exists_many([ctx.me.part(source) for source in sources])
    missing = [source for source, stat in zip(sources, stats, strict=True) if stat is None]
    if missing:
        _look_after(ctx, missing)
        return NotAssigned.PART_MISSING
    create_time = time_text(ctx.env.now_s())
    entries = [LogEntry(action, ctx.replica, create_time) for action in actions]
    ops: list[Op] = [log_op(ctx.paths, entry) for entry in entries]
    ops.append(SetData(ctx.paths.log, b"", predicate.log_version))
    own = len(ops)
    try:
        done = await commit_logged(ctx, keeper, [*ops, *fence])
    except MultiFailed as failed:
        if failed.index < own and isinstance(failed.error, BadVersion):
            return NotAssigned.LOG_CHANGED
        raise
    if done is None:
        return NotAssigned.LOG_CHANGED
    for action, logged in zip(actions, done.entries, strict=True):
        log.info("replica.assigned table=%s entry=%s part=%s", ctx.name, logged.name, action.result)
    stat = done.results[own - 1] if done.results is not None else None
    ctx.log_changed.set()
    return Assigned(done.entries, stat.version if isinstance(stat, Stat) else None)


def sources_of(action: Action) -> Sequence[PartName]:
    return action.sources if isinstance(action, MergeParts) else (action.source,)


def runs_of(ctx: ReplicaContext, predicate: MergePredicate) -> list[list[Candidate]]:
    """The parts that readers see here, cut wherever two neighbours may not be merged."""
    now_s = ctx.env.now_s()
    runs: list[list[Candidate]] = []
    last: Part | None = None
    for name, part in sorted(ctx.store.active.items()):
        if predicate.why_not(name):
            last = None
            continue
        if last is None or predicate.why_not_beside(last.name, name) or why_not_alike((last, part)):
            runs.append([])
        runs[-1].append(Candidate(name, part.size_bytes, max(0.0, now_s - part.modified_s)))
        last = part
    return runs


def why_not_alike(parts: Sequence[Part]) -> str:
    """Why nobody could merge `parts` whatever the log says; empty if they can be merged.

    Parts that were there before ADD PROJECTION are without it until it is materialized, and are not merged
    with newer ones. Every replica has the same bytes, so each says the same.
    """
    for left, right in itertools.pairwise(parts):
        if left.projections != right.projections:
            of_left, of_right = (", ".join(sorted(part.projections)) or "none" for part in (left, right))
            return f"projections of parts {left.name} and {right.name} differ: {of_left} and {of_right}"
    return ""


def select_regular_merge(
    ctx: ReplicaContext, predicate: MergePredicate, *, base: float | None = None
) -> Selected | None:
    """What is worth merging now, as the table's settings say, but for the base that is given."""
    settings, runs = ctx.settings, runs_of(ctx, predicate)
    chosen = _selector_settings(ctx)
    if base is not None:
        chosen = replace(chosen, base=base, lowest_base=min(base, chosen.lowest_base))
    selected = select_merge(runs, chosen)
    forced_age_s = settings.min_age_to_force_merge_seconds
    if selected is not None or not settings.min_age_to_force_merge_on_partition_only or not forced_age_s:
        return selected
    has_limit = settings.enable_max_bytes_limit_for_min_age_to_force_merge
    max_total_bytes = chosen.max_total_bytes if has_limit else sys.maxsize
    counts = Counter(part.partition_id for part in ctx.store.active)
    return select_old_partition(runs, counts, forced_age_s, max_total_bytes)


def _partitions_to_merge(ctx: ReplicaContext, guess: MergePredicate) -> frozenset[str] | None:
    """Where something is worth merging; None for anywhere."""
    if ctx.settings.min_age_to_force_merge_on_partition_only:
        return None if _choose_merge(ctx, guess) else frozenset()
    found = worth_merging(runs_of(ctx, guess), _selector_settings(ctx))
    return frozenset(each.parts[0].partition_id for each in found)


def _selector_settings(ctx: ReplicaContext) -> SelectorSettings:
    settings = ctx.settings
    forced_age_s = settings.min_age_to_force_merge_seconds or math.inf
    return SelectorSettings(
        base=settings.merge_selector_base,
        max_parts_at_once=settings.max_parts_to_merge_at_once,
        min_parts_at_once=settings.min_parts_to_merge_at_once,
        max_total_bytes=settings.max_bytes_to_merge_at_max_space_in_pool,
        max_parts_looked_at=settings.merge_selector_window_size,
        leaves_small_at_right=bool(settings.merge_selector_enable_heuristic_to_remove_small_parts_at_right),
        forced_age_s=math.inf if settings.min_age_to_force_merge_on_partition_only else forced_age_s,
    )


def _choose_merge(ctx: ReplicaContext, predicate: MergePredicate) -> tuple[PartName, ...]:
    selected = select_regular_merge(ctx, predicate)
    return selected.parts if selected is not None else ()


def _choose_mutations(ctx: ReplicaContext, predicate: MergePredicate, room: int) -> list[MutatePart]:
    chosen: list[MutatePart] = []
    if not _is_mutation_wanted(ctx):
        return chosen
    for part in sorted(ctx.store.active):
        if len(chosen) >= room:
            break
        version = predicate.wanted_version(part)
        if version is not None:
            last = ctx.queue.mutation_commands(part, version)[-1]
            if last.alter_version is not None and last.alter_version > ctx.metadata_version:
                # It would wait in the queue for metadata that wait for an earlier ALTER's data. Enough of
                # them leave no room for that ALTER's mutations: all would wait for ever.
                continue
            chosen.append(MutatePart(part, part.mutated(version), alter_version=last.alter_version))
    return chosen


def _look_after(ctx: ReplicaContext, missing: Sequence[PartName]) -> None:
    for name in missing:
        part = ctx.store.active.get(name)
        if part is not None and ctx.env.now_s() - part.modified_s > MISSING_PART_PATIENCE_S:
            log.warning("replica.part_not_in_keeper table=%s part=%s", ctx.name, name)
            ctx.check_later(name)


class _Pause:
    """Between rounds that found nothing: longer and longer, up to a limit."""

    def __init__(self) -> None:
        self._rounds = 0

    def reset(self) -> None:
        self._rounds = 0

    def next_s(self, ctx: ReplicaContext) -> float:
        settings = ctx.settings
        pause_ms = settings.merge_selecting_sleep_ms * 1.2 ** min(self._rounds, 50)
        self._rounds += 1
        return min(pause_ms, settings.max_merge_selecting_sleep_ms) / 1e3


async def _gather(ctx: ReplicaContext) -> None:
    """Let parts come together before the next merge is looked for, as long as ClickHouse would sleep, or
    until no more come.

    Looking costs each replica five round trips, and merging five small parts as much as inserting ten.
    """
    left_s = ctx.settings.merge_selecting_sleep_ms / 1e3 * ctx.env.rng.uniform(0.5, 1.0)
    before = seen = ctx.store.active.keys()
    while left_s > 0 and not _is_mutation_wanted(ctx):
        look_s = _LOOK_S * ctx.env.rng.uniform(0.7, 1.3)
        await _comes_within(min(left_s, look_s), _mutation_wanted(ctx))
        left_s -= look_s
        here = ctx.store.active.keys()
        if _is_crowded(here) or (here == seen and len(here - before) >= _WORTH_A_LULL):
            return
        seen = here


def _is_crowded(parts: Iterable[PartName]) -> bool:
    counts = Counter(name.partition_id for name in parts)
    return max(counts.values(), default=0) >= _CROWDED


def _is_mutation_wanted(ctx: ReplicaContext) -> bool:
    return not all(state.is_done for state in ctx.queue.mutations.values())


async def _mutation_wanted(ctx: ReplicaContext) -> None:
    """Until there is a mutation to be done: somebody may be waiting for that."""
    while not _is_mutation_wanted(ctx):
        await ctx.mutation_news.wait()


async def _comes_within(timeout_s: float, event: Awaitable[None]) -> bool:
    """Wait for the event for so long; whether it came."""
    try:
        async with asyncio.timeout(timeout_s):
            await event
    except TimeoutError:
        return False
    return True
