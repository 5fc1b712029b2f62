"""The tasks of the schema drift DAG; what differs and what sets it right is the engine's business
(`engine.operations.drift`)."""

from __future__ import annotations

from airflow.sdk import Context

from engine.operations.act import Plan
from engine.operations.carrying_out import Performer, Report
from engine.operations.drift import (
    DriftReport,
    check_drift,
    drift_performer,
    plan_drift_repair,
    record_drift,
)
from engine.operations.site import Site
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operation_site import tell_people
from oncluster_airflow.operators.operation import (
    ActOperator,
    CheckOperator,
    Looked,
    PlanOperationOperator,
    repair_of,
)
from oncluster_airflow.outcomes import table


class CheckDriftOperator(CheckOperator):
    """Compares definitions over hosts, Keeper and ledger."""

    async def look(self, site: Site, context: Context) -> Looked:
        report = await check_drift(site)
        record_drift(site, report)
        value = {"is_equal": report.is_equal, "objects": report.objects, "drifts": len(report.drifts)}
        return Looked(drift_text(report), value, report.findings)


class PlanDriftRepairOperator(PlanOperationOperator):
    """The fewest statements that set right what can be without a risk."""

    def mode(self, context: Context) -> Mode:
        return repair_of(context)

    async def make_plan(self, site: Site, context: Context) -> Plan:
        return plan_drift_repair(site, await check_drift(site))


class ActDriftRepairOperator(ActOperator):
    """Sends them, and compares once more."""

    def performer(self, site: Site, context: Context) -> Performer:
        return drift_performer(site)

    async def after(self, site: Site, report: Report, context: Context) -> None:
        now = await check_drift(site)
        record_drift(site, now)
        tell_people(site, dict(context))
        self.log.info("afterwards: %s", drift_text(now))


def drift_text(report: DriftReport) -> str:
    """What differs, and notes, for the log."""
    head = f"{report.cluster}: {report.objects} objects"
    if report.drifts:
        parts = [f"{head}, {len(report.drifts)} differ"]
    else:
        parts = [f"{head} are the same {'everywhere' if report.is_equal else 'on the hosts that answer'}"]
    if report.findings:
        rows = [(f.severity.word, f.host, f.subject, f.what, f.advice) for f in report.findings]
        parts.append(table(("severity", "host", "object", "what", "what to do"), rows))
    parts += [f"note: {note}" for note in report.notes]
    return "\n\n".join(parts)
