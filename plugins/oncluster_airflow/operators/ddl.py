"""Puts one ON CLUSTER statement into the DDL queue.

Safety. The token is made of the DAG, the run, the task and the map index, so that every try of the same
task instance has the same one, and the queue has at most one entry per token, ever:

1. submitted, answer lost or worker killed: the retry finds the entry under the token and attaches;
2. executed twice at once: both get the same entry;
3. cleared in the UI: attaches too. To have a statement executed again, start a new run;
4. cleared after the statement was changed: refused, since it is the earlier one that was sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context

from engine.config.load import load_client_config
from engine.config.model import DistributedDdl, NodeConfig
from engine.ddl.client import DDLQueueClient, SubmitOutcome
from engine.ddl.initiator import PreparedStatement, check_token, prepare
from engine.env import SystemEnv
from engine.errors import OnclusterError, Refused
from engine.sql import expand_macros, parse_statement, redact
from oncluster_airflow.asked import setting_text
from oncluster_airflow.errors import TaskRefused, as_airflow_error
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.settings import KEEPER_CONN_ID, Settings
from oncluster_airflow.submission import Submission

# The task's memory across its tries; the token alone would do as long as the queue keeps the entry.
_MEMORY_KEY = "oncluster_submission"
_STATEMENT_KEY = "statement"


class SubmitStatementOperator(BaseOperator):
    """Submits `sql` and returns the submission, for DDLFinishedSensor.

    `sql` is taken literally, `{{` and all; `cluster` adds `ON CLUSTER` where the statement has none.
    `statement_settings` travel with the statement; numbers and true or false are written as ClickHouse reads
    them. Clusters and queues are those of the configuration file (ONCLUSTER_CONFIG), or of `config_file`. Not
    retried for what ClickHouse would refuse, such as an unknown cluster; retried when Keeper is out of
    reach.
    """

    # sql is left out on purpose: `{{` occurs in SQL.
    template_fields: Sequence[str] = ("cluster", "database")
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql"}
    ui_color = "#fdf3d8"

    def __init__(
        self,
        *,
        sql: str,
        cluster: str | None = None,
        database: str = "default",
        statement_settings: Mapping[str, str | int | float] | None = None,
        keeper_conn_id: str = KEEPER_CONN_ID,
        config_file: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sql = sql
        self.cluster = cluster
        self.database = database
        self.statement_settings = {
            name: setting_text(value, name=f"statement_settings: {name}")
            for name, value in (statement_settings or {}).items()
        }
        self.keeper_conn_id = keeper_conn_id
        self.config_file = config_file

    def execute(self, context: Context) -> dict[str, Any]:
        memory: Any = context.get("task_state_store")
        if memory is not None and (known := memory.get(_MEMORY_KEY)):
            submission = Submission.from_json(known)
            if known.get(_STATEMENT_KEY, self._checksum) != self._checksum:
                raise TaskRefused(
                    f"This task has sent another statement ({submission.entry}); what it says now was not "
                    "sent. Start a new run for it."
                )
            self.log.info("attached to %s, submitted by an earlier try", submission.entry)
            return submission.to_json() | {"attached": True}
        try:
            config = load_client_config(Settings.from_environment().config_path(self.config_file))
            queue = config.queue_of(self._cluster_name(config))
            prepared = self.prepare(config, queue, token_of(context))
            submission = asyncio.run(self._submit(prepared, queue))
        except OnclusterError as error:
            raise as_airflow_error(error) from error
        value = submission.to_json()
        if memory is not None:
            memory.set(_MEMORY_KEY, value | {_STATEMENT_KEY: self._checksum})
        self.log.info(
            "%s %s for %s\n%s",
            "attached to" if submission.attached else "submitted",
            submission.entry,
            ", ".join(host.readable for host in submission.hosts),
            redact(prepared.entry.query),
        )
        return value

    def prepare(self, config: NodeConfig, queue: DistributedDdl, token: str) -> PreparedStatement:
        """Every check that ClickHouse makes before it enqueues."""
        return prepare(
            self.sql,
            topology=config.topology,
            queue=queue,
            token=token,
            current_database=self.database,
            settings=self.statement_settings,
            on_cluster=self.cluster,
            shared_uuid=SystemEnv().new_uuid(),
        )

    @property
    def _checksum(self) -> str:
        """Of what is asked for, to tell a corrected statement from the one that was sent."""
        asked = [self.sql, self.cluster, self.database, sorted(self.statement_settings.items())]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def _cluster_name(self, config: NodeConfig) -> str:
        """Empty where the statement names none; `prepare` says so then."""
        named = self.cluster or parse_statement(self.sql).on_cluster or ""
        return expand_macros(named, config.topology.macros)

    async def _submit(self, prepared: PreparedStatement, queue: DistributedDdl) -> Submission:
        async with KeeperHook(self.keeper_conn_id).session() as keeper:
            done = await DDLQueueClient(keeper, SystemEnv(), queue.paths).submit(prepared)
        return Submission(
            done.entry, done.token, done.hosts, queue.paths, attached=done.outcome is SubmitOutcome.ATTACHED
        )


def token_of(context: Context) -> str:
    """The name of this task instance, whatever the try. Readable where it fits, else a digest."""
    ti: Any = context["ti"]
    name = f"airflow/{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
    try:
        return check_token(name)
    except Refused:
        return f"airflow/{hashlib.sha256(name.encode()).hexdigest()}"
