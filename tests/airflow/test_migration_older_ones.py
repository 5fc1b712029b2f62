"""The task of a migration DAG that does what is older than the newest migrations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.env import SystemEnv
from tests.airflow.dag_run import events
from tests.airflow.migration_support import FIRST, SIX, Run, recorded

pytestmark = pytest.mark.slow


def test_migrations_too_old_to_be_shown_go_first_in_one_task(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    (folder / "0003_more.up.sql").write_text("CREATE DATABASE IF NOT EXISTS more;")
    run = Run(folder).begin()
    assert "up.v0001_create_database.submit_1" not in run.dag.task_ids
    assert "up.v0003_more.submit_1" not in run.skipped
    assert run.dag.get_task("up.v0003_more.submit_1").upstream_task_ids == {"up.earlier"}

    assert run.execute("up.earlier") == 2
    assert run.execute("up.earlier") == 2
    assert run.statement("up.v0003_more")["state"] == "done"
    assert run.execute("close") == "done"
    assert len(hosts.entries()) == 3
    assert recorded(tmp_path) == {(1, "done"): SIX, (2, "done"): SIX, (3, "done"): SIX}


def test_an_old_migration_that_fails_stops_its_task_with_every_host(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncluster_airflow.errors import DDLFailed

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    hosts.failing["node04"] = (57, "exists")
    run = Run(folder).begin()
    with pytest.raises(DDLFailed, match="node04"):
        run.execute("up.earlier")
    assert run.xcoms["up.earlier", "ddl_state"] == "failed"


class Clock(SystemEnv):
    """Sleeping takes no time and is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def now_s(self) -> float:
        return 1000.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_slow_statement_of_an_old_migration_gives_its_worker_back_and_the_task_goes_on_behind_it(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The first of two statements is waited for longer than a moment: the task defers. 2. Meanwhile a
    retry attaches to it and defers again. 3. The hosts are done: the trigger resumes the task, later than
    Airflow can hold the slot. 4. The task sends the second statement and ends."""
    from airflow.sdk.exceptions import TaskDeferred
    from airflow.triggers.base import TaskSuccessEvent

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    monkeypatch.setenv("ONCLUSTER_WAIT_ALERT_S", "0")
    (folder / "0003_more.up.sql").write_text("CREATE DATABASE IF NOT EXISTS more;")
    hosts.away.add("node02")
    run = Run(folder).begin()
    earlier = run.dag.get_task("up.earlier")
    earlier.grace_s = 0.3
    for _ in range(2):
        with pytest.raises(TaskDeferred) as handed:
            run.execute("up.earlier")
    assert len(hosts.entries()) == 1
    _, arguments = handed.value.trigger.serialize()
    assert "sqlite" not in json.dumps(arguments)
    trigger = type(handed.value.trigger)(**json.loads(json.dumps(arguments | {"resume_at_s": 1007.0})))
    trigger._env = clock = Clock()
    trigger.deadline_s = None

    hosts.away.clear()
    (event,) = asyncio.run(asyncio.wait_for(events(trigger), 120))

    assert not isinstance(event, TaskSuccessEvent)
    assert clock.slept == [7.0]
    assert recorded(tmp_path) == {(1, "done"): SIX}
    assert handed.value.method_name == "execute_complete"
    earlier.grace_s = 60
    left = json.loads(json.dumps(handed.value.kwargs))
    assert earlier.execute_complete(run.context("up.earlier"), event.payload, **left) == 2
    assert len(hosts.entries()) == 2
    assert recorded(tmp_path) == {(1, "done"): SIX, (2, "done"): SIX}


def test_an_old_migration_that_is_not_done_in_time_stops_its_task_with_every_host(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import DDLTimeout

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    earlier = run.dag.get_task("up.earlier")
    earlier.grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.execute("up.earlier")
    hosts.wait_until(done=5)
    handed.value.trigger.resume_at_s = 0.0
    (event,) = asyncio.run(events(handed.value.trigger))
    with pytest.raises(DDLTimeout, match=r"5 done, 1 (waiting|inactive)"):
        earlier.execute_complete(run.context("up.earlier"), event.payload, **handed.value.kwargs)
    assert len(hosts.entries()) == 1


def test_the_task_cleared_alone_when_its_run_is_over_gives_the_lock_back_if_the_wait_ends_badly(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import DDLTimeout, TaskRefused

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    earlier = run.dag.get_task("up.earlier")
    earlier.grace_s = 0
    with pytest.raises(TaskDeferred):
        run.execute("up.earlier")
    assert run.execute("close") == "unfinished"

    run.states["close"] = "success"
    with pytest.raises(TaskDeferred) as handed:
        run.execute("up.earlier")
    other = Run(folder, "manual__2")
    other.execute("plan")
    with pytest.raises(TaskRefused, match="manual__1"):
        other.execute("begin")
    handed.value.trigger.resume_at_s = 0.0
    (event,) = asyncio.run(events(handed.value.trigger))
    with pytest.raises(DDLTimeout):
        earlier.execute_complete(run.context("up.earlier"), event.payload, **handed.value.kwargs)

    other.execute("begin")


def test_a_folder_that_became_unusable_is_refused_and_not_tried_again(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncluster_airflow.errors import TaskRefused

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    run = Run(folder).begin()
    (folder / "0001_again.up.sql").write_text("CREATE DATABASE IF NOT EXISTS again;")
    with pytest.raises(TaskRefused, match="0001"):
        run.execute("up.earlier")
    assert hosts.entries() == []


def test_nothing_old_in_the_run_skips_the_task(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    done = Run(folder, target_version=1).begin()
    done.statement(FIRST)
    done.execute("close")
    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    run = Run(folder, "manual__2").begin()
    with pytest.raises(AirflowSkipException):
        run.execute("up.earlier")
