"""Who uses the table in a simulation: inserts that are repeated when their outcome is not known, reads, and
all that changes parts (`part_steps`)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from engine.errors import OnclusterError
from engine.replication.commands.consistent_read import max_blocks
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext
from engine.testing.replication.cluster import ReplicationCluster
from engine.testing.replication.history import Insert, Outcome, Read, SequentialRead
from engine.testing.replication.node import SimulatedNode
from engine.testing.replication.part_steps import PartSteps
from engine.testing.replication.rows import rows_of
from engine.testing.replication.steps import Block, Rowset
from engine.testing.replication.store import MemoryPartStore

_TRIES = 6
_STEPS_OF_AN_ABSENCE = 6


class Workload(PartSteps):
    """Uses the table as the scenario says."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        super().__init__(cluster)
        self._sending: Counter[int] = Counter()
        """Blocks that are being inserted, by their numbers."""

    async def run(self) -> None:
        """Steps one after another and side by side."""
        more = _STEPS_OF_AN_ABSENCE if self._scenario.has_long_absence else 0
        for _ in range(self._scenario.steps + more):
            step = self._rng.choices(*self._choices())[0]
            task: asyncio.Task[None] = asyncio.create_task(step(), name=step.__name__)
            self._running.append(task)
            if self._rng.random() < 0.5:
                await asyncio.wait([task], timeout=self._rng.uniform(0.0, 8.0))
        await asyncio.wait(self._running, timeout=200.0)
        for task in self._running:
            task.cancel()
        for result in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _choices(self) -> tuple[list[Callable[[], Coroutine[Any, Any, None]]], list[int]]:
        scenario = self._scenario
        weights: dict[Callable[[], Coroutine[Any, Any, None]], int] = {
            self.insert: 12,
            self.repeat: 3,
            self.read: 2,
            self.read_sequentially: 5 if scenario.has_quorum else 0,
            self.optimize: 2 if scenario.has_merges else 0,
            self.mutate: 4 if scenario.has_mutations else 0,
            self.alter: 6 if scenario.has_alters else 0,
            self.drop_partition: 3 if scenario.has_partition_commands else 0,
            self.detach_and_attach: 2 if scenario.has_partition_commands else 0,
            self.replace_partition: 2 if scenario.has_partition_commands else 0,
            self.drop_part: 1 if scenario.has_partition_commands else 0,
            self.kill_mutation: 1 if scenario.has_mutations else 0,
            self.clear_in_partition: 6 if scenario.has_rare_commands else 0,
            self.fetch_and_attach: 4 if scenario.has_rare_commands else 0,
            self.operate: 4 if scenario.has_operators else 0,
            self.drop_and_create_replica: 2 if scenario.has_dropped_replica else 0,
        }
        return list(weights), list(weights.values())

    # --- inserts ------------------------------------------------------------------------------------------

    async def insert(self) -> None:
        """New rows; now and then with a token, a quorum, or without deduplication."""
        rng, number = self._rng, len(self._blocks)
        rows: Rowset = [{"k": number * 10 + n, "v": 0} for n in range(rng.randint(1, 3))]
        quorum = rng.choice([0, 2, 2, self._scenario.replicas]) if self._scenario.has_quorum else 0
        if self._scenario.is_sequential:
            quorum = max(quorum, 2)
        options = InsertOptions(
            deduplicate=rng.random() < 0.9,
            token=f"token-{number}" if rng.random() < 0.3 else "",
            quorum=quorum,
            quorum_parallel=rng.random() < 0.5 and not self._scenario.is_sequential,
            quorum_timeout_s=rng.choice([5.0, 60.0]),
            max_retries=rng.choice([0, 3, 20]),
        )
        block = Block(number, self._partition(), rows, options)
        self._blocks.append(block)
        await self._send(block)

    async def repeat(self) -> None:
        """A client that does not believe its acknowledgement, or never got it."""
        blocks = [block for block in self._blocks if block.options.deduplicate]
        if blocks:
            self._reached["repeated insert"] += 1
            await self._send(self._rng.choice(blocks))

    async def _send(self, block: Block) -> None:
        """Until it is acknowledged; what is not deduplicated is sent once."""
        for _ in range(_TRIES if block.options.deduplicate else 1):
            node = self._node()
            if node is not None and await self._attempt(node, block) is Outcome.OK:
                return
            if self._cluster.is_calm:
                return
            await self._cluster.env.sleep(self._rng.uniform(0.1, 5.0))

    async def _attempt(self, node: SimulatedNode, block: Block) -> Outcome:
        history = self._cluster.history
        ctx, store, process = node.ctx, node.store, node.process
        assert ctx is not None and store is not None
        started_at = history.tick()
        since = node.cut_off_since
        self._cluster.isolation.insert_begins(node, has_quorum=block.options.quorum > 1)

        async def insert() -> bool:
            async with Inserter(ctx) as inserter:
                await inserter.check(block.options)
                if block.number % 2:  # seldom it comes to this by itself
                    ctx.usual_partition = (block.partition_id, 3)
                inserter.rows_are_coming(block.options)
                new = await store.write(block.partition_id, block.rows)
                inserted = await inserter.commit([new], block.options)
                return inserted[0].is_duplicate

        if block.number in self._sending:
            self._reached["the same insert at once"] += 1
        self._sending[block.number] += 1
        try:
            outcome, is_duplicate = await self._on(node, "insert", insert())
        finally:
            self._sending -= Counter([block.number])
        if outcome is Outcome.OK and is_duplicate:
            self._reached["duplicate insert"] += 1
        rows = rows_of(block.rows)
        history.inserts.append(
            Insert(
                block=f"{block.number}",
                replica=node.me.name,
                partition_id=block.partition_id,
                rows=rows,
                started_at=started_at,
                ended_at=history.tick(),
                outcome=outcome,
                quorum=block.options.quorum,
                holders=self._cluster.holders(block.partition_id, rows),
                no_keeper=since is not None and node.cut_off_since == since and node.process is process,
                deduplicate=block.options.deduplicate,
                is_sequential=not block.options.quorum_parallel,
            )
        )
        return outcome

    async def read(self) -> None:
        """What a reader on some node sees; its errors count unless the node's disk was harmed."""
        node = self._node()
        if node is None or node.store is None:
            return
        try:
            rows = node.store.rows()
        except OnclusterError as error:
            self._reached["damage seen by a reader"] += 1
            if not any(replica == node.me.name for _, replica, _ in self._cluster.history.harmed):
                self._cluster.history.reads.append(
                    Read(self._cluster.history.tick(), node.me.name, None, str(error))
                )
            return
        if node.cut_off_since is not None:
            self._reached["read without Keeper"] += 1
        self._cluster.history.reads.append(Read(self._cluster.history.tick(), node.me.name, rows))

    async def read_sequentially(self) -> None:
        """With `select_sequential_consistency`, on every replica."""
        for node in self._cluster.nodes.values():
            if not node.is_running or node.ctx is None or node.store is None:
                continue
            started_at = self._cluster.history.tick()
            ctx, store = node.ctx, node.store

            async def read(ctx: ReplicaContext = ctx, store: MemoryPartStore = store) -> list[PartName]:
                limits = await max_blocks(ctx)
                return [name for name in store.active if name.max_block <= limits.get(name.partition_id, -1)]

            outcome, parts = await self._on(node, "sequential read", read())
            if outcome is Outcome.OK and parts is not None:
                self._cluster.history.sequential_reads.append(
                    SequentialRead(started_at, self._cluster.history.tick(), node.me.name, tuple(parts))
                )
