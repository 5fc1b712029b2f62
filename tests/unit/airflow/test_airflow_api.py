"""Waiting for a run of a DAG: one long answer of Airflow, taken up again when it breaks off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from engine.errors import OperationTimeout
from engine.local.airflow_api import AirflowApi, AirflowRefused, TaskInstance

RUN = "/api/v2/dags/load/dagRuns/r1"


class Airflow:
    """As much of its interface as waiting needs. Each long answer gives the states of one of `answers`, and
    breaks off behind them unless the run has ended."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = iter(answers)
        self.asked: list[str] = []
        self.tasks: Iterator[str | None] = iter(())

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        match request.path.removeprefix(RUN):
            case "/auth/token":
                return web.json_response({"access_token": "t"})
            case "":
                return web.json_response({"state": "running"})
            case "/taskInstances":
                return web.json_response({"task_instances": [self._task()], "total_entries": 1})
            case "/wait":
                return await self._wait(request)
        return web.json_response({"detail": "no such run"}, status=404)

    def _task(self) -> dict[str, object]:
        empty = dict.fromkeys(("start_date", "end_date", "duration"))
        return {"task_id": "only", "map_index": -1, "state": next(self.tasks), "try_number": 1, **empty}

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for state in next(self.answers):
            await response.write(f'{{"state": "{state}"}}\n'.encode())
        if state not in ("success", "failed"):
            assert request.transport is not None
            request.transport.abort()
        return response

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[AirflowApi]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            async with AirflowApi(f"http://{host}:{port}", "admin", "secret") as api:
                yield api
        finally:
            await runner.cleanup()


async def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    airflow = Airflow(["running"], ["running", "failed"])
    async with airflow.serve() as api:
        assert await api.wait("load", "r1", interval_s=0.01) == "failed"
    assert airflow.asked == ["/auth/token", RUN, f"{RUN}/wait", RUN, f"{RUN}/wait"]


async def test_a_change_of_a_task_is_told_once() -> None:
    airflow = Airflow(["running", "running", "running", "success"])
    airflow.tasks = iter(["queued", "queued", "running", "success"])
    told: list[str | None] = []

    def on_change(instances: list[TaskInstance]) -> None:
        told.extend(item.state for item in instances)

    async with airflow.serve() as api:
        # The state that is asked for first and the three that follow it: a look at the tasks after each.
        assert await api.wait("load", "r1", on_change=on_change, look_every_s=0.0) == "success"
    assert told == ["queued", "running", "success"]


async def test_a_run_that_does_not_end_in_time_is_named() -> None:
    async with Airflow().serve() as api:
        with pytest.raises(OperationTimeout, match="The run r1 of load"):
            await api.wait("load", "r1", timeout_s=-1.0)


async def test_a_run_that_is_not_there_ends_the_wait_with_airflows_words() -> None:
    async with Airflow().serve() as api:
        with pytest.raises(AirflowRefused, match="no such run"):
            await api.wait("load", "r2")
