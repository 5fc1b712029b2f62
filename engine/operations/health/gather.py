"""Gathers all facts of a cluster: all hosts at once, then Keeper for what they told of.

The cost is some statements for each host and a few batches to Keeper, whatever the number of tables. With
`Depth.READS_DATA` every replicated table is read whole as well, one after another on each host, to find
damage that nobody has met yet. Nothing is changed; see `ask_keeper` for the one node that comes and goes.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection, Sequence
from dataclasses import replace

from engine.errors import OnclusterError, SqlError
from engine.names import HostId, TableName
from engine.operations.health.ask_ddl import ask_ddl
from engine.operations.health.ask_host import ask_host
from engine.operations.health.ask_keeper import ask_keeper
from engine.operations.health.ask_keeper_servers import ask_keeper_servers
from engine.operations.health.damage import DAMAGED_WHEN_READ_HERE
from engine.operations.health.facts import ClusterFacts, DdlFacts, HostFacts, KeeperFacts, Unreadable
from engine.operations.site import Site


class Depth(enum.StrEnum):
    """How closely a check looks."""

    TELLS = "tells"
    """What servers and Keeper tell of themselves: seconds."""

    READS_DATA = "reads-data"
    """Also every byte of every replicated table on every host, which takes as long as that takes."""


async def gather_facts(site: Site, *, depth: Depth = Depth.TELLS) -> ClusterFacts:
    """Raises SqlError 701 for an unknown cluster; whatever else goes wrong stands in the facts."""
    cluster = site.topology_cluster
    hosts, (servers, gaps), (ddl, ddl_error) = await asyncio.gather(
        asyncio.gather(*(ask_host(site, host) for host in site.hosts)),
        ask_keeper_servers(site.config.zookeeper),
        _ddl_within(site),
    )
    if depth is Depth.READS_DATA:
        hosts = list(await asyncio.gather(*(_read_tables(site, facts) for facts in hosts)))
    keeper = await _keeper(site, hosts)
    notes = [f"The DDL queue was not looked at: {ddl_error}"] if ddl_error and keeper.is_answering else []
    return ClusterFacts(
        cluster=site.cluster,
        now_ms=int(site.env.now_s() * 1000),
        hosts={facts.host: facts for facts in hosts},
        keeper=replace(keeper, servers=servers, not_said=keeper.not_said + gaps),
        shards={shard.number: tuple(r.host_id for r in shard.replicas) for shard in cluster.shards},
        ddl=ddl,
        ddl_error=ddl_error,
        notes=tuple(notes),
    )


async def gather_table(site: Site, path: str, hosts: Collection[HostId]) -> ClusterFacts:
    """Facts of the replicated table at one path, from these hosts and Keeper."""
    answers = await asyncio.gather(*(ask_host(site, host, path=path) for host in hosts))
    keeper = await ask_keeper(site, [path])
    return ClusterFacts(
        cluster=site.cluster,
        now_ms=int(site.env.now_s() * 1000),
        hosts={facts.host: facts for facts in answers},
        keeper=keeper,
        shards={s.number: tuple(r.host_id for r in s.replicas) for s in site.topology_cluster.shards},
    )


async def _ddl_within(site: Site) -> tuple[tuple[DdlFacts, ...], str]:
    try:
        async with asyncio.timeout(site.patience_s):
            return await ask_ddl(site)
    except TimeoutError:
        return (), f"Keeper did not answer within {site.patience_s:g} s."


async def _keeper(site: Site, hosts: Sequence[HostFacts]) -> KeeperFacts:
    paths = {replica.path for facts in hosts for replica in facts.replicas if replica.is_in_main_keeper}
    return await ask_keeper(site, paths)


async def _read_tables(site: Site, facts: HostFacts) -> HostFacts:
    """Read every replicated table of a host, and keep those that could not be read."""
    bad = []
    for replica in facts.replicas:
        if (found := await read_table(site, facts.host, replica.table)) is not None:
            bad.append(found)
    return replace(facts, unreadable=tuple(bad))


async def read_table(site: Site, host: HostId, table: TableName) -> Unreadable | None:
    """Read all rows of a table on one host and throw them away; None if that went well.

    It may take as long as the site's clients wait, which is six times its patience.
    """
    try:
        await site.client(host).query_text(f"SELECT * FROM {table.quoted}", format="Null")
    except SqlError as error:
        return Unreadable(table, error.display_text, is_damage=error.code in DAMAGED_WHEN_READ_HERE)
    except OnclusterError as error:
        return Unreadable(table, str(error), is_damage=False)
    return None
