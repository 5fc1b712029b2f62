"""A statement about rows of a replicated table, which one replica of each shard carries out for the others.

Safety argument. As in the DDL queue (`engine.ddl.attempt`):

1. `lock`, ephemeral: only its owner begins. The session's end frees it, also while its owner is at work.
2. One transaction counts the attempt in `tries_to_execute` and says in `attempt` who begins: no earlier
   attempt can take effect from here on.
3. Every transaction that changes the table checks that count, and writes into `attempt` what takes effect
   with it. So a replica that was paused for longer than its session changes nothing, and whoever comes after
   a crash knows whether it happened.
4. `executed` is made with this replica's record of the entry. A crash before that leaves an `attempt` that
   says so: the next owner of the lock carries nothing out again.

There is no limit of attempts: what was committed has to be carried out. ClickHouse's servers write no
`attempt`; after one of them that has counted and not made `executed` nobody can tell, and as they do it is
carried out again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engine.databases.paths import DatabasePaths, ReplicaName
from engine.ddl.attempt import Attempt, Effect, Fence
from engine.ddl.executor import FenceLost
from engine.ddl.text import encode_bytes
from engine.env import Env
from engine.errors import MultiFailed, NodeExists
from engine.keeper.base import Check, Create, CreateMode, Keeper, Node, Op, Remove, SetData
from engine.keeper.recipes import Signal, create_if_not_exists, remove_unowned, try_remove

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_PAUSE_S = 0.2

CarryOut = Callable[[Fence], Awaitable[None]]
"""With the fence in every transaction that changes the table. Raises FenceLost where it did not hold."""


@dataclass(frozen=True, slots=True)
class ShardTurn:
    """One entry on one replica, in one session."""

    keeper: Keeper
    env: Env
    paths: DatabasePaths
    me: ReplicaName
    number: int

    def _leaf(self, name: str = "") -> str:
        return self.paths.shard(self.number, self.me.shard, name)

    async def run(self, carry_out: CarryOut) -> Sequence[Op]:
        """Returns when this replica or another has carried it out: what the record of the entry takes along.

        Raises what `carry_out` raises but FenceLost, and what Keeper says.
        """
        keeper = self.keeper
        for path in (self.paths.entry(self.number, "shards"), self._leaf()):
            await create_if_not_exists(keeper, path)
        executed, lock = self._leaf("executed"), self._leaf("lock")
        me = encode_bytes(str(self.me))
        while True:
            done = Signal()
            if await keeper.exists(executed, watch=done) is not None:
                await self._let_go(lock)
                return []
            if not await self._has_lock(lock, done):
                continue
            try:
                if await keeper.exists(executed) is not None:  # since the look
                    await try_remove(keeper, lock)
                    return []
                is_done = await self._attempt(carry_out)
            except BaseException:  # also a cancellation: the others of the shard wait for the lock
                await try_remove(keeper, lock)
                raise
            if is_done:
                return [Create(executed, me), Remove(lock)]
            await try_remove(keeper, lock)
            await self.env.sleep(_PAUSE_S * self.env.rng.uniform(0.5, 1.0))

    async def _let_go(self, lock: str) -> None:
        """If it is this session's, of a try whose answer was lost: it would stand for as long as that."""
        stat = await self.keeper.exists(lock)
        if stat is not None and stat.ephemeral_owner == self.keeper.session_id:
            await try_remove(self.keeper, lock)

    async def _has_lock(self, lock: str, done: Signal) -> bool:
        """Take it, or wait until it or the work is done."""
        gone = Signal()
        try:
            await self.keeper.create(lock, encode_bytes(str(self.me)), mode=CreateMode.EPHEMERAL)
            return True
        except NodeExists:
            stat = await self.keeper.exists(lock, watch=gone)
        if stat is None or await remove_unowned(self.keeper, lock):
            return False
        if stat.ephemeral_owner == self.keeper.session_id:
            return True  # of a try whose answer was lost
        waits = [asyncio.ensure_future(done.wait()), asyncio.ensure_future(gone.wait())]
        try:
            await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return False

    async def _attempt(self, carry_out: CarryOut) -> bool:
        """Whether it is carried out, by this attempt or by an earlier one."""
        tries, path = self._leaf("tries_to_execute"), self._leaf("attempt")
        await create_if_not_exists(self.keeper, tries, b"0")
        counter, latest = await self.keeper.get_many([tries, path])
        if not isinstance(counter, Node):
            raise counter
        earlier = Attempt.from_bytes(latest.data) if isinstance(latest, Node) else None
        if earlier is not None and earlier.effect is Effect.WHOLE:
            log.warning("databases.shard_was_done entry=%d by=%s", self.number, earlier.host)
            return True
        number = int(counter.data or b"0") + 1
        if earlier is None:
            earlier = Attempt(str(self.me), "", Effect.NONE)
        attempt = earlier.begun_again(str(self.me), "", number)
        begins: Op = Create(path, attempt.to_bytes())
        if isinstance(latest, Node):
            begins = SetData(path, attempt.to_bytes(), latest.stat.version)
        counts = SetData(tries, str(number).encode(), counter.stat.version)
        try:
            await self.keeper.multi([Check(self._leaf("lock")), counts, begins])
        except MultiFailed as refused:
            log.warning("databases.shard_attempt_refused entry=%d error=%s", self.number, refused)
            return False
        fence = Fence(Check(tries, version=counter.stat.version + 1), path, attempt)
        try:
            await carry_out(fence)
            if not fence.is_closed:
                await self.keeper.multi(fence.close())
        except FenceLost as lost:
            log.warning("databases.shard_taken_over entry=%d error=%s", self.number, lost.message)
            return False
        except MultiFailed as refused:
            if refused.error.path not in fence.paths:
                raise
            log.warning("databases.shard_taken_over entry=%d error=%s", self.number, refused)
            return False
        return True
