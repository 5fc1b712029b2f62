"""A block number that is taken while the rows of an INSERT are still being written.

Which partition the rows are of is not known then: it is guessed to be that of the inserts before, if those
had one each and all the same. A wrong guess costs two requests, a right one spares a wait for Keeper.

Safety argument. The number is as any other (`replica.block_numbers`): while it is held nothing is merged
across it, and a crash leaves it to the end of the session. It is given up when the rows are of another
partition, when the insert fails, when the session is another one, and when the rows take long. It was taken
without looking for the block's id, which nobody knew; so the transaction that commits is the first to look,
as it is for equal inserts at one moment. If it finds the id, nothing was committed, and the insert starts
over with a number that is asked for together with the id.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from engine.errors import OnclusterError
from engine.replication.replica.block_numbers import BlockNumber, Purpose, allocate
from engine.replication.replica.context import ReplicaContext

_LONGEST_S = 1.0
"""How long merges may be kept waiting for rows that are still on their way."""
_LEAST_ALIKE = 2
"""Inserts into one partition, before a third one is expected there."""


class EarlyNumber:
    """Of one INSERT. `take` it, or `close` it; `close` may always be called."""

    def __init__(self, ctx: ReplicaContext, partition_id: str) -> None:
        self._ctx = ctx
        self._number: BlockNumber | None = None
        self._was_asked = asyncio.Event()
        self._holding = asyncio.create_task(self._hold(partition_id))

    @classmethod
    def expected(cls, ctx: ReplicaContext) -> EarlyNumber | None:
        """A number in the partition that the inserts before were all of; None if there is no such."""
        partition_id, alike = ctx.usual_partition
        return cls(ctx, partition_id) if alike >= _LEAST_ALIKE else None

    async def _hold(self, partition_id: str) -> None:
        try:
            self._number = await allocate(self._ctx, partition_id, purpose=Purpose.INSERT)
        except OnclusterError:
            return  # the insert will hear of it when it asks itself
        finally:
            self._was_asked.set()
        await self._ctx.env.sleep(_LONGEST_S)
        await self._give_up()

    async def take(self, partition_id: str) -> BlockNumber | None:
        """The number, if it is one of this partition and of the present session. It is the caller's then."""
        await self._was_asked.wait()
        number = self._number
        if number is None or number.partition_id != partition_id or number.keeper is not self._ctx.keeper:
            return None
        self._number = None
        return number

    async def close(self) -> None:
        """Give the number up, unless it was taken."""
        self._holding.cancel()
        await asyncio.wait([self._holding])
        await self._give_up()

    async def _give_up(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            with suppress(OnclusterError):  # `abandon` leaves it to the next one who asks for a number
                await number.abandon()


def note_partitions(ctx: ReplicaContext, partition_ids: list[str]) -> None:
    """Those of the parts of an INSERT."""
    usual, alike = ctx.usual_partition
    if len(partition_ids) != 1:
        ctx.usual_partition = ("", 0)
    elif partition_ids[0] == usual:
        ctx.usual_partition = (usual, alike + 1)
    else:
        ctx.usual_partition = (partition_ids[0], 1)
