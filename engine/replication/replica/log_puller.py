"""Copies entries of the table's log into the replica's own queue.

Safety argument. One pull at a time (`ctx.pulling`), and only within a term: `is_active` is ours.

1. Read `log_pointer`, then list `log` (with its version and a watch), then mirror `mutations/`: every part
   of the snapshot is covered by the mutations seen. An empty pointer becomes the first entry of the log.
2. Entries from the pointer on are copied in batches, each in one multi: `queue/queue-…` with the same
   bytes, `log_pointer` set behind the last of them *with the version read*. So no entry is copied twice,
   whatever became of an earlier attempt, and a crash between batches leaves a shorter queue and a pointer
   that says so.
3. Only then the entries are added in memory. When the outcome of 2 is unknown (or the caller was cancelled
   meanwhile), `ctx.is_queue_in_doubt` stays set: memory takes over what `queue/` holds, after a sync, before
   anything else is copied.

Entries of the replica's own inserts (`ctx.own_inserts`) are not copied: the transaction that made such an
entry has made its part the replica's, so nothing is left to be done but to move the pointer behind it, which
the multi of 2 does. A crash before that leaves an entry that is copied as any other, to no further effect.
Only the loop (`run`) lets them wait for more of them, and only as long as the log holds nothing else that is
new; whoever calls `pull` gets all there is.

Nor are those of which the loop can have the parts at once (`direct_fetch`): there, too, the pointer passes
them in the transaction that makes their parts the replica's.

It never passes over any other entry: one that does not parse stops the pull behind what comes before it, and
its error is shown until somebody mends it; one that is missing although it was not copied ends the term, and
the next one begins with what is to be done about it (`log_hole`).

Source: ClickHouse's ReplicatedMergeTreeQueue::pullLogsToQueue.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from engine.errors import MalformedEntry, NoNode, OnclusterError
from engine.keeper.base import Create, CreateMode, Keeper, Node, Op, SetData, Watch, WatchEvent
from engine.replication.log_actions import AttachPart, GetPart
from engine.replication.log_entry import LogEntry
from engine.replication.paths import sequence_number
from engine.replication.replica import direct_fetch
from engine.replication.replica.background import keep_running
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.direct_fetch import DirectFetches
from engine.replication.replica.execution.outcome import LogHole, TermOver
from engine.replication.replica.insert_times import unix_s, unix_text
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)

_FIRST_BATCH, _MAX_BATCH = 16, 100
_GATHER_S = 0.1
"""How long the replica's own inserts wait for more of them before they are copied."""
MAX_BATCH_BYTES = 512 << 10
"""Of entries in one request, which Keeper takes up to 1 MiB."""


async def pull(ctx: ReplicaContext, *, watch: Watch | None = None) -> int:
    """Copy all there is; returns the version of `log` at which that was all.

    Raises SqlError 242 without a term, MalformedEntry for an entry that this version does not understand,
    TermOver.
    """
    return await pull_on(ctx, ctx.session(), watch=watch)


async def pull_on(ctx: ReplicaContext, keeper: Keeper, *, watch: Watch | None = None) -> int:
    """As `pull`, on a session whose term has not begun yet."""
    return await _pull_once(ctx, keeper, watch, None)


async def _pull_once(
    ctx: ReplicaContext, keeper: Keeper, watch: Watch | None, direct: DirectFetches | None
) -> int:
    async with ctx.pulling:
        ctx.pull_started_s = ctx.env.now_s()
        try:
            version = await _pull(ctx, keeper, watch, direct)
        except OnclusterError as error:
            ctx.last_pull_error = str(error)
            raise
        finally:
            ctx.pull_started_s = None
        ctx.last_pull_s = ctx.env.now_s()
        ctx.last_pull_error = ctx.queue.why_no_merges
        return version


async def run(ctx: ReplicaContext) -> None:
    """Pull whenever the log changes. Until cancelled."""
    direct = DirectFetches(ctx)
    try:
        await keep_running(ctx, "pull log", partial(_step, direct=direct))
    finally:
        await direct.close()


async def _step(ctx: ReplicaContext, *, direct: DirectFetches) -> None:
    def wake(_event: WatchEvent) -> None:
        ctx.log_changed.set()

    if not ctx.switches.is_stopped(Activity.PULLING):
        await _gather_own(ctx, wake)
        await _pull_once(ctx, ctx.session(), wake, direct)
    await ctx.log_changed.wait()


async def _gather_own(ctx: ReplicaContext, watch: Watch) -> None:
    """As long as there is nothing new but inserts that this replica has made, let some come together."""
    until_s = ctx.env.monotonic_s() + _GATHER_S
    # What an insert has made is known when the listing comes: it was sent, and so is answered, before that.
    while (ctx.own_inserts or ctx.inserts_on_their_way) and (left_s := until_s - ctx.env.monotonic_s()) > 0:
        names = (await ctx.session().children(ctx.paths.log, watch=watch)).names
        fresh = names[bisect.bisect_left(names, f"log-{ctx.log_pointer:010}") :]
        if len(fresh) >= _MAX_BATCH or not ctx.own_inserts.keys() >= set(fresh):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await ctx.log_changed.wait()


async def _pull(
    ctx: ReplicaContext, keeper: Keeper, watch: Watch | None, direct: DirectFetches | None
) -> int:
    await direct_fetch.settle(ctx, keeper)
    if ctx.is_queue_in_doubt:
        await keeper.sync(ctx.me.queue)
        try:
            await queue_loader.add_new_entries(ctx, keeper)
        except MalformedEntry as error:
            raise TermOver(str(error)) from error
        ctx.is_queue_in_doubt = False
        ctx.queue_changed.set()
    # Sent in this order, and executed in it: requests of a session never overtake each other.
    likely = f"log-{ctx.log_pointer:010}"
    pointer, log_now, _, (found,) = await asyncio.gather(
        keeper.get(ctx.me.log_pointer),
        keeper.children(ctx.paths.log, watch=watch),
        queue_loader.load_mutations(ctx, keeper),
        # Most often there is one new entry. Guessing its name saves a round trip.
        keeper.get_many([ctx.paths.log_entry(likely)]),
    )
    text, version = pointer.data.decode("ascii", "replace"), pointer.stat.version
    if not text:
        first = next((name for name in log_now.names if sequence_number(name) is not None), "")
        text = str(sequence_number(first) or 0)
        version = (await keeper.set(ctx.me.log_pointer, text.encode(), version=version)).version
    if not text.isdigit():
        raise TermOver(f"{ctx.me.log_pointer} holds {text[:40]!r}, which is no number")
    # Children come sorted, and numbers have ten digits: the many that were copied before are not looked at.
    fresh = log_now.names[bisect.bisect_left(log_now.names, f"log-{int(text):010}") :]
    names = [name for name in fresh if sequence_number(name) is not None]
    behind_hole = names[(whole := _without_gaps(names, int(text))) :]
    names = names[:whole]
    known = {likely: found} if isinstance(found, Node) else {}
    at = 0
    if direct is not None and 0 < len(names) <= direct_fetch.MOST:
        batch = await _read(ctx, keeper, names, known)
        known |= batch.nodes
        entries = [entry for entry, _ in batch.entries]
        done = [*batch.own.values(), *(entry.create_time for entry in entries)]
        if await direct.take(keeper, entries, _passing(ctx, batch, version, done)):
            _note_done(ctx, done)
            at = batch.count
            version += 1
    batch_size = _FIRST_BATCH
    while at < len(names):
        at += await _copy(ctx, keeper, names[at : at + batch_size], version, known)
        version += 1
        batch_size = min(batch_size * 2, _MAX_BATCH)
    _note_copied(ctx, int(text) + len(names))
    if behind_hole:
        missing = int(text) + len(names)
        raise LogHole(
            f"Entries were removed by hand from {ctx.paths.log}: log-{missing:010} is missing, and all up to "
            f"{behind_hole[0]}.",
            first=missing,
            next_=sequence_number(behind_hole[0]) or 0,
        )
    return log_now.stat.version


def _without_gaps(names: Sequence[str], first: int) -> int:
    """How many of these entries follow each other without a gap, from number `first` on."""
    # Most often all do, and there may be thousands of them.
    if not names or sequence_number(names[-1]) == first + len(names) - 1:
        return len(names)
    return next(at for at, name in enumerate(names) if sequence_number(name) != first + at)


def _note_copied(ctx: ReplicaContext, log_pointer: int) -> None:
    ctx.log_pointer = log_pointer
    for name in [name for name in ctx.own_inserts if name < f"log-{log_pointer:010}"]:
        del ctx.own_inserts[name]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The first entries behind the log pointer. `own` are the create times of the replica's own inserts, by
    name, `entries` the others, and `nodes` those by name; `behind` is the number that follows."""

    count: int
    own: Mapping[str, str]
    entries: Sequence[tuple[LogEntry, bytes]]
    nodes: Mapping[str, Node]
    behind: int


async def _read(
    ctx: ReplicaContext, keeper: Keeper, names: Sequence[str], known: Mapping[str, Node]
) -> _Batch:
    """The first of these entries, as many as one request has room for. `known` are those that were read
    already."""
    own = {name: ctx.own_inserts[name] for name in names if name in ctx.own_inserts}
    unread = [name for name in names if name not in own and name not in known]
    read = await keeper.get_many([ctx.paths.log_entry(name) for name in unread]) if unread else []
    answers = {**known, **dict(zip(unread, read, strict=True))}
    entries: list[tuple[LogEntry, bytes]] = []
    nodes: dict[str, Node] = {}
    size_bytes, count = 0, len(names)
    for at, name in enumerate(names):
        if name in own:
            continue
        node = answers[name]
        if isinstance(node, NoNode):
            raise TermOver(f"{name} was removed from the log before this replica has copied it") from node
        if isinstance(node, OnclusterError):
            raise node
        size_bytes += len(node.data)
        if entries and size_bytes > MAX_BATCH_BYTES:
            count = at
            break
        try:
            entry = LogEntry.from_bytes(node.data, where=f"{name} of {ctx.paths.log}")
        except MalformedEntry as error:
            if not at:
                error.hint = (
                    "Replicas that cannot read it copy nothing behind it. A version that can goes on by "
                    f"itself; or mend it, or remove {ctx.paths.log_entry(name)} in Keeper: they then take "
                    "from other replicas what those have of it."
                )
                raise
            count = at
            break
        nodes[name] = node
        entries.append((entry, node.data))
    passed = {name: own[name] for name in names[:count] if name in own}
    return _Batch(count, passed, entries, nodes, (sequence_number(names[count - 1]) or 0) + 1)


def _passing(ctx: ReplicaContext, batch: _Batch, version: int, done: Sequence[str]) -> list[Op]:
    """Set the log pointer behind the batch; `done` are the create times of inserts that are done then."""
    ops: list[Op] = [SetData(ctx.me.log_pointer, str(batch.behind).encode(), version)]
    latest = max(done, key=unix_s, default="")
    if latest and unix_s(latest) > ctx.max_processed_insert_s:
        ops.append(SetData(ctx.me.max_processed_insert_time, unix_text(latest)))
    return ops


def _note_done(ctx: ReplicaContext, done: Sequence[str]) -> None:
    ctx.max_processed_insert_s = max([ctx.max_processed_insert_s, *map(unix_s, done)])


async def _copy(
    ctx: ReplicaContext,
    keeper: Keeper,
    names: Sequence[str],
    pointer_version: int,
    known: Mapping[str, Node],
) -> int:
    """The first of these entries, as many as one request has room for; returns how many. `known` are those
    that were read already."""
    batch = await _read(ctx, keeper, names, known)
    ops: list[Op] = [
        Create(ctx.me.queue_prefix, data, CreateMode.PERSISTENT_SEQUENTIAL) for _, data in batch.entries
    ]
    done = list(batch.own.values())
    ops += _passing(ctx, batch, pointer_version, done)
    oldest = _oldest_insert(ctx, [entry for entry, _ in batch.entries])
    if oldest:
        ops.append(SetData(ctx.me.min_unprocessed_insert_time, unix_text(oldest)))
    ctx.is_queue_in_doubt = True
    results = await keeper.multi(ops)
    for (entry, data), path in zip(batch.entries, results, strict=False):
        assert isinstance(path, str)
        ctx.queue.add(QueuedEntry(path.rpartition("/")[2], entry, data))
    ctx.is_queue_in_doubt = False
    _note_done(ctx, done)
    if batch.entries:
        ctx.queue_changed.set()
    ctx.merge_wanted.set()
    log.info("replica.pulled table=%s entries=%d log_pointer=%d", ctx.name, batch.count, batch.behind)
    return batch.count


def _oldest_insert(ctx: ReplicaContext, entries: Sequence[LogEntry]) -> str:
    """The new value of `min_unprocessed_insert_time` as a create time; empty if it stays as it is."""
    times = [
        entry.create_time
        for entry in entries
        if isinstance(entry.action, GetPart | AttachPart) and entry.create_time
    ]
    known = ctx.queue.oldest_insert()
    return min(times) if times and (not known or min(times) < known) else ""
