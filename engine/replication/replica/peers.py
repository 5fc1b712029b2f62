"""What Keeper knows of the other replicas of a table: who is there, who has a part, who is furthest.

It only reads. What is returned was true when it was read; replicas come and go.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import KeeperAnswer, MalformedEntry, NoNode
from engine.keeper.base import Keeper, WatchEvent
from engine.replication.host import ReplicaHost
from engine.replication.part_checksums import PartDigest
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.paths import ReplicaPaths
from engine.replication.replica.context import ReplicaContext
from engine.siphash import siphash128_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """A replica that has `part`, which is or covers the part that was looked for, and its address.

    `header` is None if an old server wrote it (ask `header` for it then), `address` if it was never active,
    or if what Keeper says of it cannot be read.
    """

    replica: ReplicaPaths
    part: PartName
    header: PartHeader | None
    address: ReplicaHost | None
    is_active: bool
    log_pointer: int
    queue_size: int


async def others(ctx: ReplicaContext, keeper: Keeper) -> list[ReplicaPaths]:
    """All replicas of the table but this one."""
    names = (await keeper.children(ctx.paths.replicas)).names
    return [ctx.paths.replica(name) for name in names if name != ctx.replica]


async def _others_seen(ctx: ReplicaContext, keeper: Keeper) -> list[ReplicaPaths]:
    """As `others`, from memory as long as no watch has told of a change. It may be behind by as much as a
    watch takes: good enough to look for a holder, not to say that there is none."""
    seen = ctx.replicas_seen
    if seen is None or seen[0] is not keeper:
        has_changed = False

        def forget(_event: WatchEvent) -> None:
            nonlocal has_changed
            has_changed = True
            ctx.replicas_seen = None

        seen = keeper, (await keeper.children(ctx.paths.replicas, watch=forget)).names
        if not has_changed:  # the event may be here before this task is
            ctx.replicas_seen = seen
    return [ctx.paths.replica(name) for name in seen[1] if name != ctx.replica]


async def active_holders(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> list[Holder]:
    """Active replicas to fetch `part` from, the best first: those that have exactly this part, or else those
    that have one covering it; the largest log pointer first, then the shortest queue, then chance."""
    replicas = await _others_seen(ctx, keeper)
    found = [holder for holder in await _exact(keeper, replicas, part) if holder.is_active]
    if not found:
        seen, replicas = replicas, await others(ctx, keeper)
        if replicas != seen:
            found = [holder for holder in await _exact(keeper, replicas, part) if holder.is_active]
    if not found:
        found = [holder for holder in await _covering(keeper, replicas, part) if holder.is_active]
    ctx.env.rng.shuffle(found)
    return sorted(found, key=lambda holder: (-holder.log_pointer, holder.queue_size))


async def all_holders(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> list[Holder]:
    """Every other replica that has `part` or one covering it, active or not."""
    replicas = await others(ctx, keeper)
    return [*await _exact(keeper, replicas, part), *await _covering(keeper, replicas, part)]


async def headers(
    keeper: Keeper, replicas: Sequence[ReplicaPaths], part: PartName
) -> dict[ReplicaPaths, PartHeader]:
    """What Keeper says of exactly this part, by those of `replicas` that have it."""
    nodes = await keeper.get_many([replica.part(part) for replica in replicas])
    found: dict[ReplicaPaths, PartHeader] = {}
    for replica, node in zip(replicas, nodes, strict=True):
        if isinstance(node, NoNode):
            continue
        if isinstance(node, KeeperAnswer):
            raise node
        header = await _parsed(keeper, replica, part, node.data)
        if header is not None:
            found[replica] = header
    return found


async def header(keeper: Keeper, replica: ReplicaPaths, part: PartName) -> PartHeader | None:
    """What Keeper says of a replica's part; None if it has none (any more). Raises MalformedEntry."""
    try:
        data = (await keeper.get(replica.part(part))).data
    except NoNode:
        return None
    return await _parsed(keeper, replica, part, data)


async def _parsed(keeper: Keeper, replica: ReplicaPaths, part: PartName, data: bytes) -> PartHeader | None:
    """A replica of an old server keeps columns and checksums as children of an empty node."""
    path = replica.part(part)
    if data:
        return PartHeader.from_bytes(data, where=path)
    columns, checksums = await keeper.get_many([f"{path}/columns", f"{path}/checksums"])
    if isinstance(columns, KeeperAnswer) or isinstance(checksums, KeeperAnswer):
        return None
    digest = PartDigest.from_bytes(checksums.data, where=path)
    return PartHeader(siphash128_bytes(columns.data), digest)


async def _exact(keeper: Keeper, replicas: Sequence[ReplicaPaths], part: PartName) -> list[Holder]:
    return await _described(keeper, dict.fromkeys(replicas, part))


async def _covering(keeper: Keeper, replicas: Sequence[ReplicaPaths], part: PartName) -> list[Holder]:
    listings = await keeper.children_many([replica.parts for replica in replicas])
    largest: dict[ReplicaPaths, PartName] = {}
    for replica, listing in zip(replicas, listings, strict=True):
        if isinstance(listing, KeeperAnswer):
            continue
        names = (PartName.try_parse(name) for name in listing.names)
        covering = [name for name in names if name is not None and name != part and name.contains(part)]
        if covering:
            largest[replica] = max(covering, key=lambda name: (name.blocks, name.level, name.mutation))
    return await _described(keeper, largest)


async def _described(keeper: Keeper, wanted: dict[ReplicaPaths, PartName]) -> list[Holder]:
    """Those of the replicas that have the part named for them. One round trip."""
    if not wanted:
        return []
    asked = [
        path
        for replica, part in wanted.items()
        for path in (
            replica.part(part),
            replica.is_active,
            replica.queue,
            replica.log_pointer,
            replica.host,
        )
    ]
    answers = iter(await keeper.get_many(asked))
    found: list[Holder] = []
    for replica, part in wanted.items():
        node, is_active, queue, pointer, host = itertools.islice(answers, 5)
        if isinstance(node, NoNode):
            continue
        if isinstance(node, KeeperAnswer):
            raise node
        path = replica.part(part)
        address, header = None, None
        try:
            if not isinstance(host, KeeperAnswer) and host.data:
                address = ReplicaHost.from_bytes(host.data, where=replica.host)
            if node.data:
                header = PartHeader.from_bytes(node.data, where=path)
        except MalformedEntry as error:  # without an address nothing is fetched there, and others may have it
            log.error("replica.holder_unreadable replica=%s part=%s error=%s", replica.root, part, error)
            address = None
        found.append(
            Holder(
                replica,
                part,
                header=header,
                address=address,
                is_active=not isinstance(is_active, KeeperAnswer),
                log_pointer=0 if isinstance(pointer, KeeperAnswer) else number(pointer.data),
                queue_size=0 if isinstance(queue, KeeperAnswer) else queue.stat.num_children,
            )
        )
    return found


def number(data: bytes) -> int:
    """A decimal number of a znode; 0 for an empty one, and for what is no number."""
    text = data.decode("ascii", "replace")
    return int(text) if text.isdigit() else 0
