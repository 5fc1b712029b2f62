"""How checks make findings, and how they write figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def duration(seconds: float) -> str:
    """In the unit that a person would choose."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(size_bytes: float) -> str:
    for unit, of in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= of:
            return f"{size_bytes / of:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """The first few, and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more


def shortened(text: str, *, most: int = 300) -> str:
    """One line of an error."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
