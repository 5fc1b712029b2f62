"""Asks Keeper for what it knows of replicated tables: a fixed number of pipelined batches, however many
tables there are, and a few round trips for its latency and its clock.

It reads, with one exception: Keeper's clock is known only from the time that it gives to a write. An
ephemeral node is created for that, outside everything else, and removed at once; a crash leaves it to the end
of the session.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Collection, Mapping
from dataclasses import replace

from engine.env import Env
from engine.errors import (
    BadArguments,
    ConfigError,
    KeeperAnswer,
    KeeperFull,
    MalformedEntry,
    NoAuth,
    OnclusterError,
    SqlError,
)
from engine.keeper.base import Children, CreateMode, Keeper, Node
from engine.keeper.recipes import create_ancestors, try_remove
from engine.names import HostId, TableName
from engine.operations.health.facts import (
    ClockFacts,
    Gap,
    KeeperFacts,
    NotSaid,
    RegisteredReplica,
    RegisteredTable,
)
from engine.operations.site import Site
from engine.replication.host import ReplicaHost
from engine.replication.paths import ReplicaPaths, TablePaths, sequence_number

_PINGS = 3


async def ask_keeper(site: Site, paths: Collection[str]) -> KeeperFacts:
    """Facts of the tables at `paths`. Raises nothing: an error stands in the facts."""
    try:
        async with asyncio.timeout(site.patience_s):
            keeper = site.keeper
            latency_ms = await measure_latency_ms(keeper, site.env)
            await keeper.sync("/")  # no older than what the hosts have said
            tables = await read_tables(keeper, paths)
            try:
                clock, write_ms, not_said = await _clock(site, keeper)
            except BadArguments as refusal:
                return KeeperFacts(latency_ms=latency_ms, tables=tables, takes_no_writes=str(refusal))
    except KeeperFull as error:
        return KeeperFacts(error=str(error), takes_no_writes=str(error))
    except OnclusterError as error:
        return KeeperFacts(error=str(error))
    except TimeoutError:
        return KeeperFacts(error=f"Keeper did not answer within {site.patience_s:g} s.")
    return KeeperFacts(latency_ms=max(latency_ms, write_ms), clock=clock, tables=tables, not_said=not_said)


async def measure_latency_ms(keeper: Keeper, env: Env) -> float:
    """The median of some round trips that read. Raises what Keeper raises."""
    took_s = []
    for _ in range(_PINGS):
        began_s = env.monotonic_s()
        await keeper.exists("/")
        took_s.append(env.monotonic_s() - began_s)
    return statistics.median(took_s) * 1000


async def _clock(site: Site, keeper: Keeper) -> tuple[ClockFacts | None, float, tuple[NotSaid, ...]]:
    """Beside the clock, what a write took in ms, the faster of two: reads come from memory, and only writes
    wait for the disk of the log."""
    try:
        path = f"{site.queue.paths.operations(site.cluster)}/clock-{site.env.new_uuid()}"
    except ConfigError as error:
        return None, 0.0, (NotSaid("Keeper's clock", str(error), Gap.ABSENT),)
    try:
        await create_ancestors(keeper, path)
        began_s = site.env.now_s()
        await keeper.create(path, mode=CreateMode.EPHEMERAL)
        ended_s = site.env.now_s()
        stat = await keeper.exists(path)
        removing_s = site.env.monotonic_s()
        await try_remove(keeper, path)
        removed_s = site.env.monotonic_s()
    except NoAuth as error:
        return (
            None,
            0.0,
            (NotSaid("Keeper's clock", str(error), Gap.DENIED, f"create on {path.rpartition('/')[0]}"),),
        )
    write_ms = min(abs(ended_s - began_s), removed_s - removing_s) * 1000
    if stat is None:
        return None, write_ms, ()
    clock = ClockFacts(stat.ctime_ms - (began_s + ended_s) * 500, abs(ended_s - began_s) * 500)
    return clock, write_ms, ()


async def read_tables(keeper: Keeper, paths: Collection[str]) -> dict[str, RegisteredTable]:
    """What is registered at each path: four batches in all. Raises what Keeper raises."""
    tables = {path: table for path in sorted(paths) if (table := _table_at(path)) is not None}
    listings = await keeper.children_many([table.replicas for table in tables.values()])
    logs = await keeper.children_many([table.log for table in tables.values()])
    found: dict[str, RegisteredTable] = {}
    replicas: list[tuple[str, ReplicaPaths]] = []
    for (path, table), listing, log in zip(tables.items(), listings, logs, strict=True):
        found[path] = RegisteredTable(path, isinstance(listing, Children), _largest(log))
        if isinstance(listing, Children):
            replicas += [(path, table.replica(name)) for name in listing.names]
    wanted = ("is_active", "is_lost", "log_pointer", "host")
    nodes = await keeper.get_many([getattr(replica, name) for _, replica in replicas for name in wanted])
    by_table: dict[str, dict[str, RegisteredReplica]] = {path: {} for path in found}
    for at, (path, replica) in enumerate(replicas):
        answers = dict(zip(wanted, nodes[at * len(wanted) : (at + 1) * len(wanted)], strict=True))
        by_table[path][replica.name] = _registered(replica, answers)
    return {path: replace(table, replicas=by_table[path]) for path, table in found.items()}


def _table_at(path: str) -> TablePaths | None:
    """None for what a host has called a path and is none."""
    try:
        return TablePaths(path)
    except SqlError:
        return None


def _registered(replica: ReplicaPaths, nodes: Mapping[str, Node | KeeperAnswer]) -> RegisteredReplica:
    host, table = _place(nodes["host"], replica)
    pointer = _text(nodes["log_pointer"])
    return RegisteredReplica(
        replica.name,
        is_active=isinstance(nodes["is_active"], Node),
        is_lost=_text(nodes["is_lost"]) == "1",
        log_pointer=int(pointer) if pointer.isdigit() else 0,
        has_been_cloned=bool(pointer),
        host=host,
        table=table,
        active_data=_text(nodes["is_active"]),
    )


def _place(node: Node | KeeperAnswer, replica: ReplicaPaths) -> tuple[HostId | None, TableName]:
    if not isinstance(node, Node) or not node.data:
        return None, TableName("", "")
    try:
        said = ReplicaHost.from_bytes(node.data, where=replica.host)
    except MalformedEntry:
        return None, TableName("", "")
    return HostId(said.host, said.tcp_port), TableName(said.database, said.table)


def _text(node: Node | KeeperAnswer) -> str:
    return node.data.decode("utf-8", "replace").strip() if isinstance(node, Node) else ""


def _largest(log: Children | KeeperAnswer) -> int:
    if not isinstance(log, Children):
        return -1
    return max((sequence_number(name) or 0 for name in log.names), default=-1)
