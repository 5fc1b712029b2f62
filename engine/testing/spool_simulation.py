"""The spool and its senders under a seeded loop, with a model disk and model receivers, and what must hold.

    report = simulate(42, Scenario.of_seed(42))

S1 what was acknowledged is delivered, pending or visibly broken · S2 a file goes only after proof of delivery
· S3 no row is delivered twice, and no token stands for two sets of rows · S5 what was refused is not
delivered, and above the limit INSERTs are refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.distributed.batches import BatchLimits
from engine.distributed.delivery import Block, Deliveries, Policy
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.sender import DirectorySender, Outgoing, SenderOptions
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_names import (
    BROKEN,
    TEMPORARY,
    all_replicas,
    destination_of,
    is_alone,
    number_of,
    one_replica,
)
from engine.distributed.spool_table import SpoolBlock, SpoolLimits, SpoolOptions, TableSpool
from engine.env import Env
from engine.errors import Code, NodeUnavailable, ReplyLost, SqlError
from engine.names import HostId
from engine.testing.simulation import SimulationEnv, run_simulation
from engine.testing.simulation_report import Violation
from engine.testing.spool_disk import Inode, Killed, ModelDisk

_GIVE_UP_S = 7200.0


def _shards() -> tuple[PeerShard, ...]:
    def peer(shard: int, replica: int) -> Peer:
        host = f"s{shard}r{replica}"
        return Peer(HostId(host, 9000), host, 8123, shard_number=shard, replica_number=replica)

    return (
        PeerShard(1, 1, True, (peer(1, 1), peer(1, 2))),
        PeerShard(2, 1, False, (peer(2, 1), peer(2, 2))),
    )


SHARDS = _shards()
DIRECTORIES = (all_replicas(SHARDS[0]), *(one_replica(peer) for peer in SHARDS[1].peers))


@dataclass(frozen=True)
class Scenario:
    """What happens in a run; all of it drawn from the seed."""

    inserts: int = 12
    kills: int = 4
    is_batch: bool = True
    has_power_loss: bool = False
    has_lost_replies: bool = True
    has_down_replicas: bool = True
    has_refusals: bool = True
    has_full_disk: bool = False
    has_flipped_bits: bool = False
    limit_bytes: int = 0
    waits_for_more: bool = True
    has_failing_parts: bool = False
    splits_batches: bool = False
    has_repeats: bool = False
    """INSERTs have tokens of their own, and are repeated."""

    @classmethod
    def of_seed(cls, seed: int) -> Scenario:
        rng = random.Random(f"spool scenario {seed}")
        return cls(
            inserts=rng.randint(4, 16),
            kills=rng.randint(0, 8),
            is_batch=rng.random() < 0.7,
            has_power_loss=rng.random() < 0.4,
            has_lost_replies=rng.random() < 0.8,
            has_down_replicas=rng.random() < 0.6,
            has_refusals=rng.random() < 0.4,
            has_full_disk=rng.random() < 0.3,
            has_flipped_bits=rng.random() < 0.3,
            limit_bytes=rng.choice((0, 0, 600)),
            waits_for_more=rng.random() < 0.5,
            has_failing_parts=rng.random() < 0.3,
            splits_batches=rng.random() < 0.5,
            has_repeats=rng.random() < 0.4,
        )


@dataclass
class SpoolReport:
    """`seen` counts what the run went through, so that a run that meets nothing can be told."""

    violations: list[Violation] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


class _Receivers:
    """All replicas. Those of shard 1 replicate, so they have one store; each of shard 2 has its own."""

    def __init__(self, env: Env, scenario: Scenario, report: SpoolReport) -> None:
        self._env = env
        self._scenario = scenario
        self._report = report
        self.is_calm = False
        self.rows: dict[str, Counter[str]] = {directory: Counter() for directory in DIRECTORIES}
        self._tokens: dict[str, dict[str, tuple[str, ...]]] = {directory: {} for directory in DIRECTORIES}

    def store_of(self, peer: Peer) -> str:
        return all_replicas(SHARDS[0]) if peer.shard_number == 1 else one_replica(peer)

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        """`Sink`."""
        rng, scenario = self._env.rng, self._scenario
        await self._env.sleep(rng.random() * 0.05)
        if not self.is_calm and scenario.has_down_replicas and rng.random() < 0.3:
            self._report.seen["down"] += 1
            raise NodeUnavailable(f"{peer.host} is down")
        data = b""
        async for chunk in block.body():
            data += chunk
            await self._env.sleep(rng.random() * 0.01)
        if not self.is_calm and scenario.has_refusals and rng.random() < 0.15:
            self._report.seen["refused"] += 1
            raise SqlError(Code.TOO_MANY_PARTS, "Too many parts")
        is_lost = not self.is_calm and scenario.has_lost_replies and rng.random() < 0.35
        if is_lost and rng.random() < 0.5:
            self._report.seen["request lost"] += 1
            raise ReplyLost("the request was lost")
        self._store(self.store_of(peer), block.token, tuple(data.decode("latin-1").split()))
        await self._env.sleep(rng.random() * 0.05)
        if is_lost:
            self._report.seen["reply lost"] += 1
            raise ReplyLost("the reply was lost")

    def _store(self, store: str, token: str, rows: tuple[str, ...]) -> None:
        known = self._tokens[store].get(token)
        if known is not None:
            self._report.seen["deduplicated"] += 1
            if known != rows:
                self._report.violations.append(
                    Violation("S3", f"token {token} came to {store} with other rows: {known}, now {rows}")
                )
            return
        self._tokens[store][token] = rows
        self.rows[store].update(rows)


class _Rows:
    """Rows that come one after another."""

    def __init__(self, env: Env, rows: tuple[str, ...]) -> None:
        self._env = env
        self._left = list(rows)

    def __aiter__(self) -> _Rows:
        return self

    async def __anext__(self) -> bytes:
        await self._env.sleep(self._env.rng.random() * 0.01)
        if not self._left:
            raise StopAsyncIteration
        return f"{self._left.pop(0)}\n".encode()


class _Run:
    def __init__(self, env: SimulationEnv, scenario: Scenario) -> None:
        self.env = env
        self.scenario = scenario
        self.report = SpoolReport()
        self.disk = ModelDisk(env.fork().rng)
        self.receivers = _Receivers(env, scenario, self.report)
        self.died = asyncio.Event()
        self.disk.on_death = lambda: self.died.set()
        self.disk.on_remove = self._removed
        self.disk.on_link = self._linked
        self.next_row = 0
        self.left = scenario.inserts
        self.acknowledged: dict[str, set[str]] = {directory: set() for directory in DIRECTORIES}
        self.refused: set[str] = set()
        self.inserted: list[Sequence[tuple[str, tuple[str, ...]]]] = []
        """Token and rows of each block of each INSERT."""
        self.refused_batches: set[str] = set()
        self.rows_of_token: dict[str, tuple[str, ...]] = {}
        self.token_of_inode: dict[int, str] = {}
        self._inodes: list[Inode] = []
        self.limits = SpoolLimits(throw_bytes=scenario.limit_bytes)

    # -- what is watched -------------------------------------------------------------------------------------

    def _linked(self, path: str, inode: Inode) -> None:
        """The file is whole at this moment: remember whose rows it has, whatever becomes of its bytes."""
        [size] = struct.unpack("<I", inode.data[8:12])
        self.token_of_inode[id(inode)] = json.loads(inode.data[12 : 12 + size])["token"]
        self._inodes.append(inode)

    def _rows_of(self, inode: Inode) -> tuple[str, ...]:
        return self.rows_of_token.get(self.token_of_inode.get(id(inode), ""), ())

    def _removed(self, path: str, inode: Inode) -> None:
        directory, _, name = path.rpartition("/")
        if directory not in DIRECTORIES or number_of(name) is None:
            return
        self.report.seen["alone"] += is_alone(name)
        for row in self._rows_of(inode):
            if row in self.acknowledged[directory] and not self.receivers.rows[directory][row]:
                self.report.violations.append(Violation("S2", f"{path} went before row {row} was delivered"))

    # -- the process -----------------------------------------------------------------------------------------

    async def run(self) -> SpoolReport:
        for _ in range(self.scenario.kills):
            self.disk.steps_until_kill = self.env.rng.randint(1, 90)
            await self._life(is_last=False)
            self.report.seen["killed"] += self.disk.is_dead
            power = self.scenario.has_power_loss and self.env.rng.random() < 0.6
            self.report.seen["power lost"] += power and self.disk.is_dead
            self.disk.revive(power_was_lost=power and self.disk.is_dead)
        self.receivers.is_calm = True
        self.disk.is_full = False
        await self._life(is_last=True)
        self._check()
        return self.report

    async def _life(self, *, is_last: bool) -> None:
        self.died.clear()
        scenario, env = self.scenario, self.env
        spool = TableSpool(
            self.disk,
            SpoolOptions(fsync_files=scenario.has_power_loss, fsync_directories=scenario.has_power_loss),
        )
        tasks: list[asyncio.Task[object]] = []
        loop = asyncio.get_running_loop()

        try:
            spool.load()
            deliveries = Deliveries(self.receivers, env, own_host="me")
            senders = {d: self._sender(spool, d, deliveries) for d in DIRECTORIES}
            tasks += [loop.create_task(sender.run()) for sender in senders.values()]
            work = loop.create_task(self._client(spool, senders, is_last=is_last))
            tasks += [work, loop.create_task(self.died.wait())]
            await asyncio.wait([work, tasks[-1]], return_when=asyncio.FIRST_COMPLETED)
        except Killed:
            pass
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Killed | asyncio.CancelledError):
                raise result

    def _sender(self, spool: TableSpool, directory: str, deliveries: Deliveries) -> DirectorySender:
        async def deliver(out: Outgoing) -> None:
            to = destination_of(directory, SHARDS)
            block = Block("", "t", out.head.columns, out.token, out.body, out.rows, out.head.settings)
            is_batch = out.token not in self.rows_of_token
            try:
                await deliveries.to_any(to.peers, block, Policy())
            except SqlError:
                if is_batch:
                    self.refused_batches.add(directory)
                raise
            self.report.seen["split"] += not is_batch and directory in self.refused_batches
            self.refused_batches -= {directory} if is_batch else set()

        options = SenderOptions(
            batch=BatchLimits(min_rows=self.env.rng.randint(2, 12)) if self.scenario.is_batch else None,
            fsync_directories=self.scenario.has_power_loss,
            waits_for_more=self.scenario.waits_for_more,
            splits_on_failure=self.scenario.splits_batches,
        )
        return DirectorySender(spool, directory, deliver, self.env, options)

    async def _client(
        self, spool: TableSpool, senders: Mapping[str, DirectorySender], *, is_last: bool
    ) -> None:
        env, scenario = self.env, self.scenario
        share = self.left if is_last else max(1, self.left // (scenario.kills + 1) + 1)
        for _ in range(min(share, self.left)):
            self.left -= 1
            await self._insert(spool, senders)
            await env.sleep(env.rng.random() * 0.5)
            if scenario.has_flipped_bits and not self.receivers.is_calm and env.rng.random() < 0.2:
                self._flip()
            if scenario.has_full_disk and not self.receivers.is_calm:
                self.disk.is_full = env.rng.random() < 0.3
        if not is_last:
            await env.sleep(env.rng.random() * 60)
            return
        self.disk.is_full = scenario.has_full_disk  # what is there has to go, or the disk stays full
        deadline_s = env.monotonic_s() + _GIVE_UP_S
        while (
            any([*spool.pending(d), *spool.alone(d)] for d in DIRECTORIES) and env.monotonic_s() < deadline_s
        ):
            await env.sleep(1.0)

    async def _insert(self, spool: TableSpool, senders: Mapping[str, DirectorySender]) -> None:
        blocks: list[SpoolBlock] = []
        rows_of: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        is_repeat = self._is_repeat()
        chosen = self.env.rng.choice(self.inserted) if is_repeat else self._new_rows()
        for directories, (token, rows) in zip((DIRECTORIES[:1], DIRECTORIES[1:]), chosen, strict=True):
            rows_of.append((directories, rows))
            head = FileHead(token, ("k",), len(rows), is_repeatable=self.scenario.has_repeats)
            blocks.append(SpoolBlock(directories, head, _Rows(self.env, rows)))
        inserted = [row for _, rows in chosen for row in rows]
        self.refused.difference_update(inserted)  # what is repeated may be taken now, or have been before
        try:
            before = spool.pending_bytes()
            await spool.admit(self.limits, self.env)
            if self.limits.throw_bytes and before > self.limits.throw_bytes:
                what = f"an INSERT was taken with {before} bytes pending"
                self.report.violations.append(Violation("S5", what))
            other = asyncio.ensure_future(self._other_part()) if self.scenario.has_failing_parts else None
            if other is not None:
                other.add_done_callback(lambda task: task.cancelled() or task.exception())
            await spool.put(blocks, after=other)
        except SqlError as error:
            self.report.seen[f"refused {error.code}"] += 1
            if not is_repeat:
                self.refused.update(inserted)
            return
        for directories, rows in rows_of:
            for directory in directories:
                self.acknowledged[directory].update(rows)
        for sender in senders.values():
            sender.wake()

    def _is_repeat(self) -> bool:
        is_one = self.scenario.has_repeats and bool(self.inserted) and self.env.rng.random() < 0.4
        self.report.seen["repeated"] += is_one
        return is_one

    def _new_rows(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        blocks = []
        for _ in range(2):
            rows = tuple(str(self.next_row + i) for i in range(self.env.rng.randint(1, 4)))
            self.next_row += len(rows)
            token = self.env.new_uuid().hex
            self.rows_of_token[token] = rows
            blocks.append((token, rows))
        self.inserted.append(blocks)
        return blocks

    async def _other_part(self) -> None:
        """What an INSERT writes at once, before anything of it may be kept; it may fail."""
        await self.env.sleep(self.env.rng.random() * 0.5)
        if self.env.rng.random() < 0.3:
            raise SqlError(Code.NO_ZOOKEEPER, "the replica on this node is read-only")

    def _flip(self) -> None:
        paths = [
            path
            for path in self.disk.files()
            if path.split("/")[0] in DIRECTORIES and path.count("/") == 1 and path.endswith(".bin")
        ]
        if paths:
            self.report.seen["bit flipped"] += 1
            self.disk.flip(self.env.rng.choice(paths))

    # -- the end ---------------------------------------------------------------------------------------------

    def _check(self) -> None:
        violations = self.report.violations
        broken: dict[str, set[str]] = {directory: set() for directory in DIRECTORIES}
        for path in self.disk.files():
            directory = path.split("/")[0]
            inode = self.disk.find(path)
            if directory == TEMPORARY or inode is None:
                continue
            if f"/{BROKEN}/" in path:
                self.report.seen["broken"] += 1
                broken[directory].update(self._rows_of(inode))
            elif number_of(path.rpartition("/")[2]) is not None:
                violations.append(Violation("S1", f"{path} is still pending long after faults stopped"))
        for directory in DIRECTORIES:
            stored = self.receivers.rows[directory]
            for row in sorted(self.acknowledged[directory], key=int):
                if not stored[row] and row not in broken[directory]:
                    violations.append(
                        Violation("S1", f"row {row} of {directory} was acknowledged, and is lost")
                    )
            known = {row for rows in self.rows_of_token.values() for row in rows}
            for row, times in sorted(stored.items()):
                if times > 1:
                    violations.append(Violation("S3", f"row {row} is {times} times in {directory}"))
                if row not in known:
                    violations.append(Violation("S1", f"row {row!r} in {directory} was never inserted"))
                if row in self.refused:
                    violations.append(Violation("S5", f"row {row} was refused, and is in {directory}"))


def simulate(seed: int, scenario: Scenario) -> SpoolReport:
    """One run to its end. The same seed gives the same run."""

    async def main(env: SimulationEnv) -> SpoolReport:
        return await _Run(env, scenario).run()

    return run_simulation(seed, main)
