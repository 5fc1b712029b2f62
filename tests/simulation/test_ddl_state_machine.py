"""Hypothesis writes the script: it submits, kills, cuts off and waits in any order, and shrinks what breaks a
promise to the fewest steps. The cluster, the faults and the checkers are those of the simulation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.testing.ddl.checkers import violations
from engine.testing.ddl.cluster import SimulatedCluster, SimulatedHost
from engine.testing.ddl.scenario import Scenario
from engine.testing.ddl.workload import Workload
from engine.testing.simulation import SimulationEnv
from engine.testing.simulation_loop import SimulationLoop
from engine.testing.simulation_report import counting_events

HOSTS = st.sampled_from(["n1", "n2", "n3"])
STATEMENTS = st.sampled_from(
    [
        "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = MergeTree",
        "CREATE TABLE d.r ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree",
        "ALTER TABLE d.t ON CLUSTER c ADD COLUMN b Int8",
        "ALTER TABLE d.r ON CLUSTER c ADD COLUMN b Int8",
        "ALTER TABLE d.t ON CLUSTER c UPDATE a = a + 1 WHERE 1",
        "TRUNCATE TABLE d.t ON CLUSTER c",
        "RENAME TABLE d.t TO d.u ON CLUSTER c",
        "DROP TABLE d.t ON CLUSTER c",
    ]
)


class Queue(RuleBasedStateMachine):
    """Three hosts in two shards; every step runs the simulation on a little."""

    cluster: SimulatedCluster

    @initialize(seed=st.integers(0, 10_000), pool_size=st.sampled_from([1, 3]), small=st.booleans())
    def begin(self, seed: int, pool_size: int, small: bool) -> None:
        self._quiet = counting_events("engine.ddl")
        self._quiet.__enter__()
        scenario = Scenario(seed, nodes=3, pool_size=pool_size, has_small_queue=small)
        self.loop = SimulationLoop(seed, max_steps=2_000_000)  # type: ignore[abstract]
        self.cluster = SimulatedCluster(scenario, SimulationEnv(seed, self.loop), Counter())
        self.workload = Workload(self.cluster)
        self.initiators: list[asyncio.Task[None]] = []
        self.tokens = 0
        self.run(self.call(self.cluster.start_all))

    async def call(self, function: Any, *arguments: Any) -> None:
        function(*arguments)

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)

    def host(self, name: str) -> SimulatedHost:
        return self.cluster.hosts[name]

    @rule(sql=STATEMENTS, is_twice=st.booleans(), wait_s=st.sampled_from([0.0, 0.01, 2.0]))
    def submit(self, sql: str, is_twice: bool, wait_s: float) -> None:
        self.tokens += 1

        async def go() -> None:
            for _ in range(1 + is_twice):
                work = self.workload.initiate(sql, f"token-{self.tokens}")
                self.initiators.append(asyncio.get_running_loop().create_task(work))
            await asyncio.sleep(wait_s)

        self.run(go())

    @rule(name=HOSTS, gates=st.integers(1, 40))
    def kill_soon(self, name: str, gates: int) -> None:
        process = self.host(name).process
        if process is not None:
            process.kill_at = process.gates + gates

    @rule(name=HOSTS)
    def cut_power(self, name: str) -> None:
        host = self.host(name)

        async def go() -> None:
            if host.process is not None and host.process.is_alive:
                host.process.kill()
                host.disk.cut_power()

        self.run(go())

    @rule(name=HOSTS, for_s=st.sampled_from([0.5, 8.0]))
    def stop_and_go_on(self, name: str, for_s: float) -> None:
        process = self.host(name).process
        if process is not None:
            self.run(self.call(self.cluster.stop_for_a_while, process, for_s))

    @rule(name=HOSTS)
    def expire_sessions(self, name: str) -> None:
        async def go() -> None:
            process = self.host(name).process
            for session in self.cluster.server.session_ids(process.name if process else ""):
                self.cluster.server.expire_session(session)

        self.run(go())

    @rule(
        name=HOSTS,
        fault=st.sampled_from(["lose_next_request", "lose_next_reply", "lose_next_reply_and_lag"]),
    )
    def lose_something(self, name: str, fault: str) -> None:
        process = self.host(name).process
        for session in self.cluster.server.session_ids(process.name if process else ""):
            getattr(self.cluster.server, fault)(session)

    @rule(name=HOSTS)
    def insert_and_merge(self, name: str) -> None:
        for table in self.host(name).database.tables.values():
            table.insert()
            table.merge()

    @rule(seconds=st.sampled_from([0.001, 0.05, 1.0, 10.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:

            async def finish() -> None:
                if self.initiators:
                    await asyncio.wait(self.initiators, timeout=120.0)
                await self.cluster.finish()

            self.run(finish())
            self.loop.cancel_leftovers()
            broken = violations(self.cluster.history)
            assert not broken, "\n".join(map(str, broken))
        finally:
            self.loop.close()
            self._quiet.__exit__(None, None, None)


Queue.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
class TestTheQueueUnderScriptsOfHypothesis(Queue.TestCase):
    """Its one test is `runTest`."""
