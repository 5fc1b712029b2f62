"""`oncluster ddl`: submit a statement to the queue, wait for it, look at the queue, clean it.

Safety: `submit` enqueues a token once, however often it is called; without `--token` each call is a
statement of its own. `clean` shows what it would remove and removes nothing without `--yes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import click

from engine.cli.ddl_place import ENTRY, open_queue, queue_option
from engine.cli.ddl_show import cleaned_as_json, entry_row, print_cleaned, print_hosts, status_as_json
from engine.cli.error_output import error_as_json
from engine.cli.exits import ExitCode, Terminated
from engine.cli.numbers import Finite
from engine.cli.options import config_option, json_option
from engine.cli.output import print_facts, print_json, print_table
from engine.cli.running import run_async
from engine.ddl import (
    CleanReport,
    DDLCleaner,
    DDLQueueClient,
    EntryStatus,
    HostState,
    Removal,
    Submission,
    prepare,
)
from engine.ddl.cleaner import LANES
from engine.ddl.entry import DEFAULT_VERSION
from engine.ddl.output import DEFAULT_TIMEOUT_S
from engine.env import SystemEnv
from engine.errors import KeeperUnavailable, OnclusterError, Refused, UnknownOutcome
from engine.sql import parse_statement, redact


@click.group(name="ddl")
def group() -> None:
    """Submit, watch, list and clean entries of the distributed DDL queue.

    The queue is the one of the `distributed_ddl` section of the configuration. When there are several,
    `submit` goes to the one of the statement's cluster, and `--queue` names another.
    """


def _timeout_option(command: Any) -> Any:
    return click.option(
        "--timeout",
        "timeout_s",
        type=Finite(),
        default=float(DEFAULT_TIMEOUT_S),
        show_default=True,
        help="Seconds to wait; 0 not at all, negative for ever. The statement goes on in any case.",
    )(command)


# --- submitting and waiting -------------------------------------------------------------------------------


@group.command()
@click.argument("sql")
@click.option("--token", default=None, help="Submitting the same token again attaches instead of enqueuing.")
@click.option("--cluster", default=None, help="Adds ON CLUSTER to a statement that has none.")
@click.option("--database", default="default", show_default=True, help="What an unqualified name means.")
@click.option("--setting", "settings", multiple=True, metavar="NAME=VALUE", help="Travels with the entry.")
@click.option(
    "--entry-version",
    type=click.IntRange(1, 8),
    default=DEFAULT_VERSION,
    show_default=True,
    help="1 for ClickHouse before 21.3.",
)
@_timeout_option
@queue_option
@config_option
@json_option
def submit(
    sql: str,
    token: str | None,
    cluster: str | None,
    database: str,
    settings: tuple[str, ...],
    entry_version: int,
    timeout_s: float,
    queue_name: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Put SQL into the queue and wait for every host. `-` reads it from standard input.

    Exit codes: 0 done on all hosts, 1 failed somewhere, 3 not finished in time (`oncluster ddl wait` attaches
    to it again), 5 refused.
    """
    text = sys.stdin.read() if sql == "-" else sql
    submitted_under = token or str(SystemEnv().new_uuid())
    again = f"Repeat it with --token {submitted_under}: it attaches to what is in the queue, or sends it now."

    async def work() -> tuple[Submission, EntryStatus | None, str]:
        named = cluster or parse_statement(text).on_cluster or ""
        async with open_queue(config, queue_name, on_cluster=named) as opened:
            prepared = prepare(
                text,
                topology=opened.config.topology,
                queue=opened.queue,
                token=submitted_under,
                current_database=database,
                settings=dict(_parse_setting(setting) for setting in settings),
                entry_version=entry_version,
                on_cluster=cluster,
                shared_uuid=SystemEnv().new_uuid(),
            )
            submission = await opened.client.submit(prepared)
            if not as_json:
                click.echo(
                    f"{submission.outcome}: {submission.entry or '(removed since)'} token {submission.token}",
                    err=True,
                )
            return submission, await _wait_for(opened.client, submission, timeout_s), opened.option

    try:
        submission, status, queue_option = run_async(work())
    except (KeyboardInterrupt, Terminated) as error:
        error.add_note(again)
        raise
    except (KeeperUnavailable, UnknownOutcome) as error:
        error.hint = f"{error.hint} {again}".strip()
        raise
    _show_result(submission, status, timeout_s, queue_option, as_json=as_json)


@group.command()
@click.argument("entry", type=ENTRY, required=False)
@click.option("--token", default=None, help="Instead of ENTRY: whatever was submitted under this token.")
@_timeout_option
@queue_option
@config_option
@json_option
def wait(
    entry: str | None,
    token: str | None,
    timeout_s: float,
    queue_name: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Attach to ENTRY (query-0000000007) and wait until every host has an outcome.

    Exit codes as for `submit`.
    """
    if (entry is None) == (token is None):
        raise click.UsageError("Give an ENTRY or a --token.")

    async def work() -> tuple[Submission | None, EntryStatus | None, str]:
        async with open_queue(config, queue_name) as opened:
            submission = None
            if token is not None:
                submission = await opened.client.find(token)
                if submission is None:
                    raise Refused(f"Nothing was ever submitted under the token {token}.")
            name = entry if submission is None else submission.entry
            return submission, await _wait_for_entry(opened.client, name or "", timeout_s), opened.option

    submission, status, queue_option = run_async(work())
    _show_result(submission, status, timeout_s, queue_option, as_json=as_json)


async def _wait_for(client: DDLQueueClient, submission: Submission, timeout_s: float) -> EntryStatus | None:
    if not submission.entry:
        return None
    return await _wait_for_entry(client, submission.entry, timeout_s)


async def _wait_for_entry(client: DDLQueueClient, entry: str, timeout_s: float) -> EntryStatus | None:
    """The last status seen before the time was up."""
    status: EntryStatus | None = None
    if timeout_s == 0:
        return await client.status(entry)

    async def follow() -> None:
        nonlocal status
        async with contextlib.aclosing(client.watch(entry)) as changes:
            async for change in changes:
                status = change

    try:
        async with asyncio.timeout(None if timeout_s < 0 else timeout_s):
            await follow()
    except TimeoutError:
        return await client.status(entry)
    except OnclusterError:
        # Removed while we waited, or before: what was recorded about it is the answer.
        return await client.status(entry)
    return status


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--setting")
    return name.strip(), value.strip()


def _show_result(
    submission: Submission | None,
    status: EntryStatus | None,
    timeout_s: float,
    queue_option: str,
    *,
    as_json: bool,
) -> None:
    code = _exit_code(status, timeout_s)
    if as_json:
        print_json(
            {
                "token": submission.token if submission else None,
                "outcome": submission.outcome if submission else None,
                "status": status_as_json(status) if status else None,
            }
        )
    elif status is not None:
        print_hosts(status)
        if code is ExitCode.UNFINISHED:
            click.echo(
                f"Not finished. Attach again: oncluster ddl wait {status.entry}{queue_option}", err=True
            )
    if code:
        click.get_current_context().exit(code)


def _exit_code(status: EntryStatus | None, timeout_s: float) -> ExitCode:
    if status is None or any(o.state in (HostState.EXPIRED, HostState.ABANDONED) for o in status.hosts):
        return ExitCode.UNKNOWN_OUTCOME  # nobody knows what the host has done
    if status.failed:
        return ExitCode.FAILED
    if not status.is_complete and timeout_s != 0:
        return ExitCode.UNFINISHED
    return ExitCode.OK


# --- looking ----------------------------------------------------------------------------------------------


@group.command("list")
@queue_option
@config_option
@json_option
def list_(queue_name: str | None, config: Path | None, as_json: bool) -> None:
    """List the queue: one line an entry, oldest first."""

    async def work() -> list[EntryStatus | tuple[str, OnclusterError]]:
        async with open_queue(config, queue_name) as opened:
            names = await opened.client.list()
            found = await opened.client.status_many(names)
            return [
                status if isinstance(status, EntryStatus) else (name, status)
                for name, status in zip(names, found, strict=True)
            ]

    entries = run_async(work())
    if as_json:
        print_json(
            [
                status_as_json(entry)
                if isinstance(entry, EntryStatus)
                else {"entry": entry[0], "error": error_as_json(entry[1])}
                for entry in entries
            ]
        )
        return
    rows = [
        entry_row(entry) if isinstance(entry, EntryStatus) else (entry[0], "", "unreadable", str(entry[1]))
        for entry in entries
    ]
    print_table(("entry", "cluster", "hosts", "statement"), rows, empty="(the queue is empty)")


@group.command()
@click.argument("entry", type=ENTRY)
@queue_option
@config_option
@json_option
def show(entry: str, queue_name: str | None, config: Path | None, as_json: bool) -> None:
    """Show ENTRY: its statement, every host, and which replica executed for its shard.

    An entry that was removed is shown as it was recorded then.
    """

    async def work() -> EntryStatus:
        async with open_queue(config, queue_name) as opened:
            return await opened.client.status(entry)

    status = run_async(work())
    if as_json:
        print_json(status_as_json(status))
        return
    print_facts(
        {
            "entry": status.entry + (" (removed)" if status.is_gone else ""),
            "statement": redact(status.query),
            "initiator": status.initiator,
        }
    )
    print_hosts(status)
    if status.shards:
        print_table(
            ("shard", "executed by"),
            [
                (shard.shard, shard.executed_by.readable if shard.executed_by else "")
                for shard in status.shards
            ],
        )


# --- cleaning ---------------------------------------------------------------------------------------------


@group.command()
@click.argument("entries", type=ENTRY, nargs=-1)
@click.option("--yes", "is_confirmed", is_flag=True, help="Remove; without it only show what would go.")
@queue_option
@config_option
@json_option
def clean(
    entries: tuple[str, ...],
    is_confirmed: bool,
    queue_name: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Remove entries that are over their age or number, or the ENTRIES named.

    An entry that a host is executing stays. Hosts that never reported are recorded as expired first.
    """

    async def work() -> CleanReport:
        async with open_queue(config, queue_name) as opened:
            cleaner = DDLCleaner(opened.keeper, SystemEnv(), opened.queue)
            if not entries:
                return await cleaner.clean(dry_run=not is_confirmed, lanes=LANES)
            cleaned = [await cleaner.remove_entry(name, dry_run=not is_confirmed) for name in entries]
            return CleanReport(tuple(cleaned), ())

    report = run_async(work())
    if as_json:
        print_json(
            {
                "entries": [cleaned_as_json(entry) for entry in report.entries],
                "stale_replicas": list(report.stale_replicas),
                "forbidden": list(report.forbidden),
            }
        )
    else:
        print_cleaned(report.entries)
        if report.stale_replicas:
            click.echo(f"Replicas without activity for a day: {', '.join(report.stale_replicas)}")
        if not is_confirmed and (report.entries or report.stale_replicas):
            click.echo("Nothing was removed; add --yes.", err=True)
        if report.forbidden:
            click.echo(f"Keeper lets us not look at: {', '.join(report.forbidden)}")
    left = (Removal.ACTIVE, Removal.LOCKED, Removal.CHANGING, Removal.FORBIDDEN)
    if any(entry.removal in left for entry in report.entries):
        click.get_current_context().exit(ExitCode.REFUSED)
