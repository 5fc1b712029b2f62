"""Checks a cluster: gathers its facts, asks every family of checks, and says what was not looked at.

Checking changes nothing. `record_health` keeps what was found and the figures for trends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.config.health_model import HealthSettings
from engine.operations.finding import Finding, FindingKind, Severity, worst
from engine.operations.health.check_configuration import check_configuration
from engine.operations.health.check_ddl import check_ddl
from engine.operations.health.check_hosts import check_hosts
from engine.operations.health.check_keeper import check_keeper
from engine.operations.health.check_queues import check_queues
from engine.operations.health.check_replicas import check_replicas
from engine.operations.health.check_tables import check_tables
from engine.operations.health.facts import ClusterFacts, Gap, HostFacts
from engine.operations.health.gather import Depth, gather_facts
from engine.operations.health.samples import samples_of
from engine.operations.records import Sample, Seen
from engine.operations.site import Site

SCOPE = "health"
"""Of the findings in the records."""

Check = Callable[[ClusterFacts, HealthSettings], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    check_keeper,
    check_hosts,
    check_configuration,
    check_replicas,
    check_tables,
    check_queues,
    check_ddl,
)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a check found, the worst first. `notes` say what was not looked at, and why."""

    cluster: str
    at_ms: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    facts: ClusterFacts

    @property
    def worst(self) -> Severity | None:
        return worst(self.findings)

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(samples_of(self.facts))

    def to_json(self) -> dict[str, Any]:
        worst_ = self.worst
        return {
            "cluster": self.cluster,
            "at_ms": self.at_ms,
            "worst": None if worst_ is None else worst_.word,
            "hosts": len(self.facts.hosts),
            "silent_hosts": [h.host.readable for h in self.facts.hosts.values() if not h.is_answering],
            "tables": len({replica.path for _, replica in self.facts.replicas()}),
            "replicas": sum(1 for _ in self.facts.replicas()),
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }


async def check_health(
    site: Site, settings: HealthSettings | None = None, *, depth: Depth = Depth.TELLS
) -> HealthReport:
    """Look at the whole cluster. `settings` are the configuration's unless given.

    Raises SqlError 701 for an unknown cluster; hosts and Keeper that do not answer are findings.
    """
    facts = await gather_facts(site, depth=depth)
    return report_of(facts, site.config.health if settings is None else settings)


def report_of(facts: ClusterFacts, settings: HealthSettings) -> HealthReport:
    """What the checks say about these facts."""
    found: dict[str, Finding] = {}
    for check in CHECKS:
        for finding in check(facts, settings):
            _keep_worse(found, finding)
    findings = sorted(found.values(), key=lambda f: (-f.severity, f.kind.value, f.host, f.subject))
    return HealthReport(facts.cluster, facts.now_ms, tuple(findings), _notes(facts), facts)


def record_health(site: Site, report: HealthReport) -> Seen:
    """Keep findings and figures, forget figures that are too old. Raises RecordsUnavailable.

    A finding about a host that was silent this time, or told less than it was asked, goes on as it was. So
    does one that needs Keeper's word while Keeper is silent: nobody has seen that it is gone.
    """
    keep_s = site.config.health.samples_keep_s
    site.records.add_samples(site.cluster, report.samples)
    site.records.prune_samples(before_ms=report.at_ms - keep_s * 1000)
    return site.records.see_findings(site.cluster, SCOPE, [*report.findings, *_unseen(site, report)])


_OF_SILENCE = frozenset({FindingKind.HOST_DOWN, FindingKind.NOT_CHECKED})
_OF_KEEPER = frozenset(
    {
        FindingKind.KEEPER_FULL,
        FindingKind.KEEPER_METADATA_LOST,
        FindingKind.LAGGING,
        FindingKind.LOST_REPLICA,
        FindingKind.STUCK_DDL,
        FindingKind.TOO_FEW_REPLICAS,
    }
)
"""Kinds that are not found without Keeper's word."""


def _unseen(site: Site, report: HealthReport) -> list[Finding]:
    facts = report.facts
    silent = {h.host.readable for h in facts.hosts.values() if not h.is_answering or _told_less(h)}
    unasked = _OF_KEEPER if not facts.keeper.is_answering else frozenset[FindingKind]()
    if facts.ddl_error:
        unasked |= {FindingKind.STUCK_DDL}
    told = {finding.fingerprint for finding in report.findings}
    return [
        record.finding
        for record in site.records.open_findings(site.cluster, SCOPE)
        if record.finding.fingerprint not in told
        and (
            record.finding.kind in unasked
            or (record.finding.host in silent and record.finding.kind not in _OF_SILENCE)
        )
    ]


def _told_less(host: HostFacts) -> bool:
    """Than it may the next time. What an old server lacks, or a user may not read, is never told."""
    return any(gap.gap in (Gap.FAILED, Gap.OVER_QUOTA) for gap in host.not_said)


def _keep_worse(found: dict[str, Finding], finding: Finding) -> None:
    """Two checks may see one trouble: the worse of the two is told."""
    known = found.get(finding.fingerprint)
    if known is None or finding.severity > known.severity:
        found[finding.fingerprint] = finding


def _notes(facts: ClusterFacts) -> tuple[str, ...]:
    """What old servers lack, once for all hosts alike."""
    absent: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host in facts.hosts.values():
        for gap in host.not_said:
            if gap.gap is Gap.ABSENT:
                absent[gap.what, gap.why].append(host.host.readable)
    notes = [f"{what} was not checked on {', '.join(hosts)}: {why}." for (what, why), hosts in absent.items()]
    notes += [
        f"{gap.what}: not checked, {gap.why}." for gap in facts.keeper.not_said if gap.gap is Gap.ABSENT
    ]
    others = {r.keeper_name for _, r in facts.replicas() if not r.is_in_main_keeper}
    if others:
        notes.append(
            f"Tables in the auxiliary Keepers {', '.join(sorted(others))} were not compared with them."
        )
    return (*facts.notes, *notes)
