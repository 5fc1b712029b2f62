"""Rows of a replicated table in a Replicated database are changed once in each shard, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from engine.databases import DatabasePaths, ReplicaName
from engine.databases.shard_turn import ShardTurn
from engine.ddl.attempt import Fence
from engine.errors import ConnectionLoss, OnclusterError
from engine.keeper.base import Create, CreateMode
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder, create_ancestors
from engine.testing.simulated_process import GatedEnv, Process, gated_factory
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.simulation.seeds import chosen_seeds

PATHS = DatabasePaths("/databases/d")
ENTRY, TABLE = 7, "/table"
REPLICAS = [ReplicaName("s1", "a"), ReplicaName("s1", "b"), ReplicaName("s1", "c"), ReplicaName("s2", "a")]
SESSION_S = 6.0


class Replica:
    """A worker that comes to the entry again until it has recorded it. Its process comes and goes."""

    def __init__(
        self, me: ReplicaName, env: SimulationEnv, server: MemoryKeeperServer, *, is_fenced: bool
    ) -> None:
        self.me = me
        self.env = env
        self.server = server
        self.is_fenced = is_fenced
        self.process: Process | None = None
        self.executions = 0

    def start(self, kill_at: int | None) -> None:
        client = f"{self.me}-{self.env.rng.random()}"
        process = Process(client, kill_at=kill_at, on_kill=lambda: self.server.crash_client(client))
        env = GatedEnv(self.env, process)
        factory = gated_factory(self.server.factory(session_timeout_s=SESSION_S, client=client), process)
        self.process = process
        process.spawn(self._work(env, SessionHolder(factory, env)), name=client)

    async def _work(self, env: GatedEnv, holder: SessionHolder) -> None:
        finished = PATHS.entry(ENTRY, f"finished/{self.me}")
        while True:
            try:
                keeper = await holder.get()
                if await keeper.exists(finished) is not None:
                    return

                async def carry_out(fence: Fence) -> None:
                    self.executions += 1
                    await env.sleep(env.rng.expovariate(0.5))
                    row = Create(f"{TABLE}/{self.me.shard}/row-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
                    ops = (fence if self.is_fenced else Fence()).whole() or ()
                    # The table's own session; it need not be the worker's.
                    await (await holder.get()).multi([row, *ops])

                ops = await ShardTurn(keeper, env, PATHS, self.me, ENTRY).run(carry_out)
                await keeper.multi([Create(finished), *ops])
            except OnclusterError:
                await env.sleep(0.5)


async def simulate(env: SimulationEnv, seed: int, *, is_fenced: bool = True) -> Counter[str]:
    rng = random.Random(f"shard turns {seed}")
    plan = FaultPlan.rough(random.Random(f"faults {seed}"), rate=rng.choice((0.0, 0.02, 0.08)))
    server = MemoryKeeperServer(env)
    checker = await server.factory(client="checker")()
    shards = sorted({me.shard for me in REPLICAS})
    entry = PATHS.entry(ENTRY)
    for path in (f"{entry}/finished", *(f"{TABLE}/{shard}" for shard in shards)):
        await create_ancestors(checker, path)
        await checker.create(path)
    server.faults = plan
    replicas = [Replica(me, env.fork(), server, is_fenced=is_fenced) for me in REPLICAS]
    reached: Counter[str] = Counter()
    for _ in range(rng.randint(1, 12)):
        replica = rng.choice(replicas)
        if replica.process is None or not replica.process.is_alive:
            replica.start(rng.randint(5, 40) if rng.random() < 0.6 else None)
            reached["started"] += 1
        elif rng.random() < 0.5:
            # SIGSTOP, and SIGCONT later: its session may be over by then, and it does not know.
            replica.process.stop()
            server.partition(replica.process.name)
            reached["stopped"] += 1
            await asyncio.sleep(rng.uniform(0, 3 * SESSION_S))
            server.heal(replica.process.name)
            replica.process.go_on()
        await asyncio.sleep(rng.expovariate(0.5))
    plan.calm()
    for replica in replicas:
        if replica.process is None or not replica.process.is_alive:
            replica.start(None)
        replica.process.kill_at = None  # type: ignore[union-attr]  # started above at the latest
    await asyncio.sleep(600)
    checker = await server.factory(client="last look")()
    for shard in shards:
        rows = (await checker.children(f"{TABLE}/{shard}")).names
        assert len(rows) == 1, f"shard {shard} was changed {len(rows)} times (seed {seed})"
    assert len((await checker.children(f"{entry}/finished")).names) == len(REPLICAS), f"seed {seed}"
    for shard in shards:
        leaves = (await checker.children(PATHS.shard(ENTRY, shard))).names
        assert "executed" in leaves and "lock" not in leaves, f"seed {seed}: {leaves}"
        here = sum(replica.executions for replica in replicas if replica.me.shard == shard)
        reached["carried out again, or by another"] += here > 1
    return reached


def run(seeds: range, *, is_fenced: bool = True) -> Counter[str]:
    reached: Counter[str] = Counter()
    for seed in seeds:
        reached += run_simulation(seed, lambda env, seed=seed: simulate(env, seed, is_fenced=is_fenced))  # type: ignore[misc]
    return reached


@pytest.mark.slow
def test_each_shard_changes_its_rows_once() -> None:
    seeds = chosen_seeds(1, 200)
    reached = run(seeds)
    if len(seeds) >= 200:
        assert reached["stopped"] and reached["carried out again, or by another"] > 5, reached


def test_a_lock_of_ones_own_goes_although_another_replica_has_done_the_work() -> None:
    """1. The answer to the lock's create is lost. 2. Its former owner has done the work. 3. Another try."""

    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.connect()
        lock, executed = (PATHS.shard(ENTRY, "s1", leaf) for leaf in ("lock", "executed"))
        await create_ancestors(keeper, lock)
        server.lose_next_reply(keeper.session_id)
        with pytest.raises(ConnectionLoss):
            await keeper.create(lock, b"s1|a", mode=CreateMode.EPHEMERAL)
        await keeper.create(executed, b"s1|b")

        async def carry_out(fence: Fence) -> None:
            raise AssertionError("it is done")

        assert await ShardTurn(keeper, env, PATHS, REPLICAS[0], ENTRY).run(carry_out) == []
        assert await keeper.exists(lock) is None

    run_simulation(1, main)


def test_a_lock_that_no_session_owns_holds_nobody_up() -> None:
    """Of a copy of Keeper's tree, made by another tool."""

    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).factory()()
        me, lock = REPLICAS[0], PATHS.shard(ENTRY, "s1", "lock")
        await create_ancestors(keeper, lock)
        await keeper.create(lock, b"s1|b")
        done: list[Fence] = []

        async def carry_out(fence: Fence) -> None:
            done.append(fence)

        async with asyncio.timeout(60):
            await ShardTurn(keeper, env, PATHS, me, ENTRY).run(carry_out)
        assert len(done) == 1

    run_simulation(1, main)


def test_without_the_fence_a_shard_changes_its_rows_twice() -> None:
    with pytest.raises(AssertionError, match="was changed 2 times"):
        run(range(1, 200), is_fenced=False)
