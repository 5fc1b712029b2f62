"""How checks make findings, and how they write figures."""

from __future__ import annotations

from collections.abc import Mapping

from engine.names import HostId, TableName
from engine.operations.finding import Fact, Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, ReplicaFacts


def finding(
    facts: ClusterFacts,
    kind: FindingKind,
    severity: Severity,
    what: str,
    advice: str,
    *,
    host: HostId | None = None,
    subject: str = "",
    since_s: float = 0,
    more: Mapping[str, Fact] | None = None,
    **evidence: Fact,
) -> Finding:
    """A finding about the cluster of `facts`; its evidence is `more` and all other names.

    `since_s` 0 means that nobody knows.
    """
    return Finding(
        kind=kind,
        severity=severity,
        cluster=facts.cluster,
        what=what,
        advice=advice,
        host="" if host is None else host.readable,
        subject=subject,
        evidence={**(more or {}), **evidence},
        since_ms=int(since_s * 1000) if since_s else None,
    )


def about(replica: ReplicaFacts, facts: ClusterFacts, host: HostId) -> dict[str, Fact]:
    """What a repair has to know of a replica."""
    return place(replica.table, replica.path, replica.name) | {"shard": facts.shard_of(host)}


def place(table: TableName, path: str, replica: str) -> dict[str, Fact]:
    return {"database": table.database, "table": table.table, "path": path, "replica": replica}
