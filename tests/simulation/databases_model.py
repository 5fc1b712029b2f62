"""A model of servers with a Replicated database: disks that outlive processes, definitions that are words.

Statements are `CREATE a text`, `REPLACE a text`, `DROP a`, `ALTER a text`, `RENAME a b`, `EXCHANGE a b`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from engine.databases import (
    Commit,
    DatabasePaths,
    DatabaseReplica,
    DatabaseSettings,
    ReplicaName,
    ReplicatedDatabase,
)
from engine.databases.digest import digest_of
from engine.ddl.attempt import Fence
from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.testing.simulated_process import GatedEnv, Process, gated_factory
from engine.testing.simulation import SimulationEnv

PATHS = DatabasePaths("/databases/d")


@dataclass
class Disk:
    """What is on a replica's disk: tables by name, those that a REPLACE has put away, which of all have the
    rows that they were made with, what was moved aside. No two tables are made of one text."""

    texts: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    had: set[str] = field(default_factory=set)
    emptied: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    dropped_with_rows: int = 0
    begun: int = 0
    altered: tuple[int, int, int] | None = None
    """Of the entry that alters: its number, the digests of all definitions and of the other ones."""
    others: dict[str, set[int]] = field(default_factory=dict)
    """Hashes of what replicated tables were, or were to be."""

    def copy(self) -> Disk:
        """An image of the disk, as machines are restored from: nobody knows of tables that came since."""
        there = {*self.texts.values(), *self.kept.values()}
        return replace(
            self, texts=dict(self.texts), kept=dict(self.kept), rows=self.rows & there, had=there, aside=[]
        )

    def write(self, texts: Mapping[str, str], kept: Mapping[str, str]) -> None:
        before = {*self.texts.values(), *self.kept.values()}
        after = {*texts.values(), *kept.values()}
        self.rows -= before - after
        self.emptied += sorted(text for text in after - before if text in self.had - self.rows)
        self.rows |= after - before
        self.had |= after
        self.texts, self.kept = dict(texts), dict(kept)


class ModelSchema:
    """What a process does to its disk; implements `LocalSchema`."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def texts(self) -> Mapping[str, str]:
        return dict(self._disk.texts)

    def replicates(self, text: str) -> bool:
        return text.startswith("replicated")

    async def runs_once_per_shard(self, query: str) -> bool:
        return False

    async def as_initiator(self, query: str, commit: Commit) -> None:
        """As `engine.node.databases` does it."""
        before = self.texts()
        after = applied(before, query)
        changes: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
        changes |= {name: text for name, text in after.items() if before.get(name) != text}
        verb, name, *rest = query.split()
        if verb == "REPLACE" and name in before:
            self._write(before, {name: rest[0]})
            self._write(after, {name: before[name]})
            try:
                await commit(changes)
            except UnknownOutcome:
                raise
            except OnclusterError:
                self._write(before, {name: rest[0]})
                self._write(before)
                raise
            self._write(after)
        elif verb in ("CREATE", "REPLACE", "RENAME", "EXCHANGE"):
            self._write(after)
            try:
                await commit(changes)
            except UnknownOutcome:
                raise
            except OnclusterError:
                self._write(before)
                raise
        else:
            await commit(changes)
            self._write(after)

    async def execute(self, number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
        if query.startswith(("ALTER", "REPLACE", "DROP")):
            self._process.gate()
            self._disk.altered = (number, digest_of(self._disk.texts), digest_of(self._others(query)))
            self._process.gate()
        self._write(applied(self._disk.texts, query, is_again=True))

    def is_effect_of(self, number: int, query: str, digest: int) -> bool:
        verb, name, *_ = query.split()
        texts = self.texts()
        if digest_of(texts) == digest:
            return False
        before = self.before_create(query)
        if before is not None and digest_of(before) == digest:
            return True
        if verb in ("ALTER", "REPLACE", "DROP"):
            is_there = (name in texts) is (verb != "DROP")
            return is_there and self._disk.altered == (number, digest, digest_of(self._others(query)))
        opposite = _opposite(query)
        try:
            return opposite is not None and digest_of(applied(texts, opposite)) == digest
        except SqlError:
            return False

    def other_hashes(self) -> Mapping[str, set[int]]:
        return self._disk.others

    async def take_back(self, query: str) -> None:
        opposite = _opposite(query)
        assert opposite is not None
        self._write(applied(self._disk.texts, opposite))

    def before_create(self, query: str) -> Mapping[str, str] | None:
        verb, name, *rest = query.split()
        if verb not in ("CREATE", "REPLACE") or self._disk.texts.get(name) != rest[0]:
            return None
        return {**self._others(query), **self._disk.kept}

    def _others(self, query: str) -> Mapping[str, str]:
        return {name: text for name, text in self._disk.texts.items() if name != query.split()[1]}

    def begins(self, number: int) -> None:
        self._process.gate()
        self._disk.begun = number
        self._process.gate()

    def begun(self) -> int:
        return self._disk.begun

    async def redo(self, query: str, settings: Mapping[str, str]) -> None:
        if query.startswith(("DROP", "ALTER")):
            await self.execute(0, query, settings, Fence())

    async def create(self, name: str, text: str) -> None:
        kept = {kept: its for kept, its in self._disk.kept.items() if its != text}
        self._write({**self._disk.texts, name: text}, kept)

    async def settle(self) -> None:
        self._write(self._disk.texts)

    async def rename(self, name: str, new_name: str) -> None:
        raise AssertionError("of replicated tables only")

    async def drop(self, name: str) -> None:
        self._disk.dropped_with_rows += 1

    async def has_data(self, name: str) -> bool:
        return True

    async def has_rows(self, name: str) -> bool:
        return True

    async def move_aside(self, name: str, new_name: str, *, replicated: bool) -> None:
        self._process.gate()
        self._disk.aside.append(new_name)
        del self._disk.texts[name]
        self._process.gate()

    def _write(self, texts: Mapping[str, str], kept: Mapping[str, str] = MappingProxyType({})) -> None:
        self._process.gate()
        self._disk.write(texts, kept)
        self._process.gate()


def _opposite(query: str) -> str | None:
    verb, *names = query.split()
    return f"{verb} {' '.join(reversed(names))}" if verb in ("RENAME", "EXCHANGE") else None


def applied(texts: Mapping[str, str], query: str, *, is_again: bool = False) -> dict[str, str]:
    """`is_again`: what is done already counts as done. Raises SqlError."""
    verb, name, *rest = query.split()
    result = dict(texts)
    if verb == "CREATE":
        if name in texts and not (is_again and texts[name] == rest[0]):
            raise SqlError(Code.TABLE_ALREADY_EXISTS, name)
        result[name] = rest[0]
        return result
    if verb == "REPLACE":
        return {**texts, name: rest[0]}
    if verb == "EXCHANGE":
        for each in (name, rest[0]):
            if each not in texts:
                raise SqlError(Code.UNKNOWN_TABLE, each)
        return {**texts, name: texts[rest[0]], rest[0]: texts[name]}  # once more undoes it
    if name not in texts:
        if is_again and (verb == "DROP" or (verb == "RENAME" and rest[0] in texts)):
            return result
        raise SqlError(Code.UNKNOWN_TABLE, name)
    if verb == "DROP":
        del result[name]
    elif verb == "ALTER":
        result[name] = rest[0]
    else:
        if rest[0] in texts:
            raise SqlError(Code.TABLE_ALREADY_EXISTS, rest[0])
        result[rest[0]] = result.pop(name)
    return result


class Replica:
    """A machine; its process comes and goes."""

    def __init__(self, name: str, env: SimulationEnv, server: MemoryKeeperServer) -> None:
        self.name = name
        self.env = env
        self.server = server
        self.disk = Disk()
        self.image = Disk()
        self.is_made = False
        self.process: Process | None = None
        self.database: ReplicatedDatabase | None = None
        self.schema: ModelSchema | None = None
        self.holder: SessionHolder | None = None

    def start(self, kill_at: int | None) -> None:
        client = f"{self.name}-{self.env.rng.random()}"
        process = Process(client, kill_at=kill_at, on_kill=lambda: self.server.crash_client(client))
        env = GatedEnv(self.env, process)
        self.process, self.schema = process, ModelSchema(self.disk, process)
        self.holder = SessionHolder(
            gated_factory(self.server.factory(session_timeout_s=6.0, client=client), process), env
        )
        replica = DatabaseReplica(
            env=env,
            holder=self.holder,
            paths=PATHS,
            me=ReplicaName("s", self.name),
            host=f"{self.name}:9000:uuid-{self.name}",
            server_uuid=f"server-{self.name}",
            schema=self.schema,
            settings=DatabaseSettings(max_retries_before_automatic_recovery=3),
            database_name=lambda: "d",
        )
        self.database = ReplicatedDatabase(replica, dict(self.disk.texts))
        process.spawn(self._live(self.database), name=client)

    async def _live(self, database: ReplicatedDatabase) -> None:
        while not self.is_made:
            try:
                await database.create()
                self.is_made = True
            except OnclusterError:
                await asyncio.sleep(1.0)
        database.start()

    async def submit(self, query: str) -> str:
        """`ok`, `failed`, `unknown`, `died`."""
        database, schema, process = self.database, self.schema, self.process
        assert database is not None and schema is not None and process is not None

        async def run() -> str:
            try:
                await database.submit(
                    query,
                    settings={},
                    initial_query_id="",
                    execute=lambda commit: schema.as_initiator(query, commit),
                    timeout_s=60,
                )
            except UnknownOutcome:
                return "unknown"
            except OnclusterError:
                return "failed"
            return "ok"

        task = process.spawn(run(), name="client")
        while not task.done():
            await asyncio.wait([task], timeout=1.0)
            if not process.is_alive:
                task.cancel()  # nobody answers a process that is no more
        return "died" if task.cancelled() else task.result()


async def stop(*replicas: Replica) -> None:
    for replica in replicas:
        assert replica.database is not None
        await replica.database.stop(grace_s=1)


async def replicas(env: SimulationEnv, *names: str) -> tuple[MemoryKeeperServer, list[Replica]]:
    """Of one database, and writable."""
    server = MemoryKeeperServer(env)
    made = [Replica(name, env.fork(), server) for name in names]
    for replica in made:
        replica.start(None)
        await asyncio.sleep(5.0)
    return server, made


async def one_replica(env: SimulationEnv) -> tuple[MemoryKeeperServer, Replica, ReplicatedDatabase]:
    server, [replica] = await replicas(env, "r1")
    assert replica.database is not None
    return server, replica, replica.database


async def two_replicas(env: SimulationEnv) -> tuple[MemoryKeeperServer, Replica, Replica]:
    """Both have a plain table `a` and a replicated one `t`."""
    server, [first, second] = await replicas(env, "r1", "r2")
    for query in ("CREATE a one", "CREATE t replicated-1"):
        assert await first.submit(query) == "ok"
    await asyncio.sleep(5.0)
    return server, first, second
