"""Handing one block of rows to a replica, whichever of a shard's can be reached.

Safety argument. A block has a token, made once and kept with it; every attempt to deliver it, now or after a
crash, on this replica or another one of the shard, carries the same token. A table that deduplicates by token
(every replicated one; a plain one with `non_replicated_deduplication_window`) therefore stores it once,
though an answer was lost and the block is sent again. What is *known* not to have happened (nobody listens,
the replica refuses) goes to the next replica at once, and to those that were not reached once more. What is
unknown is left to the caller: a background sender repeats it, an INSERT in the foreground says so.

Never: a new token for a block that was sent before; two replicas of one shard at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.distributed.peers import Peer
from engine.distributed.replica_choice import (
    Candidate,
    ErrorLimits,
    LoadBalancing,
    ReplicaFailures,
    ReplicaOrder,
)
from engine.env import Env
from engine.errors import Code, NodeUnavailable, OnclusterError, ReplyLost, SqlError
from engine.names import HostId, quote_identifier

CONNECT_TIMEOUT_S = 1.0
CONNECTION_TRIES = 3
"""As in ClickHouse (`connect_timeout_with_failover_ms`, `connections_with_failover_max_tries`): where a
machine has far too much to do, a second passes before a connection is made. One that is refused is refused
again at once."""

TOKEN_SETTING = "insert_deduplication_token"
DEPTH_SETTING = "max_distributed_depth"
"""How many more tables may be Distributed on the way; each takes one off. 0 is no limit."""

_CANNOT_NOW = frozenset(
    {
        Code.UNKNOWN_TABLE,
        Code.UNKNOWN_DATABASE,
        Code.TABLE_IS_READ_ONLY,
        Code.NO_ZOOKEEPER,
        Code.TOO_MANY_SIMULTANEOUS_QUERIES,
        Code.READONLY,
    }
)
"""Of this replica and this moment: nothing was written, and another replica may do it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows for one shard, as Native. `body` opens them anew each time it is called.

    `token` is the block's identity. `settings` go with the INSERT. `select` is a SELECT that gives the same
    rows in the same order on this node, where there is one. For `send_timeout_s` a replica may take
    nothing of it, and for `receive_timeout_s` then not answer.
    """

    database: str
    table: str
    columns: tuple[str, ...]
    token: str
    body: Callable[[], AsyncIterator[bytes]]
    rows: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    select: str = ""
    send_timeout_s: float = 300.0
    receive_timeout_s: float = 300.0

    def insert_sql(self, peer: Peer) -> str:
        """The INSERT without its FORMAT."""
        names = ", ".join(map(quote_identifier, self.columns))
        return f"INSERT INTO {peer.table(self.database, self.table)} ({names})"


class Sink(Protocol):
    """Writes a block to one replica."""

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        """Return when the replica has said that it has the rows.

        Raises NodeUnavailable when it was certainly not asked, ReplyLost when nobody knows, SqlError for the
        replica's own refusal.
        """
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """How the replicas of a shard are ordered: the settings of an INSERT, or of the server."""

    load_balancing: LoadBalancing = LoadBalancing.RANDOM
    first_offset: int = 0
    max_ignored_errors: int = 0
    prefer_localhost: bool = True


class AllReplicasFailed(OnclusterError):
    """No replica of the shard took the block, and none can have it."""

    default_code = Code.ALL_CONNECTION_TRIES_FAILED


class Deliveries:
    """Of all clusters of this node. `failures` says which replicas failed lately."""

    def __init__(
        self, sink: Sink, env: Env, *, own_host: str, failures: ReplicaFailures | None = None
    ) -> None:
        self.failures = failures or ReplicaFailures(ErrorLimits(), env.monotonic_s)
        self._sink = sink
        self._env = env
        self._own_host = own_host
        self._orders: dict[tuple[HostId, ...], ReplicaOrder] = {}
        self._without_token: set[HostId] = set()

    def in_order(self, peers: Sequence[Peer], policy: Policy) -> Sequence[Peer]:
        """The replicas of one shard, the first choice first."""
        names = tuple(peer.name for peer in peers)
        if names not in self._orders:
            self._orders[names] = ReplicaOrder(own_host=self._own_host, rng=self._env.rng)
        candidates = [
            Candidate(peer.name.host, errors=self.failures.count(peer.name), priority=peer.priority)
            for peer in peers
        ]
        order = self._orders[names].of(
            candidates,
            policy.load_balancing,
            first_offset=policy.first_offset,
            max_ignored_errors=policy.max_ignored_errors,
        )
        found = [peers[index] for index in order]
        if policy.prefer_localhost:
            found.sort(key=lambda peer: not peer.is_local)
        return found

    async def to_any(
        self, peers: Sequence[Peer], block: Block, policy: Policy, *, until_s: float | None = None
    ) -> Peer:
        """Deliver to one of them, and say to which. Raises AllReplicasFailed, ReplyLost, SqlError.

        `until_s` is when an answer of another node is waited for no longer, monotonic.
        """
        failed: dict[Peer, OnclusterError] = {}
        left = self.in_order(peers, policy)
        for _ in range(CONNECTION_TRIES):
            for peer in left:
                try:
                    await self.to(peer, block, until_s=until_s)
                    return peer
                except NodeUnavailable as error:
                    failed[peer] = error
                except SqlError as error:
                    if error.code not in _CANNOT_NOW:
                        raise
                    failed[peer] = error
            left = [peer for peer in left if isinstance(failed[peer], NodeUnavailable)]
            if until_s is not None and until_s - self._env.monotonic_s() < CONNECT_TIMEOUT_S:
                break  # one more would be given up when it is not known any more what was sent
        tried = [f"{peer.name.readable}: {error.message}" for peer, error in failed.items()]
        code = next((error.code for error in failed.values() if isinstance(error, SqlError)), None)
        if code and len(tried) == 1:
            raise SqlError(code, tried[0])
        raise AllReplicasFailed(f"All connection tries failed. Log: {'; '.join(tried)}", code=code)

    async def to(self, peer: Peer, block: Block, *, until_s: float | None = None) -> None:
        """Deliver to this one. Raises NodeUnavailable, ReplyLost, SqlError."""
        is_limited = until_s is not None and not peer.is_local  # what chDB writes here runs to its end
        left_s = max(0.0, until_s - self._env.monotonic_s()) if is_limited and until_s is not None else None
        try:
            async with asyncio.timeout(left_s) as limit:
                await self._write(peer, block)
        except TimeoutError:
            if not limit.expired():
                raise
            self.failures.failed(peer.name)
            raise ReplyLost(
                f"{peer.name.readable} did not answer in time.",
                code=Code.TIMEOUT_EXCEEDED,
                hint="The block may have been written.",
            ) from None
        except (NodeUnavailable, ReplyLost):
            self.failures.failed(peer.name)
            raise

    async def _write(self, peer: Peer, block: Block) -> None:
        with_token = bool(block.token) and peer.name not in self._without_token
        try:
            await self._sink.write(peer, block, with_token=with_token)
        except SqlError as error:
            if error.code != Code.UNKNOWN_SETTING or not with_token:
                raise
            # A server of before 2021. It knows a block by the hash of its rows, which are the same. Or one
            # that does not know another setting of this INSERT, and refuses it again: it gets tokens later.
            await self._sink.write(peer, block, with_token=False)
            self._without_token.add(peer.name)
