"""`oncluster health`: look at a cluster, repair what can be repaired, see how figures went.

    oncluster health check                     what is wrong, and what to do; exit code by the worst
    oncluster health repair                    the plan of repairs; with --yes they are done and proven
    oncluster health trend queue_size          figures of earlier checks
    oncluster health findings                  what is open, since when; with --resolved what went away

`check` answers 0 when nothing is worse than info, 10 for a warning, 20 for something critical. The other
codes are those of every command.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from engine.cli.health_show import show_findings, show_proof, show_report, show_trend
from engine.cli.numbers import Finite
from engine.cli.operations_place import (
    acting_options,
    carry_out_shown,
    exit_code_of,
    raised_later,
    read_plan,
    show_plan,
    site_for,
    site_options,
)
from engine.cli.options import config_option, json_option
from engine.cli.output import print_json
from engine.cli.running import run_async
from engine.errors import ConfigError, OnclusterError
from engine.operations.act import Plan
from engine.operations.carrying_out import Report, carry_out
from engine.operations.drift import check_drift, record_drift
from engine.operations.finding import Severity
from engine.operations.health import Depth, HealthReport, Metric, check_health, record_health
from engine.operations.records import FindingRecord, RecordsUnavailable, Sample
from engine.operations.repair import OPERATION, Proof, plan_repair, prove, repair_performer
from engine.operations.site import KeeperNeed, Site


class HealthExit(enum.IntEnum):
    """What `check` answers."""

    FINE = 0
    WARNING = 10
    CRITICAL = 20


def exit_code_for(worst: Severity | None) -> HealthExit:
    """By the worst finding; info is fine."""
    match worst:
        case Severity.CRITICAL:
            return HealthExit.CRITICAL
        case Severity.WARNING:
            return HealthExit.WARNING
        case _:
            return HealthExit.FINE


@click.group()
def group() -> None:
    """Check replicas, queues, Keeper, disks and clocks; repair; trends.

    \b
    `check` answers 0 (nothing worse than info), 10 (a warning), 20 (something critical).
    """


_deep_option = click.option(
    "--deep",
    is_flag=True,
    help="Also read every replicated table whole on every host, to find damaged parts. Takes as long as that "
    "takes; --patience times six is the time for one table.",
)


@group.command()
@_deep_option
@click.option("--schemas", is_flag=True, help="Also compare definitions, as `oncluster drift check` does.")
@click.option("--no-record", is_flag=True, help="Keep neither findings nor figures.")
@site_options
@config_option
@json_option
def check(
    deep: bool, schemas: bool, no_record: bool, config: Path | None, as_json: bool, **options: Any
) -> None:
    """Look at the cluster; say what is wrong, why, and what to do. Changes nothing."""

    lost: list[RecordsUnavailable] = []

    async def work() -> HealthReport:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            report = await _look(site, deep=deep)
            with raised_later(lost):
                if not no_record:
                    record_health(site, report)
            return await _with_schemas(site, report, lost, no_record=no_record) if schemas else report

    report = run_async(work())
    if as_json:
        print_json(report.to_json())
    else:
        show_report(report)
    for error in lost:
        raise error
    click.get_current_context().exit(exit_code_for(report.worst))


@group.command()
@acting_options
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Repairs of one run at most.")
@click.option("--only", multiple=True, metavar="FINGERPRINT", help="Only this finding; may be repeated.")
@click.option(
    "--wait",
    "wait_s",
    type=Finite(min=0),
    default=None,
    help="Seconds for one repair to show its effect, and for its proof. Default: repair_wait_s.",
)
@_deep_option
@site_options
@config_option
@json_option
def repair(
    is_approved: bool,
    plan_file: Path | None,
    run_id: str,
    limit: int | None,
    only: tuple[str, ...],
    wait_s: float | None,
    deep: bool,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Plan repairs; with --yes do them, one after another, and prove each by equal part checksums.

    Never two replicas of a shard at once; none is touched while another one of its table is unhealthy.
    """

    async def work() -> tuple[Plan, Report | None, Proof | None]:
        async with site_for(config, options) as site:
            plan = await _plan(site, plan_file, run_id, limit, only, deep=deep)
            if not is_approved or not plan.acts:
                return plan, None, None
            limit_s = float(site.config.health.repair_wait_s if wait_s is None else wait_s)
            performer = repair_performer(site, wait_s=limit_s)
            if as_json:
                name = run_id or f"cli-{site.env.new_uuid()}"
                done = await carry_out(site, plan, performer, run_id=name, approved_by=site.operator)
            else:
                done = await carry_out_shown(
                    site, plan, performer, run_id=run_id, approved=True, as_json=False
                )
            paths = {str(act.payload["path"]) for act in plan.acts if act.payload.get("path")}
            return plan, done, await prove(site, paths, wait_s=0)

    plan, report, proof = run_async(work())
    if report is None:
        show_plan(plan, as_json=as_json)
        if plan.acts and not as_json:
            click.echo("Nothing was done; add --yes.", err=True)
        return
    assert proof is not None
    if as_json:
        print_json(report.to_json() | {"proof": proof.to_json()})
    else:
        show_proof(proof)
    click.get_current_context().exit(exit_code_of(report))


@group.command()
@click.argument("metric", type=click.Choice([metric.value for metric in Metric]))
@click.option("--host", default=None, help="Only this host, as host:port.")
@click.option("--table", default=None, help="Of this table (database.table) instead of whole hosts.")
@click.option("--hours", type=Finite(min=0.01), default=24.0, show_default=True, help="How far back.")
@site_options
@config_option
@json_option
def trend(
    metric: str,
    host: str | None,
    table: str | None,
    hours: float,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show how a figure went over the checks that were recorded."""

    async def work() -> tuple[Sample, ...]:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            return samples_for(site, Metric(metric), host=host, table=table, hours=hours)

    samples = run_async(work())
    if as_json:
        print_json(
            [{"host": s.host, "subject": s.subject, "at_ms": s.at_ms, "value": s.value} for s in samples]
        )
        return
    show_trend(metric, hours, samples)


@group.command()
@click.option("--resolved", is_flag=True, help="What went away in the last --hours instead.")
@click.option("--hours", type=Finite(min=0.01), default=24.0, show_default=True, help="How far back.")
@site_options
@config_option
@json_option
def findings(resolved: bool, hours: float, config: Path | None, as_json: bool, **options: Any) -> None:
    """List what is open in the records, of all operations, since when; or what went away."""

    async def work() -> tuple[tuple[FindingRecord, ...], int]:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            now_ms = site.records.now_ms()
            if resolved:
                since_ms = now_ms - int(hours * 3_600_000)
                return site.records.resolved_findings(site.cluster, since_ms=since_ms), now_ms
            return site.records.open_findings(site.cluster), now_ms

    records, now_ms = run_async(work())
    if as_json:
        print_json(
            [
                record.finding.to_json()
                | {
                    "scope": record.scope,
                    "first_seen_ms": record.first_seen_ms,
                    "last_seen_ms": record.last_seen_ms,
                    "resolved_ms": record.resolved_ms,
                }
                for record in records
            ]
        )
        return
    show_findings(records, now_ms, empty="Nothing went away." if resolved else "Nothing is open.")


# --- inside -------------------------------------------------------------------------------------------------


async def _look(site: Site, *, deep: bool) -> HealthReport:
    if deep:
        click.echo("reading every replicated table on every host …", err=True)
    return await check_health(site, depth=Depth.READS_DATA if deep else Depth.TELLS)


async def _with_schemas(
    site: Site, report: HealthReport, lost: list[RecordsUnavailable], *, no_record: bool
) -> HealthReport:
    """The report with the findings of another look, which keeps its own records."""
    try:
        drift = await check_drift(site)
    except OnclusterError as error:
        return replace(report, notes=(*report.notes, f"Definitions were not compared: {error}"))
    with raised_later(lost):
        if not no_record:
            record_drift(site, drift)
    findings = sorted([*report.findings, *drift.findings], key=lambda finding: -finding.severity)
    return replace(report, findings=tuple(findings), notes=(*report.notes, *drift.notes))


async def _plan(
    site: Site,
    plan_file: Path | None,
    run_id: str,
    limit: int | None,
    only: Sequence[str],
    *,
    deep: bool,
) -> Plan:
    """The saved plan, that of the run to go on with, or a new one."""
    if plan_file is not None:
        plan = read_plan(plan_file)
        if (plan.operation, plan.cluster) != (OPERATION, site.cluster):
            raise ConfigError(
                f"{plan_file} is a plan of {plan.operation} for {plan.cluster}.",
                hint=f"It has to be one of {OPERATION} for {site.cluster}.",
            )
        return plan
    known = await asyncio.to_thread(site.records.run, run_id) if run_id else None
    if known is not None:
        return known.plan
    report = await _look(site, deep=deep)
    record_health(site, report)
    return await plan_repair(site, report, limit=limit, only=only)


def samples_for(
    site: Site, metric: Metric, *, host: str | None, table: str | None, hours: float
) -> tuple[Sample, ...]:
    """The samples of a metric; those of a table with a 0 for each check at which it had none."""
    since_ms = site.records.now_ms() - int(hours * 3_600_000)
    if table is None:
        wanted = "" if metric.is_of_tables else None
        return site.records.samples(site.cluster, metric, host=host, subject=wanted, since_ms=since_ms)
    found = site.records.samples(site.cluster, metric, host=host, subject=table, since_ms=since_ms)
    values = {(sample.host, sample.at_ms): sample.value for sample in found}
    hosts = {sample.host for sample in found}
    looks = site.records.samples(site.cluster, metric, host=host, subject="", since_ms=since_ms)
    return tuple(
        Sample(metric, values.get((look.host, look.at_ms), 0), look.host, table, look.at_ms)
        for look in looks
        if look.host in hosts
    )
