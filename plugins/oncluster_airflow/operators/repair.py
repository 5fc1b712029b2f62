"""Repairs of what the health check found, planned and carried out; which repair fits is the engine's business
(`engine.operations.repair`, where every act is proven by equal part checksums)."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from engine.operations.act import Plan
from engine.operations.carrying_out import Performer, Report
from engine.operations.health import check_health, record_health
from engine.operations.repair import plan_repair, prove, repair_performer
from engine.operations.site import Site
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operation_site import tell_people
from oncluster_airflow.operators.health import depth_of, health_text
from oncluster_airflow.operators.operation import ActOperator, PlanOperationOperator, repair_of

PROOF_KEY = "proof"


class PlanRepairOperator(PlanOperationOperator):
    """Looks once more, and plans the repairs that fit what it finds."""

    def mode(self, context: Context) -> Mode:
        return repair_of(context)

    async def make_plan(self, site: Site, context: Context) -> Plan:
        params: Any = context["params"]
        report = await check_health(site, depth=depth_of(context))
        record_health(site, report)
        only = [str(prefix) for prefix in params.get("findings") or []]
        limit = params.get("limit")
        return await plan_repair(site, report, limit=None if limit is None else int(limit), only=only)


class ActRepairOperator(ActOperator):
    """Repairs, compares the tables that were repaired on all replicas, and looks once more, so that what was
    repaired is known to be over. XCom has the comparison under `proof`."""

    def performer(self, site: Site, context: Context) -> Performer:
        return repair_performer(site)

    async def after(self, site: Site, report: Report, context: Context) -> None:
        ti: Any = context["ti"]
        paths = {str(act.payload["path"]) for act in report.plan.acts if act.payload.get("path")}
        if paths:
            proof = await prove(site, paths, wait_s=0.0)
            ti.xcom_push(key=PROOF_KEY, value=proof.to_json())
            self.log.info("all replicas equal: %s. %s", "yes" if proof.is_equal else "no", proof.words)
        now = await check_health(site)
        record_health(site, now)
        tell_people(site, dict(context))
        self.log.info("afterwards: %s", health_text(now))
