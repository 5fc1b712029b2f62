"""What the commands that operate a cluster share: options, the site, plans as tables, carrying them out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.cli.exits import ExitCode
from engine.cli.numbers import Finite
from engine.cli.options import (
    CLUSTER_VARIABLE,
    find_config,
    host_and_url,
    load_config,
    stack_home,
    user_at_host,
)
from engine.cli.output import print_json, print_table
from engine.env import SystemEnv
from engine.errors import ConfigError
from engine.local.ledger_place import LEDGER_FILE, LEDGER_VARIABLE, ledger_url_of
from engine.local.state import stack_nodes
from engine.operations.act import Act, ActResult, ActState, Plan
from engine.operations.carrying_out import Performer, Report, carry_out
from engine.operations.records import RecordsUnavailable
from engine.operations.site import PATIENCE_S, KeeperNeed, Site, open_site

F = TypeVar("F", bound=Callable[..., Any])

DATABASE_VARIABLE = "ONCLUSTER_RECORDS_URL"
PASSWORD_VARIABLE = "ONCLUSTER_PASSWORD"


@contextlib.contextmanager
def raised_later(lost: list[RecordsUnavailable]) -> Iterator[None]:
    """For keeping what was seen: without a database it is shown all the same, and `lost` raised then."""
    try:
        yield
    except RecordsUnavailable as error:
        lost.append(error)


def site_options(command: F) -> F:
    """Adds --cluster, --records-url, --node, --user and --patience; `site_for` takes them."""
    for option in reversed(
        (
            click.option(
                "--cluster",
                default="",
                envvar=CLUSTER_VARIABLE,
                help=f"The cluster. Default: ${CLUSTER_VARIABLE}, else the only one there is.",
            ),
            click.option(
                "--records-url",
                default="",
                help=f"SQLite path or postgresql://…; default ${DATABASE_VARIABLE}, else where the ledger is "
                f"(${LEDGER_VARIABLE}, else {LEDGER_FILE} of the local stack).",
            ),
            click.option(
                "--node",
                "nodes",
                multiple=True,
                metavar="HOST=URL",
                help="Where a host's HTTP interface is, as node01=http://10.0.0.1:8123 or, if they share a "
                "name, 127.0.0.1:9000=http://127.0.0.1:8123. Default: what the configuration says "
                "(http_host, http_port), or with its configuration the local stack's nodes.",
            ),
            click.option(
                "--user", default="", help=f"User on the nodes; the password is ${PASSWORD_VARIABLE}."
            ),
            click.option(
                "--patience",
                "patience_s",
                type=Finite(min=0.1),
                default=PATIENCE_S,
                show_default=True,
                help="Seconds to wait for one host's answer.",
            ),
        )
    ):
        command = option(command)
    return command


def acting_options(command: F) -> F:
    """Adds --plan, --run-id and --yes, for commands that carry out a plan."""
    for option in reversed(
        (
            click.option(
                "--plan",
                "plan_file",
                type=click.Path(path_type=Path, exists=True, dir_okay=False),
                default=None,
                help="Carry out this plan, which was saved as JSON, and nothing else. Default: one made now.",
            ),
            click.option(
                "--run-id",
                default="",
                help="Go on with this run. Default: a new one, whose id is said.",
            ),
            click.option(
                "--yes",
                "is_approved",
                is_flag=True,
                help="You approve the plan: do it. Without, it is shown.",
            ),
        )
    ):
        command = option(command)
    return command


def operator_name() -> str:
    """Who acts, for records and locks."""
    command = " ".join(sys.argv[1:3])
    return f"{user_at_host()}, process {os.getpid()} (oncluster {command})"


@contextlib.asynccontextmanager
async def site_for(
    config: Path | None, options: dict[str, Any], *, need: KeeperNeed = KeeperNeed.REQUIRED
) -> AsyncIterator[Site]:
    """The site that the options of `site_options` name. Raises as `open_site`."""
    loaded = load_config(config)
    cluster = options["cluster"] or _only_cluster(sorted(loaded.topology.clusters))
    urls = dict(map(host_and_url, options["nodes"])) or stack_nodes(stack_home(), find_config(config))
    ledger_url = ledger_url_of(stack_home(), os.environ)
    async with open_site(
        cluster,
        loaded,
        database_url=options["records_url"] or os.environ.get(DATABASE_VARIABLE) or ledger_url,
        ledger_url=ledger_url,
        operator=operator_name(),
        urls=urls,
        user=options["user"],
        password=os.environ.get(PASSWORD_VARIABLE, ""),
        need=need,
        patience_s=options["patience_s"],
    ) as site:
        yield site


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """The plan as tables, or as JSON that `read_plan` reads."""
    if as_json:
        print_json(plan.to_json())
        return
    print_table(
        ("what", "host", "danger", "why"),
        [(act.what, act.host, act.danger.value, act.why) for act in plan.acts],
        title=f"{plan.operation} of {plan.cluster}, plan {plan.checksum[:12]}",
        empty=f"{plan.operation} of {plan.cluster}: nothing to do.",
    )
    for finding in plan.findings:
        click.echo(f"{finding.severity.word}: {finding.what} {finding.advice}")
    _show_notes(plan)


def _show_notes(plan: Plan) -> None:
    """Whom nobody has asked, and what is left to a person: true as well when there is nothing to do."""
    for note in plan.notes:
        click.echo(f"note: {note}")


def read_plan(path: Path) -> Plan:
    """A plan that was saved as JSON. Raises ConfigError when it is none, or was changed."""
    try:
        return Plan.from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no plan: {error}", hint="Save one with the `plan` command and --json."
        ) from error


async def carry_out_shown(
    site: Site, plan: Plan, perform: Performer, *, run_id: str, approved: bool, as_json: bool
) -> Report:
    """Carry out a plan; each act's outcome goes to standard error as it comes, the report to standard output.

    Without a run id a new one is made and said, so that the run can be resumed.
    """
    run_id = run_id or f"cli-{SystemEnv().new_uuid()}"
    click.echo(f"run {run_id}", err=True)

    def progress(act: Act, result: ActResult, *, number: int, of: int) -> None:
        detail = f": {result.detail}" if result.detail else ""
        click.echo(f"  {number}/{of}  {result.state.value:<10}  {act.what}{detail}", err=True)

    report = await carry_out(
        site,
        plan,
        perform,
        run_id=run_id,
        approved_by=operator_name() if approved else "",
        progress=progress,
    )
    if as_json:
        print_json(report.to_json())
    else:
        print_table(
            ("state", "what", "host", "detail"),
            [(result.state.value, act.what, act.host, result.detail) for act, result in report.results],
            title=f"{plan.operation} of {plan.cluster}, run {run_id}",
            empty=f"{plan.operation} of {plan.cluster}: nothing to do.",
        )
        _show_notes(plan)
    return report


def exit_code_of(report: Report) -> ExitCode:
    """FAILED when an act failed or was refused, UNKNOWN_OUTCOME when one has to be looked at again."""
    if report.count(ActState.STARTED):
        return ExitCode.UNKNOWN_OUTCOME
    return ExitCode.OK if report.is_good else ExitCode.FAILED


def _only_cluster(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    raise ConfigError(
        "No cluster is named, and the configuration has " + (f"{len(names)}." if names else "none."),
        hint=f"Name one with --cluster, or in ${CLUSTER_VARIABLE}: {', '.join(names)}."
        if names
        else "Add one to <remote_servers>.",
    )
