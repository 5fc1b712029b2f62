"""What time it is for Keeper. Ages of nodes are differences of its own times, never of two machines'."""

from __future__ import annotations

from engine.keeper.recipes import create_ancestors, create_or_update
from engine.operations.site import Site


async def keeper_now_ms(site: Site) -> int:
    """Unix milliseconds of a write made just now, or of the local clock if that says less: a clock that
    jumped ahead makes nothing old. The node it writes is this project's own."""
    path = f"{site.queue.paths.operations(site.cluster)}/clock"
    await create_ancestors(site.keeper, path)
    await create_or_update(site.keeper, path, b"")
    stat = await site.keeper.set(path, b"")
    return min(stat.mtime_ms, int(site.env.now_s() * 1000))
