"""What a check found: one value per trouble, the same value each time the same trouble is seen.

A finding names a kind, a host and a subject; its fingerprint is made of these and not of figures, so that
a trouble that goes on is one trouble, however its numbers change. Its runbook page is named by its kind.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fact = str | int | float


class FindingKind(enum.StrEnum):
    """What is wrong. The values are names of runbook pages, `docs/runbooks/<kind>.md`."""

    HOST_DOWN = "host-down"
    SESSION_LOST = "session-lost"
    READ_ONLY = "read-only"
    KEEPER_METADATA_LOST = "keeper-metadata-lost"
    LOST_REPLICA = "lost-replica"
    BROKEN_PARTS = "broken-parts"
    TOO_FEW_REPLICAS = "too-few-replicas"
    LAGGING = "lagging"
    STUCK_QUEUE = "stuck-queue"
    STUCK_MUTATION = "stuck-mutation"
    STUCK_DDL = "stuck-ddl"
    EXPIRED_DDL = "expired-ddl"
    SCHEMA_DRIFT = "schema-drift"
    KEEPER_DOWN = "keeper-down"
    KEEPER_SLOW = "keeper-slow"
    KEEPER_FULL = "keeper-full"
    DISK_FULL = "disk-full"
    CLOCK_SKEW = "clock-skew"
    CONFIG_DIFFERS = "config-differs"
    BROKEN_SPOOL = "broken-spool"
    SPOOL_BACKLOG = "spool-backlog"
    ORPHANED_REPLICA = "orphaned-replica"
    DEAD_REPLICA = "dead-replica"
    HALF_CREATED_TABLE = "half-created-table"
    OLD_DETACHED_PARTS = "old-detached-parts"
    NOT_CHECKED = "not-checked"
    """Something could not be looked at: no permission, or an answer that nobody understands."""


class Severity(enum.IntEnum):
    """How bad. Ordered."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One trouble.

    - `host` is a host id as `system.clusters` spells it, empty for the cluster as a whole.
    - `subject` is what it concerns on that host: a table, an entry, a path; empty for the host itself.
    - `what` is one sentence for people, `advice` says what to do.
    - `evidence` are the figures it rests on; units stand in the names.
    - `since_ms` is when it began (Unix milliseconds) where that is known.
    """

    kind: FindingKind
    severity: Severity
    cluster: str
    what: str
    advice: str
    host: str = ""
    subject: str = ""
    evidence: Mapping[str, Fact] = field(default_factory=dict)
    since_ms: int | None = None

    @property
    def fingerprint(self) -> str:
        """32 hex digits, equal as long as it is the same trouble."""
        return digest([self.kind.value, self.cluster, self.host, self.subject])

    @property
    def runbook(self) -> str:
        """The page that says more, relative to `docs/`."""
        return f"runbooks/{self.kind.value}.md"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "severity": self.severity.word,
            "cluster": self.cluster,
            "host": self.host,
            "subject": self.subject,
            "what": self.what,
            "advice": self.advice,
            "evidence": dict(self.evidence),
            "since_ms": self.since_ms,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Raises KeyError and ValueError on what `to_json` has not written."""
        return cls(
            kind=FindingKind(data["kind"]),
            severity=Severity[data["severity"].upper()],
            cluster=data["cluster"],
            what=data["what"],
            advice=data["advice"],
            host=data["host"],
            subject=data["subject"],
            evidence=dict(data["evidence"]),
            since_ms=data["since_ms"],
        )


def digest(value: Any) -> str:
    """32 hex digits of a JSON value, the same for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The greatest severity, None without findings."""
    return max((finding.severity for finding in findings), default=None)
