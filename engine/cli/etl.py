"""`oncluster etl`: load raw files into Distributed tables with Spark, and check that every replica has them.

What Airflow's DAG does, without Airflow. A load that is repeated gives the same tables.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from engine.cli.exits import ExitCode
from engine.cli.numbers import Finite
from engine.cli.options import config_option, find_config, json_option, stack_home
from engine.cli.output import print_facts, print_json, print_table
from engine.cli.running import run_async
from engine.config.load import load_topology
from engine.config.model import Cluster
from engine.env import SystemEnv
from engine.errors import ConfigError
from engine.etl.check import PATIENCE_S, HttpCounts, LoadCheck, any_host, check_load, urls_of
from engine.etl.launch import (
    DEFAULT_MASTER,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    SparkSettings,
    command_line,
    run_load,
)
from engine.etl.report import LoadReport
from engine.etl.request import LoadMode, LoadRequest, parse_day
from engine.etl.targets import CLUSTER, FIRST_DAY, LAST_DAY, require_over, require_targets


@click.group(name="etl")
def group() -> None:
    """Load raw files with Spark; check what arrived.

    \b
    oncluster etl load --from 2013-01-01 --to 2013-01-31     these days; again: the same tables
    oncluster etl load --master spark://host:7077            on a Spark cluster
    oncluster etl check --report FILE                        is every row on every replica?
    """


@group.command("load")
@config_option
@json_option
@click.option("--cluster", default=CLUSTER, show_default=True, help="The cluster to load into.")
@click.option("--from", "first", default=FIRST_DAY, show_default=True, help="First day, YYYY-MM-DD, UTC.")
@click.option("--to", "last", default=LAST_DAY, show_default=True, help="Last day, included.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in LoadMode]),
    default=LoadMode.OVERWRITE.value,
    show_default=True,
    help="overwrite: replace the months of these days; append: add, once for each job id.",
)
@click.option("--source", type=click.Path(path_type=Path), default=None, help="Folder with the raw files.")
@click.option(
    "--job-id",
    default="",
    help="A load of one name takes place once; default: follows from the other options.",
)
@click.option("--master", default=DEFAULT_MASTER, show_default=True, help="Spark's master.")
@click.option("--driver-memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option("--spark-conf", "conf", multiple=True, metavar="NAME=VALUE", help="Spark property; repeatable.")
@click.option("--print-command", is_flag=True, help="Print the spark-submit command and do nothing.")
@click.option("--no-check", is_flag=True, help="Do not ask the replicas afterwards.")
def load_command(
    config: Path | None,
    as_json: bool,
    cluster: str,
    first: str,
    last: str,
    mode: str,
    source: Path | None,
    job_id: str,
    master: str,
    driver_memory: str,
    conf: tuple[str, ...],
    print_command: bool,
    no_check: bool,
) -> None:
    """Run the Spark application, then compare every replica with what Spark counted.

    User and password: $ONCLUSTER_USER, $ONCLUSTER_PASSWORD.
    """
    place = find_config(config)
    target = _cluster(place, cluster)
    request = LoadRequest(
        cluster=cluster,
        first=parse_day(first, what="--from"),
        last=parse_day(last, what="--to"),
        mode=LoadMode(mode),
        source=source,
        job_id=job_id,
    )
    settings = SparkSettings(
        directory=stack_home() / "etl",
        config=place.absolute(),
        master=master,
        driver_memory=driver_memory,
        user=_user(),
        password=os.environ.get(PASSWORD_VARIABLE, ""),
        conf=dict(_property(text) for text in conf),
    )
    if print_command:
        command = command_line(settings, request)
        print_json(command) if as_json else click.echo(shlex.join(command))
        return

    async def work() -> tuple[LoadReport, LoadCheck | None]:
        async with _counts(target) as counts:
            host = any_host(target)
            await require_targets(counts, host)
            await require_over(target.name, counts, host)
            report = await run_load(settings, request, on_line=lambda line: click.echo(line, err=True))
            return report, None if no_check else await check_load(report, target, counts, env=SystemEnv())

    report, check = run_async(work())
    if as_json:
        print_json({"report": report.to_json(), "check": check.to_json() if check else None})
    else:
        print_facts(
            {"job": report.job_id, "days": f"{report.first} to {report.last}", "mode": report.mode}
            | {"read": f"{report.read:,}", "written": f"{report.written:,}"}
            | {"quarantined": f"{report.quarantined:,}"}
        )
        if report.repeated:
            click.echo(
                "This load was done before, and nothing was written now. Another --job-id loads again."
            )
        if check is not None:
            _show(check)
    if report.emptied:
        click.echo(f"Warning: {report.emptied}", err=True)
    if check is not None and not check.passed:
        click.get_current_context().exit(ExitCode.CORRUPT)


@group.command("check")
@config_option
@json_option
@click.option("--cluster", default=CLUSTER, show_default=True, help="The cluster that was loaded into.")
@click.option(
    "--report",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    help="A load's report.",
)
@click.option(
    "--patience",
    "patience_s",
    type=Finite(min=0),
    default=PATIENCE_S,
    show_default=True,
    help="Seconds to wait.",
)
def check_command(config: Path | None, as_json: bool, cluster: str, file: Path, patience_s: float) -> None:
    """Compare rows on every replica of every shard with a load's report. Exit code 70: they differ."""
    target = _cluster(find_config(config), cluster)
    report = LoadReport.read_file(file)

    async def work() -> LoadCheck:
        async with _counts(target) as counts:
            return await check_load(report, target, counts, env=SystemEnv(), patience_s=patience_s)

    check = run_async(work())
    print_json(check.to_json()) if as_json else _show(check)
    if not check.passed:
        click.get_current_context().exit(ExitCode.CORRUPT)


def _show(check: LoadCheck) -> None:
    for problem in check.problems:
        click.echo(f"Wrong: {problem}")
    print_table(
        ("table", "shard", "replica", "expected", "rows", ""),
        [
            (
                row.table,
                row.shard or "all",
                row.host,
                f"{row.expected:,}",
                row.error if row.rows is None else f"{row.rows:,}",
                "ok" if row.is_right else "WRONG",
            )
            for row in check.replicas
        ],
    )


def _cluster(config: Path, name: str) -> Cluster:
    clusters = load_topology(config).clusters
    if name not in clusters:
        raise ConfigError(
            f"{config} has no cluster {name!r}.", hint=f"It has {', '.join(clusters) or 'none'}."
        )
    return clusters[name]


def _counts(cluster: Cluster) -> HttpCounts:
    return HttpCounts(urls_of(cluster), user=_user(), password=os.environ.get(PASSWORD_VARIABLE, ""))


def _user() -> str:
    return os.environ.get(USER_VARIABLE, "default")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint="--spark-conf")
    return name, value
