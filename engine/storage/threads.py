"""What runs chDB's statements for those who have some: a pool, or a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from engine.storage.disk_reserve import DiskReserve
from engine.storage.idle_connections import IdleConnections
from engine.storage.job import Job

T = TypeVar("T")


class Threads(Protocol):
    """What a session needs of its pool. `ChdbPool` says what each of these does."""

    @property
    def idle(self) -> IdleConnections: ...

    @property
    def disk_reserve(self) -> DiskReserve: ...

    def connect(self) -> Any: ...

    def start(self, function: Callable[[], T]) -> Job[T]: ...

    def start_reader(self, function: Callable[[], T]) -> Job[T]: ...

    async def control(self, function: Callable[[], T]) -> T: ...

    async def kill(self, query_id: str) -> bool: ...

    async def kill_reader(self, path: str) -> bool: ...

    async def kill_writer(self, path: str) -> bool: ...

    def finish_later(self, work: Any) -> None: ...
