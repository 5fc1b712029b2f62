"""What a statement costs Keeper and how long it takes, on 10, 100 and 1,000 nodes, in virtual time.

    python -m benchmarks.simulate --json simulate.json

All nodes and one initiator run in this process, each with sessions of its own, over the memory Keeper; a
message takes half a millisecond to two milliseconds each way, a statement five milliseconds. Counted are
requests to Keeper (a multi is one, a pipelined read of n nodes is n) from the submission until the
initiator knows every host's outcome, divided by the hosts; the aim is that this does not grow with the
cluster. Times are virtual, so this machine's speed is not in them, and neither is the work of a Keeper
that has to write to disk.

The peer is a model of ClickHouse's own initiator and worker, from the operations and pauses that its protocol
prescribes (`docs/concepts/ddl-queue.md`): per host a listing, two reads, a claim and a report; the
initiator looks after 0, 50, 150, 300 … ms, at the entry, `finished`, `active` and each new outcome. With
10 nodes as with 1,000 it knows nothing before its next look.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import click

from benchmarks._table import Better, Report, Row, json_option
from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl import DDLQueueClient, DDLWorker, FixedResolver, NodeIdentity, prepare
from engine.keeper.base import Keeper, KeeperFactory
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.ddl.model import ModelDatabase, ModelExecutor
from engine.testing.ddl.process import IntentDisk, ModelIntentStore, Process
from engine.testing.simulation import SimulationEnv, run_simulation

PORT = 9000
LATENCY_S = (0.0005, 0.002)
STATEMENT_S = (0.004, 0.006)
REPLICAS = 2
STATEMENTS = {
    "CREATE on all hosts": "CREATE TABLE d.t{number} ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree",
    "ALTER on one host per shard": "ALTER TABLE d.t{number} ON CLUSTER c ADD COLUMN b Int8",
}
ENOUGH_LIKE_CONSTANT = 1.25


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one statement: requests to Keeper, and virtual seconds from submission to the last outcome known."""

    by_hosts: float
    by_initiator: float
    took_s: float

    def per_host(self, nodes: int) -> float:
        return (self.by_hosts + self.by_initiator) / nodes


def measure(nodes: int, rounds: int, seed: int) -> dict[str, Cost]:
    """The mean cost of each kind of statement."""

    async def main(env: SimulationEnv) -> dict[str, Cost]:
        return await _Bench(env, nodes).run(rounds)

    return run_simulation(seed, main, max_steps=200_000_000)


class _Bench:
    def __init__(self, env: SimulationEnv, nodes: int) -> None:
        self._env = env
        self._names = [f"node{number:04}" for number in range(1, nodes + 1)]
        self._server = MemoryKeeperServer(env, latency_s=LATENCY_S)
        self._queue = DistributedDdl()
        shards = tuple(
            Shard(at // REPLICAS + 1, tuple(Replica(n, PORT) for n in self._names[at : at + REPLICAS]))
            for at in range(0, nodes, REPLICAS)
        )
        self._topology = Topology({"c": Cluster("c", shards)}, {})

    async def run(self, rounds: int) -> dict[str, Cost]:

        workers = [self._worker(number, name) for number, name in enumerate(self._names)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        client = DDLQueueClient(await self._server.connect(client="initiator"), self._env, self._queue.paths)
        await self._statement(client, STATEMENTS["CREATE on all hosts"], 0)  # directories of the first time
        totals = {kind: [0.0, 0.0, 0.0] for kind in STATEMENTS}
        for number in range(1, rounds + 1):
            for kind, sql in STATEMENTS.items():
                cost = await self._statement(client, sql, number)
                for at, value in enumerate((cost.by_hosts, cost.by_initiator, cost.took_s)):
                    totals[kind][at] += value / rounds
        for worker in workers:
            worker.stop()
        await asyncio.wait(running)
        return {kind: Cost(*total) for kind, total in totals.items()}

    def _worker(self, number: int, name: str) -> DDLWorker:
        factory = self._server.factory(client=name)
        executor = ModelExecutor(
            ModelDatabase(name),
            self._env,
            duration_s=STATEMENT_S,
            keeper=_one_session(self._server.factory(client="replicated tables")),
            shard=str(number // REPLICAS),
        )
        return DDLWorker(
            factory=factory,
            env=self._env,
            executor=executor,
            intents=ModelIntentStore(IntentDisk(), Process(name, on_kill=lambda: None)),
            identity=NodeIdentity(name, PORT, UUID(int=number)),
            topology=lambda: self._topology,
            queue=self._queue,
            resolver=FixedResolver({}),
        )

    async def _statement(self, client: DDLQueueClient, sql: str, number: int) -> Cost:
        await self._env.sleep(5)  # nothing of the last one is under way any more
        self._server.operations.clear()
        started_s = self._env.monotonic_s()
        prepared = prepare(
            sql.format(number=number),
            topology=self._topology,
            queue=self._queue,
            token=str(self._env.new_uuid()),
        )
        submission = await client.submit(prepared)
        async for status in client.watch(submission.entry):
            if status.failed:
                raise click.ClickException(f"{status.failed[0].host}: {status.failed[0].error}")
        took_s = self._env.monotonic_s() - started_s
        await self._env.sleep(1)
        return Cost(self._requests("node"), self._requests("initiator"), took_s)

    def _requests(self, client: str) -> int:
        counts = [c for name, c in self._server.operations.items() if name.startswith(client)]
        return sum(sum(c.values()) - c["multi_ops"] for c in counts)


def _one_session(factory: KeeperFactory) -> Callable[[], Awaitable[Keeper]]:
    opened: list[Keeper] = []

    async def session() -> Keeper:
        if not opened:
            opened.append(await factory())
        return opened[0]

    return session


def modelled(nodes: int, done_after_s: float, *, is_for_shard: bool) -> Cost:
    """ClickHouse's protocol when all hosts are done after `done_after_s`.

    For its shard every replica makes three nodes and looks for `executed`; one takes the lock, looks
    again, reads and sets the counter and unlocks; the others fail to lock, read the counter and look again.
    """
    for_shard = 4.0 + (5.0 + 3.0 * (REPLICAS - 1)) / REPLICAS
    looks, at_s = 1, 0.0
    while at_s < done_after_s:
        at_s += min(1.0, 0.05 * looks)
        looks += 1
    create_entry, create_dirs = 1, 1
    return Cost(
        by_hosts=(5.0 + (for_shard if is_for_shard else 0.0)) * nodes,
        by_initiator=create_entry + create_dirs + 3.0 * looks + nodes,
        took_s=at_s,
    )


@click.command()
@click.option("--nodes", "sizes", multiple=True, type=int, default=(10, 100, 1000), show_default=True)
@click.option("--rounds", type=int, default=1, show_default=True, help="Statements of each kind.")
@click.option("--seed", type=int, default=1, show_default=True)
@json_option
def main(sizes: tuple[int, ...], rounds: int, seed: int, json_file: Path | None) -> None:
    """Keeper requests per host and virtual time per statement, by the size of the cluster."""
    report = Report("simulate")
    costs = {nodes: measure(nodes, rounds, seed) for nodes in sizes}
    for kind in STATEMENTS:
        for nodes in sizes:
            cost = costs[nodes][kind]
            peer = modelled(nodes, cost.took_s, is_for_shard="per shard" in kind)
            name = f"{kind}, {nodes:,} nodes"
            for what, unit, ours, theirs in (
                ("Keeper requests per host", "requests", cost.per_host(nodes), peer.per_host(nodes)),
                (
                    "of these the initiator's",
                    "requests",
                    cost.by_initiator / nodes,
                    peer.by_initiator / nodes,
                ),
                ("time, virtual", "ms", cost.took_s * 1000, peer.took_s * 1000),
            ):
                report.add(Row(f"{name}: {what}", unit, ours, Better.LOWER, theirs, "ClickHouse, modelled"))
        first, last = costs[min(sizes)][kind], costs[max(sizes)][kind]
        growth = last.per_host(max(sizes)) / first.per_host(min(sizes))
        report.aim(
            f"{kind}: Keeper requests per host are the same from {min(sizes)} to {max(sizes):,} nodes "
            f"(here × {growth:.2f})",
            met=growth <= ENOUGH_LIKE_CONSTANT,
        )
    report.note("The peer is a model of its protocol, not a measurement.")
    report.finish(json_file)


if __name__ == "__main__":
    sys.exit(main())
