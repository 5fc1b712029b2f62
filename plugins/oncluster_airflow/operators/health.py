"""The first task of the health DAG: look, record what was seen, tell people what is new.

What is checked is the engine's business (`engine.operations.health`).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin

from engine.operations.health import Depth, HealthReport, check_health, record_health
from engine.operations.site import KeeperNeed, Site
from oncluster_airflow.errors import TaskRefused
from oncluster_airflow.operation_plan import Mode, mode_of
from oncluster_airflow.operation_site import tell_people
from oncluster_airflow.operators.operation import OperationOperator
from oncluster_airflow.outcomes import table

FINDINGS_KEY = "findings"
_FINDINGS_IN_XCOM = 200


def depth_of(context: Context) -> Depth:
    """How closely the form asks to look. Raises TaskRefused."""
    params: Any = context["params"]
    word = str(params.get("depth", Depth.TELLS.value))
    try:
        return Depth(word)
    except ValueError:
        words = ", ".join(depth.value for depth in Depth)
        raise TaskRefused(f"{word!r} is no depth. There are {words}.") from None


class CheckHealthOperator(OperationOperator, SkipMixin):
    """Checks the cluster, records what it found and the figures for trends, and tells people what is new.

    Succeeds whatever it finds: findings are told as alerts, and a task that fails means that nobody looked.
    Hosts and Keeper that do not answer are findings. XCom has them under `findings`, the worst first.
    Ends the run here unless repairs are asked for.
    """

    inherits_from_skipmixin = True

    def execute(self, context: Context) -> dict[str, Any]:
        ti: Any = context["ti"]
        params: Any = context["params"]
        repair = mode_of(params.get("repair", Mode.NONE))
        depth = depth_of(context)

        async def work(site: Site) -> HealthReport:
            report = await check_health(site, depth=depth)
            record_health(site, report)
            tell_people(site, dict(context))
            return report

        report = self.on_site(context, work, need=KeeperNeed.OPTIONAL)
        self.log.info("%s", health_text(report))
        shown = [finding.to_json() for finding in report.findings[:_FINDINGS_IN_XCOM]]
        ti.xcom_push(key=FINDINGS_KEY, value=shown)
        worst = report.worst
        value = {"worst": worst.word if worst else "", "findings": len(report.findings)}
        ti.xcom_push(key="return_value", value=value)
        if repair is Mode.NONE:
            task: Any = context["task"]
            self.skip(ti, list(task.get_flat_relatives(upstream=False)))
        return value


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
