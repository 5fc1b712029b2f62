"""Airflow's REST interface, as much of it as running a DAG and looking at it needs.

Source: Airflow 3.3, `/api/v2` and `/auth/token`. Every method raises NodeUnavailable when Airflow does not
answer and AirflowRefused when it answers with an error; its text is Airflow's own.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from engine.env import Env, SystemEnv
from engine.errors import NodeUnavailable, OperationTimeout, Refused

FINAL_RUN_STATES = frozenset({"success", "failed"})

# An approval that is answered within a fraction of a second of the question can fail the task: its worker
# slot is still held while the scheduler queues it again (apache/airflow #72716). Nobody reads a question
# faster than this.
_ANSWER_NOT_BEFORE_S = 2.0
# Of an answer that has something to tell every second or two.
_SILENCE_S = 60.0
_BUSY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)


class AirflowRefused(Refused):
    """Airflow's answer was an error; `status` is the HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task of one run. Times are ISO 8601 or None; `state` None means not scheduled yet."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    start_date: str | None
    end_date: str | None
    duration_s: float | None


def in_words(instances: Sequence[TaskInstance]) -> str:
    """How far a run is: how many tasks have ended, and what is under way."""
    ended = [item for item in instances if item.state in ("success", "skipped")]
    now = [item for item in instances if item.state in ("running", "deferred", "awaiting_input")]
    now = now or [item for item in instances if item.state == "queued"]
    names = [item.task_id if item.state == "running" else f"{item.task_id} ({item.state})" for item in now]
    return f"{len(ended)} of {len(instances)} tasks  {', '.join(names[:3])}".rstrip()


@dataclass(frozen=True, slots=True)
class Question:
    """A task that waits for a person."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    subject: str
    body: str
    options: tuple[str, ...]
    asked_at: str


class AirflowApi:
    """A client with a token of its own; `async with AirflowApi(url, user, password) as api`."""

    def __init__(self, url: str, user: str, password: str, *, env: Env | None = None) -> None:
        self.url = url.rstrip("/")
        self._credentials = {"username": user, "password": password}
        self._env = env or SystemEnv()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No limit on the whole of a request: waiting for a run is one long answer.
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))
        try:
            answer = await self._call("POST", "/auth/token", json_body=self._credentials)
        except BaseException:  # also a cancellation: the session has to be closed
            await self._session.close()
            raise
        self._session.headers["Authorization"] = f"Bearer {answer['access_token']}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    # --- DAGs -----------------------------------------------------------------------------------------------

    async def import_errors(self) -> dict[str, str]:
        """Files that Airflow cannot load, with the trace."""
        answer = await self._call("GET", "/api/v2/importErrors")
        return {item["filename"]: item["stack_trace"] for item in answer["import_errors"]}

    async def dag_ids(self) -> list[str]:
        answer = await self._call("GET", "/api/v2/dags?limit=1000")
        return [item["dag_id"] for item in answer["dags"]]

    async def task_ids(self, dag_id: str) -> list[str]:
        """The tasks of the DAG as it was read last."""
        answer = await self._call("GET", f"/api/v2/dags/{quote(dag_id)}/tasks")
        return [item["task_id"] for item in answer["tasks"]]

    async def wait_for_dag(self, dag_id: str, *, timeout_s: float = 240.0) -> None:
        """Return when Airflow knows the DAG. Raises OperationTimeout with the import errors there are."""
        deadline_s = self._env.monotonic_s() + timeout_s
        while dag_id not in await self.dag_ids():
            if self._env.monotonic_s() > deadline_s:
                errors = await self.import_errors()
                raise OperationTimeout(
                    f"Airflow does not know the DAG {dag_id} after {timeout_s:.0f} s.",
                    hint="\n".join(f"{file}: {trace}" for file, trace in errors.items()),
                )
            await self._env.sleep(0.2)

    # --- runs -----------------------------------------------------------------------------------------------

    async def trigger(
        self, dag_id: str, conf: Mapping[str, object] | None = None, *, run_id: str | None = None
    ) -> str:
        """Start a run and return its id. With `run_id` of an existing run, returns that one: asking twice is
        harmless. Raises AirflowRefused 400 when `conf` does not fit the DAG's parameters."""
        body: dict[str, object] = {"logical_date": None, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        try:
            answer = await self._call("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", json_body=body)
        except AirflowRefused as error:
            if error.status == 409 and run_id is not None:
                return run_id
            raise
        return str(answer["dag_run_id"])

    async def run_ids(self, dag_id: str) -> list[str]:
        """The ids of the DAG's runs, the first one first."""
        answer = await self._call("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns?limit=100&order_by=run_after")
        return [item["dag_run_id"] for item in answer["dag_runs"]]

    async def run_state(self, dag_id: str, run_id: str) -> str:
        return str((await self._call("GET", self._run(dag_id, run_id)))["state"])

    async def wait(
        self,
        dag_id: str,
        run_id: str,
        *,
        timeout_s: float | None = None,
        on_change: Callable[[Sequence[TaskInstance]], None] | None = None,
        interval_s: float = 0.5,
        look_every_s: float = 2.0,
    ) -> str:
        """Return the run's final state, `success` or `failed`.

        Until then `on_change` is told all task instances when the state of one has changed; they are looked
        at every `look_every_s`, since that costs Airflow much more than the state of the run, which it tells
        every `interval_s`. Raises OperationTimeout; the run goes on then.
        """
        deadline_s = None if timeout_s is None else self._env.monotonic_s() + timeout_s
        seen: dict[tuple[str, int], tuple[str | None, int]] = {}
        look_at_s = self._env.monotonic_s()
        async with contextlib.aclosing(self._states(dag_id, run_id, interval_s)) as states:
            async for state in states:
                if state in FINAL_RUN_STATES:
                    return state
                if on_change is not None and self._env.monotonic_s() >= look_at_s:
                    instances = await self.task_instances(dag_id, run_id)
                    now = {
                        (item.task_id, item.map_index): (item.state, item.try_number) for item in instances
                    }
                    if now != seen:
                        seen = now
                        on_change(instances)
                    look_at_s = self._env.monotonic_s() + look_every_s
                if deadline_s is not None and self._env.monotonic_s() > deadline_s:
                    break
        raise OperationTimeout(f"The run {run_id} of {dag_id} has not ended after {timeout_s} s.")

    async def _states(self, dag_id: str, run_id: str, interval_s: float) -> AsyncGenerator[str, None]:
        """The run's state every `interval_s`, without end.

        Airflow tells it in one long answer. Asked each time, it would look up the DAG's version of each of
        the run's tasks: 36 ms of its processor time for a run of 91 tasks.
        """
        assert self._session is not None, "use `async with`"
        path = f"{self._run(dag_id, run_id)}/wait?interval={interval_s}"
        while True:
            yield await self.run_state(dag_id, run_id)
            # An answer that breaks off is asked for again, after the state itself, which says what is wrong.
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError):
                async with self._session.get(
                    self.url + path, timeout=aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S)
                ) as answer:
                    answer.raise_for_status()
                    async for line in answer.content:
                        yield str(json.loads(line)["state"])
            await self._env.sleep(interval_s)

    # --- tasks ----------------------------------------------------------------------------------------------

    async def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """All task instances of a run, in order of their start."""
        found: list[TaskInstance] = []
        while True:
            answer = await self._call(
                "GET", f"{self._run(dag_id, run_id)}/taskInstances?limit=100&offset={len(found)}"
            )
            page = answer["task_instances"]
            found += [
                TaskInstance(
                    item["task_id"],
                    item["map_index"],
                    item["state"],
                    item["try_number"],
                    item["start_date"],
                    item["end_date"],
                    item["duration"],
                )
                for item in page
            ]
            if not page or len(found) >= answer["total_entries"]:
                return sorted(found, key=lambda item: (item.start_date or "9", item.task_id))

    async def task_log(
        self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1
    ) -> str:
        """The log of one try as text, one event a line."""
        answer = await self._call(
            "GET",
            f"{self._run(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
            f"?map_index={map_index}&full_content=true",
        )
        lines = []
        for event in answer["content"]:
            lines.append(event if isinstance(event, str) else _log_line(event))
        return "\n".join(lines)

    async def xcom(
        self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """The value that a task left under `key`. Raises AirflowRefused 404 when there is none."""
        answer = await self._call(
            "GET",
            f"{self._run(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
            f"?map_index={map_index}&deserialize=true",
        )
        return answer["value"]

    async def clear(
        self, dag_id: str, run_id: str, task_ids: Sequence[str], *, downstream: bool = True
    ) -> None:
        """Have these tasks run again, by default with everything after them."""
        await self._call(
            "POST",
            f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances",
            json_body={
                "dry_run": False,
                "dag_run_id": run_id,
                "task_ids": list(task_ids),
                "include_downstream": downstream,
                "only_failed": False,
                "reset_dag_runs": True,
            },
        )

    # --- questions to people --------------------------------------------------------------------------------

    async def questions(self, dag_id: str = "~", run_id: str = "~") -> list[Question]:
        """Tasks that wait for an answer, of one run or of all."""
        answer = await self._call("GET", f"{self._run(dag_id, run_id)}/hitlDetails?response_received=false")
        return [
            Question(
                item["task_instance"]["dag_id"],
                item["task_instance"]["dag_run_id"],
                item["task_instance"]["task_id"],
                item["task_instance"]["map_index"],
                item["subject"],
                item["body"] or "",
                tuple(item["options"]),
                item["created_at"],
            )
            for item in answer["hitl_details"]
        ]

    async def answer(self, question: Question, choice: str) -> None:
        """Answer with one of the question's options, not sooner than two seconds after it was asked."""
        age_s = self._env.now_s() - datetime.datetime.fromisoformat(question.asked_at).timestamp()
        if age_s < _ANSWER_NOT_BEFORE_S:
            await self._env.sleep(min(_ANSWER_NOT_BEFORE_S, _ANSWER_NOT_BEFORE_S - age_s))
        await self._call(
            "PATCH",
            f"{self._run(question.dag_id, question.run_id)}/taskInstances/{quote(question.task_id)}"
            f"/{question.map_index}/hitlDetails",
            json_body={"chosen_options": [choice], "params_input": {}},
        )

    # --- transport ------------------------------------------------------------------------------------------

    @staticmethod
    def _run(dag_id: str, run_id: str) -> str:
        return f"/api/v2/dags/{quote(dag_id, safe='~')}/dagRuns/{quote(run_id, safe='~')}"

    async def _call(self, method: str, path: str, *, json_body: object = None) -> Any:
        """One request; again, a few times, when Airflow's database was too busy to take it.

        On SQLite a request that meets another writer for too long is rolled back and answered with 500.
        """
        for delay_s in _BUSY_DELAYS_S:
            try:
                return await self._call_once(method, path, json_body=json_body)
            except AirflowRefused as error:
                if error.status != 500 or "Database error" not in error.message:
                    raise
                await self._env.sleep(delay_s)
        return await self._call_once(method, path, json_body=json_body)

    async def _call_once(self, method: str, path: str, *, json_body: object = None) -> Any:
        assert self._session is not None, "use `async with`"
        try:
            async with self._session.request(
                method, self.url + path, json=json_body, headers={"Accept": "application/json"}
            ) as answer:
                text = await answer.text()
                if answer.status >= 400:
                    raise AirflowRefused(
                        f"Airflow answered {answer.status} to {method} {path}: {text[:2000]}",
                        status=answer.status,
                    )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NodeUnavailable(f"Airflow does not answer at {self.url}: {error}") from error
        return json.loads(text) if text else None


def _log_line(event: Mapping[str, Any]) -> str:
    """One structured log event as `time level message`, with the trace of an exception after it."""
    head = " ".join(str(event[key]) for key in ("timestamp", "level", "event") if event.get(key) is not None)
    errors = event.get("error_detail")
    return f"{head}\n{json.dumps(errors)}" if errors else head
