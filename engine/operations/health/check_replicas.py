"""Checks of replicas: can they be written, are they behind, are their parts whole; and why not.

A read-only replica gives one finding, of the kind that says why; what follows from it (delay, a full queue)
is not said again. When all replicas of a host have lost their session that is one finding of the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from engine.config.health_model import HealthSettings, TableLimits
from engine.names import TableName
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, HostFacts, ReplicaFacts
from engine.operations.health.making import about, finding
from engine.wording import count, duration, listed, shortened


def check_replicas(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """SESSION_LOST, KEEPER_METADATA_LOST, LOST_REPLICA, READ_ONLY, LAGGING, BROKEN_PARTS."""
    for host in facts.hosts.values():
        sessionless = [r for r in host.replicas if r.is_session_expired]
        if sessionless:
            yield _session_lost(facts, host, sessionless)
        for replica in host.replicas:
            if replica.is_session_expired:
                continue
            limits = settings.of(replica.table)
            if replica.is_readonly:
                yield _read_only(facts, host, replica, limits)
            else:
                yield from _lagging(facts, host, replica, limits)
        yield from _broken(facts, host, settings)


def _session_lost(facts: ClusterFacts, host: HostFacts, replicas: list[ReplicaFacts]) -> Finding:
    is_keeper_there = facts.keeper.is_answering
    return finding(
        facts,
        FindingKind.SESSION_LOST,
        Severity.CRITICAL if is_keeper_there else Severity.WARNING,
        f"{host.host.readable} has no session with Keeper: {len(replicas)} of {len(host.replicas)} tables "
        f"are read-only ({listed(str(replica.table) for replica in replicas)}).",
        "SYSTEM RESTART REPLICAS, and a look at the way from that host to Keeper: we have a session."
        if is_keeper_there
        else "It comes back with Keeper.",
        host=host.host,
        tables=len(replicas),
        shard=facts.shard_of(host.host),
    )


def _read_only(facts: ClusterFacts, host: HostFacts, replica: ReplicaFacts, limits: TableLimits) -> Finding:
    since_s = 0.0 if replica.readonly_s is None else facts.now_ms / 1000 - replica.readonly_s
    is_new = (
        limits.readonly_s is not None
        and replica.readonly_s is not None
        and replica.readonly_s < limits.readonly_s
    )
    kind, why, advice = _why_read_only(facts, replica)
    return finding(
        facts,
        kind,
        Severity.WARNING if is_new else Severity.CRITICAL,
        f"{replica.table} on {host.host.readable} is read-only: {why}",
        advice,
        host=host.host,
        subject=str(replica.table),
        since_s=since_s,
        more=about(replica, facts, host.host),
        readonly_s=replica.readonly_s or 0,
    )


def _why_read_only(facts: ClusterFacts, replica: ReplicaFacts) -> tuple[FindingKind, str, str]:
    table = facts.keeper.tables.get(replica.path)
    if table is None:
        why = "Keeper could not be asked why."
        if not replica.is_in_main_keeper:
            why = f"its Keeper ({replica.keeper_name}) was not asked why."
        return FindingKind.READ_ONLY, why, "Look into its server's log."
    registered = table.replicas.get(replica.name)
    if registered is None:
        rest = f"{len(table.replicas)} other replicas are there" if table.exists else "nor is the table"
        return (
            FindingKind.KEEPER_METADATA_LOST,
            f"Keeper does not know {replica.path}/replicas/{replica.name}; {rest}.",
            "SYSTEM RESTORE REPLICA makes it anew from the local parts.",
        )
    if registered.is_lost and not registered.has_been_cloned:
        return (
            FindingKind.READ_ONLY,
            "it is new, and has still to clone another replica.",
            "It does so by itself. If it stays so, SYSTEM RESTART REPLICA.",
        )
    if registered.is_lost:
        return (
            FindingKind.LOST_REPLICA,
            "it was away for longer than the log is kept (is_lost is 1).",
            "SYSTEM RESTART REPLICA: it clones another replica when it becomes active.",
        )
    if registered.is_active:
        return (
            FindingKind.READ_ONLY,
            f"is_active exists ({shortened(registered.active_data, most=60)}): another server may be it.",
            "If it stays so, look for a second server with the same replica name in its macros.",
        )
    why = "its server has a session and does not activate it"
    said = f" It says: {shortened(replica.readonly_reason)}" if replica.readonly_reason else ""
    return (
        FindingKind.READ_ONLY,
        f"{why}.{said}",
        "SYSTEM RESTART REPLICA. When its parts differ too much from Keeper's: the flag force_restore_data.",
    )


def _lagging(
    facts: ClusterFacts, host: HostFacts, replica: ReplicaFacts, limits: TableLimits
) -> Iterator[Finding]:
    figures = {
        "future_parts": (replica.future_parts, limits.future_parts),
        "queue_size": (replica.queue_size, limits.queue_size),
        "inserts_in_queue": (replica.inserts_in_queue, limits.inserts_in_queue),
        "log_lag": (log_lag(facts, replica), limits.log_lag),
        "absolute_delay_s": (replica.absolute_delay_s, limits.absolute_delay_s),
    }
    over = {name: value for name, (value, limit) in figures.items() if limit is not None and value > limit}
    if not over:
        return
    told = ", ".join(f"{name} {value} (limit {figures[name][1]})" for name, value in over.items())
    waiting = next((e for e in host.queue if e.table == replica.table and e.postpone_reason), None)
    because = ""
    if replica.pull_error:
        because = f" It cannot copy the log: {shortened(replica.pull_error)}"
    elif waiting is not None:
        because = f" {waiting.type} {waiting.part} waits: {shortened(waiting.postpone_reason)}"
    yield finding(
        facts,
        FindingKind.LAGGING,
        Severity.WARNING,
        f"{replica.table} on {host.host.readable} is behind: {told}.{because}",
        "It catches up by itself while nothing is stuck or stopped (SYSTEM START … ends that); look at its "
        "queue, its network and its disks.",
        host=host.host,
        subject=str(replica.table),
        since_s=replica.queue_oldest_s,
        more=about(replica, facts, host.host),
        **over,
    )


def log_lag(facts: ClusterFacts, replica: ReplicaFacts) -> int:
    """log_max_index − log_pointer, not below 0; 0 where Keeper was not asked."""
    table, registered = facts.keeper.tables.get(replica.path), facts.registered(replica)
    if table is None or registered is None:
        return 0
    return max(0, table.log_max_index - registered.log_pointer)


# --- parts --------------------------------------------------------------------------------------------------


def _broken(facts: ClusterFacts, host: HostFacts, settings: HealthSettings) -> Iterator[Finding]:
    """One for each table: files that cannot be read, parts that wait for their check, parts set aside."""
    told: dict[TableName, list[str]] = defaultdict(list)
    severity: dict[TableName, Severity] = {}
    for bad in host.unreadable:
        if bad.is_damage:
            told[bad.table].append(f"it cannot be read whole: {shortened(bad.error)}")
            severity[bad.table] = Severity.CRITICAL
    for replica in host.replicas:
        limit = settings.of(replica.table).parts_to_check
        if limit is not None and replica.parts_to_check > limit:
            told[replica.table].append(
                f"{count(replica.parts_to_check, 'part')} to be checked (limit {limit})"
            )
            severity.setdefault(replica.table, Severity.WARNING)
    for detached in host.detached:
        told[detached.table].append(
            f"{count(detached.parts, 'broken part')} in detached/, the newest for "
            f"{duration(facts.now_ms / 1000 - detached.newest_s)}"
        )
        severity.setdefault(detached.table, Severity.INFO)
    for table, reasons in told.items():
        replica_or_none = host.replica(table)
        yield finding(
            facts,
            FindingKind.BROKEN_PARTS,
            severity[table],
            f"{table} on {host.host.readable}: {'; '.join(reasons)}.",
            "They were replaced, or are being; look at the disk, then `oncluster cleanup`."
            if severity[table] is not Severity.CRITICAL
            else "CHECK TABLE: broken parts are set aside and fetched from another replica.",
            host=host.host,
            subject=str(table),
            more=about(replica_or_none, facts, host.host) if replica_or_none else None,
        )
