"""One cluster while somebody looks at it: its parts, each asked for by itself and kept. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from engine.client.node_client import NodeClient
from engine.config.load import load_client_config
from engine.config.model import KeeperSection, NodeConfig
from engine.env import Env
from engine.errors import ConfigError, KeeperUnavailable, OnclusterError
from engine.keeper import opening
from engine.keeper.base import Keeper
from engine.keeper.recipes import SessionHolder
from engine.operations.overview import (
    ClusterOverview,
    GridPage,
    Part,
    PartState,
    QueueReader,
    QueueView,
    Show,
    look_at_hosts,
    look_at_queue,
    look_at_records,
    make_page,
)
from engine.operations.overview.gather import explained, part_of, places, queue_reader
from engine.operations.overview.model import HostsView, RecordsView, Task
from engine.operations.overview.queue_grid import PAGE_TASKS
from engine.operations.records import Records
from engine.operations.site import Site, url_of

T = TypeVar("T")

PATIENCE_S = 2.0
"""How long Keeper may take to answer. If it needs longer it is not well, and that is said."""
HOST_PATIENCE_S = 5.0
"""The same for a host. Nobody waits for it: pages are answered with what is known."""
OPENING_S = 30.0
FIRST_READING_S = 0.2
READING_S = 1.5
FRESH_S = 2.0
"""What is younger is not asked for again."""
WATCHED_S = 20.0
"""For so long after the last request, what is left of a long queue is read in the background."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where things are. `keeper` None: as the configuration says. `urls`: where hosts answer, by name."""

    config: Path
    records_url: str = dataclasses.field(repr=False)
    ledger_url: str = dataclasses.field(repr=False)
    keeper: KeeperSection | None = None
    urls: dict[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)


class Watch:
    """One cluster while it is looked at."""

    def __init__(self, site: Site, reader: QueueReader, config: Path, written_ns: int, env: Env) -> None:
        self._site = site
        self._reader = reader
        self._config = config
        self._written_ns = written_ns
        self._env = env
        self._shards = places(site)
        self._holder: SessionHolder | None = None
        self._opening: asyncio.Task[Keeper] | None = None
        self._window = (0, PAGE_TASKS)
        self._asked_s = env.monotonic_s()
        self._looked_s: dict[str, float] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._hosts: Part[HostsView] = Part()
        self._queue: Part[QueueView] = Part()
        self._records: Part[RecordsView] = Part()

    @classmethod
    def prepare(cls, cluster: str, where: Callable[[], Place], env: Env) -> Watch:
        """Blocks: files are read. Raises ConfigError, SqlError 701."""
        place = where()
        config = load_client_config(place.config)
        if place.keeper is not None:
            config = dataclasses.replace(config, zookeeper=place.keeper)
        config.topology.cluster(cluster)
        site = Site(
            cluster,
            config,
            Records(place.records_url, env=env),
            env,
            operator="the cluster page",
            ledger_url=place.ledger_url,
            patience_s=HOST_PATIENCE_S,
        )
        site.clients = _clients(config, cluster, place, env)
        return cls(site, queue_reader(site), place.config, place.config.stat().st_mtime_ns, env)

    def begin(self) -> None:
        """On the loop on which it is used from now on."""
        section = self._site.config.zookeeper
        if section is not None:
            factory = opening.factory(section, self._env, connect_timeout_s=OPENING_S / 3)
            self._holder = SessionHolder(factory, self._env)

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._looking.values()]
        if self._opening is not None:
            tasks.append(self._opening)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._holder is not None:
            with contextlib.suppress(OnclusterError):
                await self._holder.close()
        for client in self._site.clients.values():
            await client.close()

    @property
    def idle_s(self) -> float:
        return self._env.monotonic_s() - self._asked_s

    def is_outdated(self) -> bool:
        """Whether the configuration was written anew."""
        try:
            return self._config.stat().st_mtime_ns != self._written_ns
        except OSError:
            return False

    # --- answers --------------------------------------------------------------------------------------------

    async def overview(self, *, wait_s: float, recent_s: float) -> ClusterOverview:
        await self._refresh(wait_s=wait_s, recent_s=recent_s)
        return explained(
            ClusterOverview(
                self._site.cluster,
                int(self._env.now_s() * 1000),
                self._shards,
                self._hosts,
                self._queue,
                self._records,
            )
        )

    async def page(self, *, show: Show, number: int, wait_s: float, recent_s: float) -> GridPage | None:
        if show is Show.ALL:
            self._window = ((max(1, number) - 1) * PAGE_TASKS, PAGE_TASKS)
        await self._refresh(wait_s=wait_s, recent_s=recent_s)
        view = self._queue.value
        if view is None:
            return None
        page = make_page(view, show=show, number=number)
        return dataclasses.replace(page, tasks=self._reader.detailed(page.tasks))

    async def task(self, name: str, *, wait_s: float) -> Task | None:
        await self._refresh(wait_s=wait_s, recent_s=FRESH_S)
        view = self._queue.value
        found = next((task for task in view.tasks if task.name == name), None) if view else None
        return self._reader.detailed([found])[0] if view and found else None

    # --- looking --------------------------------------------------------------------------------------------

    async def _refresh(self, *, wait_s: float, recent_s: float) -> None:
        """Start what is not fresh, and give what is not even recent `wait_s` to arrive."""
        now_s = self._asked_s = self._env.monotonic_s()
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "hosts": self._look_at_hosts,
            "queue": self._look_at_queue,
            "records": self._look_at_records,
        }
        for name, work in parts.items():
            task = self._looking.get(name)
            if task is not None and not task.done():
                continue
            if self._age_s(name, now_s) >= FRESH_S:
                self._looking[name] = asyncio.create_task(self._look(name, work))
        running = [
            task
            for name, task in self._looking.items()
            if not task.done() and self._age_s(name, now_s) >= recent_s
        ]
        if running and wait_s > 0:
            await asyncio.wait(running, timeout=wait_s)

    def _age_s(self, name: str, now_s: float) -> float:
        """How long ago the last look at a part ended."""
        return now_s - self._looked_s.get(name, float("-inf"))

    async def _look(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._looked_s[name] = self._env.monotonic_s()

    async def _look_at_hosts(self) -> None:
        self._hosts = _after(self._hosts, await part_of(self._site, look_at_hosts(self._site)))

    async def _look_at_records(self) -> None:
        self._records = _after(self._records, await part_of(self._site, look_at_records(self._site)))

    async def _look_at_queue(self) -> None:
        """Until all of it has been read, as long as somebody watches."""
        is_first = self._queue.value is None
        while True:
            reading_s = FIRST_READING_S if is_first else READING_S
            self._queue = _after(self._queue, await part_of(self._site, self._queue_view(reading_s)))
            self._looked_s["queue"] = self._env.monotonic_s()
            view = self._queue.value
            if view is None or not view.unread or self._queue.state is PartState.FAILED:
                return
            if self.idle_s > WATCHED_S:
                return
            is_first = False

    async def _queue_view(self, reading_s: float) -> QueueView:
        if self._holder is None:
            raise ConfigError(
                "The configuration has no <zookeeper> section, and Airflow no connection to Keeper.",
                hint="Add one of them.",
            )
        self._site.keeper_or_none = await self._session(self._holder)
        begin, count = self._window
        return await look_at_queue(self._site, self._reader, begin=begin, count=count, reading_s=reading_s)

    async def _session(self, holder: SessionHolder) -> Keeper:
        """Raises KeeperUnavailable after a while; opening goes on meanwhile, for whoever asks next."""
        if holder.current is not None:
            return holder.current
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(holder.get(timeout_s=OPENING_S))
        done, _ = await asyncio.wait([self._opening], timeout=PATIENCE_S)
        if done and self._opening.exception() is None:
            return self._opening.result()
        section = self._site.config.zookeeper
        raise KeeperUnavailable(
            f"Keeper at {section.connect_string if section else '?'} does not answer.",
            hint="Until it does, no statement ON CLUSTER is executed and replicated tables take no rows.",
        )


def _after(before: Part[T], now: Part[T]) -> Part[T]:
    """A look that failed leaves what was seen before, with its time."""
    if now.state is not PartState.FAILED or before.value is None:
        return now
    return dataclasses.replace(now, value=before.value, at_ms=before.at_ms)


def _clients(config: NodeConfig, cluster: str, place: Place, env: Env) -> dict[Any, NodeClient]:
    return {
        replica.host_id: NodeClient(
            place.urls.get(replica.host_id.readable) or place.urls.get(replica.host) or url_of(replica),
            user=place.user or replica.user,
            password=place.password if place.user else replica.password,
            timeout_s=HOST_PATIENCE_S,
            connect_timeout_s=HOST_PATIENCE_S,
            env=env,
        )
        for replica in config.topology.cluster(cluster).replicas
    }
