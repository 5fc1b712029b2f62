"""A request at which Keeper hangs up whenever it comes.

ZooKeeper closes the connection of whoever sends more than its `jute.maxbuffer`, 1 MiB unless somebody has set
less, and says nothing: it looks like any other loss, after which the request would be repeated. Where only
this request is lost, time after time, the server does not take it.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Code, ConnectionLoss, Refused
from engine.keeper.base import Keeper, Op, OpResult

_LONG_BYTES = 16 << 10
"""A server that takes less than this is of no use for anything."""
_MOST = 3


class HangUps:
    """Counts those at one request, of about `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._count = 0

    @property
    def are_many(self) -> bool:
        """Look whether the request was carried out; if it was not, it is not going to be."""
        return self._count >= _MOST

    async def multi(self, keeper: Keeper, ops: Sequence[Op]) -> list[OpResult]:
        """`Keeper.multi` of the request."""
        try:
            return await keeper.multi(ops)
        except ConnectionLoss:
            self._count += self._size_bytes >= _LONG_BYTES
            raise

    def refusal(self) -> Refused:
        """What to tell whoever sends it."""
        return Refused(
            f"Keeper closed the connection {self._count} times at a request of {self._size_bytes} bytes.",
            code=Code.KEEPER_EXCEPTION,
            hint="Its servers take less, it seems: raise `jute.maxbuffer` on all of them, or write a shorter "
            "statement.",
        )
