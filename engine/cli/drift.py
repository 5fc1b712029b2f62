"""`oncluster drift`: where hosts differ in their schema, why, and what sets it right.

    oncluster drift check                      what differs; exit code 10 if anything does
    oncluster drift repair-plan --json > p     what would be done; changes nothing
    oncluster drift repair [--plan p] --yes    do it; what cannot be done without a risk is said

Safety: see `engine.operations.drift.repair`. Nothing is ever dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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
from engine.cli.output import print_json, print_table
from engine.cli.running import run_async
from engine.operations.act import Plan
from engine.operations.carrying_out import Report
from engine.operations.drift import (
    DriftReport,
    check_drift,
    drift_performer,
    plan_drift_repair,
    record_drift,
)
from engine.operations.records import RecordsUnavailable
from engine.operations.site import KeeperNeed

DIFFERS = 10
"""What `check` answers when hosts differ, or could not be looked at."""


@click.group(name="drift")
def group() -> None:
    """Compare the schema of all hosts with one another, with Keeper and with the ledger."""


@group.command()
@site_options
@config_option
@json_option
def check(config: Path | None, as_json: bool, **options: Any) -> None:
    """Say which host lacks what, or differs how, and which migration explains it. Exit code 10 if any."""

    lost: list[RecordsUnavailable] = []

    async def work() -> DriftReport:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            report = await check_drift(site)
            with raised_later(lost):
                record_drift(site, report)
            return report

    report = run_async(work())
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    for error in lost:
        raise error
    if report.findings:
        click.get_current_context().exit(DIFFERS)


@group.command("repair-plan")
@site_options
@config_option
@json_option
def repair_plan(config: Path | None, as_json: bool, **options: Any) -> None:
    """Say what `repair` would run, on which host. Changes nothing."""

    async def work() -> Plan:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            return plan_drift_repair(site, await check_drift(site))

    show_plan(run_async(work()), as_json=as_json)


@group.command()
@acting_options
@site_options
@config_option
@json_option
def repair(
    plan_file: Path | None,
    run_id: str,
    is_approved: bool,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make what is missing, add what is not there: only on the hosts that are apart."""

    async def work() -> Report | Plan:
        async with site_for(config, options) as site:
            if plan_file is not None:
                plan = read_plan(plan_file)
            else:
                plan = plan_drift_repair(site, await check_drift(site))
            if not is_approved:
                return plan
            return await carry_out_shown(
                site, plan, drift_performer(site), run_id=run_id, approved=True, as_json=as_json
            )

    done = run_async(work())
    if isinstance(done, Plan):
        show_plan(done, as_json=as_json)
        if done.acts:
            click.echo("Give --yes to do it.", err=True)
        return
    click.get_current_context().exit(exit_code_of(done))


def _show(report: DriftReport) -> None:
    rows = []
    for drift in report.drifts:
        why = drift.explanation.what if drift.explanation is not None else ""
        rows.append((drift.host.readable, str(drift.object), drift.kind.value, _differences(drift), why))
    print_table(
        ("host", "object", "is", "difference", "why"),
        rows,
        empty=f"{report.cluster}: {len(report.schemas.hosts)} hosts have the same {report.objects} objects.",
    )
    for host, error in report.schemas.silent.items():
        click.echo(f"not looked at: {host.readable}: {error}", err=True)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)


def _differences(drift: Any) -> str:
    return "\n".join(map(str, drift.parts)) or drift.note
