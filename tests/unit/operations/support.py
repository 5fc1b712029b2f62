"""A site for tests of operations: a cluster of two shards, a memory Keeper, records in a file, under virtual
time. Servers are what the test makes them: `clients` takes anything with the methods that are called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from engine.config.model import Cluster, DistributedDdl, NodeConfig, Replica, Shard, Topology
from engine.env import Env
from engine.keeper.base import Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.names import HostId
from engine.operations.records import Records
from engine.operations.site import Site
from engine.testing.simulation import SimulationEnv, run_simulation

T = TypeVar("T")
CLUSTER = "c"
HOSTS = tuple(HostId(f"n{number}", 9000) for number in (1, 2, 3, 4))
"""n1 and n2 are shard 1, n3 and n4 are shard 2."""


def config(**queue: Any) -> NodeConfig:
    shards = tuple(
        Shard(
            number,
            tuple(Replica(host.host, host.port) for host in HOSTS[2 * number - 2 : 2 * number]),
            internal_replication=True,
        )
        for number in (1, 2)
    )
    return NodeConfig(
        path="unused",
        topology=Topology(clusters={CLUSTER: Cluster(CLUSTER, shards)}),
        queues=(DistributedDdl(**queue),),
    )


def site(
    folder: Path,
    env: Env,
    keeper: Keeper | None,
    *,
    clients: Mapping[HostId, Any] | None = None,
    operator: str = "ada@here",
    patience_s: float = 5.0,
    **queue: Any,
) -> Site:
    return Site(
        CLUSTER,
        config(**queue),
        Records(folder / "records.db", env=env),
        env,
        operator,
        keeper_or_none=keeper,
        clients=dict(clients or {}),
        patience_s=patience_s,
    )


def simulated(main: Callable[[SimulationEnv, MemoryKeeperServer], Awaitable[T]], *, seed: int = 1) -> T:
    async def run(env: SimulationEnv) -> T:
        return await main(env, MemoryKeeperServer(env.fork()))

    return run_simulation(seed, run)
