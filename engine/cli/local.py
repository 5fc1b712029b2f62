"""`oncluster up`, `down`, `status`, `demo`: the local stack."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.cli.exits import ExitCode
from engine.cli.options import HOME_VARIABLE, MIGRATIONS_VARIABLE, F, json_option, stack_home
from engine.cli.output import JsonValue, console, print_facts, print_json, print_table
from engine.cli.running import keep_files_private, run_async

if TYPE_CHECKING:
    from engine.local.demo_result import DemoResult
    from engine.local.stack_options import StackOptions
    from engine.local.state import Phase, StackState


def home_option(command: F) -> F:
    return click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Run directory: data, logs, state. Default: $ONCLUSTER_HOME, else .run here.",
    )(command)


def stack_options(command: F) -> F:
    """The options of `up` and `demo`."""
    decorators = (
        home_option,
        click.option(
            "--port-base",
            type=click.IntRange(0, 65_000),
            default=None,
            help="Nodes at base+23…, Airflow at base+80, ZooKeeper at base+81; 0: free ports. "
            "[default: $ONCLUSTER_PORT_BASE, else 18100]",
        ),
        click.option(
            "--cluster-file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            default=None,
            help="Clusters to run, XML or YAML. Default: config/cluster.xml.",
        ),
        click.option(
            "--migrations",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            default=None,
            envvar=MIGRATIONS_VARIABLE,
            help="Folder with one folder of migrations per cluster. "
            f"Default: ${MIGRATIONS_VARIABLE}, else migrations.",
        ),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _options(
    home: Path,
    port_base: int | None,
    cluster_file: Path | None,
    migrations: Path | None,
    *,
    with_airflow: bool = True,
) -> StackOptions:
    from engine.local.stack_options import StackOptions

    return StackOptions(
        home=home,
        port_base=port_base,
        cluster_file=cluster_file,
        migrations=migrations,
        with_airflow=with_airflow,
    )


@click.command()
@stack_options
@click.option(
    "--demo", "with_demo", is_flag=True, help="Apply the demo's migrations through Airflow as well."
)
@click.option("--no-airflow", is_flag=True, help="Start ZooKeeper and the nodes only.")
@json_option
def up(
    home: Path | None,
    port_base: int | None,
    cluster_file: Path | None,
    migrations: Path | None,
    with_demo: bool,
    no_airflow: bool,
    as_json: bool,
) -> None:
    """Start ZooKeeper, six nodes and Airflow; leave them running.

    When they run already, whatever of them has ended is started again. The ledger is $ONCLUSTER_LEDGER_URL
    where that is set when they start, else a file in the run directory. Until this command has ended, a
    process that ends, a full disk and Ctrl-C stop what it has started.
    """
    from engine.database import shown_url
    from engine.local import supervisor
    from engine.local.progress import ConsoleSink

    if with_demo and no_airflow:
        raise click.UsageError("--demo migrates through Airflow; it cannot go with --no-airflow.")
    keep_files_private()
    options = _options(stack_home(home), port_base, cluster_file, migrations, with_airflow=not no_airflow)
    out = console(stderr=as_json)

    async def work() -> tuple[StackState, DemoResult | None]:
        with ConsoleSink(out) as sink:
            if not with_demo:
                return await supervisor.up(options, sink), None
            from engine.local.demo_that_stays import up_with_demo

            return await up_with_demo(options, sink)

    state, result = run_async(work())
    if as_json:
        airflow = {"url": state.airflow_url, "user": state.airflow_user, "password": state.airflow_password}
        print_json(
            _status_of(options.home, state).as_json()
            | {"airflow": airflow if state.airflow_url else None, "nodes": state.nodes}
            | {"ledger": shown_url(state.ledger_url), "demo": result.as_json() if result else None}
        )
    else:
        if result is not None:
            from engine.local.demo_result import show_result

            show_result(result, out)
        _explain(state, options)
    if result is not None and not result.succeeded:
        raise SystemExit(ExitCode.FAILED)


def _explain(state: StackState, options: StackOptions) -> None:
    first_node = next(iter(state.nodes.values()))
    if state.airflow_url:
        click.echo("\nAirflow:")
        print_facts(
            {
                "  address": state.airflow_url,
                "  user": state.airflow_user,
                "  password": state.airflow_password,
            }
        )
    _explain_ledger(state, options)
    click.echo("\nTry:")
    for line in (
        *_exports(options),
        "oncluster ddl list",
        "oncluster migrate status",
        "oncluster keeper ls /clickhouse/task_queue/ddl",
        f"curl '{first_node}/?query=SELECT+*+FROM+system.clusters+FORMAT+PrettyCompact'",
        "oncluster status",
        "oncluster down",
    ):
        click.echo(f"  {line}")


def _exports(options: StackOptions) -> list[str]:
    """What other commands need to know to find this stack."""
    lines = []
    if options.home != stack_home():
        lines.append(f"export {HOME_VARIABLE}={shlex.quote(str(options.home))}")
    if options.migrations is not None and not os.environ.get(MIGRATIONS_VARIABLE):
        lines.append(f"export {MIGRATIONS_VARIABLE}={shlex.quote(str(options.migrations.absolute()))}")
    return lines


def _explain_ledger(state: StackState, options: StackOptions) -> None:
    """Where it is, unless it is where everybody looks for it."""
    from engine.local.ledger_place import LEDGER_VARIABLE, is_own_ledger, ledger_url_of

    asked = ledger_url_of(options.home.absolute(), os.environ)
    if is_own_ledger(state.ledger_url, options.home) and asked == state.ledger_url:
        return
    from engine.database import shown_url

    click.echo(f"\nLedger: {shown_url(state.ledger_url)}")
    if asked != state.ledger_url:
        click.echo(
            f"  `oncluster migrate` would use another one here, {shown_url(asked)}. Set ${LEDGER_VARIABLE} "
            "as it was when the stack was started, or stop the stack and start it anew."
        )


@click.command()
@home_option
@json_option
def down(home: Path | None, as_json: bool) -> None:
    """Stop what `up` started.

    Also after a crash. Data and logs stay.
    """
    from engine.local import supervisor
    from engine.local.progress import ConsoleSink

    directory = stack_home(home)

    async def work() -> bool:
        with ConsoleSink(console(stderr=as_json)) as sink:
            return await supervisor.down(directory, sink)

    did_something = run_async(work())
    if as_json:
        print_json({"home": directory, "stopped": did_something})
    elif not did_something:
        click.echo(f"Nothing is running in {directory}.")


@click.command()
@home_option
@json_option
def status(home: Path | None, as_json: bool) -> None:
    """Show the processes of the local stack.

    Exit code 0 when it is up and complete, else 1.
    """
    from engine.local.state import Phase, read_state

    directory = stack_home(home)
    state = read_state(directory)
    found = _status_of(directory, state)
    if as_json:
        print_json(found.as_json())
    elif found.phase is Phase.STOPPED:
        click.echo(f"Nothing is running in {directory}.")
    else:
        print_table(("process", "state", "pid", "address"), found.rows)
        if found.phase is Phase.READY and not found.is_whole:
            click.echo("`oncluster up` starts again what has ended.")
        elif found.phase is Phase.FAILED:
            left = any(row[1] == "running" for row in found.rows)
            click.echo(f"Failed: {found.error or 'the process that owns the stack was killed.'}")
            click.echo("`oncluster down` cleans up." if left else "Nothing of it is running.")
    raise SystemExit(ExitCode.OK if found.is_whole else ExitCode.FAILED)


@dataclass(frozen=True, slots=True)
class _Status:
    """What `status` says. Rows are name, state, pid, address."""

    phase: Phase
    home: Path
    is_whole: bool
    airflow_url: str
    config: str
    error: str
    rows: list[tuple[str, str, int, str]]

    def as_json(self) -> dict[str, JsonValue]:
        return {
            "phase": self.phase,
            "home": self.home,
            "complete": self.is_whole,
            "airflow_url": self.airflow_url,
            "config": self.config,
            "error": self.error,
            "processes": [
                dict(zip(("name", "state", "pid", "address"), row, strict=True)) for row in self.rows
            ],
        }


def _status_of(directory: Path, state: StackState | None) -> _Status:
    from engine.local.state import Phase

    if state is None:
        return _Status(Phase.STOPPED, directory, False, "", "", "", [])
    phase = state.phase
    if phase is not Phase.STOPPED and not state.owner.id.is_alive:
        phase = Phase.FAILED
    rows = [
        (entry.name, "running" if entry.id.is_alive else "ended", entry.pid, entry.address)
        for entry in state.processes
    ]
    is_whole = phase is Phase.READY and all(row[1] == "running" for row in rows)
    return _Status(phase, directory, is_whole, state.airflow_url, state.config_file, state.error, rows)


@click.command()
@stack_options
@click.option(
    "--with-outage", is_flag=True, help="Stop one node during a migration and start it again afterwards."
)
@json_option
def demo(
    home: Path | None,
    port_base: int | None,
    cluster_file: Path | None,
    migrations: Path | None,
    with_outage: bool,
    as_json: bool,
) -> None:
    """Start everything, migrate through Airflow, show it, stop.

    Uses a directory of its own below the run directory, which is emptied first. Exit code 0 when every
    migration was applied on every host.
    """
    from engine.local.demo import run_demo
    from engine.local.demo_result import show_result
    from engine.local.progress import ConsoleSink

    keep_files_private()
    directory = (home or stack_home()) / "demo"
    options = _options(directory.absolute(), port_base, cluster_file, migrations)
    out = console(stderr=as_json)

    async def work() -> int:
        with ConsoleSink(out) as sink:
            result = await run_demo(options, sink, with_outage=with_outage)
        if as_json:
            print_json(result.as_json())
        else:
            show_result(result, out)
        return ExitCode.OK if result.succeeded else ExitCode.FAILED

    raise SystemExit(run_async(work()))
