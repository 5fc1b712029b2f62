"""Reads which entries of the DDL queue still wait for hosts: three batches, however long the queue is.

Only entries that are not done everywhere are kept. An entry that does not parse waits for nobody.
"""

from __future__ import annotations

from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import without_token
from engine.errors import KeeperAnswer, MalformedEntry, NoNode, OnclusterError
from engine.keeper.base import Children, Keeper, Node
from engine.names import QueuePaths, entry_number
from engine.operations.health.facts import DdlFacts, WaitingHost
from engine.operations.site import Site
from engine.sql import redact

_STATEMENT_CHARS = 120


async def ask_ddl(site: Site) -> tuple[tuple[DdlFacts, ...], str]:
    """The entries, and why they could not be read, empty if they could."""
    try:
        return await read_waiting(site.keeper, site.queue.paths), ""
    except OnclusterError as error:
        return (), str(error)


async def read_waiting(keeper: Keeper, paths: QueuePaths) -> tuple[DdlFacts, ...]:
    """Oldest first. Raises what Keeper raises."""
    try:
        names = [name for name in (await keeper.children(paths.root)).names if entry_number(name) is not None]
    except NoNode:
        return ()
    nodes = await keeper.get_many([paths.entry(name) for name in names])
    listings = await keeper.children_many(
        [place for name in names for place in (paths.finished(name), paths.active(name))]
    )
    found = []
    for at, (name, node) in enumerate(zip(names, nodes, strict=True)):
        finished, active = listings[2 * at : 2 * at + 2]
        if isinstance(node, Node) and (entry := _parsed(name, node)) is not None:
            done, running = _names(finished), _names(active)
            waiting = tuple(
                WaitingHost(host, str(host) in running)
                for host in entry.distinct_hosts
                if str(host) not in done
            )
            if waiting:
                statement = " ".join(redact(without_token(entry.query)).split())[:_STATEMENT_CHARS]
                found.append(DdlFacts(name, node.stat.ctime_ms, waiting, statement))
    return tuple(found)


def _parsed(name: str, node: Node) -> DDLLogEntry | None:
    try:
        return DDLLogEntry.from_bytes(node.data, where=name)
    except MalformedEntry:
        return None


def _names(listing: Children | KeeperAnswer) -> frozenset[str]:
    return frozenset(listing.names) if isinstance(listing, Children) else frozenset()
