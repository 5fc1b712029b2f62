"""A simulated process: everything it does to the outside passes a gate, and at a chosen gate it is killed.

Each request to Keeper, each durable write and each effect has a gate before and one after it, so a kill −9
can fall between any two of them. A killed process does nothing more: its requests already sent are still
executed by Keeper, and its sessions end when they time out.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from engine.env import Env
from engine.errors import KeeperAnswer
from engine.keeper.base import (
    ANY_VERSION,
    OPEN_ACL,
    Acl,
    Children,
    Connection,
    CreateMode,
    Keeper,
    KeeperFactory,
    Node,
    Op,
    OpResult,
    Stat,
    Watch,
)
from engine.testing.simulation_loop import SimulationLoop

T = TypeVar("T")

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""The process that a task belongs to; whatever it starts belongs to it, too."""


def is_of_dead_process() -> bool:
    """Whether the task that asks belongs to a process that was killed."""
    process = _PROCESS.get()
    return process is not None and not process.is_alive


class Process:
    """One incarnation. `kill_at` counts gates; None: it lives until `kill`."""

    def __init__(self, name: str, *, kill_at: int | None = None, on_kill: Callable[[], None]) -> None:
        self.name = name
        self.kill_at = kill_at
        self.is_alive = True
        self.gates = 0
        self.on_gate: Callable[[int], None] | None = None
        """Told the number of each gate that is passed, or at which the process dies."""
        self._on_kill = on_kill
        self._runs = asyncio.Event()
        self._runs.set()

    def gate(self) -> None:
        """Raises CancelledError in a process that is dead, or that dies here."""
        if not self.is_alive:
            raise asyncio.CancelledError
        self.gates += 1
        if self.on_gate is not None:
            self.on_gate(self.gates)
        if self.kill_at is not None and self.gates >= self.kill_at:
            self.kill()
            raise asyncio.CancelledError

    def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self._on_kill()

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """A task of this process."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, name=name, context=context)

    def cancel_tasks(self, loop: SimulationLoop) -> None:
        """Everything that this process has begun ends, wherever it waits."""
        for task in loop.tasks_where(_PROCESS, self):
            task.cancel()

    def stop(self) -> None:
        """SIGSTOP: nothing goes on behind the next gate until `go_on`."""
        self._runs.clear()

    def go_on(self) -> None:
        """SIGCONT."""
        self._runs.set()

    async def while_it_runs(self) -> None:
        if not self._runs.is_set():
            await self._runs.wait()

    async def through(self, action: Awaitable[T]) -> T:
        """A gate, the action, a gate."""
        try:
            self.gate()
        except asyncio.CancelledError:
            if asyncio.iscoroutine(action):
                action.close()
            raise
        result = await action
        await self.while_it_runs()
        self.gate()
        return result


class GatedEnv:
    """The process's environment: it does not wake up from a sleep in which it was killed."""

    def __init__(self, env: Env, process: Process) -> None:
        self._env = env
        self._process = process

    @property
    def rng(self) -> random.Random:
        return self._env.rng

    def now_s(self) -> float:
        return self._env.now_s()

    def monotonic_s(self) -> float:
        return self._env.monotonic_s()

    async def sleep(self, delay_s: float) -> None:
        await self._env.sleep(delay_s)
        await self._process.while_it_runs()
        if not self._process.is_alive:
            raise asyncio.CancelledError

    def new_uuid(self) -> uuid.UUID:
        return self._env.new_uuid()


class GatedKeeper:
    """A session of the process; implements `Keeper`."""

    def __init__(self, keeper: Keeper, process: Process) -> None:
        self._keeper = keeper
        self._process = process

    @property
    def session_id(self) -> int:
        return self._keeper.session_id

    @property
    def session_timeout_s(self) -> float:
        return self._keeper.session_timeout_s

    @property
    def is_expired(self) -> bool:
        return self._keeper.is_expired

    @property
    def connection(self) -> Connection | None:
        return self._keeper.connection

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._keeper.on_expired(callback)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: Sequence[Acl] = OPEN_ACL,
    ) -> str:
        return await self._process.through(self._keeper.create(path, data, mode=mode, acl=acl))

    async def remove(self, path: str, *, version: int = ANY_VERSION) -> None:
        await self._process.through(self._keeper.remove(path, version=version))

    async def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> Stat:
        return await self._process.through(self._keeper.set(path, data, version=version))

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        return await self._process.through(self._keeper.exists(path, watch=watch))

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        return await self._process.through(self._keeper.get(path, watch=watch))

    async def children(self, path: str, *, watch: Watch | None = None) -> Children:
        return await self._process.through(self._keeper.children(path, watch=watch))

    async def sync(self, path: str) -> None:
        await self._process.through(self._keeper.sync(path))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._process.through(self._keeper.multi(ops))

    async def get_many(self, paths: Sequence[str]) -> list[Node | KeeperAnswer]:
        return await self._process.through(self._keeper.get_many(paths))

    async def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        return await self._process.through(self._keeper.exists_many(paths))

    async def children_many(self, paths: Sequence[str]) -> list[Children | KeeperAnswer]:
        return await self._process.through(self._keeper.children_many(paths))

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        return await self._process.through(self._keeper.get_acl(path))

    async def set_acl(self, path: str, acl: Sequence[Acl], *, version: int = ANY_VERSION) -> Stat:
        return await self._process.through(self._keeper.set_acl(path, acl, version=version))

    async def add_auth(self, scheme: str, credentials: bytes) -> None:
        await self._process.through(self._keeper.add_auth(scheme, credentials))

    async def close(self) -> None:
        await self._process.through(self._keeper.close())


def gated_factory(factory: KeeperFactory, process: Process) -> KeeperFactory:
    """Sessions that pass the process's gates."""

    async def open_session() -> Keeper:
        return GatedKeeper(await process.through(factory()), process)

    return open_session
