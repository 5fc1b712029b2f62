"""Makes staged parts parts of the replica: in Keeper first, then for readers.

Safety argument. Whoever calls has the parts staged and knows from the queue that nobody else makes anything
of these blocks now.

1. Compare each part with the header of any replica that has it. Another content: the staged part is thrown
   away (PartDiffers), because the other's is the one that was committed first.
2. One multi: create `parts/<part>`, remove the nodes of the parts that it covers (or that are in the range
   to be replaced). Where no replica had the part in 1, the multi also asserts that none has it now, and that
   none has joined; where it was fetched, that the replica it came from still has it. So of two that commit
   different bytes under one name one is refused and comes back to 1: also when the only holder was dropped
   meanwhile, and another replica has put an empty part in its place.
   A crash before it leaves staged parts that Keeper does not know: they are discarded at start. A crash, or a
   lost reply, after it leaves staged parts that Keeper knows: they are published at start, or by the next
   call.
3. Publish: a new part appears and those that it covers vanish for readers at one moment. Parts that belong
   together, as those of a REPLACE_RANGE, do so all at one (`at_once`).

Parts that were fetched have nothing to do with each other, so what several of them need goes in one multi of
2 (`commit_fetched`). Whatever comes of that but success, each is committed by itself, to no further effect
where it had been done.

All of it may be repeated. It never removes a node of a part that is neither covered by a new one nor in the
range.

Source: ClickHouse's StorageReplicatedMergeTree::checkPartChecksumsAndCommit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from engine.errors import (
    Code,
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import Check, Create, Keeper, Op, Remove, SetData
from engine.replication.fetching import Agreed
from engine.replication.log_actions import MergeParts, MutatePart
from engine.replication.part_checksums import PartDiffers, check_same_part
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_set import containing
from engine.replication.part_store import Part
from engine.replication.paths import ReplicaPaths
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)

_ATTEMPTS = 20


async def commit_produced(
    ctx: ReplicaContext, part: PartName, *, agreed: Agreed | None = None, extra: Sequence[Op] = ()
) -> None:
    """As `commit_parts`, of one part.

    `agreed` is what the part was compared with already, when it was fetched. `extra` goes into the multi, and
    is not repeated when the part turns out to be committed.
    """
    known = {} if agreed is None else {part: agreed}
    await commit_parts(ctx, [part], agreed=known, extra=extra)


async def commit_parts(
    ctx: ReplicaContext,
    parts: Sequence[PartName],
    *,
    replacing: PartName | None = None,
    at_once: bool = False,
    agreed: Mapping[PartName, Agreed] | None = None,
    extra: Sequence[Op] = (),
) -> None:
    """Staged `parts` become the replica's: each by itself for readers, or `at_once` all at one moment, and in
    the place of all that is in the range `replacing`, if given.

    Parts that are active already are only made known to Keeper. Raises PartDiffers (a staged part is
    discarded then, or detached, as `detach_not_byte_identical_parts` says), SqlError 232 if a part is neither
    staged nor active.
    """
    keeper = ctx.session()
    commit = _Commit(ctx, parts, replacing, agreed or {})
    for _ in range(_ATTEMPTS):
        if await commit.send(keeper, extra):
            break
    else:
        raise SqlError(
            Code.UNEXPECTED_ZOOKEEPER_ERROR,
            f"Parts {', '.join(map(str, parts))} could not be committed: their surroundings keep changing",
        )
    await _show(ctx, parts, replacing, at_once=at_once)


async def commit_fetched(ctx: ReplicaContext, part: PartName, agreed: Agreed) -> None:
    """As `commit_produced`, together with other parts that were fetched. Raises as that does."""

    async def record(fetched: Sequence[tuple[PartName, Agreed]]) -> bool:
        names = [each for each, _ in fetched]
        try:
            is_done = await _Commit(ctx, names, None, dict(fetched)).send_agreed()
        except OnclusterError:  # it may be about one of them, who meets it again
            return False
        if len(names) > 1:
            log.info("replica.committed_together table=%s parts=%d", ctx.name, len(names))
        return is_done

    if await ctx.commits.serve((part, agreed), record):
        await _show(ctx, [part])
    else:
        await commit_produced(ctx, part, agreed=agreed)


async def _show(
    ctx: ReplicaContext,
    parts: Sequence[PartName],
    replacing: PartName | None = None,
    *,
    at_once: bool = False,
) -> None:
    for part in parts:
        ctx.queue.add_virtual(part)
    if at_once or replacing is not None:
        await publish(ctx, parts, replacing=replacing)
    else:  # at one moment would be a swap of their partitions
        shown = await asyncio.gather(*(publish(ctx, [part]) for part in parts), return_exceptions=True)
        for error in filter(None, shown):
            raise error
    ctx.merge_wanted.set()
    log.info("replica.committed table=%s parts=%s", ctx.name, ",".join(map(str, parts)))


class _Commit:
    """What Keeper lacks: nodes of parts that are missing there, stale ones, and those that are to go."""

    def __init__(
        self,
        ctx: ReplicaContext,
        parts: Sequence[PartName],
        replacing: PartName | None,
        agreed: Mapping[PartName, Agreed],
    ) -> None:
        self._ctx = ctx
        self._parts = parts
        self._local = {part: _local(ctx, part) for part in parts}
        self._spans = [*parts, *([replacing] if replacing else [])]
        self._agreed = agreed
        self._bare: Collection[ReplicaPaths] = ()
        self._missing, self._stale = list(parts), list[PartName]()
        # What an insert without an answer has left staged may have a node, too. If not, `_look` tells.
        staged = [name for name in ctx.store.staged if name not in ctx.in_flight] if replacing else []
        covered = [
            name
            for span in self._spans
            for name in (*ctx.queue.current_parts.parts_covered_by(span), *filter(span.contains, staged))
            if name not in self._local
        ]
        self._covered = list(dict.fromkeys(covered))

    async def send_agreed(self) -> bool:
        """Whether Keeper has it all, after one attempt; False, too, if there is something to compare."""
        if any(self._agreed[part].header != self._local[part].header for part in self._parts):
            return False
        keeper = self._ctx.session()
        await keeper.multi(await self._ops(keeper, ()))
        return True

    async def send(self, keeper: Keeper, extra: Sequence[Op]) -> bool:
        """Whether Keeper has it all now. Raises PartDiffers, and MultiFailed for what `extra` asserts."""
        ops = await self._ops(keeper, extra)
        try:
            await keeper.multi(ops)
            return True
        except MultiFailed as failed:
            has_another_joined = failed.error.path == self._ctx.paths.replicas
            if not has_another_joined and not isinstance(failed.error, NodeExists | NoNode):
                raise
            self._agreed = {}
            self._bare = await _without_parts(self._ctx, keeper)
        except (ConnectionLoss, OperationTimeout):
            await keeper.sync(self._ctx.me.parts)
        await self._look(keeper)
        return not self._missing and not self._stale and not self._covered

    async def _ops(self, keeper: Keeper, extra: Sequence[Op]) -> list[Op]:
        ctx = self._ctx
        ops: list[Op] = []
        for part in self._missing:
            ops += await _ops_of(ctx, keeper, self._local[part], self._agreed.get(part), self._bare)
        for part in self._stale:
            await _check_others(ctx, keeper, self._local[part], await peers.others(ctx, keeper))
            ops.append(SetData(ctx.me.part(part), self._local[part].header.to_bytes()))
        ops += [Remove(ctx.me.part(name)) for name in self._covered]
        return [*ops, *extra] if self._missing else ops

    async def _look(self, keeper: Keeper) -> None:
        """What is there, after a refusal or without an answer."""
        ctx = self._ctx
        listed = [PartName.try_parse(name) for name in (await keeper.children(ctx.me.parts)).names]
        there = [name for name in listed if name is not None]
        self._missing = [part for part in self._parts if part not in there]
        self._stale = [
            part
            for part in self._parts
            if part in there and await peers.header(keeper, ctx.me, part) != self._local[part].header
        ]
        self._covered = [
            name
            for name in there
            if name not in self._local and any(span.contains(name) for span in self._spans)
        ]


async def publish(
    ctx: ReplicaContext, parts: Sequence[PartName], *, replacing: PartName | None = None
) -> None:
    """Show parts that are in Keeper to readers, in the place of what they cover and of the range.

    A part that is covered by what readers see already would show its rows twice: it is thrown away. What a
    part was staged of in `detached/` goes when readers see its rows: it would be attached twice. Checks of
    parts that were missing, and that now are here, covered or replaced, are over.
    """
    taken = [directory for directory, part in ctx.store.attaching.items() if part in parts]
    spans = [*parts, *([replacing] if replacing else [])]
    partition_ids = {span.partition_id for span in spans}
    near = [name for name in ctx.store.active if name.partition_id in partition_ids and name not in parts]
    hidden = sorted(name for name in near if any(span.contains(name) for span in spans))
    shown: list[PartName] = []
    for part in parts:
        if part not in ctx.store.staged:
            continue
        if containing(ctx.store.active, part) is not None:
            await ctx.store.discard(part)
        else:
            shown.append(part)
    if shown or hidden:
        await ctx.store.publish(shown, hidden)
    for directory in taken:
        await ctx.store.remove_detached(directory)
    for part in list(ctx.parts_to_check):
        is_untouched = part in ctx.store.active and part not in shown
        if not is_untouched and any(span.contains(part) for span in spans):
            del ctx.parts_to_check[part]


def _local(ctx: ReplicaContext, name: PartName) -> Part:
    part = ctx.store.staged.get(name) or ctx.store.active.get(name)
    if part is None:
        raise SqlError(Code.NO_SUCH_DATA_PART, f"Part {name} of table {ctx.name} is not on this replica")
    return part


async def _without_parts(ctx: ReplicaContext, keeper: Keeper) -> Collection[ReplicaPaths]:
    """Other replicas that have no node for parts: those that somebody has begun to drop and not finished."""
    replicas = await peers.others(ctx, keeper)
    stats = await keeper.exists_many([replica.parts for replica in replicas])
    return [replica for replica, stat in zip(replicas, stats, strict=True) if stat is None]


async def _ops_of(
    ctx: ReplicaContext,
    keeper: Keeper,
    part: Part,
    agreed: Agreed | None,
    bare: Collection[ReplicaPaths],
) -> list[Op]:
    """Create the part's node, and assert what was found about the others; `bare` are as `_without_parts`
    says."""
    header = part.header
    create = Create(ctx.me.part(part.name), header.to_bytes())
    if agreed is not None and agreed.header == header:
        return [Check(agreed.replica.part(part.name)), create]
    listed = await keeper.children(ctx.paths.replicas)
    replicas = [ctx.paths.replica(name) for name in listed.names if name != ctx.replica]
    if await _check_others(ctx, keeper, part, replicas):
        return [create]
    ops: list[Op] = [Check(ctx.paths.replicas, listed.stat.version)]
    for replica in replicas:
        absent = replica.parts if replica in bare else replica.part(part.name)
        ops += [Create(absent), Remove(absent)]
    return [*ops, create]


async def _check_others(
    ctx: ReplicaContext, keeper: Keeper, part: Part, replicas: Sequence[ReplicaPaths]
) -> bool:
    """Whether one of the other `replicas` has the part. Raises PartDiffers if it is another there."""
    held = await peers.headers(keeper, replicas, part.name)
    for replica, header in held.items():
        await _compare(ctx, part, header, replica.name)
    return bool(held)


async def _compare(ctx: ReplicaContext, part: Part, theirs: PartHeader, replica: str) -> None:
    try:
        if part.header.columns_hash != theirs.columns_hash:
            raise PartDiffers(str(part.name), f"replica {replica} has other columns in it")
        check_same_part(str(part.name), part.header.digest, theirs.digest)
    except PartDiffers as differs:
        log.warning("replica.part_differs table=%s part=%s replica=%s", ctx.name, part.name, replica)
        if part.name in ctx.store.staged:
            await ctx.store.discard(part.name, prefix=_kept_as(ctx, part.name))
        else:
            ctx.check_later(part.name)
        raise differs


def _kept_as(ctx: ReplicaContext, part: PartName) -> str:
    """The prefix in `detached/` of what this replica has merged or mutated otherwise than another one; empty
    where it is not kept."""
    producer = ctx.queue.producer_of(part) if ctx.settings.detach_not_byte_identical_parts else None
    match producer and producer.entry.action:
        case MergeParts():
            return "merge-not-byte-identical"
        case MutatePart():
            return "mutate-not-byte-identical"
    return ""
