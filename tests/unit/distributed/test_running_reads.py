"""Who is told that a statement has been killed, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from engine.distributed.peers import Peer
from engine.names import HostId
from engine.node.distributed.reading.failover import Failover, Read
from engine.node.distributed.reading.running_reads import RunningReads
from engine.node.statements.reads_key import FilledIn
from engine.sql import parse_statement
from engine.testing.simulation import SimulationEnv, run_simulation


def test_other_nodes_are_told_of_a_kill_as_long_as_the_statement_goes_on() -> None:
    """1. A statement is killed while its request is on its way. 2. The other node is told, in vain. 3. It is
    told again until the statement has ended, and no more then."""

    async def main(env: SimulationEnv) -> None:
        told: list[str] = []

        async def query_text(sql: str) -> str:
            told.append(sql)
            return ""

        health = SimpleNamespace(env=env, client=lambda _: SimpleNamespace(query_text=query_text))
        reads = RunningReads(cast(Any, health))
        asked = SimpleNamespace(query_id="q")
        failover = Failover(cast(Any, health), cast(Any, asked), parse_statement("SELECT 1"))
        failover.filled_in = FilledIn("key")
        failover.reads = {Read(Peer(HostId("n2", 9000), "n2", 8123), cast(Any, "a table"), "", "")}
        with reads.running(failover):
            reads.kill("q")
            await env.sleep(60)
            while_running = len(told)
            assert while_running > 10 and all("key" in sql for sql in told)
        await env.sleep(60)
        assert len(told) <= while_running + 1
        await reads.close()

    run_simulation(1, main)
