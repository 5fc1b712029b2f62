"""One trouble as people are told of it: what, where, since when, what to do, and which page says more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.operations.finding import Fact, Finding, Severity, digest
from engine.operations.records import FindingRecord
from engine.sql import redact_prose


@dataclass(frozen=True, slots=True)
class Alert:
    """A trouble.

    `trouble` is the same as long as the trouble is. `since_ms` is Unix milliseconds, None when unknown.
    `runbook` is a page relative to `docs/`, empty when there is none.
    """

    trouble: str
    kind: str
    severity: Severity
    cluster: str
    what: str
    advice: str
    host: str = ""
    subject: str = ""
    runbook: str = ""
    evidence: Mapping[str, Fact] = field(default_factory=dict)
    since_ms: int | None = None

    @classmethod
    def of_finding(cls, finding: Finding, *, first_seen_ms: int | None = None) -> Alert:
        """A finding's own `since_ms` goes before the time at which it was first seen. Secrets are hidden."""
        return cls(
            trouble=finding.fingerprint,
            kind=finding.kind.value,
            severity=finding.severity,
            cluster=finding.cluster,
            what=redact_prose(finding.what),
            advice=finding.advice,
            host=finding.host,
            subject=finding.subject,
            runbook=finding.runbook,
            evidence={
                name: redact_prose(fact) if isinstance(fact, str) else fact
                for name, fact in finding.evidence.items()
            },
            since_ms=first_seen_ms if finding.since_ms is None else finding.since_ms,
        )

    @classmethod
    def of_record(cls, record: FindingRecord) -> Alert:
        return cls.of_finding(record.finding, first_seen_ms=record.first_seen_ms)

    @property
    def fingerprint(self) -> str:
        """Under which it is remembered that people were told: of a trouble that grows worse they are told
        again."""
        return told_under(self.trouble, self.severity)

    @property
    def where(self) -> str:
        """`node01:9000 flights.flights`, as far as that is known."""
        return " ".join(part for part in (self.host, self.subject) if part)


def told_under(trouble: str, severity: Severity) -> str:
    """32 hex digits."""
    return digest([trouble, severity.word])
