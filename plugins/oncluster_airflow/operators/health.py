"""The first task of the health DAG. What is checked is the engine's business (`engine.operations.health`)."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from engine.operations.health import Depth, HealthReport, check_health, record_health
from engine.operations.site import KeeperNeed, Site
from oncluster_airflow.errors import TaskRefused
from oncluster_airflow.operators.operation import CheckOperator, Looked
from oncluster_airflow.outcomes import table


def depth_of(context: Context) -> Depth:
    """How closely the form asks to look. Raises TaskRefused."""
    params: Any = context["params"]
    word = str(params.get("depth", Depth.TELLS.value))
    try:
        return Depth(word)
    except ValueError:
        words = ", ".join(depth.value for depth in Depth)
        raise TaskRefused(f"{word!r} is no depth. There are {words}.") from None


class CheckHealthOperator(CheckOperator):
    """Checks the cluster, and keeps figures for trends. Hosts and Keeper that do not answer are findings."""

    need = KeeperNeed.OPTIONAL

    async def look(self, site: Site, context: Context) -> Looked:
        report = await check_health(site, depth=depth_of(context))
        record_health(site, report)
        worst = report.worst
        value = {"worst": worst.word if worst else "", "findings": len(report.findings)}
        return Looked(health_text(report), value, report.findings)


def health_text(report: HealthReport) -> str:
    """Findings and notes, for the log."""
    worst = report.worst
    parts = [
        f"{report.cluster}: findings: {len(report.findings)}, the worst is {worst.word}"
        if worst
        else f"{report.cluster}: nothing is wrong"
    ]
    if report.findings:
        rows = [(f.severity.word, f.kind.value, f.host, f.subject, f.what, f.advice) for f in report.findings]
        parts.append(table(("severity", "kind", "host", "subject", "what", "what to do"), rows))
    parts += [f"note: {note}" for note in report.notes]
    return "\n\n".join(parts)
