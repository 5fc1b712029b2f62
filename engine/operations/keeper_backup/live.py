"""Reading a tree out of a live Keeper: first all names, then all values, a thousand requests at a time.

What is held is one short tuple per node, and the values of one batch: memory grows with the number of nodes
(about half a kilobyte each) and not with what is in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.errors import KeeperAnswer, NoAuth, NoNode, Refused
from engine.keeper.base import Acl, Children, Keeper, Node, Stat
from engine.operations.keeper_backup.patient import PatientKeeper
from engine.operations.keeper_backup.record import (
    NodeRecord,
    is_own_subtree,
    join,
    order_of,
    unreadable,
)

BATCH_NODES = 1000
_BATCH_BYTES = 4 << 20
_NODE_OVERHEAD_BYTES = 100
_UNKNOWN_BYTES = 64 << 10

Identity = tuple[int, int, int, int, int]
"""czxid, mzxid, pzxid, aversion, ctime: equal at two moments means unchanged between them, in value,
ACL and list of children, since every change takes a new, greater transaction id."""

UNREADABLE: Identity = (-1, -1, -1, -1, -1)

Tick = Callable[[int], None]
"""Told how many nodes have been done."""


def ignore(_done: int) -> None:
    """A tick that nobody looks at."""


def identity_of(stat: Stat) -> Identity:
    return stat.czxid, stat.mzxid, stat.pzxid, stat.aversion, stat.ctime_ms


@dataclass(frozen=True, slots=True)
class Listing:
    """The nodes of a tree, each with its identity as it was when its children were listed, and its size.

    Paths are below the root of the backup. Not of one instant by itself.
    """

    nodes: dict[str, Identity]
    sizes: dict[str, int]
    skipped: tuple[str, ...]
    """The server's own subtrees that stand below the root."""


async def list_tree(source: PatientKeeper, root: str, *, tick: Tick = ignore) -> Listing:
    """Walk the tree level by level. Raises Refused when the root is not there."""
    nodes: dict[str, Identity] = {}
    sizes: dict[str, int] = {}
    skipped: list[str] = []
    level = ["/"]
    while level:
        below: list[str] = []
        for start in range(0, len(level), BATCH_NODES):
            batch = level[start : start + BATCH_NODES]
            places = [join(root, path) for path in batch]
            found = await source.ask(partial(_children_of, places=places))
            for path, answer in zip(batch, found, strict=True):
                match answer:
                    case Children(names, stat):
                        nodes[path] = identity_of(stat)
                        sizes[path] = stat.data_length
                        prefix = path.rstrip("/") + "/"
                        for name in names:
                            child = prefix + name
                            (skipped if is_own_subtree(join(root, child)) else below).append(child)
                    case NoAuth():
                        nodes[path] = UNREADABLE
                        sizes[path] = 0
                    case NoNode() if path == "/":
                        raise Refused(f"There is no node {root} in Keeper.")
                    case NoNode():
                        pass  # removed since its parent was listed; the parent's identity has changed too
                    case KeeperAnswer():
                        raise answer
            tick(len(nodes))
        level = below
    return Listing(nodes, sizes, tuple(sorted(skipped)))


async def _children_of(keeper: Keeper, *, places: Sequence[str]) -> list[Children | KeeperAnswer]:
    return await keeper.children_many(places)


def batches(paths: Iterable[str], sizes: dict[str, int]) -> Iterable[list[str]]:
    """In their order, each small enough to be held and to be answered in time."""
    batch: list[str] = []
    size_bytes = 0
    for path in paths:
        node_bytes = sizes.get(path, 0) + _NODE_OVERHEAD_BYTES
        if batch and (len(batch) >= BATCH_NODES or size_bytes + node_bytes > _BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(path)
        size_bytes += node_bytes
    if batch:
        yield batch


async def read_nodes(source: PatientKeeper, root: str, paths: Sequence[str]) -> list[NodeRecord | None]:
    """The records of one batch, None for what is gone. ACLs are asked for before values, so that an equal
    `aversion` before and after says that the ACL belongs to the record."""

    async def reading(
        keeper: Keeper,
    ) -> tuple[list[tuple[Acl, ...] | KeeperAnswer], list[Node | KeeperAnswer]]:
        places = [join(root, path) for path in paths]
        acls = await asyncio.gather(*(_acl_of(keeper, place) for place in places))
        return acls, await keeper.get_many(places)

    acls, values = await source.ask(reading)
    return [_record(path, acl, value) for path, acl, value in zip(paths, acls, values, strict=True)]


async def _acl_of(keeper: Keeper, place: str) -> tuple[Acl, ...] | KeeperAnswer:
    try:
        return await keeper.get_acl(place)
    except KeeperAnswer as answer:
        return answer


def _record(path: str, acl: tuple[Acl, ...] | KeeperAnswer, value: Node | KeeperAnswer) -> NodeRecord | None:
    for answer in (value, acl):
        match answer:
            case NoNode():
                return None
            case NoAuth():
                return unreadable(path)
            case KeeperAnswer():
                raise answer
    assert isinstance(value, Node) and isinstance(acl, tuple)
    return NodeRecord(path, value.data, value.stat, acl)


class LiveTree:
    """A live tree as a stream of records, in order. What changes while it is read may be seen before or
    after; what is removed meanwhile is left out."""

    def __init__(self, source: PatientKeeper, root: str, *, tick: Tick = ignore) -> None:
        self.source = source
        self.root = root
        self._tick = tick

    async def records(self) -> AsyncIterator[NodeRecord]:
        listing = await list_tree(self.source, self.root, tick=self._tick)
        done = 0
        for batch in batches(sorted(listing.nodes, key=order_of), listing.sizes):
            for record in await read_nodes(self.source, self.root, batch):
                if record is not None:
                    yield record
            done += len(batch)
            self._tick(done)

    async def again(self, paths: Sequence[str]) -> dict[str, NodeRecord | None]:
        """These nodes as they are now."""
        found: dict[str, NodeRecord | None] = {}
        for batch in batches(paths, dict.fromkeys(paths, _UNKNOWN_BYTES)):
            found |= zip(batch, await read_nodes(self.source, self.root, batch), strict=True)
        return found
