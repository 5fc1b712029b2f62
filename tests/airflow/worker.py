"""A worker of Airflow's as it is, and as much of the API server as one task needs.

    python -m tests.airflow.worker API DAG TASK...

runs tasks one after the other, each in a process of its own below Airflow's supervisor, which asks the API
server at API for connections and tells it how the task ended.
"""

from __future__ import annotations

import datetime
import http.server
import json
import re
import sys
import uuid
from typing import Any

_NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC).isoformat()
_RUN: dict[str, Any] = {
    "dag_run": {
        "dag_id": "d",
        "run_id": "r1",
        "logical_date": _NOW,
        "data_interval_start": _NOW,
        "data_interval_end": _NOW,
        "run_after": _NOW,
        "start_date": _NOW,
        "end_date": None,
        "run_type": "manual",
        "state": "running",
        "consumed_asset_events": [],
        "partition_key": None,
    },
    "max_tries": 1,
    "should_retry": True,
}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        api: Any = self.server
        conn_id = self.path.rpartition("/")[2]
        status = api.connections.get(conn_id, 404)
        if status is None:
            self.close_connection = True
            return
        self._answer(status, {"detail": {"reason": "not_found"}})

    def do_PATCH(self) -> None:
        api: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/run"):
            self._answer(200, _RUN)
            return
        if (found := re.search("task-instances/(.*)/state$", self.path)) is not None:
            api.states[uuid.UUID(found[1])] = body["state"]
        self._answer(200, {})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {})

    def do_POST(self) -> None:
        api: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (found := re.search(r"xcoms/d/r1/([^/]+)/return_value", self.path)) is not None:
            api.xcoms[found[1]] = body
        self._answer(201, {})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


class ExecutionApi(http.server.ThreadingHTTPServer):
    """Takes what a worker says of its tasks, and knows no connection. `connections` are the statuses with
    which it answers for one; None: not at all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connections: dict[str, int | None] = {}
        self.states: dict[uuid.UUID, str] = {}
        self.xcoms: dict[str, Any] = {}

    def state(self, task_id: str) -> str:
        """What became of a task."""
        return self.states[_id_of(task_id)]


def _id_of(task_id: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, task_id)


def main(api: str, dag_file: str, *task_ids: str) -> None:
    # Once, not in each of the forked processes.
    import airflow.dag_processing.bundles.manager
    import airflow.dag_processing.dagbag  # noqa: F401
    from airflow.sdk.api.datamodels._generated import BundleInfo, TaskInstance
    from airflow.sdk.execution_time.supervisor import supervise_task

    for task_id in task_ids:
        supervise_task(
            ti=TaskInstance(
                id=_id_of(task_id),
                task_id=task_id,
                dag_id="d",
                run_id="r1",
                try_number=1,
                dag_version_id=uuid.uuid5(uuid.NAMESPACE_URL, "version"),
            ),
            bundle_info=BundleInfo(name="dags-folder"),
            dag_rel_path=dag_file,
            token="token",
            server=api,
            subprocess_logs_to_stdout=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
