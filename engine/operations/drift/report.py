"""Schema drift of a cluster: what differs, why, and as findings for health checks and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.operations.drift.compare import find_drift
from engine.operations.drift.explain import explained, read_ledger
from engine.operations.drift.gather import look_at_schemas
from engine.operations.drift.model import Drift, DriftKind, Schemas
from engine.operations.drift.other_clusters import concerning_this_cluster, other_ledgers
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.records import Seen
from engine.operations.site import Site

SCOPE = "drift"
_LONGEST_EVIDENCE = 2000

_ADVICE = {
    DriftKind.MISSING: "Let `oncluster drift repair-plan` make it there.",
    DriftKind.EXTRA: "Make it everywhere by a migration, or remove it there by hand if nobody needs it.",
    DriftKind.DIFFERS: "Look at `oncluster drift repair-plan`; what it cannot change without risk it says.",
    DriftKind.KEEPER: "SYSTEM RESTART REPLICA there; if that does not help, look at its queue.",
    DriftKind.BEHIND: "Look at the replica's queue for the ALTER, and at its log; SYSTEM RESTART REPLICA.",
    DriftKind.PATH: "Two tables of one name are no replicas of each other: move the rows of one by hand.",
}
_OF_KEEPER = frozenset({DriftKind.KEEPER.value, DriftKind.BEHIND.value})
_CATCHES_UP = "It has this before it in the queue: wait until it is done."


@dataclass(frozen=True, slots=True)
class DriftReport:
    """One look. `notes` say what could not be looked at; `objects` how many there are."""

    cluster: str
    schemas: Schemas
    drifts: tuple[Drift, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def objects(self) -> int:
        return len({name for host in self.schemas.hosts.values() for name in host.objects})

    @property
    def is_equal(self) -> bool:
        """All hosts have said that they are."""
        return not self.drifts and not self.schemas.silent

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "is_equal": self.is_equal,
            "hosts": [host.readable for host in self.schemas.hosts],
            "objects": self.objects,
            "drifts": [drift.to_json() for drift in self.drifts],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }


async def check_drift(site: Site) -> DriftReport:
    """Look at all hosts, Keeper and the ledger; changes nothing. Raises SqlError 701."""
    return drift_report(site, await look_at_schemas(site))


def drift_report(site: Site, schemas: Schemas) -> DriftReport:
    """What a look adds up to; reads the ledger."""
    drifts = find_drift(schemas)
    ledger = read_ledger(site.ledger_url, site.cluster, site.env)
    notes = [*schemas.notes]
    if drifts:
        others = other_ledgers(site)
        drifts = explained(concerning_this_cluster(drifts, ledger, others), ledger, others)
        notes += [ledger.note] if ledger.note else []
    for schema in schemas.hosts.values():
        notes += [f"{schema.host.readable}: {gap}; that is not compared." for gap in schema.gaps]
    findings = [_finding(site.cluster, drift) for drift in drifts]
    findings += [
        Finding(
            FindingKind.NOT_CHECKED,
            Severity.WARNING,
            site.cluster,
            what=f"The schema of {host.readable} was not looked at: {error}",
            advice="Look again when it answers.",
            host=host.readable,
            subject="schema",
        )
        for host, error in schemas.silent.items()
    ]
    return DriftReport(site.cluster, schemas, drifts, tuple(findings), tuple(notes))


def record_drift(site: Site, report: DriftReport) -> Seen:
    """Keep the findings, and close those that are gone. Raises RecordsUnavailable.

    A drift that this look could not find goes on as it was: nobody has seen that it is gone.
    """
    return site.records.see_findings(site.cluster, SCOPE, [*report.findings, *_unseen(site, report)])


def _unseen(site: Site, report: DriftReport) -> list[Finding]:
    """Those of silent hosts, of one with which nobody could be compared, and Keeper's while it is silent."""
    schemas = report.schemas
    told = {finding.fingerprint for finding in report.findings}
    silent = {host.readable for host in schemas.silent}
    if silent and len(schemas.hosts) == 1:
        silent |= {host.readable for host in schemas.hosts}
    unasked = _OF_KEEPER if schemas.keeper_error else frozenset[str]()
    return [
        record.finding
        for record in site.records.open_findings(site.cluster, SCOPE)
        if record.finding.kind is FindingKind.SCHEMA_DRIFT
        and record.finding.fingerprint not in told
        and (record.finding.host in silent or record.finding.evidence.get("kind") in unasked)
    ]


def _finding(cluster: str, drift: Drift) -> Finding:
    explanation = drift.explanation
    waits = explanation is not None and explanation.will_catch_up
    is_mild = waits or drift.kind is DriftKind.EXTRA
    why = f" {explanation.what}" if explanation is not None else ""
    evidence: dict[str, str | int | float] = {"kind": drift.kind.value}
    if drift.parts:
        evidence["differences"] = "; ".join(map(str, drift.parts))[:_LONGEST_EVIDENCE]
    if explanation is not None and explanation.migration:
        evidence |= {"migration": explanation.migration, "statement": explanation.statement}
        evidence |= {"entry": explanation.entry} if explanation.entry else {}
    return Finding(
        FindingKind.SCHEMA_DRIFT,
        Severity.INFO if is_mild else Severity.WARNING,
        cluster,
        what=drift.what + why,
        advice=_CATCHES_UP if waits else _ADVICE[drift.kind],
        host=drift.host.readable,
        subject=f"{drift.object} ({drift.kind})" if drift.kind in _SAID_TWICE else str(drift.object),
        evidence=evidence,
    )


_SAID_TWICE = frozenset({DriftKind.KEEPER, DriftKind.BEHIND, DriftKind.PATH})
"""They may stand beside another drift of the same object on the same host."""
