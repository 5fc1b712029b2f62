"""Checks of replicated tables as Keeper knows them: replicas that are registered and not there, and too few.

A replica that is inactive because its host is down, or because of something that is a finding of its own, is
not told again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.config.health_model import HealthSettings
from engine.names import HostId, TableName
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, RegisteredReplica, RegisteredTable
from engine.operations.health.making import finding, place
from engine.operations.homes import Homes, Told
from engine.wording import count, listed


def check_tables(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """LOST_REPLICA (the host is there and the table is not), TOO_FEW_REPLICAS."""
    tables: dict[str, TableName] = {}
    for _, replica in facts.replicas():
        tables.setdefault(replica.path, replica.table)
    homes = _homes(facts)
    for path, table in facts.keeper.tables.items():
        if not table.exists:
            continue
        lost = {
            replica.name: host
            for replica in table.replicas.values()
            if (host := _host_without_it(facts, path, replica, homes)) is not None
        }
        for name, host in lost.items():
            yield _lost(facts, tables[path], path, name, host)
        yield from _too_few(facts, settings, tables[path], table, homes, lost)


def _homes(facts: ClusterFacts) -> Homes:
    told = []
    for host, replica in facts.replicas():
        registered = facts.registered(replica)
        told.append(
            Told(host.host, replica.path, replica.name, None if registered is None else registered.host)
        )
    return Homes.of(facts.hosts.keys(), told)


def _host_without_it(
    facts: ClusterFacts, path: str, replica: RegisteredReplica, homes: Homes
) -> HostId | None:
    """The host that should run the replica and does not have it, if every host of its shard was asked. Not
    one that has the table as another replica, since its `{replica}` was changed, or has it detached: nothing
    is lost there."""
    home = homes.home_of(path, replica.name, replica.host)
    if home is None or replica.is_active or facts.told_of(path, replica.name) is not None:
        return None
    own = facts.hosts[home].replica(replica.table)
    if (own is not None and own.path == path) or replica.table in facts.hosts[home].detached_tables:
        return None
    shard = {home, *facts.shards.get(facts.shard_of(home), ())}
    is_known = all(facts.hosts[host].knows_replicas for host in shard if host in facts.hosts)
    return home if is_known else None


def _lost(facts: ClusterFacts, table: TableName, path: str, name: str, host: HostId) -> Finding:
    return finding(
        facts,
        FindingKind.LOST_REPLICA,
        Severity.CRITICAL,
        f"Keeper knows replica {name} of {table}, and {host.readable}, which should run it, does not have "
        "the table: its disk was lost, or it was dropped while Keeper was away.",
        "Drop the replica from Keeper, create the table on the host again: it clones another replica.",
        host=host,
        subject=str(table),
        more=place(table, path, name),
        shard=facts.shard_of(host),
        is_table_missing="yes",
    )


def _too_few(
    facts: ClusterFacts,
    settings: HealthSettings,
    name: TableName,
    table: RegisteredTable,
    homes: Homes,
    lost: Mapping[str, HostId],
) -> Iterator[Finding]:
    total = len(table.replicas)
    inactive = [replica for replica in table.replicas.values() if not replica.is_active]
    unexplained = [replica for replica in inactive if not _is_explained(facts, table, replica, homes, lost)]
    least = settings.of(name).min_replicas
    is_short = least is not None and total < least
    if not is_short and not unexplained:
        return
    active = total - len(inactive)
    shard = next((facts.shard_of(host.host) for host, r in facts.replicas() if r.path == table.path), 0)
    is_meant = is_short and not unexplained and len(facts.shards.get(shard, ())) < (least or 0)
    names = listed(f"{replica.name}{_detached_on(facts, table, replica, homes)}" for replica in unexplained)
    yield finding(
        facts,
        FindingKind.TOO_FEW_REPLICAS,
        Severity.CRITICAL if not active else Severity.INFO if is_meant else Severity.WARNING,
        f"{name} at {table.path} has {count(total, 'replica')}, {active} of them active"
        + (f"; inactive: {names}." if names else f"; {least} are wanted."),
        "Start the servers of those that are inactive, or attach the table; drop those whose "
        "server is gone (`oncluster cleanup`)."
        if names
        else "Create the table on another host of the shard; a lost disk loses data for ever meanwhile.",
        subject=f"{name} at {table.path}",
        total_replicas=total,
        active_replicas=active,
        shard=shard,
    )


def _detached_on(
    facts: ClusterFacts, table: RegisteredTable, replica: RegisteredReplica, homes: Homes
) -> str:
    home = homes.home_of(table.path, replica.name, replica.host)
    if home is None or replica.table not in facts.hosts[home].detached_tables:
        return ""
    return f" (detached on {home.readable})"


def _is_explained(
    facts: ClusterFacts,
    table: RegisteredTable,
    replica: RegisteredReplica,
    homes: Homes,
    lost: Mapping[str, HostId],
) -> bool:
    if replica.name in lost:
        return True
    told = facts.told_of(table.path, replica.name)
    if told is not None:
        return told.is_readonly or told.is_session_expired
    home = homes.home_of(table.path, replica.name, replica.host)
    if home is not None:
        return not facts.hosts[home].is_answering
    shards = {facts.shard_of(host.host) for host, other in facts.replicas() if other.path == table.path}
    return any(not facts.hosts[host].is_answering for shard in shards for host in facts.shards.get(shard, ()))
