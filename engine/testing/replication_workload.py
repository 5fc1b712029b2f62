"""Who uses the table in a simulation: inserts that are repeated when their outcome is not known, and all that
changes parts: OPTIMIZE, mutations, ALTER, partition commands, replicas that are dropped and made again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from engine.errors import Code, OnclusterError, UnknownOutcome
from engine.replication.commands import alter, mutate, optimize, partitions
from engine.replication.commands.consistent_read import max_blocks
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.commands.waiting import Sync
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from engine.testing.replication_cluster import SOURCE_TABLE, Recreation, ReplicationCluster, SimulatedNode
from engine.testing.replication_disk import StoredPart
from engine.testing.replication_history import Insert, Outcome, Read, SequentialRead
from engine.testing.replication_rows import Value, rows_of
from engine.testing.replication_store import MemoryPartStore

T = TypeVar("T")
Rowset = list[dict[str, Value]]
_UNKNOWN = (Code.UNKNOWN_STATUS_OF_INSERT, Code.UNFINISHED, Code.KEEPER_EXCEPTION)
_TRIES = 6


class _Waiting(TypedDict):
    sync: Sync
    inactive_timeout_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """One insert that a client may send several times."""

    number: int
    partition_id: str
    rows: Rowset
    options: InsertOptions


class Workload:
    """Uses the table as the scenario says."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        self._cluster = cluster
        self._scenario = cluster.scenario
        self._reached = cluster.reached
        self._rng = random.Random(f"workload {cluster.scenario.seed}")
        self._blocks: list[Block] = []
        self._running: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Steps one after another and side by side."""
        for _ in range(self._scenario.steps):
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
            self.alter: 2 if scenario.has_alters else 0,
            self.drop_partition: 3 if scenario.has_partition_commands else 0,
            self.detach_and_attach: 2 if scenario.has_partition_commands else 0,
            self.replace_partition: 2 if scenario.has_partition_commands else 0,
            self.drop_part: 1 if scenario.has_partition_commands else 0,
            self.kill_mutation: 1 if scenario.has_mutations else 0,
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

        async def insert() -> bool:
            inserter = Inserter(ctx)
            await inserter.check(block.options)
            new = await store.write(block.partition_id, block.rows)
            inserted = await inserter.commit([new], block.options)
            return inserted[0].is_duplicate

        outcome, is_duplicate = await self._on(node, "insert", insert())
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

    # --- what changes parts -------------------------------------------------------------------------------

    async def optimize(self) -> None:
        node = self._node()
        if node is not None and node.ctx is not None:
            options = optimize.OptimizeOptions(
                partition_id=self._partition() if self._rng.random() < 0.5 else None,
                extent=self._rng.choice(list(optimize.Extent)),
                sync=self._sync(),
                inactive_timeout_s=10.0,
            )
            await self._on(node, "optimize", optimize.optimize(node.ctx, options))

    async def mutate(self) -> None:
        node = self._node()
        if node is None or node.ctx is None:
            return
        key = self._rng.randrange(max(1, len(self._blocks))) * 10
        commands = self._rng.choice(
            [
                "UPDATE v = v + 1 WHERE 1",
                f"UPDATE v = v + 100 WHERE k = {key}",
                f"DELETE WHERE k = {key}",
            ]
        )
        ctx = node.ctx
        only = [self._partition()] if self._rng.random() < 0.3 else None

        async def run() -> None:
            number = await mutate.create_mutation(ctx, commands, partition_ids=only)
            await mutate.wait_for_mutation(ctx, number, sync=self._sync(), inactive_timeout_s=10.0)

        await self._on(node, "mutation", run())

    async def kill_mutation(self) -> None:
        node = self._node()
        if node is None or node.ctx is None or not node.ctx.queue.mutations:
            return
        number = self._rng.choice(sorted(node.ctx.queue.mutations))
        await self._on(node, "kill mutation", mutate.kill_mutation(node.ctx, number))

    async def operate(self) -> None:
        """SYSTEM RESTART REPLICA; SYSTEM STOP … and, some time later, START."""
        node = self._node()
        if node is None or node.ctx is None or node.table is None:
            return
        if self._rng.random() < 0.5:
            await self._on(node, "restart replica", node.table.restart())
            return
        ctx = node.ctx
        activity = self._rng.choice([Activity.MERGES, Activity.FETCHES, Activity.QUEUES, Activity.PULLING])
        ctx.switches.stop(activity)
        await self._cluster.env.sleep(self._rng.uniform(0.0, 10.0))
        ctx.switches.start(activity)
        for signal in (ctx.queue_changed, ctx.merge_wanted, ctx.log_changed):
            signal.set()

    async def alter(self) -> None:
        node = self._node()
        if node is None or node.ctx is None or node.store is None:
            return
        names = list(node.disk.definition.columns.by_name)
        extra = [name for name in names if name not in ("k", "v")]
        commands = f"ADD COLUMN c{self._rng.randrange(1000)} UInt64"
        if extra and self._rng.random() < 0.6:
            commands = self._rng.choice(
                [f"DROP COLUMN {extra[0]}", f"MODIFY COLUMN {extra[0]} UInt{self._rng.choice([8, 16, 32])}"]
            )
        await self._on(
            node,
            "alter",
            alter.alter_table(node.ctx, commands, sync=self._sync(), inactive_timeout_s=10.0),
        )

    async def drop_partition(self) -> None:
        node = self._node()
        if node is None or node.ctx is None:
            return
        if self._rng.random() < 0.2:
            await self._on(node, "truncate", partitions.truncate(node.ctx, **self._waiting()))
        else:
            await self._on(
                node,
                "drop partition",
                partitions.drop_partition(node.ctx, self._partition(), **self._waiting()),
            )

    async def detach_and_attach(self) -> None:
        node = self._node()
        if node is None or node.ctx is None:
            return
        partition_id = self._partition()
        await self._on(
            node,
            "detach partition",
            partitions.drop_partition(
                node.ctx, partition_id, fate=partitions.RangeFate.DETACH, **self._waiting()
            ),
        )
        await self._cluster.env.sleep(self._rng.uniform(0.0, 10.0))
        if node.ctx is not None and node.is_running and node.disk.detached:
            await self._on(
                node,
                "attach partition",
                partitions.attach_partition(node.ctx, partition_id, **self._waiting()),
            )

    async def replace_partition(self) -> None:
        """From a plain table on one node, whose rows nobody else has."""
        node = self._node()
        if node is None or node.ctx is None:
            return
        number, partition_id = len(self._blocks), self._partition()
        self._blocks.append(Block(number, partition_id, [], InsertOptions(deduplicate=False)))
        columns = node.disk.definition.columns.to_bytes()
        stored = StoredPart.of_rows(rows_of([{"k": number * 10, "v": 0}]), columns, (), 0.0)
        node.source_disk.active = {PartName(partition_id, 1, 1, 0): stored}
        await self._on(
            node,
            "replace partition",
            partitions.replace_partition(
                node.ctx, partition_id, SOURCE_TABLE.database, SOURCE_TABLE.table, **self._waiting()
            ),
        )

    async def drop_part(self) -> None:
        node = self._node()
        if node is None or node.ctx is None or not node.disk.active:
            return
        name = self._rng.choice(sorted(node.disk.active))
        await self._on(node, "drop part", partitions.drop_part(node.ctx, name, **self._waiting()))

    async def drop_and_create_replica(self) -> None:
        """DROP TABLE on one node, and CREATE TABLE again; the others keep the table alive."""
        node = self._node()
        if node is None or node.ctx is None or node.table is None or node.me.name == "r1":
            return
        node.recreation = Recreation.DROP
        await self._on(node, "drop replica", node.table.stop())
        if node.process is not None and node.is_running:
            node.process.kill()

    # --- on a node ----------------------------------------------------------------------------------------

    async def _on(
        self, node: SimulatedNode, what: str, operation: Coroutine[Any, Any, T]
    ) -> tuple[Outcome, T | None]:
        """Run it in the node's process; a kill leaves its outcome unknown."""
        assert node.process is not None
        task = node.process.spawn(operation, name=f"{what} on {node.name}")
        if self._scenario.has_impatient_users and self._rng.random() < 0.3:
            asyncio.get_running_loop().call_later(self._rng.choice([0.0, 0.01, 0.3, 3.0]), task.cancel)
        try:
            done = (await asyncio.gather(task, return_exceptions=True))[0]
        finally:
            task.cancel()
        outcome, result = Outcome.OK, None
        match done:
            case asyncio.CancelledError():
                outcome = Outcome.UNKNOWN
                self._reached[f"{what} killed"] += 1
            case UnknownOutcome():
                outcome = Outcome.UNKNOWN
            case OnclusterError(code=code):
                outcome = Outcome.UNKNOWN if code in _UNKNOWN else Outcome.FAILED
                self._reached[f"{what} failed with {code}"] += 1
            case BaseException():
                raise done
            case _:
                result = done
        self._reached[f"{what} {outcome.value}"] += 1
        return outcome, result

    def _node(self) -> SimulatedNode | None:
        running = [node for node in self._cluster.nodes.values() if node.is_running]
        return self._rng.choice(running) if running else None

    def _partition(self) -> str:
        return str(self._rng.randint(1, self._scenario.partitions))

    def _sync(self) -> Sync:
        return self._rng.choice([Sync.NONE, Sync.OWN, Sync.ALL])

    def _waiting(self) -> _Waiting:
        return {"sync": self._sync(), "inactive_timeout_s": 10.0}
