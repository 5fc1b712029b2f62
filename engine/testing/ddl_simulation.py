"""The whole queue in one process, in virtual time, under every fault, repeatable from one seed.

    report = simulate(42)
    assert not report.violations, report

One run: a few nodes in two shards, each a worker and a cleaner over a model database and an intent record
that survive them; initiators that submit by token, some twice, some through broken connections; initiators
of other makes; poison in the queue. Then a nemesis: lost requests and replies, expired sessions,
partitions, Keeper restarts, kills between any two steps, power cuts, slow hosts, a host that never comes,
clocks that jump, clusters that change. Then the faults stop, everything that shall live is started, and
the queue has time to settle. Last the checkers of `engine.testing.ddl_checkers` read the history.

`Scenario.of_seed` says what a seed stands for. A run takes some tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.testing.ddl_checkers import Violation, violations
from engine.testing.ddl_cluster import SimulatedCluster
from engine.testing.ddl_history import History
from engine.testing.ddl_scenario import Scenario
from engine.testing.ddl_workload import Workload
from engine.testing.simulation import SimulationEnv, run_simulation


@dataclass(slots=True)
class Report:
    """What came of a run. `reached` counts the interesting states that it went through."""

    scenario: Scenario
    violations: list[Violation]
    reached: Counter[str]
    history: History
    virtual_s: float = 0.0

    def __str__(self) -> str:
        lines = [f"seed {self.scenario.seed}: {self.scenario}"]
        return "\n".join(lines + [f"  {violation}" for violation in self.violations])


def simulate(seed: int, scenario: Scenario | None = None) -> Report:
    """Run one seed to its end and check its history. The same seed gives the same run."""
    scenario = scenario or Scenario.of_seed(seed)
    with counting_events() as reached:

        async def main(env: SimulationEnv) -> History:
            return await _run(SimulatedCluster(scenario, env, reached))

        history = run_simulation(seed, main, max_steps=400_000)
    return Report(scenario, violations(history), reached, history)


async def _run(cluster: SimulatedCluster) -> History:
    cluster.start_all()
    nemesis = asyncio.create_task(_nemesis(cluster))
    await Workload(cluster).run()
    await cluster.env.sleep(cluster.rng.uniform(0.0, 20.0))
    nemesis.cancel()
    await asyncio.gather(nemesis, return_exceptions=True)
    return await cluster.finish()


async def _nemesis(cluster: SimulatedCluster) -> None:
    """Things that go wrong by themselves, until cancelled."""
    scenario, rng = cluster.scenario, cluster.rng
    if scenario.is_membership_changed:
        asyncio.get_running_loop().call_later(rng.uniform(0.0, 5.0), cluster.change_membership)
    while True:
        await cluster.env.sleep(rng.uniform(0.2, 4.0))
        host = rng.choice(list(cluster.hosts.values()))
        if scenario.is_partitioned and rng.random() < 0.3 and host.process is not None:
            client = host.process.name
            cluster.server.partition(client)
            cluster.reached["partition"] += 1
            asyncio.get_running_loop().call_later(rng.uniform(0.5, 15.0), cluster.server.heal, client)
        if scenario.is_stopped and rng.random() < 0.3 and host.process is not None:
            cluster.stop_for_a_while(host.process, rng.uniform(0.5, 20.0))
        if scenario.is_keeper_restarted and rng.random() < 0.15:
            cluster.reached["keeper restart"] += 1
            await cluster.server.restart(down_s=rng.uniform(0.1, 8.0))
        if scenario.has_clock_jumps and rng.random() < 0.3:
            host.env.jump_clock(rng.choice([-3600.0, 3600.0]))
        for table in host.database.tables.values():
            if rng.random() < 0.5:
                table.insert()
            if rng.random() < 0.3:
                table.merge()


class _EventCounter(logging.Handler):
    """Counts log events by their id, and by the `step` or `reason` that decides."""

    def __init__(self, reached: Counter[str]) -> None:
        super().__init__()
        self._reached = reached

    def emit(self, record: logging.LogRecord) -> None:
        event = record.msg.split(" ", 1)[0]
        self._reached[event] += 1
        if event in ("ddl.recovered", "ddl.shard_takeover") and isinstance(record.args, tuple):
            self._reached[f"{event} {record.args[-1]}"] += 1


@contextmanager
def counting_events() -> Iterator[Counter[str]]:
    """What the code says in its log, counted; nothing is printed."""
    reached: Counter[str] = Counter()
    logger = logging.getLogger("engine.ddl")
    handler = _EventCounter(reached)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    quiet = logging.getLogger("engine.keeper")
    quiet_level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        yield reached
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        quiet.setLevel(quiet_level)


__all__ = ["Report", "Scenario", "counting_events", "simulate"]
