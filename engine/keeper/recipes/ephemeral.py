"""What stands where an ephemeral node is to be made: one that a session of one's own has left, or nobody's.

Between the loss of a session and its end at the server its nodes still stand, although nobody is behind them
any more.
"""

from __future__ import annotations

import asyncio
import logging

from engine.errors import BadVersion, Busy, NoNode
from engine.keeper.base import Keeper
from engine.keeper.recipes.nodes import try_remove
from engine.keeper.recipes.waiting import wait_until_gone

log = logging.getLogger(__name__)


async def remove_unowned(keeper: Keeper, path: str) -> bool:
    """Remove a node that should be ephemeral and that no session owns, as a copy of Keeper's tree by another
    tool makes it: it would never go. Whether there was one.

    Its version is raised first: another, real one that is made in its place meanwhile has not that version,
    and stays.
    """
    try:
        node = await keeper.get(path)
        if node.stat.ephemeral_owner:
            return False
        stat = await keeper.set(path, node.data, version=node.stat.version)
    except (NoNode, BadVersion):
        return False
    if stat.ephemeral_owner or await try_remove(keeper, path, version=stat.version) is not None:
        return False
    log.warning("keeper.unowned_removed path=%s", path)
    return True


async def remove_ephemeral_if_content_matches(keeper: Keeper, path: str, data: bytes) -> None:
    """Clear the way for an ephemeral node: what a session of one's own left behind is removed at once.

    So is one that no session owns (`remove_unowned`). A node with another value is somebody else's: wait for
    it at most three session timeouts, then raise Busy. (ClickHouse's deleteEphemeralNodeIfContentMatches.)
    """
    if await remove_unowned(keeper, path):
        return
    try:
        node = await keeper.get(path)
    except NoNode:
        return
    if node.data == data:
        await try_remove(keeper, path, version=node.stat.version)
        return
    patience_s = 3 * keeper.session_timeout_s
    try:
        async with asyncio.timeout(patience_s):
            await wait_until_gone(keeper, path)
    except TimeoutError:
        raise Busy(
            f"Ephemeral node {path} still exists after {patience_s:g} s",
            holder=node.data.decode("utf-8", "replace"),
            hint="Probably it is owned by someone else.",
        ) from None
