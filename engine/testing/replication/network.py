"""The network between the replicas of a simulation: who reaches whom, and what arrives.

    network = MemoryPartNetwork(env)
    network.attach("n1", replica_paths, store)             # the process serves its parts
    fetcher = network.fetcher("n2")                        # a `PartFetcher` for the replica on n2

A replica's address (`ReplicaHost.host`) is the name of its node, or what `attach` says; who asks at another
one, or while `forget_name` holds, finds no such host. Links are one way: `cut("n1", "n2")` loses
what n1 sends to n2, be it a request or a reply.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from engine.env import Env
from engine.errors import Code, SqlError
from engine.replication.fetching import PartReceiver, PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartStore
from engine.replication.paths import ReplicaPaths
from engine.testing.replication.disk import Damage, damaged_bytes
from engine.testing.replication.store_events import nobody_counts
from engine.testing.simulated_process import Process

_TIMEOUT_S = 5.0


@dataclass(slots=True)
class NetworkFaults:
    """How often a transfer breaks off, and how often a file arrives damaged; `latency_s` for each file.

    `seen` is told of each that happens."""

    rng: random.Random = field(default_factory=lambda: random.Random("network faults"))
    broken_off: float = 0.0
    damaged: float = 0.0
    latency_s: tuple[float, float] = (0.0, 0.0)
    seen: Callable[[str], None] = nobody_counts

    def calm(self) -> None:
        self.broken_off = self.damaged = 0.0
        self.latency_s = (0.0, 0.0)


@dataclass(slots=True)
class _Server:
    node: str
    store: PartStore
    process: Process | None
    address: str


class MemoryPartNetwork:
    """Nodes that serve parts, and the links between them."""

    def __init__(self, env: Env, faults: NetworkFaults | None = None) -> None:
        self._env = env
        self.faults = faults or NetworkFaults()
        self._servers: dict[str, _Server] = {}
        self._cut: set[tuple[str, str]] = set()
        self._unknown: set[str] = set()
        self.fetches: list[tuple[str, str, PartName]] = []
        """(from node, to node, part) of every transfer that succeeded."""

    def attach(
        self,
        node: str,
        replica: ReplicaPaths,
        store: PartStore,
        *,
        process: Process | None = None,
        address: str = "",
    ) -> None:
        """A process begins to serve; the one before is forgotten. Without an address any will do."""
        self._servers[replica.root] = _Server(node, store, process, address)

    def detach(self, replica: ReplicaPaths) -> None:
        self._servers.pop(replica.root, None)

    def fetcher(self, node: str) -> MemoryPartFetcher:
        return MemoryPartFetcher(self, node)

    def cut(self, sender: str, receiver: str) -> None:
        """What `sender` sends to `receiver` is lost."""
        self._cut.add((sender, receiver))

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self, sender: str, receiver: str) -> None:
        self._cut.discard((sender, receiver))

    def heal_all(self) -> None:
        self._cut.clear()
        self._unknown.clear()

    def forget_name(self, address: str) -> None:
        """DNS does not know the host."""
        self._unknown.add(address)

    def know_name(self, address: str) -> None:
        self._unknown.discard(address)

    def is_cut(self, one: str, other: str) -> bool:
        """Whether a request and its reply cannot both get through."""
        return (one, other) in self._cut or (other, one) in self._cut

    async def transfer(
        self,
        node: str,
        source: ReplicaHost,
        replica: ReplicaPaths,
        name: PartName,
        into: PartReceiver,
        expected: PartHeader | None,
    ) -> Part:
        server = self._server(node, replica)
        if server is None:
            await self._env.sleep(_TIMEOUT_S)
            raise PartUnavailable(f"{replica.root} cannot be reached from {node}")
        if server.address and (source.host != server.address or source.host in self._unknown):
            self.faults.seen("host not found")
            raise PartUnavailable(f"{source.host} is not known: name or service not known")
        async with into.receive(name) as incoming:
            try:
                async with asyncio.timeout(_TIMEOUT_S), server.store.send(name) as outgoing:
                    for file in outgoing.files:
                        await self._pass_time()
                        if self._server(node, replica) is not server or self._draws(self.faults.broken_off):
                            self.faults.seen("transfer broken off")
                            raise PartUnavailable(f"the connection to {replica.root} broke")
                        await incoming.write(file, self._carried(outgoing.read(file)))
            except SqlError as error:
                if error.code == Code.NO_SUCH_DATA_PART:
                    raise PartUnavailable(f"{replica.root} has no part {name}") from None
                raise
            except TimeoutError:
                raise PartUnavailable(f"{replica.root} does not go on sending") from None
            staged = await incoming.finish(expected)
        self.fetches.append((server.node, node, name))
        return staged

    def _server(self, node: str, replica: ReplicaPaths) -> _Server | None:
        server = self._servers.get(replica.root)
        if server is None or self.is_cut(node, server.node):
            return None
        return server if server.process is None or server.process.is_alive else None

    async def _carried(self, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        is_damaged = self._draws(self.faults.damaged)
        async for piece in content:
            if is_damaged and piece:
                damage = self.faults.rng.choice([Damage.BIT_FLIP, Damage.TRUNCATION])
                self.faults.seen(f"{damage.value} in transfer")
                piece, is_damaged = damaged_bytes(piece, damage, self.faults.rng.getrandbits(30)), False
            yield piece

    def _draws(self, probability: float) -> bool:
        return probability > 0 and self.faults.rng.random() < probability

    async def _pass_time(self) -> None:
        least, most = self.faults.latency_s
        if most > 0:
            await self._env.sleep(self.faults.rng.uniform(least, most))


@dataclass(frozen=True, slots=True)
class MemoryPartFetcher:
    """Implements `PartFetcher` for the replicas on one node."""

    network: MemoryPartNetwork
    node: str

    async def fetch(
        self,
        source: ReplicaHost,
        replica: ReplicaPaths,
        part: PartName,
        *,
        into: PartReceiver,
        expected: PartHeader | None,
    ) -> Part:
        return await self.network.transfer(self.node, source, replica, part, into, expected)
