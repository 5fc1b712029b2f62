"""Looking at a cluster: at its hosts, at the queue and at the database, separately and for a bounded time.

Each part is a value or says why it is missing: who looks at a cluster does so because something is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from engine.errors import KeeperUnavailable, OnclusterError
from engine.names import HostId
from engine.operations.overview.database import read_database
from engine.operations.overview.hosts import host_is_down, look_at_host
from engine.operations.overview.model import (
    ClusterOverview,
    HostsView,
    HostView,
    Part,
    PartState,
    QueueView,
    RecordsView,
    ShardPlace,
)
from engine.operations.overview.queue_reader import QueueReader
from engine.operations.overview.why_stuck import why_stuck
from engine.operations.site import Site

T = TypeVar("T")

_READING_S = 2.0
_LONGEST_LOOK_S = 60.0
_HOSTS_AT_ONCE = 16


def places(site: Site) -> tuple[ShardPlace, ...]:
    """The cluster's shards as the configuration has them. Raises SqlError 701."""
    return tuple(
        ShardPlace(shard.number, tuple(replica.host_id.readable for replica in shard.replicas))
        for shard in site.topology_cluster.shards
    )


def queue_reader(site: Site) -> QueueReader:
    """A reader of the cluster's queue, with no memory yet. Raises ConfigError."""
    macros = site.config.topology.macros
    return QueueReader(site.env, site.queue.paths, site.hosts, cluster=site.cluster, macros=macros)


async def look_at_hosts(site: Site) -> HostsView:
    """Who gives no answer within `site.patience_s` is down. Asked are some at once, not all: with a hundred
    hosts our own slowness would be taken for theirs."""
    places = asyncio.Semaphore(_HOSTS_AT_ONCE)

    async def view_of(host: HostId) -> HostView:
        async with places:
            answer = await site.ask(host, lambda client: look_at_host(host.readable, client))
        return host_is_down(host.readable, answer) if isinstance(answer, OnclusterError) else answer

    views = await asyncio.gather(*map(view_of, site.hosts))
    return HostsView({view.host: view for view in views})


async def look_at_queue(
    site: Site, reader: QueueReader, *, begin: int = 0, count: int = 50, reading_s: float = _READING_S
) -> QueueView:
    """Raises KeeperUnavailable when Keeper does not answer a small question within `site.patience_s`.

    After that it may take its time: a long queue on a busy machine is no Keeper that is away.
    """
    keeper = site.keeper
    try:
        async with asyncio.timeout(site.patience_s):
            await keeper.exists(site.queue.paths.root)
        async with asyncio.timeout(reading_s + _LONGEST_LOOK_S):
            return await reader.look(keeper, patience_s=reading_s, begin=begin, count=count)
    except TimeoutError:
        raise KeeperUnavailable(
            "Keeper does not answer.", hint="Look at ZooKeeper or Keeper and at the network to it."
        ) from None


async def look_at_records(site: Site) -> RecordsView:
    """Raises RecordsUnavailable."""
    return await asyncio.to_thread(read_database, site)


async def part_of(site: Site, work: Awaitable[T]) -> Part[T]:
    """What `work` returns or raises, as a part of the picture."""
    try:
        value = await work
    except OnclusterError as error:
        return Part(PartState.FAILED, None, _now_ms(site), error.message, error.hint)
    return Part(PartState.READY, value, _now_ms(site))


async def look(site: Site, *, reader: QueueReader | None = None) -> ClusterOverview:
    """The whole picture. Raises SqlError 701 and ConfigError; everything else is said within it."""
    shards = places(site)
    reader = reader or queue_reader(site)
    hosts, queue, records = await asyncio.gather(
        part_of(site, look_at_hosts(site)),
        part_of(site, look_at_queue(site, reader)),
        part_of(site, look_at_records(site)),
    )
    return explained(ClusterOverview(site.cluster, _now_ms(site), shards, hosts, queue, records))


def explained(overview: ClusterOverview) -> ClusterOverview:
    """The same with `stuck` said."""
    return replace(overview, stuck=why_stuck(overview))


def _now_ms(site: Site) -> int:
    return int(site.env.now_s() * 1000)
