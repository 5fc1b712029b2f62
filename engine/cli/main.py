"""`oncluster`: assembles the sub-commands.

A sub-command's module is imported when it is asked for, not before: `oncluster --help` reads this file
only, and a part that cannot be imported takes nothing else down with it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click

from engine.cli.output import prepare_streams
from engine.cli.running import OnclusterGroup


@dataclass(frozen=True, slots=True)
class Part:
    """A sub-command: where it stands and what it says of itself in the list."""

    module: str
    attribute: str
    summary: str


PARTS: dict[str, Part] = {
    "demo": Part("engine.cli.local", "demo", "Start everything, migrate through Airflow, show it, stop."),
    "up": Part("engine.cli.local", "up", "Start ZooKeeper, six nodes and Airflow; leave them running."),
    "down": Part("engine.cli.local", "down", "Stop what `up` started."),
    "status": Part("engine.cli.local", "status", "Show the processes of the local stack."),
    "node": Part(
        "engine.cli.node",
        "command",
        "Run one node: chDB behind ClickHouse's HTTP interface, with ON CLUSTER.",
    ),
    "cluster": Part("engine.cli.cluster", "group", "Look at a cluster as a whole."),
    "ddl": Part(
        "engine.cli.ddl", "group", "Submit, watch, list and clean entries of the distributed DDL queue."
    ),
    "migrate": Part("engine.cli.migrate", "group", "Plan, lint, apply, roll back and rehearse migrations."),
    "etl": Part("engine.cli.etl", "group", "Load raw files with Spark; check what arrived."),
    "cleanup": Part(
        "engine.cli.cleanup", "group", "Clean the DDL queue, Keeper and detached parts: plan first, then act."
    ),
    "health": Part(
        "engine.cli.health", "group", "Check replicas, queues, Keeper, disks and clocks; repair; trends."
    ),
    "drift": Part(
        "engine.cli.drift",
        "group",
        "Compare the schema of all hosts with one another, with Keeper and with the ledger.",
    ),
    "standby": Part(
        "engine.cli.standby",
        "group",
        "Compare a second cluster with the first, and follow the switch of writers to it.",
    ),
    "keeper": Part(
        "engine.cli.keeper", "group", "Look at, change, back up and compare Keeper's tree; run ZooKeeper."
    ),
}


class LazyGroup(OnclusterGroup):
    """Lists the parts from their summaries and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PARTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        part = PARTS.get(cmd_name)
        if part is None:
            return None
        try:
            command = getattr(importlib.import_module(part.module), part.attribute)
        except ImportError as error:
            raise click.ClickException(
                f"`oncluster {cmd_name}` cannot be loaded: {error}. "
                "Run `make venv`, which installs everything it needs."
            ) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, part.summary) for name, part in PARTS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in PARTS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. Commands: {', '.join(PARTS)}.")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="oncluster", prog_name="oncluster")
def cli() -> None:
    """ON CLUSTER migrations for clusters that speak ClickHouse, orchestrated by Airflow.

    \b
    Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not finished in time, 4 unavailable (try again), 5 refused,
    6 outcome unknown, 10 a check found a warning or a difference, 20 something critical, 70 stored data is
    corrupt, 130 interrupted, 143 terminated.
    """


def main(args: list[str] | None = None) -> Any:
    """What the `oncluster` script calls; ends the process with the exit code."""
    prepare_streams()
    return cli.main(args=args, prog_name="oncluster")
