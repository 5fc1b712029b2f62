"""A Keeper session that enqueues nothing once the migration lock is lost.

The DDL queue's client puts an entry into the queue in one transaction. Here that transaction also checks the
lease, so a run that slept through the loss of its lock cannot send a statement after its successor began
(M3). Everything else passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from engine.errors import MultiFailed
from engine.keeper.base import Create, Keeper, Op, OpResult
from engine.migrations.lock import Lease, lost_lease


class _GuardedKeeper:
    def __init__(self, keeper: Keeper, lease: Lease, entry_prefix: str) -> None:
        self._keeper = keeper
        self._lease = lease
        self._entry_prefix = entry_prefix

    def __getattr__(self, name: str) -> object:
        return getattr(self._keeper, name)

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if not any(isinstance(op, Create) and op.path == self._entry_prefix for op in ops):
            return await self._keeper.multi(ops)
        guard = self._lease.guard
        try:
            # Last, so that the answers keep the places in which the client expects them.
            results = await self._keeper.multi([*ops, *guard])
        except MultiFailed as refusal:
            if refusal.index >= len(ops):
                raise lost_lease(self._lease) from refusal
            raise
        return results[: len(ops)]


def guarded(keeper: Keeper, lease: Lease, *, entry_prefix: str) -> Keeper:
    """`keeper`, but raising StaleFence instead of enqueuing when the lease is another's."""
    return cast(Keeper, _GuardedKeeper(keeper, lease, entry_prefix))
