"""FETCH PARTITION and FETCH PART FROM 'path': parts of another replicated table into `detached/`.

Nothing is written to Keeper. Every part is received whole and compared with the header that the other table
has of it before it stands in `detached/`. Where its parts are merged meanwhile, the list is read again, and
what the merged part contains is removed; a crash in the middle leaves some of the parts in
`detached/`, which refuses the next attempt until they are dropped.

Source: ClickHouse's StorageReplicatedMergeTree::fetchPartition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from engine.errors import Code, NoNode, SqlError
from engine.keeper.base import Children, Keeper, Node
from engine.replication.commands.waiting import with_session
from engine.replication.fetching import PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.part_store import IncomingPart, PartStore
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)

_PAUSE_S = 1.0


async def fetch_partition(
    ctx: ReplicaContext, partition_id: str, from_path: str, *, attempts: int | None = None
) -> list[PartName]:
    """Fetch all parts of a partition of the table at `from_path` (macros expanded); returns their names.
    `attempts` is the statement's `max_fetch_partition_retries_count`, if it has any.

    Raises SqlError 256 PARTITION_ALREADY_EXISTS if `detached/` has parts of it, 254 NO_ACTIVE_REPLICAS, 248
    if the table has no such partition.
    """
    if any(
        not part.prefix and part.name is not None and part.name.partition_id == partition_id
        for part in await ctx.store.detached()
    ):
        raise SqlError(
            Code.PARTITION_ALREADY_EXISTS, f"Detached partition {partition_id} already exists in {ctx.name}"
        )
    return await _fetch_all(
        ctx,
        TablePaths(from_path),
        lambda parts: parts.in_partition(partition_id),
        f"partition {partition_id}",
        attempts,
    )


async def fetch_part(
    ctx: ReplicaContext, part: PartName, from_path: str, *, attempts: int | None = None
) -> list[PartName]:
    """Fetch one part, as `fetch_partition`. Raises SqlError 256 if it is in `detached/`, 254, 248."""
    if any(each.directory == str(part) for each in await ctx.store.detached()):
        raise SqlError(Code.PARTITION_ALREADY_EXISTS, f"Detached part {part} already exists in {ctx.name}")
    return await _fetch_all(
        ctx, TablePaths(from_path), lambda parts: [part] if part in parts else [], f"part {part}", attempts
    )


class _Detached:
    """Receives into `detached/`."""

    def __init__(self, store: PartStore) -> None:
        self._store = store

    def receive(self, name: PartName) -> AbstractAsyncContextManager[IncomingPart]:
        return self._store.receive_detached(name)


async def _fetch_all(
    ctx: ReplicaContext,
    source: TablePaths,
    choose: Callable[[ActivePartSet], Sequence[PartName]],
    what: str,
    attempts: int | None,
) -> list[PartName]:
    fetched: list[PartName] = []
    error: PartUnavailable | None = None
    limit = ctx.settings.max_fetch_partition_retries_count if attempts is None else attempts
    for attempt in range(max(1, limit)):
        if attempt:
            await ctx.env.sleep(_PAUSE_S)
        replica = await with_session(ctx, lambda keeper: best_replica(keeper, source))
        if replica is None:
            raise SqlError(Code.NO_ACTIVE_REPLICAS, f"No active replicas of {source.root} for {what}")
        wanted = list(choose(await with_session(ctx, partial(_parts, replica))))
        if not wanted:
            raise SqlError(
                Code.INVALID_PARTITION_VALUE, f"{what.capitalize()} of {source.root} does not exist"
            )
        for part in [part for part in fetched if part not in wanted]:
            await ctx.store.remove_detached(str(part))
            fetched.remove(part)
        try:
            for part in [part for part in wanted if part not in fetched]:
                await _fetch(ctx, replica, part)
                fetched.append(part)
        except PartUnavailable as failed:
            log.warning("replication.fetch_again table=%s from=%s error=%s", ctx.name, replica.root, failed)
            error = failed
            continue
        log.info(
            "replication.fetched_into_detached table=%s from=%s parts=%d",
            ctx.name,
            replica.root,
            len(fetched),
        )
        return sorted(fetched)
    assert error is not None
    raise error


async def _fetch(ctx: ReplicaContext, replica: ReplicaPaths, part: PartName) -> None:
    async def look(keeper: Keeper) -> tuple[Node, Node]:
        return await keeper.get(replica.host), await keeper.get(replica.part(part))

    try:
        host, header = await with_session(ctx, look)
    except NoNode as gone:
        raise PartUnavailable(f"{replica.root} has no part {part} any more") from gone
    await ctx.fetcher.fetch(
        ReplicaHost.from_bytes(host.data, where=replica.host),
        replica,
        part,
        into=ctx.paced(_Detached(ctx.store)),
        expected=PartHeader.from_bytes(header.data, where=replica.part(part)),
    )


async def best_replica(keeper: Keeper, table: TablePaths) -> ReplicaPaths | None:
    """The active replica that has copied most of the log, of several the one with the shortest queue.

    Raises SqlError 36 if there is no replicated table at the path.
    """
    try:
        names = (await keeper.children(table.replicas)).names
    except NoNode:
        raise SqlError(Code.BAD_ARGUMENTS, f"There is no replicated table at {table.root}") from None
    replicas = [table.replica(name) for name in names]
    stats = await keeper.exists_many([replica.is_active for replica in replicas])
    active = [replica for replica, stat in zip(replicas, stats, strict=True) if stat is not None]
    pointers = await keeper.get_many([replica.log_pointer for replica in active])
    queues = await keeper.children_many([replica.queue for replica in active])
    best: tuple[tuple[int, int], ReplicaPaths] | None = None
    for replica, pointer, queue in zip(active, pointers, queues, strict=True):
        if not isinstance(pointer, Node) or not isinstance(queue, Children):
            continue
        rank = (peers.number(pointer.data), -len(queue.names))
        if best is None or rank > best[0]:
            best = (rank, replica)
    return best[1] if best is not None else None


async def _parts(replica: ReplicaPaths, keeper: Keeper) -> ActivePartSet:
    names = (await keeper.children(replica.parts)).names
    return ActivePartSet(part for name in names if (part := PartName.try_parse(name)) is not None)
