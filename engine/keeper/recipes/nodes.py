"""Making nodes with what is above them, removing them with what is below.

On ConnectionLoss, SessionExpired or OperationTimeout the caller calls again, on a new session if the old one
is over: all of these may be repeated, and a repetition after a lost reply does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import BadVersion, KeeperAnswer, MultiFailed, NodeExists, NoNode, NotEmpty
from engine.keeper.base import ANY_VERSION, Keeper, Op, Remove

MULTI_BATCH_SIZE = 100
"""Operations per multi when many nodes are removed, as ClickHouse does it."""


def ancestors(path: str) -> list[str]:
    """The proper prefixes of a path, shortest first, without the root."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


async def create_ancestors(keeper: Keeper, path: str) -> None:
    """Make every node above `path`, with empty values. May race with others doing the same."""
    above = ancestors(path)
    missing = len(above)
    for stat in reversed(await keeper.exists_many(above)):
        if stat is not None:
            break
        missing -= 1
    for ancestor in above[missing:]:
        await create_if_not_exists(keeper, ancestor)


async def create_if_not_exists(keeper: Keeper, path: str, data: bytes = b"") -> bool:
    """Whether this call made the node; the value of one that exists stays. Raises NoNode for the parent."""
    try:
        await keeper.create(path, data)
    except NodeExists:
        return False
    return True


async def create_or_update(keeper: Keeper, path: str, data: bytes) -> None:
    """Set the value, making the node if it is missing. Raises NoNode for the parent."""
    while True:
        try:
            await keeper.set(path, data)
            return
        except NoNode:
            if await create_if_not_exists(keeper, path, data):
                return


async def try_remove(keeper: Keeper, path: str, *, version: int = ANY_VERSION) -> KeeperAnswer | None:
    """Remove a node; what ZooKeeper has against it (NoNode, BadVersion, NotEmpty) is returned, not raised."""
    try:
        await keeper.remove(path, version=version)
    except (NoNode, BadVersion, NotEmpty) as answer:
        return answer
    return None


async def remove_recursive(
    keeper: Keeper, path: str, *, keep_child: str | None = None, fence: Sequence[Op] = ()
) -> bool:
    """Remove a node and all below it; true if `path` itself is gone (with `keep_child`: if all else is).

    `keep_child` names a child of `path` that stays, and `path` with it; the child's own children go. Not
    atomic: children go before parents in multis of 100. Others may remove at the same time; what they add
    while this runs stays, and so do the nodes above it. `fence` goes into every one of the multis: raises
    MultiFailed with the index of an operation of the fence when it does not hold any more.
    """
    if not await _remove_children(keeper, path, keep_child=keep_child, fence=fence):
        return False
    return keep_child is not None or await _remove_one(keeper, path, fence)


async def _remove_children(keeper: Keeper, path: str, *, keep_child: str | None, fence: Sequence[Op]) -> bool:
    try:
        names = (await keeper.children(path)).names
    except NoNode:
        return True
    prefix = path if path.endswith("/") else path + "/"
    all_gone = True
    for start in range(0, len(names), MULTI_BATCH_SIZE):
        batch = [prefix + name for name in names[start : start + MULTI_BATCH_SIZE]]
        stats = await keeper.exists_many(batch)
        doomed = []
        for child, stat in zip(batch, stats, strict=True):
            if (
                stat is not None
                and stat.num_children
                and not await _remove_children(keeper, child, keep_child=None, fence=fence)
            ):
                all_gone = False
            elif stat is not None and child != f"{prefix}{keep_child}":
                doomed.append(child)
        all_gone &= await _remove_batch(keeper, doomed, fence)
    return all_gone


async def _remove_batch(keeper: Keeper, paths: Sequence[str], fence: Sequence[Op]) -> bool:
    """One multi; where somebody else was faster, one by one."""
    try:
        await keeper.multi([*fence, *(Remove(path) for path in paths)])
    except MultiFailed as failed:
        if failed.index < len(fence):
            raise
        return all([await _remove_one(keeper, path, fence) for path in paths])
    return True


async def _remove_one(keeper: Keeper, path: str, fence: Sequence[Op]) -> bool:
    """Whether it is gone."""
    if not fence:
        return not isinstance(await try_remove(keeper, path), NotEmpty)
    try:
        await keeper.multi([*fence, Remove(path)])
    except MultiFailed as failed:
        if failed.index < len(fence) or not isinstance(failed.error, NoNode | NotEmpty):
            raise
        return isinstance(failed.error, NoNode)
    return True
