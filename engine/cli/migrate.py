"""`oncluster migrate`: plan, lint, rehearse, apply, resume, roll back, and the ledger.

A folder of migrations is `--dir DIR/<cluster>`, or `--dir` itself when it holds the files. Every command that
changes something first takes the cluster's migration lock and records what it is about to do.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.cli.common import (
    ExitCode,
    config_option,
    json_option,
    keeper_session,
    load_config,
    print_json,
    run_async,
    stack_home,
)
from engine.cli.migrate_show import (
    Reporter,
    show_history,
    show_lint,
    show_plan,
    show_rehearsal,
    show_status,
    show_summary,
)
from engine.config.model import NodeConfig
from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.env import SystemEnv
from engine.errors import Busy, ConfigError, SqlError, Unavailable
from engine.migrations.drive import drive
from engine.migrations.errors import ApprovalRequired, MigrationRefused
from engine.migrations.files import Direction, MigrationSet, load_folder, read_folder
from engine.migrations.gather import make_plan
from engine.migrations.ledger import Ledger
from engine.migrations.lint import LintReport, lint
from engine.migrations.model import RunRequest, RunSummary
from engine.migrations.options import parse_duration_s
from engine.migrations.rehearse import Rehearsal, rehearse
from engine.migrations.runner import MigrationRunner
from engine.migrations.scratch import open_scratch
from engine.migrations.selection import ALL, Leniency
from engine.migrations.statements import Surroundings
from engine.migrations.states import MigrationState, RunState
from engine.migrations.upkeep import mark, refresh, unlock

F = TypeVar("F", bound=Callable[..., Any])

LEDGER_VARIABLE = "ONCLUSTER_LEDGER_URL"
DEFAULT_DIR = "migrations"


@click.group(name="migrate")
def group() -> None:
    """Plan, lint, apply, roll back and rehearse migrations.

    \b
    oncluster migrate plan  --cluster order_cluster     what would happen, per statement and host
    oncluster migrate apply --cluster order_cluster     do it; again after a timeout: goes on where it was
    oncluster migrate status --cluster order_cluster    the ledger, with what has happened since
    """


# --- options ----------------------------------------------------------------------------------------------


def _folder_options(command: F) -> F:
    command = click.option("--cluster", default="", help="The cluster. Default: the folder's name.")(command)
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path),
        default=Path(DEFAULT_DIR),
        show_default=True,
        help="The folder of migrations, or the folder that holds one for each cluster.",
    )(command)


def _ledger_option(command: F) -> F:
    return click.option(
        "--ledger-url",
        default="",
        help=f"SQLite path or postgresql://… . Default: ${LEDGER_VARIABLE}, else ledger.db of the local stack.",
    )(command)


def _run_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--timeout", default="", help="Wait for a statement: 300, 5m; 0 not at all; -1 for ever."
            ),
            click.option(
                "--output-mode",
                type=click.Choice([mode.value for mode in OutputMode]),
                default=OutputMode.THROW.value,
                help="What a timeout and an inactive host mean. Default: throw.",
            ),
            click.option("--database", default="default", help="Database of names that have none."),
            click.option(
                "--entry-version", type=int, help="Format of queue entries; 1 for ClickHouse 18.16."
            ),
            click.option("--retry-failed", is_flag=True, help="Send again what failed, where it failed."),
            click.option("--allow-gaps", is_flag=True, help="Versions may have gaps."),
            click.option(
                "--allow-out-of-order", is_flag=True, help="Apply what arrived below the last version."
            ),
            click.option("--adopt-ledger", is_flag=True, help="This ledger takes over from another."),
        )
    ):
        command = option(command)
    return command


def _parse_timeout(value: str) -> int:
    try:
        return parse_duration_s(value) if value else DEFAULT_TIMEOUT_S
    except SqlError as error:
        raise click.BadParameter(error.message, param_hint="--timeout") from error


def _request(direction: Direction, target: int | None, options: dict[str, Any]) -> RunRequest:
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    return RunRequest(
        run_id=f"cli-{SystemEnv().new_uuid()}",
        direction=direction,
        target=target,
        requested_by=who,
        holder=f"{who}, process {os.getpid()} (oncluster {' '.join(sys.argv[1:3])})",
        approved_by=who if options.get("approve") else "",
        timeout_s=_parse_timeout(options.get("timeout", "")),
        output_mode=OutputMode(options.get("output_mode", OutputMode.THROW.value)),
        database=options.get("database", "default"),
        entry_version=options.get("entry_version"),
        leniency=Leniency(
            gaps=options.get("allow_gaps", False),
            out_of_order=options.get("allow_out_of_order", False),
            retry_failed=options.get("retry_failed", False),
        ),
        adopt_ledger=options.get("adopt_ledger", False),
    )


# --- what commands work with ------------------------------------------------------------------------------


def find_folder(directory: Path, cluster: str) -> Path:
    """The folder with the files. Raises ConfigError that names the folders there are."""
    if cluster and (directory / cluster).is_dir():
        return directory / cluster
    if directory.is_dir() and any(directory.glob("*.sql")):
        return directory
    inside = sorted(path.name for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []
    if not cluster and len(inside) == 1:
        return directory / inside[0]
    listed = f"There are: {', '.join(inside)}." if inside else f"{directory.absolute()} has no folders."
    wanted = f"no migrations of '{cluster}'" if cluster else "more than one cluster, or none,"
    raise ConfigError(f"There are {wanted} in {directory}.", hint=f"{listed} Name one with --cluster.")


def open_ledger(url: str) -> Ledger:
    chosen = url or os.environ.get(LEDGER_VARIABLE) or stack_home() / "ledger.db"
    return Ledger(chosen, env=SystemEnv())


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, its cluster's configuration, and its ledger when one is needed."""

    migrations: MigrationSet
    config: NodeConfig

    @classmethod
    def of(cls, directory: Path, cluster: str, config: Path | None) -> Place:
        folder = find_folder(directory, cluster)
        return cls(load_folder(folder, cluster=cluster), load_config(config))

    @property
    def surroundings(self) -> Surroundings:
        cluster = self.migrations.cluster
        return Surroundings(cluster, self.config.topology, self.config.queue_of(cluster))

    @contextlib.asynccontextmanager
    async def runner(self, ledger: Ledger) -> AsyncIterator[MigrationRunner]:
        async with keeper_session(self.config) as keeper:
            yield MigrationRunner(
                keeper=keeper,
                migrations=self.migrations,
                ledger=ledger,
                topology=self.config.topology,
                queue=self.config.queue_of(self.migrations.cluster),
                env=SystemEnv(),
            )


# --- looking ----------------------------------------------------------------------------------------------


@group.command("lint")
@_folder_options
@config_option
@json_option
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--no-parser", is_flag=True, help="Without ClickHouse's own parser: faster, finds less.")
@click.pass_context
def lint_command(
    context: click.Context,
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
    if cluster or any(directory.glob("*.sql")) or not directory.is_dir():
        folders = [find_folder(directory, cluster)]
    else:
        folders = sorted(path for path in directory.iterdir() if path.is_dir())
    node = load_config(config)

    async def judge() -> LintReport:
        async with contextlib.AsyncExitStack() as stack:
            scratch = None if no_parser else await stack.enter_async_context(open_scratch())
            findings = []
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
        context.exit(ExitCode.FAILED)


@group.command("plan")
@_folder_options
@config_option
@_ledger_option
@json_option
@_run_options
@click.option("--target", type=int, help="Version to go to.")
@click.option("--down", is_flag=True, help="Plan a rollback.")
@click.pass_context
def plan_command(
    context: click.Context,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    target: int | None,
    down: bool,
    **options: Any,
) -> None:
    """Say what a run would do: per statement and host, where, on what, and what forbids it. Changes nothing.

    Exit code 5 when the run would be refused.
    """
    place = Place.of(directory, cluster, config)
    request = _request(Direction.DOWN if down else Direction.UP, target, options)
    _plan(context, place, request, open_ledger(ledger_url), as_json=as_json)


def _plan(
    context: click.Context, place: Place, request: RunRequest, ledger: Ledger, *, as_json: bool
) -> None:
    async def work() -> None:
        async with place.runner(ledger) as runner:
            plan = await make_plan(runner, request)
            print_json(plan.to_json()) if as_json else show_plan(plan)
            if plan.problems:
                context.exit(ExitCode.REFUSED)

    run_async(work())


@group.command("rehearse")
@_folder_options
@config_option
@json_option
@click.option("--target", type=int, help="Rehearse up to this version.")
@click.option("--database", default="default", help="Database of names that have none.")
@click.pass_context
def rehearse_command(
    context: click.Context, directory: Path, cluster: str, config: Path | None, as_json: bool, **options: Any
) -> None:
    """Run every migration up, up again and down on a scratch database. No host sees anything."""
    place = Place.of(directory, cluster, config)
    rehearsal = run_async(_rehearse(place, _request(Direction.UP, options.pop("target"), options)))
    print_json(rehearsal.to_json()) if as_json else show_rehearsal(rehearsal)
    if not rehearsal.is_ok:
        context.exit(ExitCode.FAILED)


async def _rehearse(place: Place, request: RunRequest) -> Rehearsal:
    async with open_scratch() as scratch:
        return await rehearse(place.migrations, place.surroundings, request, scratch, env=SystemEnv())


@group.command("status")
@_folder_options
@config_option
@_ledger_option
@json_option
@click.option("--no-refresh", is_flag=True, help="Show the ledger as it is; ask nobody.")
@click.pass_context
def status_command(
    context: click.Context,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    no_refresh: bool,
) -> None:
    """Show every migration on every host. What has happened since the last run is looked up and recorded.

    Exit code 1 when a migration has failed, 3 when one is not finished.
    """
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    note = "" if no_refresh else run_async(_refresh(place, ledger))
    records = ledger.records(place.migrations.cluster)
    show_status(place.migrations, records, note=note, as_json=as_json)
    states = {record.state for record in records.values()}
    if MigrationState.FAILED in states:
        context.exit(ExitCode.FAILED)
    if any(state.is_open for state in states):
        context.exit(ExitCode.UNFINISHED)


async def _refresh(place: Place, ledger: Ledger) -> str:
    """What there is to say when nothing could be looked up."""
    try:
        async with place.runner(ledger) as runner:
            await refresh(runner, _request(Direction.UP, None, {}))
    except Busy as error:
        return f"{error.message} This is the ledger as that run has written it so far."
    except Unavailable as error:
        return f"Nothing could be looked up ({error.message}); this is the ledger as it was last written."
    return ""


@group.command("history")
@_folder_options
@_ledger_option
@json_option
def history_command(directory: Path, cluster: str, ledger_url: str, as_json: bool) -> None:
    """Show every run of the cluster and every event of its migrations, oldest first."""
    name = cluster or find_folder(directory, cluster).resolve().name
    ledger = open_ledger(ledger_url)
    show_history(ledger.runs(name), ledger.events(name), as_json=as_json)


# --- doing ------------------------------------------------------------------------------------------------


@group.command("apply")
@_folder_options
@config_option
@_ledger_option
@json_option
@_run_options
@click.option("--target", type=int, help="Apply up to this version. Default: all.")
@click.option("--approve", is_flag=True, help="Statements that destroy something may be sent.")
@click.option("--dry-run", is_flag=True, help="Only plan.")
@click.option("--rehearse/--no-rehearse", "rehearses", default=True, help="Rehearse first (the default).")
@click.pass_context
def apply_command(
    context: click.Context,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    target: int | None,
    dry_run: bool,
    rehearses: bool,
    **options: Any,
) -> None:
    """Apply what is not applied, and go on with what was begun.

    Exit codes: 0 done (or done on every host that is on line, in an only-active mode), 1 a host failed, 3 not
    finished in time: what was sent goes on, repeat the command to attach to it. 5 refused, 4 another run is at
    work or Keeper is away.
    """
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    request = _request(Direction.UP, target, options)
    if dry_run:
        _plan(context, place, request, ledger, as_json=as_json)
        return
    if rehearses:
        rehearsal = run_async(_rehearse(place, request))
        if not rehearsal.is_ok:
            print_json({"rehearsal": rehearsal.to_json()}) if as_json else show_rehearsal(rehearsal)
            raise MigrationRefused(
                "The rehearsal failed; nothing was sent.",
                hint="Correct the files, or repeat with --no-rehearse.",
            )
    _run(context, place, ledger, request, as_json=as_json)


@group.command("resume")
@_folder_options
@config_option
@_ledger_option
@json_option
@_run_options
@click.option("--approve", is_flag=True, help="Statements that destroy something may be sent.")
@click.pass_context
def resume_command(
    context: click.Context,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Go on with what was begun, in its direction, and begin nothing new."""
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    opened = [r for r in ledger.records(place.migrations.cluster).values() if r.state.is_open]
    if not opened:
        print_json({"state": RunState.DONE.value, "rows": []}) if as_json else click.echo("Nothing is open.")
        return
    last = max(opened, key=lambda record: record.version)
    if last.direction is Direction.UP:
        request = _request(Direction.UP, last.version, options)
    else:
        below = [v for v in place.migrations.versions if v < min(r.version for r in opened)]
        request = _request(Direction.DOWN, below[-1] if below else ALL, options)
    _run(context, place, ledger, request, as_json=as_json)


@group.command("rollback")
@_folder_options
@config_option
@_ledger_option
@json_option
@_run_options
@click.option("--target", type=int, help="Go back to this version, which stays. Default: undo the last one.")
@click.option("--all", "everything", is_flag=True, help="Undo everything.")
@click.option("--approve", is_flag=True, help="Statements that destroy something may be sent.")
@click.option("--dry-run", is_flag=True, help="Only plan.")
@click.pass_context
def rollback_command(
    context: click.Context,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    target: int | None,
    everything: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run down files, the latest first. Exit codes are those of `apply`."""
    if everything and target is not None:
        raise click.UsageError("--all and --target exclude each other.")
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    request = _request(Direction.DOWN, ALL if everything else target, options)
    if dry_run:
        _plan(context, place, request, ledger, as_json=as_json)
        return
    _run(context, place, ledger, request, as_json=as_json)


def _run(context: click.Context, place: Place, ledger: Ledger, request: RunRequest, *, as_json: bool) -> None:
    async def work(wanted: RunRequest) -> RunSummary:
        async with place.runner(ledger) as runner:
            with Reporter() as reporter:
                return await drive(runner, wanted, listener=reporter)

    try:
        summary = run_async(work(request))
    except ApprovalRequired as error:
        if as_json or not sys.stdin.isatty():
            raise
        click.echo(f"{error.message}\n", err=True)
        if not click.confirm("Send it to the cluster?", err=True):
            raise
        summary = run_async(work(replace(request, approved_by=request.requested_by)))
    print_json(summary.to_json()) if as_json else show_summary(summary)
    match summary.state:
        case RunState.FAILED:
            context.exit(ExitCode.FAILED)
        case RunState.UNFINISHED | RunState.RUNNING:
            context.exit(ExitCode.UNFINISHED)
        case RunState.DONE | RunState.PARTIAL:
            return


@group.command("mark")
@click.argument("version", type=int)
@click.argument("state", type=click.Choice(["applied", "unapplied"]))
@click.option("--reason", required=True, help="Stays in the ledger.")
@_folder_options
@config_option
@_ledger_option
@click.option("--adopt-ledger", is_flag=True, help="This ledger takes over from another.")
def mark_command(
    version: int,
    state: str,
    reason: str,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    adopt_ledger: bool,
) -> None:
    """Declare a migration applied, or not applied, on your word. Nothing is sent."""
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)
    request = _request(Direction.UP, None, {"adopt_ledger": adopt_ledger})

    async def work() -> str:
        async with place.runner(ledger) as runner:
            record = await mark(runner, request, version, applied=state == "applied", reason=reason)
            return record.state.value

    click.echo(f"Version {version} is {run_async(work())}.")


@group.command("unlock")
@_folder_options
@config_option
@_ledger_option
def unlock_command(directory: Path, cluster: str, config: Path | None, ledger_url: str) -> None:
    """Take the migration lock from a run that will not come back.

    That run can neither send nor record anything afterwards. What it sent is carried out; `apply` attaches to it.
    """
    place, ledger = Place.of(directory, cluster, config), open_ledger(ledger_url)

    async def work() -> str:
        async with place.runner(ledger) as runner:
            broken = await unlock(runner, _request(Direction.UP, None, {}))
            return f"Taken from run {broken.run_id} of {broken.holder}." if broken else "Nobody holds it."

    click.echo(run_async(work()))
