"""How `oncluster health` shows reports, plans' proofs, findings and trends to people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import click

from engine.cli.output import print_table
from engine.operations.finding import Finding, Severity
from engine.operations.health import HealthReport
from engine.operations.records import FindingRecord, Sample
from engine.operations.repair import Proof
from engine.wording import count, duration, moment

_BARS = "▁▂▃▄▅▆▇█"
_MOST_POINTS = 60
_COLOURS = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def show_findings(records: Sequence[FindingRecord], now_ms: int, *, empty: str) -> None:
    """What the records have."""
    print_table(
        ("severity", "kind", "host", "since", "what", "fingerprint"),
        [
            (
                record.finding.severity.word,
                record.finding.kind.value,
                record.finding.host,
                duration((now_ms - record.first_seen_ms) / 1000),
                record.finding.what,
                record.finding.fingerprint,
            )
            for record in records
        ],
        empty=empty,
    )


def show_trend(metric: str, hours: float, samples: Sequence[Sample]) -> None:
    """One line for each host and what the figure is of."""
    series: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        series[sample.host, sample.subject].append(sample)
    print_table(
        ("host", "of", "over time", "least", "most", "last"),
        [
            (place, subject, sparkline([s.value for s in points]), *map(_figure, _ends(points)))
            for (place, subject), points in sorted(series.items())
        ],
        title=f"{metric}, {hours:g} h",
        empty=f"No figures of {metric} in the last {hours:g} h. `oncluster health check` keeps them.",
    )


def sparkline(values: Sequence[float]) -> str:
    """The values as bars; when there are many, the largest of each stretch."""
    stretch = -(-len(values) // _MOST_POINTS) or 1
    points = [max(values[at : at + stretch]) for at in range(0, len(values), stretch)]
    least, most = min(points, default=0), max(points, default=0)
    span = (most - least) or 1
    return "".join(_BARS[int((point - least) / span * (len(_BARS) - 1))] for point in points)


def _ends(points: Sequence[Sample]) -> tuple[float, float, float]:
    values = [point.value for point in points]
    return min(values), max(values), values[-1]


def _figure(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"


def show_report(report: HealthReport) -> None:
    facts = report.to_json()
    silent = f", {len(facts['silent_hosts'])} silent" if facts["silent_hosts"] else ""
    click.echo(
        f"{report.cluster}: {count(facts['hosts'], 'host')}{silent}, "
        f"{count(facts['tables'], 'replicated table')} with {count(facts['replicas'], 'replica')}, "
        f"{moment(report.at_ms)}"
    )
    for finding in report.findings:
        show_finding(finding)
    for note in report.notes:
        click.echo(f"note: {note}")
    if not report.findings:
        click.echo(click.style("Nothing is wrong.", fg="green"))


def show_finding(finding: Finding) -> None:
    word = click.style(finding.severity.word.upper(), fg=_COLOURS[finding.severity], bold=True)
    click.echo(f"{word} {finding.kind.value}: {finding.what}")
    click.echo(f"    {finding.advice} (docs/{finding.runbook}, {finding.fingerprint[:12]})")


def show_proof(proof: Proof) -> None:
    print_table(
        ("table", "shard", "replica", "host", "parts", "checksum", ""),
        [
            (
                table.table,
                table.shard,
                replica.replica,
                replica.host,
                len(replica.parts),
                replica.digest,
                replica.error or ("equal" if table.is_equal else "differs"),
            )
            for table in proof.tables
            for replica in table.replicas
        ],
        title="proof: parts and their checksums",
        empty="There was nothing to compare.",
    )
    for table in proof.tables:
        for difference in table.differences[:20]:
            click.echo(f"{table.table}: {difference}")
