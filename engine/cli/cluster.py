"""`oncluster cluster`: what there is to see of a cluster. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.cli.operations_place import site_for, site_options
from engine.cli.options import config_option, json_option
from engine.cli.output import print_json, print_table
from engine.cli.running import run_async
from engine.operations.overview import Answer, Cell, ClusterOverview, Level, Part, PartState, look
from engine.operations.overview.as_json import overview_json
from engine.operations.overview.queue_grid import counts_by_host
from engine.operations.overview.words import WORDS_OF_CELLS
from engine.operations.site import KeeperNeed
from engine.wording import count, duration, shortened

_COLORS = {Level.CRITICAL: "red", Level.WARNING: "yellow"}
_MOST_TASKS = 20
_QUERY_WIDTH = 70


@click.group(name="cluster")
def group() -> None:
    """Look at a cluster as a whole."""


@group.command()
@site_options
@config_option
@json_option
def show(config: Path | None, as_json: bool, **options: Any) -> None:
    """Shards and replicas, the queue, what is stuck and why, migrations, spool, findings.

    Hosts that do not answer, or a Keeper that is away, are said in their place; the exit code is 0 even so.
    """

    async def work() -> ClusterOverview:
        async with site_for(config, options, need=KeeperNeed.OPTIONAL) as site:
            return await look(site)

    overview = run_async(work())
    if as_json:
        print_json(overview_json(overview))
        return
    _show_stuck(overview)
    _show_hosts(overview)
    _show_queue(overview)
    _show_spool(overview)
    _show_records(overview)


def _show_stuck(overview: ClusterOverview) -> None:
    click.secho(f"{overview.cluster}: {_headline(overview)}", bold=True)
    for item in overview.stuck:
        age = f" ({duration((overview.at_ms - item.since_ms) / 1000)})" if item.since_ms else ""
        click.echo(click.style(item.what, fg=_COLORS.get(item.level)) + age)
        click.echo(f"  {item.why}\n  {item.advice}")


def _headline(overview: ClusterOverview) -> str:
    if not overview.stuck:
        return "nothing is stuck"
    return count(len(overview.stuck), "thing does not move", "things do not move")


def _show_hosts(overview: ClusterOverview) -> None:
    _show_trouble("The servers", overview.hosts)
    hosts = overview.hosts.value.hosts if overview.hosts.value else {}
    queue = overview.queue.value
    counted = counts_by_host(queue) if queue else {}
    rows = []
    for shard in overview.shards:
        for name in shard.hosts:
            host = hosts.get(name)
            if host is None:
                continue
            presence = queue.presence.get(name) if queue else None
            is_up = host.answer is Answer.UP
            open_tasks = sum(number for cell, number in counted.get(name, {}).items() if cell.is_open)
            rows.append(
                (
                    *(shard.number, name, host.answer.value, presence.value if presence else ""),
                    *(host.version, len(host.tables) if is_up else "", host.read_only or ""),
                    *(host.absolute_delay_s if is_up else "", host.queue_size if is_up else "", open_tasks),
                )
            )
    print_table(
        (
            *("shard", "host", "answers", "queue worker", "version", "replicated tables", "read-only"),
            *("lag s", "replication queue", "open tasks"),
        ),
        rows,
        title="replicas",
        empty="",
    )


def _show_queue(overview: ClusterOverview) -> None:
    _show_trouble("The queue", overview.queue)
    view = overview.queue.value
    if view is None:
        return
    shown = [task for task in view.tasks if task.is_open or task.has_failures][:_MOST_TASKS]
    print_table(
        ("task", "statement", "hosts"),
        [(task.name, shortened(task.query, most=_QUERY_WIDTH), _counts(task.cells)) for task in shown],
        title=f"queue {view.path}: {len(view.tasks)} tasks; open or failed",
        empty=f"queue {view.path}: {len(view.tasks)} tasks, none open, none failed.",
    )


def _counts(cells: str) -> str:
    counted = ((cell, cells.count(cell.value)) for cell in Cell if cell is not Cell.NONE)
    return ", ".join(f"{number} {WORDS_OF_CELLS[cell]}" for cell, number in counted if number)


def _show_spool(overview: ClusterOverview) -> None:
    hosts = overview.hosts.value.hosts.values() if overview.hosts.value else ()
    print_table(
        ("host", "table", "files", "bytes", "broken", "last error"),
        [
            (host.host, row.table, row.files, row.size_bytes, row.broken_files, row.last_exception)
            for host in hosts
            for row in host.spool
        ],
        title="spool of Distributed tables",
        empty="",
    )


def _show_records(overview: ClusterOverview) -> None:
    _show_trouble("The records", overview.records)
    view = overview.records.value
    if view is None:
        return
    print_table(
        ("version", "title", "state", "hosts"),
        [
            (m.version, m.title, m.state.value, ", ".join(f"{n} {s}" for s, n in m.counts.items()))
            for m in view.migrations
        ],
        title="migrations",
        empty="",
    )
    print_table(
        ("severity", "what", "what to do"),
        [(r.finding.severity.word, r.finding.what, r.finding.advice) for r in view.findings],
        title="findings",
        empty="",
    )
    for note in view.notes:
        click.echo(f"note: {note}")


def _show_trouble(what: str, part: Part[Any]) -> None:
    for line in _trouble(what, part):
        click.secho(line, fg="red")


def _trouble(what: str, part: Part[Any]) -> Iterator[str]:
    if part.state is PartState.FAILED:
        yield f"{what}: {part.error} {part.advice}".rstrip()
