"""A node that says “I am here”: owned by a session, gone with it.

What the caller must do:

    ConnectionLoss, OperationTimeout    call `create` again on the same session: it finds its own node again
    SessionExpired                      the node is gone or will go; on the new session first
                                        `remove_ephemeral_if_content_matches`, then `create`

Between the loss of a session and its end at the server the node still stands, although nobody is behind it
any more: other readers see a host as active for up to a session timeout too long.
"""

from __future__ import annotations

import asyncio
import logging

from engine.errors import BadVersion, Busy, NodeExists, NoNode
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.recipes.nodes import try_remove
from engine.keeper.recipes.waiting import wait_until_gone

log = logging.getLogger(__name__)


class EphemeralNode:
    """An ephemeral node of this session, made by `create`. `czxid` tells it from any later node of that
    path."""

    def __init__(self, keeper: Keeper, path: str, czxid: int) -> None:
        self._keeper = keeper
        self.path = path
        self.czxid = czxid

    @classmethod
    async def create(cls, keeper: Keeper, path: str, data: bytes = b"") -> EphemeralNode:
        """Make the node, or find it if this session made it before. Raises NodeExists if it is another's."""
        answer: NodeExists | None = None
        try:
            await keeper.create(path, data, mode=CreateMode.EPHEMERAL)
        except NodeExists as error:
            answer = error
        stat = await keeper.exists(path)
        if stat is not None and stat.ephemeral_owner == keeper.session_id:
            return cls(keeper, path, stat.czxid)
        raise answer or NodeExists(path)

    async def is_ours(self) -> bool:
        """Whether the node still stands and is this one."""
        stat = await self._keeper.exists(self.path)
        return stat is not None and stat.czxid == self.czxid

    async def remove(self) -> None:
        """Remove the node if it is still ours. Does nothing once the session is over, which removes it
        anyway."""
        if self._keeper.is_expired:
            return
        if not await self.is_ours():
            log.warning("keeper.ephemeral_missing path=%s czxid=%d", self.path, self.czxid)
            return
        await try_remove(self._keeper, self.path)


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
