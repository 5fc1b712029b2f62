"""The whole queue in one process, in virtual time, under every fault, repeatable from one seed.

    report = simulate(42)
    assert not report.violations, report

One run: a few nodes in two shards, each a worker and a cleaner over a model database and an intent record
that survive them; initiators that submit by token, some twice, some through broken connections; initiators
of other makes; poison in the queue. Then a nemesis: lost requests and replies, expired sessions,
partitions, Keeper restarts, kills between any two steps, power cuts, slow hosts, a host that never comes,
clocks that jump, clusters that change. Then the faults stop, everything that shall live is started, and
the queue has time to settle. Last the checkers of `engine.testing.ddl.checkers` read the history.

`Scenario.of_seed` says what a seed stands for. A run takes some tens of milliseconds.
"""

from __future__ import annotations

import asyncio

from engine.testing.ddl.checkers import violations
from engine.testing.ddl.cluster import SimulatedCluster
from engine.testing.ddl.history import History
from engine.testing.ddl.scenario import Scenario
from engine.testing.ddl.workload import Workload
from engine.testing.simulation import SimulationEnv, run_simulation
from engine.testing.simulation_report import Report, counting_events

DETAILED_EVENTS = ("ddl.recovered", "ddl.shard_takeover")
"""Their last argument is the step or the reason that decides; each of these is a state of its own."""


def simulate(seed: int, scenario: Scenario | None = None) -> Report[Scenario, History]:
    """Run one seed to its end and check its history. The same seed gives the same run."""
    scenario = scenario or Scenario.of_seed(seed)
    with counting_events("engine.ddl", detailed=DETAILED_EVENTS) as reached:

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


__all__ = ["Report", "Scenario", "simulate"]
