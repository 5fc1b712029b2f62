"""Inserts, quorums, drops and cleanup of a replicated table against each Keeper: the transactions that are
made of many operations, with parts in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.keeper import Keeper
from engine.keeper.base import Create, CreateMode, SetData
from engine.keeper.recipes import SessionHolder, wait_until_exists
from engine.names import TableName
from engine.replication.commands.create import Created, create_replica
from engine.replication.commands.drop import Dropped, drop_dead_replica, drop_replica
from engine.replication.commands.insert import Inserted, Inserter, InsertOptions
from engine.replication.creation import NewReplica
from engine.replication.host import ReplicaHost
from engine.replication.part_name import PartName
from engine.replication.paths import TablePaths
from engine.replication.quorum import LastQuorumParts
from engine.replication.replica.block_numbers import allocate_everywhere, cancel_committing, committing
from engine.replication.replica.cleanup.turns import Cleanup
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replica.quorum import part_is_here
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.network import MemoryPartNetwork
from engine.testing.replication.store import MemoryPartStore
from tests.conformance.conftest import Backend

PATHS = TablePaths("/clickhouse/tables/01/t")
SETTINGS = ReplicatedSettings(
    min_replicated_logs_to_keep=3, max_replicated_logs_to_keep=10, replicated_deduplication_window=5
)


async def make(keeper: Keeper, number: int) -> Created:
    definition = model_definition()
    new = NewReplica(
        definition.metadata.to_bytes(), definition.columns.to_bytes(), UUID(int=7), UUID(int=number)
    )
    return await create_replica(keeper, PATHS, PATHS.replica(f"r{number}"), new, definition)


@asynccontextmanager
async def replica(backend: Backend, number: int) -> AsyncIterator[ReplicaContext]:
    """An active replica, without background work."""
    env = SystemEnv()
    async with SessionHolder(backend.open, env) as holder:
        keeper = await holder.get()
        await make(keeper, number)
        ctx = ReplicaContext(
            name=TableName("d", "t"),
            paths=PATHS,
            me=PATHS.replica(f"r{number}"),
            env=env,
            holder=holder,
            store=MemoryPartStore(StoreDisk(model_definition()), env),
            fetcher=MemoryPartNetwork(env).fetcher("n"),
            host=ReplicaHost("n", 9009, 9000, "d", "t"),
            server_uuid=str(number),
            settings=SETTINGS,
            queue=ReplicaQueue(),
            other_table=lambda database, table: None,
            is_leader=True,
        )
        await keeper.multi(
            [
                Create(ctx.me.is_active, b"", CreateMode.EPHEMERAL),
                SetData(ctx.me.host, ctx.host.to_bytes()),
            ]
        )
        ctx.keeper = keeper
        yield ctx


async def insert(
    ctx: ReplicaContext, *values: int, partition: str = "all", options: InsertOptions | None = None
) -> list[Inserted]:
    assert isinstance(ctx.store, MemoryPartStore)
    parts = [await ctx.store.write(partition, [{"k": value, "v": 0}]) for value in values]
    return list(await Inserter(ctx).commit(parts, options or InsertOptions()))


async def test_inserts_of_two_replicas_at_once_get_different_numbers_and_equal_blocks_once(
    backend: Backend,
) -> None:
    async with replica(backend, 1) as one, replica(backend, 2) as two:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(insert(ctx, value)) for ctx in (one, two) for value in range(8)]
        done = [task.result()[0] for task in tasks]
        stored = {each.name for each in done if not each.is_duplicate}
        assert len(stored) == 8 and {each.name for each in done} == stored
        keeper = one.session()
        assert len((await keeper.children(PATHS.log)).names) == 8
        assert len((await keeper.children(PATHS.blocks)).names) == 8
        assert await committing(one) == {}


async def test_parts_of_many_partitions_are_one_transaction(backend: Backend) -> None:
    async with replica(backend, 1) as ctx:
        assert isinstance(ctx.store, MemoryPartStore)
        parts = [await ctx.store.write(f"p{number}", [{"k": number, "v": 0}]) for number in range(30)]
        done = await Inserter(ctx).commit(parts, InsertOptions())
        stats = await ctx.session().exists_many([ctx.me.part(each.name) for each in done])
        assert len({stat.czxid for stat in stats if stat is not None}) == 1
        again = await insert(ctx, 7, 8, partition="p7")
        assert [each.is_duplicate for each in again] == [True, False]


async def test_numbers_that_are_taken_away_are_replaced(backend: Backend) -> None:
    async with replica(backend, 1) as ctx:
        await insert(ctx, 0)
        numbers = await allocate_everywhere(ctx, ctx.session())
        assert numbers.numbers == {"all": 1} and await committing(ctx) == {"all": {1}}
        assert await cancel_committing(ctx.session(), PATHS, "all", below=2) == 1
        assert await committing(ctx) == {}
        (done,) = await insert(ctx, 1)
        assert done.name.min_block == 2


@pytest.mark.parametrize("is_parallel", [True, False])
async def test_a_quorum_is_reached(backend: Backend, is_parallel: bool) -> None:
    options = InsertOptions(quorum=2, quorum_parallel=is_parallel, quorum_timeout_s=20)
    async with replica(backend, 1) as one, replica(backend, 2) as two:
        task = asyncio.create_task(insert(one, 1, options=options))
        await wait_until_exists(two.session(), f"{PATHS.log}/log-0000000000")
        await part_is_here(two, PartName.parse("all_0_0_0"))
        (done,) = await task
        last = LastQuorumParts.from_bytes((await one.session().get(PATHS.quorum_last_part)).data)
        assert last.parts == (() if is_parallel else (done.name,))


async def test_cleanup_keeps_what_is_needed(backend: Backend) -> None:
    async with replica(backend, 1) as one, replica(backend, 2) as two:
        await insert(one, *range(12))
        keeper = one.session()
        for ctx, pointer in ((one, 12), (two, 7)):
            await keeper.set(ctx.me.log_pointer, str(pointer).encode())
        await keeper.set(two.me.is_lost, b"0")
        await Cleanup(one).run_once()
        names = (await keeper.children(PATHS.log)).names
        assert names[0] == "log-0000000007" and len(names) == 5
        assert len((await keeper.children(PATHS.blocks)).names) == 5


async def test_tables_are_dropped_with_their_last_replica(backend: Backend) -> None:
    keeper = await backend.open()
    async with replica(backend, 1) as one:
        await make(keeper, 2)
        await insert(one, *range(120), options=InsertOptions(deduplicate=False))
        with pytest.raises(SqlError) as caught:
            await drop_dead_replica(keeper, PATHS, "r1")
        assert caught.value.code == Code.TABLE_WAS_NOT_DROPPED
        assert await drop_dead_replica(keeper, PATHS, "r2") is Dropped.REPLICA
    assert await drop_replica(keeper, PATHS, PATHS.replica("r1")) is Dropped.TABLE
    assert await keeper.exists(PATHS.root) is None
    assert await make(keeper, 1) is Created.TABLE and await make(keeper, 1) is Created.REUSED
