"""A table that is taken away while a statement sends what waits in its spool."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from engine.distributed.definition import DistributedDefinition
from engine.distributed.delivery import Block, Policy
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_table import SpoolBlock
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.names import HostId, TableName
from engine.node.distributed.registry.tables import DistributedTable
from engine.node.distributed.sending.spools import Spools

SHARD = PeerShard(1, 1, True, (Peer(HostId("host", 9000), "host", 8123),))
TABLE = DistributedTable(
    uuid.UUID(int=1),
    TableName("d", "t"),
    DistributedDefinition.parse("Distributed('c', 'd', 't') SETTINGS flush_on_detach = 0"),
    "",
    (),
)


class Slow:
    """A receiver in place of all replicas. `begun` counts blocks, `under_way` those without an answer."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.under_way = 0
        self.answers = asyncio.Event()

    async def to_any(self, peers: Sequence[Peer], block: Block, policy: Policy) -> Peer:
        self.under_way += 1
        self.begun.release()
        try:
            await self.answers.wait()
        finally:
            self.under_way -= 1
        return peers[0]


async def rows() -> AsyncIterator[bytes]:
    yield b"x"


async def test_no_block_is_sent_twice_at_once_where_a_table_is_attached_again_during_a_flush(
    tmp_path: Path,
) -> None:
    """1. SYSTEM FLUSH DISTRIBUTED sends a block, and the receiver takes its time. 2. The table is detached.
    3. It is attached, and its sender sends what is there. A receiver that does not deduplicate would have
    both."""
    slow = Slow()
    spools = Spools(
        tmp_path,
        tables=cast(Any, None),
        deliveries=cast(Any, slow),
        shards_of=lambda _: [SHARD],
        env=SystemEnv(),
    )
    spools.block(TABLE)
    await spools.put(TABLE, [SpoolBlock(("shard1_all_replicas",), FileHead("token", ("k",), 1), rows())])
    flushing = asyncio.create_task(spools.flush(TABLE))
    await slow.begun.acquire()

    await spools.stop(TABLE.uuid)
    spools.unblock(TABLE)
    await slow.begun.acquire()

    assert slow.under_way == 1
    with pytest.raises(SqlError, match="detached") as stopped:
        await flushing
    assert stopped.value.code == Code.ABORTED
    slow.answers.set()
    await spools.flush(TABLE)
    assert not list(tmp_path.rglob("*.bin"))
    await spools.stop_all()
