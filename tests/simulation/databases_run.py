"""Random statements in a Replicated database of three replicas under faults, and what must hold of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from engine.databases import (
    ReplicaName,
)
from engine.databases.digest import digest_of
from engine.errors import SqlError
from engine.keeper.base import Keeper
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.names import entry_number
from engine.testing.simulation import SimulationEnv
from tests.simulation.databases_model import PATHS, Replica, applied, stop

NAMES = ("a", "b", "c")
VERBS = ("CREATE", "DROP", "ALTER", "RENAME", "REPLACE", "EXCHANGE")
CALM_S = 3600.0


async def simulate(env: SimulationEnv, seed: int) -> Counter[str]:
    """How often the run has come to what: outcomes of statements, starts, older disks."""
    rng = random.Random(f"databases {seed}")
    plan = FaultPlan.rough(random.Random(f"faults {seed}"), rate=rng.choice((0.0, 0.01, 0.05)))
    server = MemoryKeeperServer(env, faults=plan)
    has_images = rng.random() < 0.3
    favourite = rng.choice(VERBS)
    kills_initiators = rng.random() < 0.5
    replicas = [Replica(name, env.fork(), server) for name in ("r1", "r2", "r3")]
    reached: Counter[str] = Counter()
    outcomes: list[tuple[str, str]] = []

    async def client(number: int) -> None:
        for at in range(12):
            await asyncio.sleep(rng.expovariate(0.3))
            replica = rng.choice(replicas)
            if replica.process is None or not replica.process.is_alive:
                if has_images and rng.random() < 0.3:
                    replica.disk = replica.image
                    reached["older disk"] += 1
                replica.image = replica.disk.copy()
                replica.start(rng.randint(1, 150) if rng.random() < 0.6 else None)
                reached["started again"] += 1
                continue
            verb = favourite if rng.random() < 0.6 else rng.choice(VERBS)
            operand = rng.choice(NAMES) if verb in ("RENAME", "EXCHANGE") else f"t{number}.{at}"
            query = f"{verb} {rng.choice(NAMES)}" + ("" if verb == "DROP" else f" {operand}")
            if kills_initiators and rng.random() < 0.3:
                replica.process.kill_at = replica.process.gates + rng.randint(1, 60)
            outcome = await replica.submit(query)
            reached[outcome] += 1
            outcomes.append((query, outcome))

    for replica in replicas:
        replica.start(rng.randint(20, 200) if rng.random() < 0.5 else None)
    await asyncio.gather(*(client(number) for number in range(4)))
    plan.calm()
    for replica in replicas:
        if replica.process is None or not replica.process.is_alive:
            replica.start(None)
        else:
            replica.process.kill_at = None
    await asyncio.sleep(CALM_S)

    keeper = await server.factory(client="checker")()
    log = await _Log.read(keeper, replicas)
    metadata = (await keeper.children(PATHS.metadata)).names
    wanted = {name: (await keeper.get(PATHS.table(name))).data.decode() for name in metadata}
    assert log.definitions == wanted, "the committed entries make the definitions of nothing"
    for query, outcome in outcomes:
        if outcome == "ok":
            assert query in log.committed, f"{query} was answered with success"
        elif outcome == "failed" and query.startswith(("CREATE", "ALTER", "REPLACE")):
            reached["failed and committed"] += query in log.committed
    for replica in replicas:
        await _assert_follows(replica, keeper, wanted)
        reached["moved aside"] += len(replica.disk.aside)
        await stop(replica)
    assert not log.untold
    reached["committed"] += len(log.committed)
    return reached


async def _assert_follows(replica: Replica, keeper: Keeper, wanted: Mapping[str, str]) -> None:
    assert replica.database is not None
    assert replica.disk.texts == wanted, f"B1: {replica.name}"
    assert not replica.database.readonly_reason, f"{replica.name}: {replica.database.readonly_reason}"
    assert not replica.disk.dropped_with_rows, "B3"
    assert not replica.disk.emptied, f"B3: {replica.name}"
    assert not replica.disk.kept, replica.name
    me = ReplicaName("s", replica.name)
    assert int((await keeper.get(PATHS.replica(me, "digest"))).data) == digest_of(wanted), "B1"
    newest = int((await keeper.get(PATHS.max_log_ptr)).data)
    assert int((await keeper.get(PATHS.replica(me, "log_ptr"))).data) <= newest


@dataclass
class _Log:
    """What the committed entries say."""

    definitions: dict[str, str] = field(default_factory=dict)
    """As whoever carries out all of them has them."""
    committed: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    """Entries whose outcome on a replica nobody can know."""

    @classmethod
    async def read(cls, keeper: Keeper, replicas: Sequence[Replica]) -> _Log:
        log = cls()
        joined = {
            str(me): int((await keeper.get(PATHS.replica(me, "max_log_ptr_at_creation"))).data)
            for me in (ReplicaName("s", replica.name) for replica in replicas)
        }
        for name in (await keeper.children(PATHS.log)).names:
            if await keeper.exists(f"{PATHS.log}/{name}/committed") is None:
                continue
            data = (await keeper.get(f"{PATHS.log}/{name}")).data.decode()
            query = data.split("query: ")[1].split("\n")[0]
            if query:
                concerned = {each for each, newest in joined.items() if (entry_number(name) or 0) > newest}
                await log._take_outcomes(keeper, name, concerned)
                log._carry_out(query)
        return log

    async def _take_outcomes(self, keeper: Keeper, name: str, concerned: Set[str]) -> None:
        active, finished, synced = [
            {*(await keeper.children(f"{PATHS.log}/{name}/{leaf}")).names}
            for leaf in ("active", "finished", "synced")
        ]
        if unheard := concerned - (finished & synced):
            self.untold.append(f"{name}: whoever waits for {unheard} waits for ever")
        if active & finished:
            self.untold.append(f"{name}: {active & finished} seem to be at it")

    def _carry_out(self, query: str) -> None:
        try:
            self.definitions = applied(self.definitions, query)
        except SqlError as error:
            raise AssertionError(f"the committed entries: {query} behind {self.committed}") from error
        self.committed.append(query)
