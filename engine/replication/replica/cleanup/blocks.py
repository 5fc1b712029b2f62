"""Block ids go when they are old or too many, or when the data that they stand for goes.

Safety argument. An id may go when no client will repeat that insert any more: that is what the window says,
in numbers and in seconds; what older servers note of asynchronous inserts has one of its own. "Now" is the
newest id's age by Keeper's own clock, so a node whose clock is wrong removes nothing too early, and a table
that nobody inserts into keeps its ids. Each removal is of the node that was judged: it is looked at again
right before. A crash leaves fewer ids, and the next round goes on.

It never removes an id inside both windows.

Source: ClickHouse's ReplicatedMergeTreeCleanupThread::clearOldBlocks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.errors import KeeperAnswer, MultiFailed, NoNode, NotEmpty
from engine.keeper.base import Children, Keeper, Remove, Stat
from engine.keeper.recipes import MULTI_BATCH_SIZE, remove_recursive, try_remove
from engine.replication.part_name import PartName
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Window:
    """How many ids are kept, and for how long."""

    ids: int
    seconds: int


class BlockCleanup:
    """Remembers what it has seen: the age of an id does not change, until it is inserted anew."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self._ctx = ctx
        self._seen: dict[str, Stat] = {}

    async def run_once(self) -> int:
        """Remove what is outside the window, in each of the directories; returns how many."""
        keeper = self._ctx.session()
        removed = 0
        present: set[str] = set()
        for directory, children in await _listings(keeper, self._ctx.paths):
            paths = [f"{directory}/{name}" for name in children.names]
            present.update(paths)
            unseen = [path for path in paths if path not in self._seen]
            for path, stat in zip(unseen, await keeper.exists_many(unseen), strict=True):
                if stat is not None:
                    self._seen[path] = stat
            outdated = self._outdated(paths, self._window(directory))
            removed += await self._remove(keeper, await self._confirmed(keeper, outdated))
        self._seen = {path: stat for path, stat in self._seen.items() if path in present}
        if removed:
            log.info("replication.blocks_cleaned table=%s removed=%d", self._ctx.name, removed)
        return removed

    def _window(self, directory: str) -> _Window:
        settings = self._ctx.settings
        if directory == self._ctx.paths.async_blocks:
            return _Window(
                settings.replicated_deduplication_window_for_async_inserts,
                settings.replicated_deduplication_window_seconds_for_async_inserts,
            )
        return _Window(
            settings.replicated_deduplication_window, settings.replicated_deduplication_window_seconds
        )

    def _outdated(self, paths: Sequence[str], window: _Window) -> Sequence[str]:
        """What is behind as many ids as are kept, or too old beside the newest; newest first."""
        dated = sorted(
            (
                (stat.ctime_ms, stat.czxid, path)
                for path in paths
                if (stat := self._seen.get(path)) is not None
            ),
            reverse=True,
        )
        if not dated:
            return ()
        oldest_ms = dated[0][0] - window.seconds * 1000
        return [
            path
            for place, (ctime_ms, _, path) in enumerate(dated)
            if place >= window.ids or ctime_ms < oldest_ms
        ]

    async def _confirmed(self, keeper: Keeper, paths: Sequence[str]) -> Sequence[str]:
        """Those of `paths` that are what was seen. One that went with its part and was inserted anew between
        two rounds is young, and its version is the same."""
        confirmed: list[str] = []
        for path, stat in zip(paths, await keeper.exists_many(paths), strict=True):
            if stat is None:
                del self._seen[path]
            elif stat.czxid == self._seen[path].czxid:
                confirmed.append(path)
            else:
                self._seen[path] = stat
        return confirmed

    async def _remove(self, keeper: Keeper, paths: Sequence[str]) -> int:
        removed = 0
        for start in range(0, len(paths), MULTI_BATCH_SIZE):
            batch = paths[start : start + MULTI_BATCH_SIZE]
            try:
                await keeper.multi([Remove(path, self._seen[path].version) for path in batch])
                removed += len(batch)
            except MultiFailed:  # somebody else removes, too: one by one
                for path in batch:
                    answer = await try_remove(keeper, path, version=self._seen[path].version)
                    if isinstance(answer, NotEmpty):  # very old servers kept checksums below the id
                        await remove_recursive(keeper, path)
                    removed += answer is None
            for path in batch:
                self._seen.pop(path, None)
        return removed


async def removals_of_blocks(keeper: Keeper, paths: TablePaths, *dropped: PartName) -> list[Remove]:
    """The block ids whose part is inside one of `dropped` (drop ranges or parts), as removals for the
    transaction that drops it. Ids that name no part go, too.

    An insert of the same block after that is a new one. Removals carry the version that was read: BadVersion
    and NoNode mean that somebody was faster, read again then.
    """
    spans: dict[str, list[PartName]] = {}
    for span in dropped:
        spans.setdefault(span.partition_id, []).append(span)
    return [
        Remove(path, version)
        for path, version, part in await _inserted(keeper, paths, spans)
        if part is None or any(span.contains(part) for span in spans.get(part.partition_id, ()))
    ]


async def inserted_parts(keeper: Keeper, paths: TablePaths, partition_ids: Collection[str]) -> list[PartName]:
    """The parts of these partitions that inserts have made and whose block ids are remembered. Whoever drops
    such a part forgets its block id in the same transaction: none of these was ever dropped."""
    found = await _inserted(keeper, paths, partition_ids)
    return [part for _, _, part in found if part is not None]


async def _inserted(
    keeper: Keeper, paths: TablePaths, partition_ids: Collection[str]
) -> list[tuple[str, int, PartName | None]]:
    """Path, version and part of each block id; None where it names no part."""
    prefixes = tuple(f"{partition_id}_" for partition_id in partition_ids)
    candidates = [
        f"{directory}/{name}"
        for directory, children in await _listings(keeper, paths)
        for name in children.names
        if name.startswith(prefixes)
    ]
    return [
        (path, node.stat.version, PartName.try_parse(node.data.decode("utf-8", "replace")))
        for path, node in zip(candidates, await keeper.get_many(candidates), strict=True)
        if not isinstance(node, KeeperAnswer)
    ]


async def forget_blocks(keeper: Keeper, paths: TablePaths, lost: PartName) -> int:
    """Remove the block ids of everything inside `lost` at once; returns how many. Repeatable.

    For parts that no replica has any more: a repeated insert must not be swallowed by what is gone.
    """
    ops = await removals_of_blocks(keeper, paths, lost)
    removed = 0
    for op in ops:
        removed += await try_remove(keeper, op.path, version=op.version) is None
    return removed


async def _listings(keeper: Keeper, paths: TablePaths) -> Sequence[tuple[str, Children]]:
    """The directories of block ids that the table has; we write to the first, newer servers to all."""
    directories = (paths.blocks, paths.async_blocks, paths.deduplication_hashes)
    found = await keeper.children_many(directories)
    if isinstance(found[0], NoNode):
        raise found[0]
    return [
        (directory, children)
        for directory, children in zip(directories, found, strict=True)
        if isinstance(children, Children)
    ]
