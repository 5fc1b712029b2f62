"""A seeded simulation of replicated tables under faults: `simulate(seed)` runs one world and judges it.

A world is three to five replicas of one table on machines whose disks outlive their processes, a Keeper, and
a network. While users insert, optimize, mutate and drop, things go wrong: lost requests and replies, sessions
that end, stopped and killed processes, partitions from Keeper and between replicas, also one-way, damaged
transfers and disks, full disks, errors of the disk, lost disks, hosts that get another name, a short log,
entries of the log that nobody can read. Then the faults stop, everything is started, and the replicas have
time to become quiet. Last the checkers of `engine.testing.replication.checkers` read the history.

`Scenario.of_seed` says what a seed stands for.
"""

from __future__ import annotations

import asyncio

from engine.keeper.faults import Direction
from engine.testing.replication.checkers import violations
from engine.testing.replication.cluster import ReplicationCluster
from engine.testing.replication.history import History
from engine.testing.replication.scenario import Scenario
from engine.testing.replication.workload import Workload
from engine.testing.simulation import SimulationEnv, run_simulation
from engine.testing.simulation_report import Report, counting_events

MAX_STEPS = 300_000
"""A run that takes more gets nowhere: those that end take a tenth of it at the most."""


def simulate(seed: int, scenario: Scenario | None = None) -> Report[Scenario, History]:
    """Run one seed to its end and check its history. The same seed gives the same run."""
    scenario = scenario or Scenario.of_seed(seed)
    with counting_events("engine.replication") as reached:

        async def main(env: SimulationEnv) -> History:
            return await _run(ReplicationCluster(scenario, env, reached))

        history = run_simulation(seed, main, max_steps=MAX_STEPS)
    if reached["replica.died"]:
        history.notes.append("a replica has stopped because of an error in the program")
    return Report(scenario, violations(history), reached, history)


async def _run(cluster: ReplicationCluster) -> History:
    cluster.start_all()
    await cluster.env.sleep(cluster.rng.choice([0.0, 1.0, 10.0]))
    nemesis = asyncio.create_task(_nemesis(cluster), name="nemesis")
    await Workload(cluster).run()
    await cluster.env.sleep(cluster.rng.uniform(0.0, 20.0))
    nemesis.cancel()
    await asyncio.gather(nemesis, return_exceptions=True)
    return await cluster.finish()


async def _nemesis(cluster: ReplicationCluster) -> None:
    """Things that go wrong by themselves, until cancelled."""
    scenario, rng, mishaps = cluster.scenario, cluster.rng, cluster.mishaps
    entries_to_poison = 1 if scenario.has_poison else 0
    disks_to_lose = 1 if scenario.has_lost_disk else 0
    hosts_to_rename = 2 if scenario.has_renamed_hosts else 0
    absences = 1 if scenario.has_long_absence else 0
    trees_to_lose = rng.choice([1, 1, 2]) if scenario.has_keeper_loss else 0
    while True:
        await cluster.env.sleep(rng.uniform(0.2, 4.0))
        node = rng.choice(list(cluster.nodes.values()))
        other = rng.choice(list(cluster.nodes.values()))
        if scenario.is_network_cut and rng.random() < 0.3:
            cluster.reached["network cut"] += 1
            if rng.random() < 0.5:
                cluster.network.cut(node.name, other.name)
            else:
                cluster.network.heal_all()
        if scenario.has_clock_jumps and rng.random() < 0.3:
            cluster.reached["clock jump"] += 1
            node.env.jump_clock(rng.choice([-3600.0, 3600.0]))
        if scenario.is_keeper_restarted and cluster.server.is_up and rng.random() < 0.15:
            await mishaps.restart_keeper(rng.choice([0.1, 3.0, 15.0]))
        if trees_to_lose and cluster.server.is_up and rng.random() < 0.2:
            trees_to_lose -= 1
            cluster.loss.lose_some()
        if entries_to_poison and rng.random() < 0.3:
            entries_to_poison -= 1
            mishaps.poison_log(rng.uniform(1.0, 30.0))
        if node.process is None or not node.is_running:
            continue
        if scenario.is_partitioned and rng.random() < 0.3:
            direction = rng.choice(list(Direction))
            mishaps.cut_off_from_keeper(node, rng.uniform(0.5, 20.0), direction=direction)
        if absences and rng.random() < 0.4:
            absences -= 1
            mishaps.cut_off_from_keeper(node, rng.uniform(40.0, 120.0))
        if scenario.is_stopped and rng.random() < 0.25:
            mishaps.stop_for_a_while(node, rng.uniform(0.5, 20.0))
        if scenario.is_expired and rng.random() < 0.25:
            for session_id in cluster.server.session_ids(node.process.name):
                cluster.reached["session ended"] += 1
                cluster.server.expire_session(session_id)
        if scenario.has_damaged_disks and rng.random() < 0.2:
            mishaps.harm(node)
        if hosts_to_rename and rng.random() < 0.3:
            hosts_to_rename -= 1
            mishaps.rename_host(node, rng.uniform(1.0, 60.0))
            continue
        if disks_to_lose and rng.random() < 0.15:
            disks_to_lose -= 1
            mishaps.lose_disk(node)


__all__ = ["Report", "Scenario", "simulate"]
