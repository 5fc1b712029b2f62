"""The transaction that commits a proposed entry on its initiator.

Safety argument. The entry's `try` is an ephemeral node of the initiator's session. The transaction removes
it, makes `committed`, and changes definitions, digest and pointers, all or nothing: so whoever sees `try`
gone knows for ever whether the entry counts, by `committed`. A worker that waited too long for `try`
removes it, and this transaction fails then. After a lost reply the tree says which of the two it was; if
neither, and the session lives, it is asked for again, which `try` lets happen once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from engine.databases.cluster import is_there
from engine.databases.digest import digest_of
from engine.databases.numbering import on_same_session
from engine.databases.replica import DatabaseReplica
from engine.ddl.text import encode_bytes
from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperUnavailable,
    MultiFailed,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import Create, Keeper, Op, Remove, SetData

_KEEPER_WAIT_S = 300.0


class Proposal:
    """One entry; implements `Commit`."""

    def __init__(
        self, keeper: Keeper, replica: DatabaseReplica, number: int, *, once_per_shard: bool
    ) -> None:
        """Of `keeper`'s session. `active/<me>` is there, and goes with the commit."""
        self._keeper = keeper
        self._replica = replica
        self.number = number
        self._once_per_shard = once_per_shard
        self.changes: Mapping[str, str | None] = {}
        self.texts: Mapping[str, str] = {}
        """All definitions behind it, as they were planned."""
        self.is_committed = False
        self._is_used = False

    @property
    def is_used(self) -> bool:
        return self._is_used

    async def __call__(self, changes: Mapping[str, str | None]) -> None:
        """Raises SqlError 571 when the entry was not committed."""
        ops = await self.ops(changes)
        while not self.is_committed:
            try:
                await self._keeper.multi(ops)
                self.is_committed = True
            except MultiFailed as failed:
                raise _cancelled(self.number, failed.message) from failed
            except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
                if not await self.handed_over() and self._keeper.is_expired:
                    raise _cancelled(self.number, error.message) from error

    async def ops(self, changes: Mapping[str, str | None]) -> Sequence[Op]:
        """Raises SqlError 571 where nothing can be committed any more."""
        self._is_used = True
        self.changes = changes
        paths, me = self._replica.paths, self._replica.me
        texts: dict[str, str] = {
            name: text for name, text in self._replica.schema.texts().items() if name not in changes
        }
        texts |= {name: text for name, text in changes.items() if text is not None}
        self.texts = texts
        name = encode_bytes(str(me))
        ops: list[Op] = [
            Remove(paths.entry(self.number, "try")),
            Create(paths.entry(self.number, "committed"), name),
            SetData(paths.max_log_ptr, str(self.number).encode()),
            SetData(paths.replica(me, "log_ptr"), str(self.number).encode()),
            Create(paths.entry(self.number, f"finished/{me}"), b"0\n"),
            Create(paths.entry(self.number, f"synced/{me}"), b"0\n"),
            SetData(paths.replica(me, "digest"), str(digest_of(texts)).encode()),
            Remove(paths.entry(self.number, f"active/{me}")),
        ]
        if self._once_per_shard:
            ops += [
                Create(paths.entry(self.number, "shards")),
                Create(paths.shard(self.number, me.shard)),
                Create(paths.shard(self.number, me.shard, "executed"), name),
            ]
        try:
            return [*ops, *await self._metadata_ops(changes)]
        except SessionExpired as error:
            raise _cancelled(self.number, error.message) from error

    async def _metadata_ops(self, changes: Mapping[str, str | None]) -> list[Op]:
        nodes = [self._replica.paths.table(name) for name in changes]
        stats = await on_same_session(self._replica.env, lambda: self._keeper.exists_many(nodes))
        ops: list[Op] = []
        for node, stat, text in zip(nodes, stats, changes.values(), strict=True):
            if text is None:
                if stat is not None:
                    ops.append(Remove(node))
            elif stat is None:
                ops.append(Create(node, encode_bytes(text)))
            else:
                ops.append(SetData(node, encode_bytes(text), stat.version))
        return ops

    async def handed_over(self) -> bool:
        """Looks until it is known: a session that is over has taken `try` with it. Raises OperationTimeout
        when Keeper cannot be asked for long."""
        while True:
            try:
                keeper = await self._replica.holder.get(timeout_s=_KEEPER_WAIT_S)
            except KeeperUnavailable as error:
                raise OperationTimeout(
                    f"Nobody knows whether entry {self.number} of the database's log was committed: "
                    f"{error.message}",
                    hint="When Keeper is back this replica finds out, and is put right if need be.",
                ) from error
            try:
                await keeper.sync(self._replica.paths.root)
                committed = await is_there(keeper, self._replica.paths.entry(self.number, "committed"))
                has_try = await keeper.exists(self._replica.paths.entry(self.number, "try")) is not None
                if committed is not None:
                    self.is_committed = True
                    return True
                if not has_try or keeper is self._keeper:
                    return False
            except (ConnectionLoss, OperationTimeout, SessionExpired):
                pass
            await self._replica.env.sleep(0.2)


def _cancelled(number: int, why: str) -> SqlError:
    return SqlError(
        Code.DATABASE_REPLICATION_FAILED,
        f"Entry {number} of the database's log was not committed: {why}",
        hint="No other replica carries it out; the statement can be sent again.",
    )


Execute = Callable[[Proposal], Awaitable[None]]
"""Carries the statement out on the initiator, and calls what it is given."""
