"""A node as initiator: SYSTEM STOP and START REPLICATED DDL QUERIES, and what it says of who asks."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.config.model import NodeConfig, User
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Execution
from engine.ddl.identity import FixedResolver, NodeIdentity
from engine.errors import SqlError
from engine.keeper.recipes import SessionHolder
from engine.node.config_reload import ConfigReload
from engine.node.distributed.executor import DistributedExecutor
from engine.node.queues import NodeQueues
from engine.node.statements.node_commands import NodeCommands
from engine.node.statements.on_cluster import ClusterStatements
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTables
from tests.unit.ddl.support import PATHS, QUEUE, Bench, host, run

STOP, START = "SYSTEM STOP REPLICATED DDL QUERIES", "SYSTEM START REPLICATED DDL QUERIES"
CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = Memory"


class Session:
    """Of it nothing is asked but what it was set to."""

    database = "default"
    is_readonly = False

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self.parameters: dict[str, str] = {}


class Node:
    """The initiator `a` behind its router; the hosts of the bench carry out what it submits."""

    def __init__(self, bench: Bench, *, names_user: bool = False) -> None:
        self.commands = NodeCommands(ConfigReload(cast(Any, None), env=bench.env, on_change=lambda: None))
        holder = SessionHolder(bench.server.factory(client="initiator"), bench.env)
        queues = NodeQueues(
            NodeConfig("nowhere", queues=(QUEUE,)),
            factory=bench.server.factory(client="worker"),
            holder=holder,
            env=bench.env,
            executor=cast(Any, None),
            intents=cast(Any, None),
            identity=NodeIdentity(host_name="a", tcp_port=9000, server_uuid=bench.env.new_uuid()),
            resolver=FixedResolver({}),
            topology=lambda: bench.topology,
        )
        statements = ClusterStatements(
            queues,
            env=bench.env,
            topology=lambda: bench.topology,
            initiator=host("a"),
            is_one_statement=self._is_one,
            commands=self.commands,
            names_user=names_user,
        )
        self.holder = holder
        self._router = StatementRouter(
            tables=SystemTables([]), run_on_cluster=statements.run, commands=self.commands
        )

    async def _is_one(self, sql: str) -> bool:
        return True

    async def post(self, sql: str, **settings: str) -> int:
        """The code of the error, 0 for none."""
        try:
            async with self._router.run(Asked(sql, User("ann"), cast(Any, Session(**settings)))) as answer:
                while await answer.read():
                    pass
                await answer.finish()
        except SqlError as error:
            return error.code
        return 0


def test_a_node_whose_replicated_ddl_is_stopped_takes_no_statement_on_cluster_but_for_system() -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        node = Node(bench)
        assert await node.post(STOP) == 0
        assert await node.post(CREATE) == 392
        assert await (await bench.client()).list() == (), "nothing was submitted"
        assert await node.post(f"{START} ON CLUSTER c") == 0
        assert await node.post(CREATE) == 392, "the hosts of this bench are others"
        assert await node.post(START) == 0
        assert await node.post(CREATE) == 0
        await node.holder.close()

    run(main)


@pytest.mark.parametrize(("names_user", "user"), [(False, ""), (True, "ann")])
def test_an_entry_says_who_asked_only_where_the_configuration_says_so(names_user: bool, user: str) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        node = Node(bench, names_user=names_user)
        assert await node.post(CREATE, distributed_ddl_entry_format_version="8") == 0
        text = (await (await bench.keeper()).get(PATHS.entry("query-0000000000"))).data
        assert DDLLogEntry.from_bytes(text).initiator_user == user
        await node.holder.close()

    run(main)


async def test_the_switch_is_turned_from_the_queue_too() -> None:
    commands = NodeCommands(ConfigReload(cast(Any, None), env=cast(Any, None), on_change=lambda: None))
    executor = DistributedExecutor(
        cast(Any, None), node=cast(Any, None), new_session=cast(Any, None), commands=commands
    )
    await executor.execute(Execution(STOP))
    assert not commands.is_replicated_ddl_enabled
    await executor.execute(Execution(START))
    assert commands.is_replicated_ddl_enabled
