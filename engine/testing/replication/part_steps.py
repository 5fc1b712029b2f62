"""Steps of a simulated workload that change parts: OPTIMIZE, mutations, ALTER, partition commands, replicas
that are dropped and made again."""

from __future__ import annotations

from engine.replication.commands import alter, mutate, optimize, partitions
from engine.replication.commands.insert import InsertOptions
from engine.replication.part_name import PartName
from engine.replication.replica.switches import Activity
from engine.testing.replication.cluster import SOURCE_TABLE
from engine.testing.replication.disk import StoredPart
from engine.testing.replication.history import Alter, Outcome
from engine.testing.replication.node import Recreation, SimulatedNode
from engine.testing.replication.rows import rows_of
from engine.testing.replication.steps import Block, Steps


class PartSteps(Steps):
    """One method for each."""

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
        history = self._cluster.history
        began = history.tick()
        work = alter.alter_table(node.ctx, commands, sync=self._sync(), inactive_timeout_s=10.0)
        outcome, _ = await self._on(node, "alter", work)
        history.alters.append(Alter(commands, began, history.tick(), outcome))

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
        await self.attach(node, partition_id)

    async def clear_in_partition(self) -> None:
        """CLEAR COLUMN and CLEAR INDEX IN PARTITION."""
        node = self._node()
        if node is None or node.ctx is None:
            return
        ctx, only = node.ctx, [self._partition()]

        async def clear_index() -> int:
            number = await mutate.create_mutation(ctx, "CLEAR INDEX i", partition_ids=only)
            await mutate.wait_for_mutation(ctx, number, **self._waiting())
            return number

        clear_column = partitions.clear_column(ctx, "v", only, **self._waiting())
        if self._rng.random() < 0.7:
            await self._on(node, "clear column", clear_column)
        else:
            clear_column.close()
            await self._on(node, "clear index", clear_index())

    async def fetch_and_attach(self) -> None:
        """FETCH PARTITION from the table itself, and ATTACH of what came: its rows are there once more."""
        node = self._node()
        if node is None or node.ctx is None:
            return
        ctx, partition_id = node.ctx, self._partition()
        outcome, fetched = await self._on(
            node, "fetch partition", partitions.fetch_partition(ctx, partition_id, ctx.paths.root)
        )
        if outcome is not Outcome.OK or fetched is None:
            return
        for name in fetched:  # somebody may have attached it or dropped the table, before the client was told
            if (part := node.disk.detached.get(str(name))) is not None:
                part.check(f"{name}, just fetched into detached/,")
        await self.attach(node, partition_id)

    async def attach(self, node: SimulatedNode, partition_id: str) -> None:
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
