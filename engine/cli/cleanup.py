"""`oncluster cleanup`: what nobody needs any more, taken away with a plan and an approval.

    oncluster cleanup plan                     what would go, and why; changes nothing
    oncluster cleanup apply --yes              plan and do it
    oncluster cleanup plan --out plan.json     … or approve exactly what was read:
    oncluster cleanup apply --plan plan.json --yes
    oncluster cleanup apply --run-id ID        go on with a run that was interrupted
    oncluster cleanup status                   runs, and what became of their acts
    oncluster cleanup abandon HOST --reason …  a dead host's tasks: nobody waits for them any more

Without `--yes` nothing that needs approval happens. Every act is recorded before it is done; what the plan
rests on is looked at again in the act.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from engine.cli.cleanup_show import Acts, run_as_json, show_run, show_runs
from engine.cli.numbers import Finite
from engine.cli.operations_place import (
    acting_options,
    carry_out_shown,
    exit_code_of,
    read_plan,
    show_plan,
    site_for,
    site_options,
)
from engine.cli.options import config_option, json_option
from engine.cli.output import console, print_json
from engine.cli.running import run_async
from engine.errors import ConfigError, Refused
from engine.names import HostId
from engine.operations.act import Plan
from engine.operations.carrying_out import Performer, Report
from engine.operations.cleanup import (
    BY_SERVERS,
    MAYBE_ONLY_COPIES,
    OPERATION,
    BrokenFilesFate,
    CleanupKind,
    CleanupSettings,
    GoneHost,
    abandon_performer,
    cleanup_performer,
    plan_abandon,
    plan_cleanup,
    record_plan,
)
from engine.operations.records import Records, RunRecord
from engine.operations.site import KeeperNeed, Site

_DEFAULTS = CleanupSettings()
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@click.group()
def group() -> None:
    """Clean the DDL queue, Keeper and detached parts: plan first, then act."""


def _what_options(command: Any) -> Any:
    """Which rubbish, and how old it has to be."""
    for option in reversed(
        (
            click.option(
                "--kind",
                "kinds",
                multiple=True,
                type=click.Choice([kind.value for kind in CleanupKind]),
                help="Only this kind; may be given several times. Default: all.",
            ),
            click.option(
                "--gone",
                "gone",
                multiple=True,
                metavar="HOST=REASON",
                help="This host will not come back: its replicas go at once, and nobody waits for its "
                "answer. A host, host:port, or the name of its replicas.",
            ),
            click.option(
                "--gone-after-hours",
                type=Finite(min=0.1),
                default=_DEFAULTS.gone_after_s / _HOUR_S,
                show_default=True,
                help="Replicas go when they were inactive for so long.",
            ),
            click.option(
                "--detached-after-days",
                type=Finite(min=0),
                default=_DEFAULTS.detached_after_s / _DAY_S,
                show_default=True,
                help="Detached parts go when they are so old.",
            ),
            click.option(
                "--detached-prefix",
                "detached_prefixes",
                multiple=True,
                help=f"Which detached parts. Default: {', '.join(BY_SERVERS)}. Parts with "
                f"{', '.join(MAYBE_ONLY_COPIES)} may hold the only copy of their rows.",
            ),
            click.option(
                "--detached-by-people",
                is_flag=True,
                help="Also parts without prefix: somebody detached them on purpose.",
            ),
            click.option(
                "--keep-entries",
                type=click.IntRange(min=1),
                default=None,
                help="Keep only so many finished queue entries. Default: as the queue's configuration says.",
            ),
            click.option(
                "--broken-files",
                type=click.Choice([fate.value for fate in BrokenFilesFate]),
                default=_DEFAULTS.broken_files.value,
                show_default=True,
                help="Broken files of Distributed tables: send again those that are whole, or drop all.",
            ),
            click.option("--root", "roots", multiple=True, help="Look for tables below this znode, too."),
        )
    ):
        command = option(command)
    return command


@group.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Save the plan for `apply`."
)
@_what_options
@site_options
@config_option
@json_option
def plan(out: Path | None, config: Path | None, as_json: bool, **options: Any) -> None:
    """Show what would go, and why. Nothing is removed.

    How long a replica was inactive is known from earlier looks: look daily, or say which host is gone.
    """
    settings, kinds = _settings(options), _kinds(options)

    async def work() -> Plan:
        async with site_for(config, options) as site:
            return await _look(site, settings, kinds)

    made = run_async(work())
    if out is not None:
        out.write_text(json.dumps(made.to_json(), indent=2, ensure_ascii=False) + "\n", "utf-8")
    show_plan(made, as_json=as_json)


@group.command()
@acting_options
@_what_options
@site_options
@config_option
@json_option
def apply(
    plan_file: Path | None,
    run_id: str,
    is_approved: bool,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Carry out a plan, or go on with a run.

    Exit codes: 0 all done, 1 an act failed or its proof did not hold any more, 4 somebody else is at work,
    6 the outcome of an act is unknown (repeat with --run-id).
    """
    settings, kinds = _settings(options), _kinds(options)
    given = read_plan(plan_file) if plan_file is not None else None

    async def work() -> Report | None:
        async with site_for(config, options) as site:
            run = site.records.run(run_id) if run_id else None
            if given is not None:
                made = given
            elif run is not None:
                made = run.plan
            else:
                made = await _look(site, settings, kinds)
            _check(made, site)
            may = is_approved or (run is not None and bool(run.approved_by))
            if made.needs_approval and not may:
                show_plan(made, as_json=as_json)
                click.echo("Nothing was done; approve the plan with --yes.", err=True)
                return None
            report = await carry_out_shown(
                site, made, _performer(site, made), run_id=run_id, approved=may, as_json=as_json
            )
            if given is None and run is None:  # what is still there stays found
                record_plan(site, await plan_cleanup(site, settings, kinds), kinds)
            return report

    report = run_async(work())
    if report is not None and (code := exit_code_of(report)):
        click.get_current_context().exit(code)


@group.command()
@click.option("--run-id", default="", help="Only this run, with all its acts.")
@site_options
@config_option
@json_option
def status(run_id: str, config: Path | None, as_json: bool, **options: Any) -> None:
    """Show runs of the cleanup, the newest first, and how far they came."""

    async def work() -> tuple[list[RunRecord], dict[str, Acts]]:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            runs = _runs(site.records, site.cluster, run_id)
            return runs, {run.run_id: site.records.acts_of(run.run_id) for run in runs}

    runs, acts = run_async(work())
    if as_json:
        print_json([run_as_json(run, acts[run.run_id]) for run in runs])
    elif run_id:
        show_run(runs[0], acts[run_id])
    else:
        show_runs(runs, acts)


@group.command()
@click.argument("host")
@click.option("--reason", required=True, help="Why it will not come back; stays with its tasks.")
@click.option("--entry", "entries", multiple=True, help="Only this entry; may be given several times.")
@click.option("--run-id", default="", help="Go on with this run.")
@click.option("--yes", "is_approved", is_flag=True, help="Do it; without it only show what would be marked.")
@site_options
@config_option
@json_option
def abandon(
    host: str,
    reason: str,
    entries: tuple[str, ...],
    run_id: str,
    is_approved: bool,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say of HOST (host:port) that it will never do what waits for it in the DDL queue.

    Waits for it end with the outcome `abandoned`, by whom and why. It is no success, and for ClickHouse the
    host has not answered. While the host gives answers only what expired for it is taken, as dealt with: it
    is no finding any more.
    """

    async def work() -> Report | None:
        async with site_for(config, options) as site:
            run = site.records.run(run_id) if run_id else None
            chosen = _host(site, host)
            made = run.plan if run else await plan_abandon(site, chosen, reason=reason, entries=entries)
            _check(made, site)
            if made.acts and not is_approved:
                show_plan(made, as_json=as_json)
                click.echo("Nothing was done; add --yes.", err=True)
                return None
            return await carry_out_shown(
                site, made, _performer(site, made), run_id=run_id, approved=is_approved, as_json=as_json
            )

    report = run_async(work())
    if report is not None and (code := exit_code_of(report)):
        click.get_current_context().exit(code)


# --- inside -----------------------------------------------------------------------------------------------


async def _look(site: Site, settings: CleanupSettings, kinds: Sequence[CleanupKind]) -> Plan:
    with console(stderr=True).status(f"Looking at {site.cluster}"):
        made = await plan_cleanup(site, settings, kinds)
    record_plan(site, made, kinds)
    return made


def _settings(options: dict[str, Any]) -> CleanupSettings:
    """Takes its own options out of `options`."""
    prefixes = tuple(options.pop("detached_prefixes")) or BY_SERVERS
    return CleanupSettings(
        gone_after_s=options.pop("gone_after_hours") * _HOUR_S,
        detached_after_s=options.pop("detached_after_days") * _DAY_S,
        detached_prefixes=(*prefixes, "") if options.pop("detached_by_people") else prefixes,
        gone=tuple(_gone(item) for item in options.pop("gone")),
        roots=tuple(options.pop("roots")),
        ddl_keep_entries=options.pop("keep_entries"),
        broken_files=BrokenFilesFate(options.pop("broken_files")),
    )


def _kinds(options: dict[str, Any]) -> tuple[CleanupKind, ...]:
    return tuple(CleanupKind(kind) for kind in options.pop("kinds"))


def _gone(item: str) -> GoneHost:
    name, equals, reason = item.partition("=")
    if not equals or not name or not reason.strip():
        raise click.BadParameter(f"{item!r} is not HOST=REASON", param_hint="--gone")
    return GoneHost(name, reason.strip())


def _host(site: Site, text: str) -> HostId:
    """`host:port`, or a host of the cluster by its name alone."""
    known = [host for host in site.hosts if text in (host.host, host.readable)]
    if len(known) == 1:
        return known[0]
    name, colon, port = text.rpartition(":")
    if colon and port.isdigit() and not known:
        return HostId(name.strip("[]") if ":" in name else name, int(port))
    raise Refused(
        f"{text!r} is no host of {site.cluster} and not host:port.",
        hint=f"Hosts: {', '.join(host.readable for host in site.hosts)}.",
    )


def _check(made: Plan, site: Site) -> None:
    if made.cluster != site.cluster or made.operation not in (OPERATION, "abandon"):
        raise ConfigError(
            f"This is a plan for the {made.operation} of {made.cluster}, not the cleanup of {site.cluster}.",
            hint="Give --cluster, or another plan.",
        )


def _performer(site: Site, made: Plan) -> Performer:
    return cleanup_performer(site) if made.operation == OPERATION else abandon_performer(site)


def _runs(records: Records, cluster: str, run_id: str) -> list[RunRecord]:
    if not run_id:
        runs = (*records.runs(cluster, OPERATION), *records.runs(cluster, "abandon"))
        return sorted(runs, key=lambda run: run.at_ms, reverse=True)
    run = records.run(run_id)
    if run is None:
        raise Refused(f"There is no run {run_id}.", hint="`oncluster cleanup status` lists them.")
    return [run]
