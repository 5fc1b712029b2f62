"""Where the blocks of one INSERT go: which replicas of a shard, and what is said when one failed.

Foreground: blocks are delivered shard by shard at once, the blocks of one shard in their order, and the
INSERT ends when every replica that has to have its rows has them, or when its time is over: nobody waits any
longer for other nodes then. What was written before a failure stays written, and the error says what that is.
Repeating the statement with its `insert_deduplication_token` writes only what is missing.

Source: ClickHouse's DistributedSink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from engine.distributed.delivery import Block, Deliveries, Policy
from engine.distributed.peers import Peer, PeerShard
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.killable import ends_by_kill


@dataclass(frozen=True, slots=True)
class ShardBlocks:
    """What one shard gets."""

    shard: PeerShard
    blocks: Sequence[Block]


@dataclass(slots=True)
class _Progress:
    """Of one shard, or of one replica where each gets its own copy."""

    target: str
    blocks: int = 0
    rows: int = 0
    failure: OnclusterError | None = None

    def __str__(self) -> str:
        return f"Wrote {self.blocks} blocks and {self.rows} rows on {self.target}"


class ForegroundInsert:
    """One INSERT. A `timeout_s` of 0 is none."""

    def __init__(self, deliveries: Deliveries, env: Env, *, policy: Policy, timeout_s: float = 0.0) -> None:
        self._deliveries = deliveries
        self._env = env
        self._policy = policy
        self._timeout_s = timeout_s

    async def write(self, shards: Sequence[ShardBlocks]) -> None:
        """Deliver everything. Raises SqlError, with what was written; of several failures the first."""
        jobs: list[tuple[_Progress, Sequence[Peer], Sequence[Block]]] = []
        for part in shards:
            number = part.shard.number
            if part.shard.internal_replication:
                jobs.append((_Progress(f"shard {number}"), part.shard.peers, part.blocks))
                continue
            for peer in part.shard.peers:
                target = f"shard {number} replica {peer.replica_number}, {peer.name.readable}"
                jobs.append((_Progress(target), [peer], part.blocks))
        begun_s = self._env.monotonic_s()
        async with asyncio.TaskGroup() as group:
            for progress, peers, blocks in jobs:
                until_s = begun_s + self._timeout_s if self._timeout_s else None
                group.create_task(self._one(progress, peers, blocks, until_s))
        failed = [progress for progress, _, _ in jobs if progress.failure is not None]
        status = "; ".join(str(progress) for progress, _, _ in jobs)
        if failed:
            raise _failure(failed, status)
        if self._timeout_s and self._env.monotonic_s() - begun_s > self._timeout_s:
            raise SqlError(
                Code.TIMEOUT_EXCEEDED,
                f"Synchronous distributed insert timeout exceeded. Insertion status: {status}",
            )

    async def _one(
        self, progress: _Progress, peers: Sequence[Peer], blocks: Sequence[Block], until_s: float | None
    ) -> None:
        for block in blocks:
            try:
                with ends_by_kill():
                    peer = await self._deliveries.to_any(peers, block, self._policy, until_s=until_s)
            except OnclusterError as error:
                progress.failure = error
                return
            if not progress.blocks and len(peers) > 1:
                progress.target += f" replica {peer.replica_number}, {peer.name.readable}"
            progress.blocks += 1
            progress.rows += block.rows


def _failure(failed: Sequence[_Progress], status: str) -> SqlError:
    first = failed[0].failure
    assert first is not None
    said = "; ".join(f"{progress.target}: {progress.failure}" for progress in failed)
    is_unknown = any(isinstance(progress.failure, UnknownOutcome) for progress in failed)
    hint = (
        "Whether the rows of a lost answer were written is not known; the same INSERT with the same "
        "insert_deduplication_token writes each row once."
        if is_unknown
        else "What was written stays. The same INSERT with its insert_deduplication_token writes the rest."
    )
    message = f"{said.removesuffix('.')}. Insertion status: {status}."
    return SqlError(first.code or Code.NETWORK_ERROR, message, hint=hint)
