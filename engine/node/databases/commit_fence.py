"""How the transaction of a database's statement gets into a replicated table's own one.

An ALTER of a replicated table takes effect by one transaction on the table's nodes. The statement of the
database is committed in the same one: both or neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.ddl.attempt import Fence
from engine.keeper.base import Op


class CommitFence(Fence):
    """Hands the operations out once, to the first transaction that is the whole of an ALTER."""

    def __init__(self, ops: Sequence[Op]) -> None:
        super().__init__()
        self._for_it = ops
        self.is_handed_out = False

    def whole(self) -> tuple[Op, ...] | None:
        if self.is_handed_out:
            return ()
        self.is_handed_out = True
        return tuple(self._for_it)
