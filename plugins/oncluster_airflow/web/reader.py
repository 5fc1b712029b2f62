"""Looking at clusters for the page, in a thread of its own: Airflow's server never waits for it.

A cluster is looked at while somebody watches it. Each part of its picture (hosts, queue, database) is asked
for by itself and kept; who asks gets what is known after a moment, and is told what is not known yet. After
some minutes without watchers the Keeper session and the memory go.

It only reads. Its Keeper session owns nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from engine.config.load import load_client_config
from engine.env import Env, SystemEnv
from engine.errors import ConfigError, OnclusterError
from engine.operations.overview import ClusterOverview, GridPage, Show
from engine.operations.overview.model import Task
from oncluster_airflow.web.watch import FRESH_S, Place, Watch

T = TypeVar("T")

IDLE_S = 300.0
PLACE_S = 30.0


class Reader(Protocol):
    """What the routes need. Unknown clusters raise SqlError 701."""

    async def clusters(self) -> tuple[str, ...]:
        """Raises ConfigError."""
        ...

    async def overview(self, cluster: str, *, wait_s: float, recent_s: float = FRESH_S) -> ClusterOverview:
        """What is known after at most `wait_s`; what is younger than `recent_s` is not waited for."""
        ...

    async def page(
        self, cluster: str, *, show: Show, number: int, wait_s: float, recent_s: float = FRESH_S
    ) -> GridPage | None:
        """A page of the queue with statements and errors; None as long as the queue has not been seen."""
        ...

    async def task(self, cluster: str, name: str, *, wait_s: float) -> Task | None:
        """One task of the queue with its statement and errors; None when it is not there."""
        ...


class LiveReader:
    """Implements Reader. `where` is called in a thread. A cluster that nobody has asked for during `idle_s`
    is let go."""

    def __init__(self, where: Callable[[], Place], *, idle_s: float = IDLE_S, env: Env | None = None) -> None:
        self._where = where
        self._idle_s = idle_s
        self._env = env or SystemEnv()
        self._letting_go: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._watches: dict[str, Watch] = {}
        self._opening: dict[str, asyncio.Task[Watch]] = {}
        self._names: tuple[Path, int, tuple[str, ...]] | None = None
        self._placed: tuple[float, Place] | None = None

    async def clusters(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._read_clusters)

    def _read_clusters(self) -> tuple[str, ...]:
        """Blocks. Parsed once for each time the file was written."""
        path = self._place().config
        try:
            written_ns = path.stat().st_mtime_ns
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
        known = self._names
        if known is None or known[:2] != (path, written_ns):
            names = tuple(sorted(load_client_config(path).topology.clusters))
            self._names = known = (path, written_ns, names)
        return known[2]

    def _place(self) -> Place:
        """Blocks. Connections are looked up in Airflow's database at most twice a minute."""
        now_s = self._env.monotonic_s()
        if self._placed is None or now_s - self._placed[0] > PLACE_S:
            self._placed = (now_s, self._where())
        return self._placed[1]

    async def overview(self, cluster: str, *, wait_s: float, recent_s: float = FRESH_S) -> ClusterOverview:
        async def work() -> ClusterOverview:
            return await (await self._watch(cluster)).overview(wait_s=wait_s, recent_s=recent_s)

        return await self._run(work())

    async def page(
        self, cluster: str, *, show: Show, number: int, wait_s: float, recent_s: float = FRESH_S
    ) -> GridPage | None:
        async def work() -> GridPage | None:
            watch = await self._watch(cluster)
            return await watch.page(show=show, number=number, wait_s=wait_s, recent_s=recent_s)

        return await self._run(work())

    async def task(self, cluster: str, name: str, *, wait_s: float) -> Task | None:
        async def work() -> Task | None:
            return await (await self._watch(cluster)).task(name, wait_s=wait_s)

        return await self._run(work())

    def warm(self) -> None:
        """Blocks. What the first visitor would wait for: connections, and the configuration."""
        with contextlib.suppress(OnclusterError):
            self._read_clusters()

    def close(self) -> None:
        """End the thread and everything it holds. It begins anew when somebody asks again."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._close_all(), loop).result(timeout=30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=30)
            loop.close()

    # --- the thread -----------------------------------------------------------------------------------------

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started_loop()))

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        """Started when it is needed, not before: a server that forks does so before its first request."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="oncluster-page", daemon=True
                )
                self._thread.start()
            return self._loop

    # --- on the thread's loop -------------------------------------------------------------------------------

    async def _watch(self, cluster: str) -> Watch:
        found = self._watches.get(cluster)
        if found is not None and not found.is_outdated():
            return found
        if cluster not in self._opening:
            self._opening[cluster] = asyncio.create_task(self._open(cluster))
        return await asyncio.shield(self._opening[cluster])

    async def _open(self, cluster: str) -> Watch:
        try:
            old = self._watches.pop(cluster, None)
            if old is not None:
                await old.close()
            watch = await asyncio.to_thread(Watch.prepare, cluster, self._place, self._env)
            watch.begin()
            self._watches[cluster] = watch
            if self._letting_go is None or self._letting_go.done():
                self._letting_go = asyncio.create_task(self._let_go())
            return watch
        finally:
            del self._opening[cluster]

    async def _let_go(self) -> None:
        """As long as there is something to let go."""
        while self._watches:
            await self._env.sleep(self._idle_s / 5)
            for name, watch in list(self._watches.items()):
                if watch.idle_s > self._idle_s and self._watches.get(name) is watch:
                    del self._watches[name]
                    await watch.close()

    async def _close_all(self) -> None:
        if self._letting_go is not None:
            self._letting_go.cancel()
            await asyncio.gather(self._letting_go, return_exceptions=True)
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            await watch.close()
