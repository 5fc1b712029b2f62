"""A lock with a fence: at most one holder, and proof for everything done under it.

Safety argument. The lock is a directory; its holder is the ephemeral child `holder`.

1. Acquiring is one multi: create `holder` (refused if there is one) and set the directory's value to an id
   made for this attempt, which raises the directory's version. A crash before it leaves nothing, a crash
   after it leaves `holder` until the session ends.
2. If the reply to 1 is lost, the next `try_acquire` on the same session finds `holder` owned by this session
   and the id of the earlier attempt in the directory: the lock is ours and the fence is read, not made anew.
3. A session can end while its process is paused and believes that it holds the lock. Therefore whatever is
   written under the lock must carry the fence: in Keeper, `fence.check` inside the multi that writes; in a
   database, `fence.number`, refusing numbers lower than the highest seen. A later holder has a higher number
   and another directory version, so a late writer is refused.
4. Releasing removes `holder` only if it is this one. Between the look and the removal it can go only by the
   end of this very session, and then the removal is refused.

It never breaks another's lock and has no time limit of its own.

What the caller must do: on ConnectionLoss or OperationTimeout call `try_acquire` or `release` again on the
same session; on SessionExpired take the lock as lost and make a new KeeperLock on a new session.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.env import Env
from engine.errors import MultiFailed, NodeExists, NoNode
from engine.keeper.base import Check, Create, CreateMode, Keeper, SetData, Stat
from engine.keeper.recipes.nodes import create_ancestors, try_remove
from engine.keeper.recipes.waiting import wait_until_gone

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of one holding. Numbers rise from holder to holder; `check` belongs into every multi under the
    lock."""

    number: int
    check: Check


class KeeperLock:
    """One session's side of the lock at `path`. `message` tells others who holds it."""

    def __init__(self, keeper: Keeper, env: Env, path: str, message: str) -> None:
        self._keeper = keeper
        self._env = env
        self._path = path
        self._holder_path = f"{path}/holder"
        self._message = message
        self._attempts: set[bytes] = set()
        self._fence: Fence | None = None

    @property
    def fence(self) -> Fence | None:
        """None unless acquired. That it is set does not mean that the session still lives: see the module."""
        return self._fence

    async def try_acquire(self) -> Fence | None:
        """Take the lock if nobody has it. None: somebody has; `holder()` says who."""
        await create_ancestors(self._keeper, self._holder_path)
        if await self._find_ours():
            return self._fence
        attempt = self._env.new_uuid().hex.encode()
        self._attempts.add(attempt)
        try:
            results = await self._keeper.multi(
                [
                    Create(self._holder_path, self._message.encode(), CreateMode.EPHEMERAL),
                    SetData(self._path, attempt),
                ]
            )
        except MultiFailed as failed:
            if isinstance(failed.error, NodeExists):
                return None
            raise
        stat = results[1]
        assert isinstance(stat, Stat)
        self._take(stat)
        return self._fence

    async def acquire(self) -> Fence:
        """Wait until the lock is free and take it. Waiters race; there is no queue."""
        while True:
            fence = await self.try_acquire()
            if fence is not None:
                return fence
            await wait_until_gone(self._keeper, self._holder_path)

    async def holder(self) -> str | None:
        """The message of whoever holds the lock, None if nobody does."""
        try:
            return (await self._keeper.get(self._holder_path)).data.decode("utf-8", "replace")
        except NoNode:
            return None

    async def is_held(self) -> bool:
        """Whether the server still counts this object as the holder."""
        stat = await self._keeper.exists(self._holder_path)
        return stat is not None and self._fence is not None and stat.czxid == self._fence.number

    async def release(self) -> None:
        """Give the lock up if it is held. May be called twice, and after the session's end."""
        if self._keeper.is_expired or not (self._fence or await self._find_ours()):
            self._fence = None
            return
        if await self.is_held():
            await try_remove(self._keeper, self._holder_path)
        else:
            log.warning("keeper.lock_was_lost path=%s", self._path)
        self._fence = None

    def _take(self, directory: Stat) -> None:
        # `holder` was made and the directory set in one transaction: mzxid here is czxid there.
        self._fence = Fence(directory.mzxid, Check(self._path, directory.version))

    async def _find_ours(self) -> bool:
        """Whether an earlier attempt of this object succeeded although its reply was lost."""
        if not self._attempts:
            return False
        await self._keeper.sync(self._path)
        stat = await self._keeper.exists(self._holder_path)
        if stat is None or stat.ephemeral_owner != self._keeper.session_id:
            return False
        directory = await self._keeper.get(self._path)
        if directory.data not in self._attempts or directory.stat.mzxid != stat.czxid:
            return False
        self._take(directory.stat)
        return True
