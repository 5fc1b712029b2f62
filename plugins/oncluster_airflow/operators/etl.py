"""The tasks of the ETL DAG. What they do is `engine.etl`'s; `oncluster etl load` does it without Airflow.

Safety. `load` is the only task that changes the cluster, and may run any number of times: its job id follows
from the run, so that a retry is the same load (see the Spark application). `check` only reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowSkipException,
)

from engine.config.load import load_topology
from engine.config.model import Cluster
from engine.env import SystemEnv
from engine.errors import ConfigError, OnclusterError, Refused
from engine.etl.check import HttpCounts, LoadCheck, any_host, check_load, host_names, table_of
from engine.etl.launch import (
    APPLICATION,
    DEFAULT_MASTER,
    SparkSettings,
    failure_of,
    prepare,
    require_application,
    spark_conf,
    spark_environment,
    with_retries,
)
from engine.etl.report import LoadReport
from engine.etl.request import LoadMode, LoadRequest, files_of, job_id_from, parse_day, parse_mode
from engine.etl.targets import TargetsMissing, require_targets
from engine.names import http_url
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.form import refuse_unknown_parameters
from oncluster_airflow.hooks.missing import ConnectionMissing, find_connection
from oncluster_airflow.hooks.nodes import ClickHouseNodesHook, NodeAddresses
from oncluster_airflow.settings import NODES_CONN_ID, SPARK_CONN_ID, Settings

LOAD_TASK = "load"
_AFTER_MIGRATION = "asset_triggered"


def request_of(context: Context, cluster: str) -> LoadRequest:
    """What the form asks for. Raises ConfigError.

    Rows that are appended are the same load in whichever run. What is overwritten is a load of this run, and
    another one when the run is cleared after the raw files have changed, or when its id is given once more
    after it was deleted.
    """
    params: Any = context["params"]
    mode = parse_mode(str(params["mode"]))
    dag_run: Any = context["dag_run"]
    source = Path(str(params["source"])) if params.get("source") else None
    return LoadRequest(
        cluster=cluster,
        first=parse_day(str(params["first_day"]), what="The first day"),
        last=parse_day(str(params["last_day"]), what="The last day"),
        mode=mode,
        source=source,
        job_id="" if mode is LoadMode.APPEND else _job_of(dag_run, source),
    )


def _job_of(dag_run: Any, source: Path | None) -> str:
    # Tasks that are cleared leave the run's own time as it is.
    parts = [str(dag_run.run_id), f"{dag_run.run_after:%Y%m%dT%H%M%S}", files_of(source)]
    return job_id_from("-".join(filter(None, parts)))


def cluster_of(name: str) -> Cluster:
    """From the configuration. Raises ConfigError."""
    config = Settings.from_environment().config
    clusters = load_topology(config).clusters
    if name not in clusters:
        raise ConfigError(f"{config} has no cluster {name!r}.", hint=f"It has {', '.join(clusters)}.")
    return clusters[name]


def urls_of(cluster: Cluster, addresses: NodeAddresses) -> dict[str, str]:
    """Each replica is asked where the connection's `nodes` say it is, else where the configuration does."""
    scheme = addresses.scheme
    urls, names = {}, host_names(cluster)
    for replica in cluster.replicas:
        named = addresses.nodes.get(replica.host_id.readable) or addresses.nodes.get(replica.host)
        urls[names[replica.host_id]] = named or http_url(scheme, *replica.http_address)
    return urls


def counts_of(cluster: Cluster, addresses: NodeAddresses) -> HttpCounts:
    """Asks the replicas."""
    return HttpCounts(urls_of(cluster, addresses), user=addresses.user, password=addresses.password)


class TargetsOperator(BaseOperator):
    """Are the tables there? Checks the form too, before Spark is started for nothing.

    A run that a migration has set off is skipped where they are not: the migration may have been undone.
    A run that somebody has asked for fails.
    """

    ui_color = "#e3f2e1"

    def __init__(self, *, cluster: str, nodes_conn_id: str = NODES_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.nodes_conn_id = nodes_conn_id

    def execute(self, context: Context) -> None:
        refuse_unknown_parameters(context)
        try:
            request = request_of(context, self.cluster)
            cluster = cluster_of(self.cluster)
            addresses = ClickHouseNodesHook(self.nodes_conn_id).addresses()
            asyncio.run(_require(cluster, addresses))
        except TargetsMissing as error:
            dag_run: Any = context["dag_run"]
            if str(getattr(dag_run.run_type, "value", dag_run.run_type)) == _AFTER_MIGRATION:
                raise AirflowSkipException(str(error)) from error
            raise as_airflow_error(error) from error
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        self.log.info("to be loaded: %s to %s, %s", request.first, request.last, request.mode)


async def _require(cluster: Cluster, addresses: NodeAddresses) -> None:
    async with counts_of(cluster, addresses) as counts:
        await require_targets(counts, any_host(cluster))


class LoadFailed(AirflowException):
    """The application ended badly. A retry is the same load and goes on."""


class LoadOperator(SparkSubmitOperator):
    """Submits the Spark application and returns its report.

    The master is that of the `spark` connection. Without one it is this machine; a local master gets retries
    for its tasks, which every other one has. `application` is another one with the same command line.
    """

    ui_color = "#fbe3c8"

    def __init__(
        self,
        *,
        cluster: str,
        conn_id: str = SPARK_CONN_ID,
        nodes_conn_id: str = NODES_CONN_ID,
        driver_memory: str = "1g",
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=conn_id, driver_memory=driver_memory, **kwargs)
        self.cluster = cluster
        self.nodes_conn_id = nodes_conn_id

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        try:
            request = request_of(context, self.cluster)
            settings = self._spark_settings()
            master = self._find_master()
            self.application = str(require_application(settings))
            self.name = f"load {request.job_id}"
            self.conf = spark_conf(settings, master=master) | (self.conf or {})
            self.env_vars = spark_environment(settings, master=master) | (self.env_vars or {})
            report_file = prepare(settings, request)
            self.application_args = request.arguments(config=settings.config, report=report_file)
            self._submit(context)
            report = LoadReport.read_file(report_file)
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        self.log.info("read %d rows: wrote %d, put aside %d", report.read, report.written, report.quarantined)
        if report.repeated:
            self.log.info("The same load was done before, and nothing was written now.")
        if report.emptied:
            self.log.warning("%s", report.emptied)
        return report.to_json()

    def _submit(self, context: Context) -> None:
        """Raises LoadFailed, SparkRefused. The provider's own message begins with the whole command; what a
        chat program shows of it ends there."""
        try:
            super().execute(context)
        except AirflowException as error:
            hook: Any = self._hook
            code = getattr(getattr(hook, "_submit_sp", None), "returncode", None)
            if not code:
                raise
            said = [hook._mask_cmd(line) for line in hook._last_submit_log_lines]
            failure = failure_of(code, said)
            if isinstance(failure, Refused):
                raise failure from error
            raise LoadFailed(str(failure)) from error

    def _spark_settings(self) -> SparkSettings:
        settings = Settings.from_environment()
        addresses = ClickHouseNodesHook(self.nodes_conn_id).addresses()
        return SparkSettings(
            directory=settings.home / "etl",
            config=settings.config.absolute(),
            user=addresses.user,
            password=addresses.password,
            application=Path(self.application) if self.application else APPLICATION,
        )

    def _find_master(self) -> str:
        return str(self._get_hook()._connection["master"])

    def _get_hook(self) -> SparkSubmitHook:
        """With the connection's master. Where there is no connection the provider would take YARN, and say
        so; we take this machine."""
        with _as_connection(self._conn_id, conn_type="spark", host=DEFAULT_MASTER):
            hook = super()._get_hook()
        hook._connection["master"] = with_retries(str(hook._connection["master"]))
        return hook


@contextlib.contextmanager
def _as_connection(conn_id: str, **fields: str) -> Iterator[None]:
    """Within the block Airflow finds this connection, unless it has one of that id. Raises Unavailable where
    it cannot say: the load is meant for another machine then, maybe."""
    name = f"AIRFLOW_CONN_{conn_id.upper()}"
    try:
        find_connection(conn_id)
    except ConnectionMissing:
        os.environ[name] = json.dumps(fields)
        try:
            yield
        finally:
            del os.environ[name]
    else:
        yield


class CheckOperator(BaseOperator):
    """Fails when any replica of any shard has other rows than Spark wrote, and names all of them."""

    ui_color = "#e3f2e1"

    def __init__(self, *, cluster: str, nodes_conn_id: str = NODES_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.nodes_conn_id = nodes_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        ti: Any = context["ti"]
        try:
            report = LoadReport.from_json(ti.xcom_pull(task_ids=LOAD_TASK))
            cluster = cluster_of(self.cluster)
            addresses = ClickHouseNodesHook(self.nodes_conn_id).addresses()
            check = asyncio.run(_check(report, cluster, addresses))
            for line in table_of(check.replicas).splitlines():
                self.log.info("%s", line)
            ti.xcom_push(key="check", value=check.to_json())
            check.require_passed()
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        return check.to_json()


async def _check(report: LoadReport, cluster: Cluster, addresses: NodeAddresses) -> LoadCheck:
    async with counts_of(cluster, addresses) as counts:
        return await check_load(report, cluster, counts, env=SystemEnv())
