"""Proves that the replicas of a table hold the same data: equal checksums for every part.

What is compared is `hash_of_all_files` of `system.parts`; where a server is too old for it, what each replica
has written into Keeper about its parts. Tables are looked at again and again until they are equal or the time
is up: fetches take time, and while people insert the replicas differ for moments.

It only reads.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.client import NodeClient
from engine.errors import Code, OnclusterError, SqlError
from engine.keeper.base import Children, Keeper, Node
from engine.names import HostId, TableName, quote_string
from engine.operations.site import Site
from engine.replication.paths import TablePaths
from engine.wording import listed

PAUSE_S = 0.5
_MOST_DIFFERENCES = 5

Parts = Mapping[str, str]
"""Names of active parts → checksums."""


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What one replica has. `error` says why that is not known."""

    replica: str
    host: str
    parts: Parts
    error: str = ""

    @property
    def digest(self) -> str:
        """One checksum of all names and checksums."""
        text = "\n".join(f"{name}\t{self.parts[name]}" for name in sorted(self.parts))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TableProof:
    """The replicas of one table beside each other."""

    table: str
    path: str
    shard: int
    replicas: tuple[ReplicaParts, ...]

    @property
    def is_equal(self) -> bool:
        """All replicas are known, and have the same parts with the same checksums."""
        return not any(r.error for r in self.replicas) and len({r.digest for r in self.replicas}) <= 1

    @property
    def differences(self) -> tuple[str, ...]:
        """What differs, in words; empty if nothing does."""
        said = [f"{r.replica} on {r.host}: {r.error}" for r in self.replicas if r.error]
        known = [replica for replica in self.replicas if not replica.error]
        for name in sorted({name for replica in known for name in replica.parts}):
            sums = {replica.parts.get(name, "") for replica in known}
            if len(sums) == 1:
                continue
            lacking = [replica.replica for replica in known if name not in replica.parts]
            said.append(
                f"part {name} is not on {', '.join(lacking)}"
                if lacking
                else f"part {name} has different checksums"
            )
        return tuple(said)

    @property
    def words(self) -> str:
        """One sentence."""
        names = ", ".join(f"{r.replica} on {r.host}" for r in self.replicas)
        if not self.is_equal:
            return f"{self.table}: {listed(self.differences, most=_MOST_DIFFERENCES)}"
        parts = len(self.replicas[0].parts) if self.replicas else 0
        if len(self.replicas) < 2:
            return f"{self.table}: nothing to compare, only {names or 'no replica'} has it"
        return f"{self.table}: equal checksums of {parts} parts on {names} ({self.replicas[0].digest})"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared, table by table."""

    tables: tuple[TableProof, ...]

    @property
    def is_equal(self) -> bool:
        return all(table.is_equal for table in self.tables)

    @property
    def words(self) -> str:
        return "; ".join(table.words for table in self.tables if not table.is_equal) or "; ".join(
            table.words for table in self.tables
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "table": table.table,
                "path": table.path,
                "shard": table.shard,
                "is_equal": table.is_equal,
                "differences": list(table.differences[:100]),
                "replicas": [
                    {
                        "replica": r.replica,
                        "host": r.host,
                        "parts": len(r.parts),
                        "digest": r.digest,
                        "error": r.error,
                    }
                    for r in table.replicas
                ],
            }
            for table in self.tables
        ]


@dataclass(frozen=True, slots=True)
class _Holder:
    """A replica on a host that answers."""

    host: HostId
    table: TableName
    path: str
    replica: str


HostParts = Mapping[TableName, Parts] | OnclusterError | None
"""None where the server does not tell checksums."""


async def prove(site: Site, paths: Collection[str], *, wait_s: float) -> Proof:
    """Compare until all tables are equal, at most `wait_s` seconds; what was seen last is returned.

    Hosts that do not answer are no part of a proof. Raises Keeper's errors.
    """
    deadline_s = site.env.monotonic_s() + wait_s
    while True:
        proof = await compare(site, paths)
        if proof.is_equal or site.env.monotonic_s() >= deadline_s:
            return proof
        await site.env.sleep(PAUSE_S)


async def compare(site: Site, paths: Collection[str]) -> Proof:
    """How the tables are now: two statements for each host, whatever the number of tables."""
    told = await site.ask_all(lambda host, client: _holders(host, client, frozenset(paths)))
    holders = [
        holder for answer in told.values() if not isinstance(answer, OnclusterError) for holder in answer
    ]
    hosts = sorted({holder.host for holder in holders})
    answers = await asyncio.gather(*(_parts_of(site, host, holders) for host in hosts))
    by_host = dict(zip(hosts, answers, strict=True))
    return Proof(tuple([await _proof_of(site, path, holders, by_host) for path in sorted(paths)]))


async def _holders(host: HostId, client: NodeClient, paths: Collection[str]) -> list[_Holder]:
    rows = await client.query_rows(
        "SELECT database, table, zookeeper_path, replica_name FROM system.replicas "
        f"WHERE zookeeper_path IN ({', '.join(map(quote_string, sorted(paths) or ['']))})"
    )
    return [
        _Holder(host, TableName(database, table), path.rstrip("/"), replica)
        for database, table, path, replica in rows.rows
    ]


async def _parts_of(site: Site, host: HostId, holders: Sequence[_Holder]) -> HostParts:
    tables = [holder.table for holder in holders if holder.host == host]
    names = ", ".join(f"({quote_string(t.database)}, {quote_string(t.table)})" for t in tables)
    sql = (
        "SELECT database, table, name, hash_of_all_files FROM system.parts "
        f"WHERE active AND (database, table) IN ({names})"
    )

    async def read(client: NodeClient) -> dict[TableName, dict[str, str]]:
        found: dict[TableName, dict[str, str]] = {table: {} for table in tables}
        for database, table, name, checksum in (await client.query_rows(sql)).rows:
            found[TableName(database, table)][name] = checksum
        return found

    answer = await site.ask(host, read)
    if isinstance(answer, SqlError) and answer.code in (
        Code.UNKNOWN_IDENTIFIER,
        Code.NO_SUCH_COLUMN_IN_TABLE,
    ):
        return None
    return answer


async def _proof_of(
    site: Site, path: str, holders: Sequence[_Holder], by_host: Mapping[HostId, HostParts]
) -> TableProof:
    here = [holder for holder in holders if holder.path == path]
    is_told_by_all = all(by_host[holder.host] is not None for holder in here)
    replicas = []
    for holder in here:
        name, where = holder.replica, holder.host.readable
        answer = by_host[holder.host]
        if isinstance(answer, OnclusterError):
            replicas.append(ReplicaParts(name, where, {}, str(answer)))
        elif answer is None or not is_told_by_all:
            replicas.append(ReplicaParts(name, where, await parts_in_keeper(site.keeper, path, name)))
        else:
            replicas.append(ReplicaParts(name, where, answer[holder.table]))
    shards = site.topology_cluster.shards
    hosts = {holder.host for holder in here}
    shard = next((s.number for s in shards if any(r.host_id in hosts for r in s.replicas)), 0)
    return TableProof(str(here[0].table) if here else path, path, shard, tuple(replicas))


async def parts_in_keeper(keeper: Keeper, path: str, name: str) -> Parts:
    """What a replica has written of its parts: a digest of each header, or of old servers' checksums."""
    replica = TablePaths(path).replica(name)
    [listing] = await keeper.children_many([replica.parts])
    names = listing.names if isinstance(listing, Children) else ()
    headers = await keeper.get_many([f"{replica.parts}/{part}" for part in names])
    old = [
        part for part, node in zip(names, headers, strict=True) if isinstance(node, Node) and not node.data
    ]
    checksums = await keeper.get_many([f"{replica.parts}/{part}/checksums" for part in old])
    data = {part: node.data for part, node in zip(names, headers, strict=True) if isinstance(node, Node)}
    data |= {part: node.data for part, node in zip(old, checksums, strict=True) if isinstance(node, Node)}
    return {part: hashlib.sha256(text).hexdigest() for part, text in data.items()}
