"""An INSERT with chDB as the store: block ids are ClickHouse's, and what was inserted is read and sent."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from engine.env import SystemEnv
from engine.keeper.base import Create, CreateMode, SetData
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.replication.commands.create import create_replica
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.creation import NewReplica
from engine.replication.host import ReplicaHost
from engine.replication.part_header import PartHeader
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.settings import ReplicatedSettings
from engine.testing.replication.network import MemoryPartNetwork
from tests.unit.part_storage.support import TABLE, opened

PATHS = TablePaths("/clickhouse/tables/t")
OF_CLICKHOUSE = "all_6308706741995381342_2495791770474910886"
"""What ClickHouse 22.2 writes for one row with the Int32 value 1, according to its own test suite."""


async def test_the_block_id_of_rows_is_that_of_clickhouse(tmp_path: Path) -> None:
    create = "CREATE TABLE t (n Int32) ENGINE = MergeTree ORDER BY n"
    async with opened(tmp_path, create) as (pool, store):
        env = SystemEnv()
        server = MemoryKeeperServer(env)
        async with SessionHolder(server.factory(), env) as holder:
            keeper = await holder.get()
            definition = await store.definition()
            new = NewReplica(
                definition.metadata.to_bytes(), definition.columns.to_bytes(), UUID(int=1), UUID(int=2)
            )
            me = PATHS.replica("r1")
            await create_replica(keeper, PATHS, me, new, definition)
            await keeper.multi([Create(me.is_active, b"", CreateMode.EPHEMERAL), SetData(me.host, b"")])
            ctx = ReplicaContext(
                name=TABLE,
                paths=PATHS,
                me=me,
                env=env,
                holder=holder,
                store=store,
                fetcher=MemoryPartNetwork(env).fetcher("n"),
                host=ReplicaHost("n", 9009, 9000, "default", "t"),
                server_uuid="2",
                settings=ReplicatedSettings(),
                queue=ReplicaQueue(),
                other_table=lambda database, table: None,
                keeper=keeper,
            )
            await store.load()
            duplicates = []
            for value in (1, 1, 2):
                async with store.insert_stage() as stage:
                    await pool.query(f"INSERT INTO {stage.table.quoted} VALUES ({value})")
                    done = await Inserter(ctx).commit(await stage.collect(), InsertOptions())
                duplicates += [each.is_duplicate for each in done]
            assert duplicates == [False, True, False]
            names = (await keeper.children(PATHS.blocks)).names
            assert OF_CLICKHOUSE in names and len(names) == 2
            for name, part in store.active.items():
                header = PartHeader.from_bytes((await keeper.get(me.part(name))).data)
                assert header == part.header
            assert [str(name) for name in store.active] == ["all_0_0_0", "all_1_1_0"]
            found = await pool.query("SELECT n FROM t ORDER BY n")
            assert found.text.split() == ["1", "2"]
