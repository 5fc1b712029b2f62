"""Keeper's tree in an etcd beside a ZooKeeper: the same requests, through the same interface, in one run.

    python -m benchmarks.keeper --rounds 3 --json keeper.json

One etcd and one ZooKeeper run on this machine at the same time, each forcing its log to disk. Measured
through `engine.keeper.Keeper`, from one session and from eight at once, which all work below one parent:

- create: persistent, sequential, ephemeral; set; get; the list of 100 children; a multi of four (create, set,
  check, remove): requests per second, each session one after the other;
- a pipelined read of 128 nodes: nodes per second;
- a watch: the time from a set until every session has been told, the others' too.

A round measures everything once, on both in shuffled order; shown are medians of the rounds. All sessions
are in this one process: with eight of them, its own processor time is in the figures of both.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks._running import run_benchmark
from benchmarks._table import Better, Report, Row, json_option, median
from engine.env import SystemEnv
from engine.keeper import opening
from engine.keeper.base import Check, Create, CreateMode, Keeper, Remove, SetData, WatchEvent
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.etcd.embedded import EmbeddedEtcd

ETCD, ZOOKEEPER = "etcd", "ZooKeeper"
DATA = b"x" * 100
CHILDREN = 100
PIPELINED = 128
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table."""

    name: str
    unit: str
    better: Better


class Bench:
    """The measurements, on the sessions that it is given. Each works below a parent of its own."""

    def __init__(self, env: SystemEnv, requests: int) -> None:
        self.figures: dict[Figure, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._env = env
        self._requests = requests
        self._number = 0

    async def run(self, server: str, sessions: Sequence[Keeper]) -> None:
        """Everything once."""
        for mode in (CreateMode.PERSISTENT, CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL):
            await self._creates(server, sessions, mode)
        await self._reads_and_writes(server, sessions)
        await self._multis(server, sessions)
        await self._pipelined(server, sessions)
        await self._watches(server, sessions)

    async def _creates(self, server: str, sessions: Sequence[Keeper], mode: CreateMode) -> None:
        parent = await self._parent(sessions[0])

        async def request(keeper: Keeper, who: int, number: int) -> None:
            await keeper.create(f"{parent}/n-{who}-{number}-", DATA, mode=mode)

        await self._rate(server, sessions, f"create, {mode.name.lower().replace('_', ' ')}", request)

    async def _reads_and_writes(self, server: str, sessions: Sequence[Keeper]) -> None:
        parent = await self._parent(sessions[0])
        paths = [f"{parent}/n{number}" for number in range(CHILDREN)]
        await sessions[0].multi([Create(path, DATA) for path in paths])

        async def get(keeper: Keeper, who: int, number: int) -> None:
            await keeper.get(paths[number % CHILDREN])

        async def set_(keeper: Keeper, who: int, number: int) -> None:
            await keeper.set(paths[who], DATA)

        async def list_(keeper: Keeper, who: int, number: int) -> None:
            await keeper.children(parent)

        await self._rate(server, sessions, "get", get)
        await self._rate(server, sessions, "set", set_)
        await self._rate(server, sessions, f"list of {CHILDREN} children", list_)

    async def _multis(self, server: str, sessions: Sequence[Keeper]) -> None:
        parent = await self._parent(sessions[0])

        async def request(keeper: Keeper, who: int, number: int) -> None:
            path = f"{parent}/n-{who}"
            await keeper.multi([Create(path, DATA), SetData(path, b""), Check(parent), Remove(path)])

        await self._rate(server, sessions, "multi of 4", request)

    async def _pipelined(self, server: str, sessions: Sequence[Keeper]) -> None:
        parent = await self._parent(sessions[0])
        paths = [f"{parent}/n{number}" for number in range(PIPELINED)]
        await sessions[0].multi([Create(path, DATA) for path in paths[: PIPELINED // 2]])
        await sessions[0].multi([Create(path, DATA) for path in paths[PIPELINED // 2 :]])

        async def request(keeper: Keeper, who: int, number: int) -> None:
            await keeper.get_many(paths)

        name = f"read of {PIPELINED} nodes, pipelined"
        await self._rate(server, sessions, name, request, each=PIPELINED, share=10)

    async def _watches(self, server: str, sessions: Sequence[Keeper]) -> None:
        path = await self._parent(sessions[0])
        times_ms = []
        for number in range(max(1, self._requests // 10)):
            told = [asyncio.Event() for _ in sessions]

            def watch(event: asyncio.Event) -> Callable[[WatchEvent], None]:
                return lambda _: event.set()

            await asyncio.gather(
                *(keeper.get(path, watch=watch(event)) for keeper, event in zip(sessions, told, strict=True))
            )
            started_s = self._env.monotonic_s()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(sessions[0].set(path, b"%d" % number), *(event.wait() for event in told))
            times_ms.append((self._env.monotonic_s() - started_s) * 1000)
        name = f"watch, set until all are told, {_clients(sessions)}"
        self.figures[Figure(name, "ms", Better.LOWER)][server].append(median(times_ms) or 0.0)

    async def _rate(
        self,
        server: str,
        sessions: Sequence[Keeper],
        name: str,
        request: Callable[[Keeper, int, int], Awaitable[None]],
        *,
        each: int = 1,
        share: int = 1,
    ) -> None:
        """Every session asks one thing after the other; `share` has fewer requests."""
        requests = max(1, self._requests // share // len(sessions))

        async def ask(keeper: Keeper, who: int) -> None:
            for number in range(requests):
                await request(keeper, who, number)

        started_s = self._env.monotonic_s()
        await asyncio.gather(*(ask(keeper, who) for who, keeper in enumerate(sessions)))
        took_s = self._env.monotonic_s() - started_s
        unit = "requests/s" if each == 1 else "nodes/s"
        figure = Figure(f"{name}, {_clients(sessions)}", unit, Better.HIGHER)
        self.figures[figure][server].append(requests * each * len(sessions) / took_s)

    async def _parent(self, keeper: Keeper) -> str:
        self._number += 1
        return await keeper.create(f"/bench-{self._number}")


def _clients(sessions: Sequence[Keeper]) -> str:
    return "1 client" if len(sessions) == 1 else f"{len(sessions)} clients"


async def measure(directory: Path, *, rounds: int, requests: int, clients: int, seed: int) -> Bench:
    """Start both servers, ask them, stop them."""
    env, rng = SystemEnv(), random.Random(seed)
    bench = Bench(env, requests)
    async with AsyncExitStack() as stack:
        servers: dict[str, EmbeddedEtcd | EmbeddedZooKeeper] = {
            ETCD: await stack.enter_async_context(EmbeddedEtcd(directory / "etcd", ends_with_parent=True)),
            ZOOKEEPER: await stack.enter_async_context(
                EmbeddedZooKeeper(directory / "zookeeper", heap_mb=512, ends_with_parent=True)
            ),
        }
        sessions: dict[str, list[Keeper]] = {}
        for name, server in servers.items():
            sessions[name] = []
            for _ in range(clients):
                keeper = await opening.connect(server.config, env)
                stack.push_async_callback(keeper.close)
                sessions[name].append(keeper)
        for _ in range(rounds):
            for count in dict.fromkeys((1, clients)):
                for name in rng.sample(list(servers), len(servers)):
                    await bench.run(name, sessions[name][:count])
    return bench


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=400, show_default=True, help="Of each kind.")
@click.option("--clients", type=click.IntRange(1), default=8, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@json_option
def main(rounds: int, requests: int, clients: int, seed: int, json_file: Path | None) -> None:
    """Keeper's tree in etcd beside ZooKeeper, through the same interface."""
    report = Report("keeper: etcd (ours) beside ZooKeeper")
    with tempfile.TemporaryDirectory(prefix="oncluster-bench-") as directory:
        work = measure(Path(directory), rounds=rounds, requests=requests, clients=clients, seed=seed)
        bench = run_benchmark(work)
    for figure, by_server in bench.figures.items():
        ours, peer = median(by_server[ETCD]), median(by_server[ZOOKEEPER])
        report.add(Row(figure.name, figure.unit, ours, figure.better, peer, ZOOKEEPER))
    report.note(f"Medians of {rounds} rounds, servers in shuffled order with seed {seed}.")
    report.finish(json_file)


if __name__ == "__main__":
    sys.exit(main())
