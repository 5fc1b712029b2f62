"""`oncluster migrate`: plan, lint, rehearse, apply, resume, roll back; what reads the ledger is beside it.

A folder of migrations is `--dir DIR/<cluster>`, or `--dir` itself when it holds the files. Every command that
changes something first takes the cluster's migration lock and records what it is about to do.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from engine.cli.exits import ExitCode, Terminated
from engine.cli.migrate_ledger import history_command, mark_command, status_command, unlock_command
from engine.cli.migrate_new import new_command
from engine.cli.migrate_place import (
    Place,
    find_folders,
    folder_options,
    ledger_option,
    no_ledger_yet,
    node_option,
    open_ledger,
    request_for,
    run_options,
)
from engine.cli.migrate_show import (
    Reporter,
    show_lint,
    show_plan,
    show_rehearsal,
    show_summary,
    telling,
)
from engine.cli.options import config_option, json_option, load_config
from engine.cli.output import print_json
from engine.cli.running import run_async
from engine.config.graphite import sections_xml
from engine.env import SystemEnv
from engine.errors import UnknownOutcome
from engine.migrations.drive import drive
from engine.migrations.errors import ApprovalRequired, MigrationRefused
from engine.migrations.files import Direction, read_folder
from engine.migrations.gather import make_plan
from engine.migrations.ledger import Ledger
from engine.migrations.lint import Finding, LintReport, lint
from engine.migrations.model import RunRequest, RunSummary
from engine.migrations.rehearsal import Rehearsal
from engine.migrations.rehearse import rehearse
from engine.migrations.selection import ALL, ground_of, select
from engine.migrations.statements import Surroundings
from engine.migrations.states import RunState
from engine.storage.scratch import ScratchChdb


@click.group(name="migrate")
def group() -> None:
    """Plan, lint, apply, roll back and rehearse migrations.

    \b
    oncluster migrate plan  --cluster order_cluster     what would happen, per statement and host
    oncluster migrate apply --cluster order_cluster     do it; again after a timeout: goes on where it was
    oncluster migrate status --cluster order_cluster    the ledger, with what has happened since
    """


def _exit(code: ExitCode) -> None:
    click.get_current_context().exit(code)


# --- looking ----------------------------------------------------------------------------------------------


@group.command("lint")
@folder_options
@config_option
@json_option
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--no-parser", is_flag=True, help="Without ClickHouse's own parser: faster, finds less.")
def lint_command(
    directory: Path,
    cluster: str,
    config: Path | None,
    as_json: bool,
    strict: bool,
    no_parser: bool,
) -> None:
    """Judge the files of one cluster, or of all. Exit code 1 when there are errors.

    A rule is silenced by a comment: -- oncluster-next: allow=RULE reason="why"
    """
    folders = find_folders(directory, cluster)
    node = load_config(config)

    async def judge() -> LintReport:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(telling("judging the files"))
            scratch = None if no_parser else await stack.enter_async_context(ScratchChdb())
            findings: list[Finding] = []
            for folder in folders:
                migrations, problems = read_folder(folder, cluster=cluster)
                surroundings = Surroundings(
                    migrations.cluster, node.topology, node.queue_of(migrations.cluster)
                )
                report = await lint(
                    migrations, problems, surroundings, validator=scratch.validate if scratch else None
                )
                findings += report.findings
            return LintReport(tuple(sorted(findings)))

    report = run_async(judge())
    print_json(report.to_json()) if as_json else show_lint(report)
    if report.errors or (strict and report.warnings):
        _exit(ExitCode.FAILED)


@group.command("plan")
@folder_options
@config_option
@ledger_option
@json_option
@run_options
@click.option("--target", type=int, help="Version to go to.")
@click.option("--down", is_flag=True, help="Plan a rollback.")
@node_option
def plan_command(
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    target: int | None,
    down: bool,
    nodes: tuple[str, ...],
    **options: Any,
) -> None:
    """Say what a run would do: per statement and host, where, on what, and what forbids it. Changes nothing.

    Exit code 5 when the run would be refused.
    """
    place = Place.of(directory, cluster, config)
    request = request_for(Direction.DOWN if down else Direction.UP, target, options)
    _plan(place, request, open_ledger(ledger_url), nodes=nodes, as_json=as_json)


def _plan(
    place: Place, request: RunRequest, ledger: Ledger, *, nodes: tuple[str, ...], as_json: bool
) -> None:
    async def work() -> None:
        async with place.runner(ledger) as runner:
            with telling("asking the hosts"):
                plan = await make_plan(runner, request, probe=place.probe(nodes))
            print_json(plan.to_json()) if as_json else show_plan(plan)
            if plan.problems:
                _exit(ExitCode.REFUSED)

    run_async(work())


@group.command("rehearse")
@folder_options
@config_option
@json_option
@click.option("--target", type=int, help="Rehearse up to this version.")
@click.option("--database", default="default", help="Database of names that have none.")
def rehearse_command(
    directory: Path, cluster: str, config: Path | None, as_json: bool, **options: Any
) -> None:
    """Run every migration up, up again and down on a scratch database. No host sees anything."""
    place = Place.of(directory, cluster, config)
    rehearsal = run_async(_rehearse(place, request_for(Direction.UP, options.pop("target"), options)))
    print_json(rehearsal.to_json()) if as_json else show_rehearsal(rehearsal)
    if not rehearsal.is_ok:
        _exit(ExitCode.FAILED)


async def _rehearse(
    place: Place,
    request: RunRequest,
    *,
    ground: Collection[int] = (),
    versions: Collection[int] | None = None,
) -> Rehearsal:
    async with ScratchChdb(
        macros=place.surroundings.macros, graphite=sections_xml(place.config.graphite)
    ) as scratch:
        with telling("rehearsing") as steps:
            return await rehearse(
                place.migrations,
                place.surroundings,
                request,
                scratch,
                env=SystemEnv(),
                ground=ground,
                versions=versions,
                on_migration=lambda number, of: steps.running("rehearsing", f"{number} of {of}"),
            )


# --- doing ------------------------------------------------------------------------------------------------


@group.command("apply")
@folder_options
@config_option
@ledger_option
@json_option
@run_options
@click.option("--target", type=int, help="Apply up to this version. Default: all.")
@click.option("--approve", is_flag=True, help="Statements that destroy something may be sent.")
@click.option("--dry-run", is_flag=True, help="Only plan.")
@click.option("--rehearse/--no-rehearse", "rehearses", default=True, help="Rehearse first (the default).")
@node_option
def apply_command(
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    target: int | None,
    dry_run: bool,
    rehearses: bool,
    nodes: tuple[str, ...],
    **options: Any,
) -> None:
    """Apply what is not applied, and go on with what was begun.

    Exit codes: 0 done (or done on every host that is on line, in an only-active mode); 1 a host failed; 3 not
    finished in time: what was sent goes on, repeat the command to attach to it; 4 another run is at work, or
    Keeper is away; 5 refused; 6 the session with Keeper was lost on the way: repeat the command to go on.
    """
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    request = request_for(Direction.UP, target, options)
    if dry_run:
        _plan(place, request, ledger, nodes=nodes, as_json=as_json)
        return
    if rehearses:
        records = ledger.records(place.migrations.cluster)
        selected = select(
            place.migrations, records, direction=Direction.UP, target=target, leniency=request.leniency
        )
        versions = [item.migration.version for item in selected]
        ground = ground_of(records, versions)
        rehearsal = run_async(_rehearse(place, request, ground=ground, versions=versions))
        if not rehearsal.is_ok:
            print_json({"rehearsal": rehearsal.to_json()}) if as_json else show_rehearsal(rehearsal)
            raise MigrationRefused(
                "The rehearsal failed; nothing was sent.",
                hint="Without a rehearsal: --no-rehearse.",
            )
    _run(place, ledger, request, nodes=nodes, as_json=as_json)


@group.command("resume")
@folder_options
@config_option
@ledger_option
@json_option
@run_options
@click.option("--approve", is_flag=True, help="Statements that destroy something may be sent.")
@node_option
def resume_command(
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    nodes: tuple[str, ...],
    **options: Any,
) -> None:
    """Go on with what was begun, in its direction, and begin nothing new."""
    place, ledger = Place.known(directory, cluster, config), open_ledger(ledger_url)
    opened = [r for r in ledger.records(place.migrations.cluster).values() if r.state.is_open]
    if note := no_ledger_yet(ledger):
        click.echo(note, err=True)
    if not opened:
        print_json({"state": RunState.DONE.value, "rows": []}) if as_json else click.echo("Nothing is open.")
        return
    last = max(opened, key=lambda record: record.version)
    if last.direction is Direction.UP:
        request = request_for(Direction.UP, last.version, options)
    else:
        below = [v for v in place.migrations.versions if v < min(r.version for r in opened)]
        request = request_for(Direction.DOWN, below[-1] if below else ALL, options)
    _run(place, ledger, request, nodes=nodes, as_json=as_json)


@group.command("rollback")
@folder_options
@config_option
@ledger_option
@json_option
@run_options
@click.option("--target", type=int, help="Go back to this version, which stays. Default: undo the last one.")
@click.option("--all", "everything", is_flag=True, help="Undo everything.")
@click.option("--approve", is_flag=True, help="Statements that destroy something may be sent.")
@click.option("--dry-run", is_flag=True, help="Only plan.")
@node_option
def rollback_command(
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    target: int | None,
    everything: bool,
    dry_run: bool,
    nodes: tuple[str, ...],
    **options: Any,
) -> None:
    """Run down files, the latest first. Exit codes are those of `apply`."""
    if everything and target is not None:
        raise click.UsageError("--all and --target exclude each other.")
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    request = request_for(Direction.DOWN, ALL if everything else target, options)
    if dry_run:
        _plan(place, request, ledger, nodes=nodes, as_json=as_json)
        return
    _run(place, ledger, request, nodes=nodes, as_json=as_json)


def _run(place: Place, ledger: Ledger, request: RunRequest, *, nodes: tuple[str, ...], as_json: bool) -> None:
    async def work(wanted: RunRequest) -> RunSummary:
        async with place.runner(ledger, probe=place.probe(nodes)) as runner:
            with Reporter() as reporter:
                return await drive(runner, wanted, listener=reporter)

    try:
        summary = run_async(work(request))
    except (KeyboardInterrupt, Terminated) as error:
        error.add_note("What was sent goes on. Repeat the command: it attaches to that, and goes on.")
        raise
    except UnknownOutcome as error:
        error.hint = "Repeat the command: it attaches to what was sent, and goes on where this run ended."
        raise
    except ApprovalRequired as error:
        if as_json or not sys.stdin.isatty():
            raise
        click.echo(f"{error.message}\n", err=True)
        if not click.confirm("Send it to the cluster?", err=True):
            raise
        summary = run_async(work(replace(request, approved_by=request.requested_by)))
    print_json(summary.to_json()) if as_json else show_summary(summary, place.config.topology)
    match summary.state:
        case RunState.FAILED:
            _exit(ExitCode.FAILED)
        case RunState.UNFINISHED | RunState.RUNNING:
            _exit(ExitCode.UNFINISHED)
        case RunState.DONE | RunState.PARTIAL:
            return


for command in (new_command, status_command, history_command, mark_command, unlock_command):
    group.add_command(command)
