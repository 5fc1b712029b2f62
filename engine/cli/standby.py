"""`oncluster standby`: compare a second cluster with the first; follow the switch of writers to it.

    oncluster standby check --standby-config second.xml
    oncluster standby switch-plan --standby-config second.xml --writers http://clickhouse:8123

Both only look; docs/how-to/standby.md is the procedure. Exit code 10 while something is missing or a step is
open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.cli.numbers import Finite
from engine.cli.operations_place import PASSWORD_VARIABLE, site_for, site_options
from engine.cli.options import config_option, json_option
from engine.cli.output import console, print_json
from engine.cli.running import run_async
from engine.client import NodeClient
from engine.local.progress import ConsoleSink, Steps
from engine.operations.site import KeeperNeed, Site
from engine.operations.standby import (
    DataDepth,
    StandbyReport,
    Step,
    StepState,
    check_standby,
    switch_steps,
)
from engine.operations.standby.check import Tell
from engine.operations.standby.switch import WATCH_S

F = TypeVar("F", bound=Any)

NOT_YET = 10
"""What both commands answer when the standby is not equal, or a step is not done."""

_SHOWN = 50
_SIGNS = {
    StepState.DONE: "✓",
    StepState.OPEN: "✗",
    StepState.UNKNOWN: "?",
    StepState.BY_HAND: "☐",
    StepState.LATER: "·",
}


@click.group(name="standby")
def group() -> None:
    """Compare a second cluster with the first, and follow the switch of writers to it."""


def _standby_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--standby-config",
                type=click.Path(path_type=Path, exists=True, dir_okay=False),
                required=True,
                help="Configuration of the standby: its clusters and its Keeper.",
            ),
            click.option("--standby-cluster", default="", help="Its name. Default: that of --cluster."),
            click.option(
                "--standby-node",
                "standby_nodes",
                multiple=True,
                metavar="HOST=URL",
                help="As --node, for hosts of the standby.",
            ),
            click.option(
                "--counts",
                "only_counts",
                is_flag=True,
                help="Compare numbers of rows only; without it all rows are read and hashed, each table "
                "within six times --patience.",
            ),
        )
    ):
        command = option(command)
    return command


@contextlib.asynccontextmanager
async def _two_sites(
    config: Path | None,
    standby_config: Path,
    standby_cluster: str,
    standby_nodes: tuple[str, ...],
    options: dict[str, Any],
) -> AsyncIterator[tuple[Site, Site]]:
    async with site_for(config, options, need=KeeperNeed.OPTIONAL) as primary:
        theirs = {**options, "cluster": standby_cluster or options["cluster"], "nodes": standby_nodes}
        async with site_for(standby_config, theirs, need=KeeperNeed.OPTIONAL) as standby:
            yield primary, standby


@group.command()
@_standby_options
@site_options
@config_option
@json_option
def check(
    standby_config: Path,
    standby_cluster: str,
    standby_nodes: tuple[str, ...],
    only_counts: bool,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what the standby lacks: objects on its hosts, rows in its tables."""
    depth = DataDepth.COUNTS if only_counts else DataDepth.HASHES

    async def work() -> StandbyReport:
        async with _two_sites(config, standby_config, standby_cluster, standby_nodes, options) as sites:
            with _shown() as tell:
                return await check_standby(*sites, depth=depth, tell=tell)

    report = run_async(work())
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if not report.is_equal:
        click.get_current_context().exit(NOT_YET)


@group.command("switch-plan")
@_standby_options
@click.option(
    "--writers",
    default="",
    metavar="URL",
    help="What writers connect to (an alias, a balancer); the last step looks who answers there.",
)
@click.option(
    "--watch",
    "watch_s",
    type=Finite(min=0),
    default=WATCH_S,
    show_default=True,
    help="Seconds to watch whether writers stand still.",
)
@site_options
@config_option
@json_option
def switch_plan(
    standby_config: Path,
    standby_cluster: str,
    standby_nodes: tuple[str, ...],
    only_counts: bool,
    writers: str,
    watch_s: float,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Go through the steps of the switch: what is done, what is next. Looks only; people do the steps."""
    depth = DataDepth.COUNTS if only_counts else DataDepth.HASHES

    async def work() -> tuple[Step, ...]:
        async with contextlib.AsyncExitStack() as stack:
            primary, standby = await stack.enter_async_context(
                _two_sites(config, standby_config, standby_cluster, standby_nodes, options)
            )
            client = None
            if writers:
                client = await stack.enter_async_context(
                    NodeClient(
                        writers,
                        user=options["user"] or "default",
                        password=os.environ.get(PASSWORD_VARIABLE, ""),
                        timeout_s=options["patience_s"],
                    )
                )
            with _shown() as tell:
                return await switch_steps(
                    primary, standby, depth=depth, writers=client, watch_s=watch_s, tell=tell
                )

    steps = run_async(work())
    if as_json:
        print_json({"steps": [step.to_json() for step in steps]})
    else:
        _show_steps(steps)
    if any(step.state not in (StepState.DONE, StepState.BY_HAND) for step in steps):
        click.get_current_context().exit(NOT_YET)


@contextlib.contextmanager
def _shown() -> Iterator[Tell]:
    with ConsoleSink(console(stderr=True)) as sink:
        steps = Steps(sink)
        yield lambda text: steps.running("comparing", text)


def _show(report: StandbyReport) -> None:
    lines = report.lines
    for line in lines[:_SHOWN]:
        click.echo(f"✗ {line}")
    if len(lines) > _SHOWN:
        click.echo(f"… and {len(lines) - _SHOWN} more; see --json.")
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    verdict = "is equal" if report.is_equal else "is not equal"
    click.echo(
        f"{report.standby} {verdict} to {report.primary}: {report.objects} objects, {report.tables} tables, "
        f"{report.rows} rows ({report.depth})."
    )


def _show_steps(steps: tuple[Step, ...]) -> None:
    for step in steps:
        seen = f": {step.seen}" if step.seen else ""
        click.echo(f"{_SIGNS[step.state]} {step.number}. {step.title}{seen}")
    following = next((step for step in steps if step.state is not StepState.DONE), None)
    if following is not None:
        click.echo(f"Next: {following.advice}")
    else:
        click.echo("All steps are done.")
