"""A migration DAG on bad days: hosts that fail, are slow or away, runs that meet, tasks that are cleared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.model import ZooKeeper
from engine.migrations.states import MigrationState
from tests.airflow.dag_run import events
from tests.airflow.migration_support import FIRST, SECOND, SIX, Run, ledger, recorded
from tests.few import each_in_turn

pytestmark = pytest.mark.slow


def test_a_failing_host_fails_the_wait_with_every_hosts_status_tells_people_and_stops_the_run(
    airflow_logs: None, folder: Path, hosts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What people are told goes to the log where no other channel is configured."""
    from oncluster_airflow.errors import DDLFailed, TaskRefused

    hosts.failing["node05"] = (57, "Code: 57. DB::Exception: Database already exists")
    run = Run(folder).begin()
    with pytest.raises(DDLFailed, match=r"\[node05:9000\]: Code: 57") as failed:
        run.statement(FIRST)

    (callback,) = run.dag.get_task(f"{FIRST}.wait_1").on_failure_callback
    with caplog.at_level(logging.WARNING, logger="oncluster_airflow.channels"):
        callback(run.context(f"{FIRST}.wait_1") | {"exception": failed.value})
    (message,) = [r.getMessage() for r in caplog.records if r.name == "oncluster_airflow.channels"]
    assert f"migrate_order_cluster · {FIRST}.wait_1" in message
    assert "Database already exists" in message and "node05" in message
    assert run.xcoms[f"{FIRST}.wait_1", "ddl_state"] == "failed"
    told = {host["host"]: host["state"] for host in run.xcoms[f"{FIRST}.wait_1", "ddl_hosts"]}
    assert told == {name: "failed" if name == "node05" else "done" for name in SIX}
    with pytest.raises(TaskRefused):
        run.execute(f"{SECOND}.submit_1")
    assert run.execute("close") == "failed"
    assert recorded(tmp_path) == {(1, "done"): SIX - {"node05"}, (1, "failed"): {"node05"}}


def test_retry_failed_sends_it_again_to_the_host_that_failed_only(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from oncluster_airflow.errors import DDLFailed, TaskRefused

    hosts.failing["node05"] = (57, "exists")
    run = Run(folder).begin()
    with pytest.raises(DDLFailed):
        run.statement(FIRST)
    run.execute("close")
    hosts.failing.clear()
    with pytest.raises(TaskRefused, match="retry-failed"):
        Run(folder, "manual__2").execute("plan")
    again = Run(folder, "manual__3", retry_failed=True).begin()

    assert again.statement(FIRST)["state"] == "done"
    assert [len(hosts.listed(name)) for name in hosts.entries()] == [6, 1]
    assert recorded(tmp_path) == {(1, "done"): SIX}


def test_a_timeout_shows_the_hosts_and_a_second_wait_attaches(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.stuck.add("node02")
    run = Run(folder, timeout=1).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 5
    run.execute(f"{FIRST}.submit_1")
    hosts.wait_until(done=5, running=1)
    with pytest.raises(DDLTimeout, match="5 done, 1 running"):
        run.execute(f"{FIRST}.wait_1")
    assert run.xcoms[f"{FIRST}.wait_1", "ddl_state"] == "timeout"
    assert recorded(tmp_path) == {(1, "done"): SIX - {"node02"}, (1, "running"): {"node02"}}

    hosts.stuck.clear()
    assert run.execute(f"{FIRST}.wait_1")["state"] == "done"
    assert len(hosts.entries()) == 1


@pytest.mark.parametrize(("close", "where"), each_in_turn(["success", None], ["worker", "triggerer"]))
def test_a_task_that_is_cleared_alone_when_its_run_is_over_gives_the_lock_back(
    folder: Path, hosts: Any, tmp_path: Path, close: str | None, where: str
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import TaskRefused

    hosts.stuck.add("node02")
    run = Run(folder, timeout=120).begin()
    run.execute(f"{FIRST}.submit_1")
    assert run.execute("close") == "unfinished"

    run.states["close"] = close
    wait = run.dag.get_task(f"{FIRST}.wait_1")
    if where == "triggerer":
        wait.grace_s = 0
        with pytest.raises(TaskDeferred) as handed:
            run.execute(f"{FIRST}.wait_1")
        hosts.stuck.clear()
        asyncio.run(events(handed.value.trigger))
    else:
        wait.grace_s = 120
        hosts.stuck.clear()
        assert run.execute(f"{FIRST}.wait_1")["state"] == "done"

    assert recorded(tmp_path) == {(1, "done"): SIX}
    other = Run(folder, "manual__2")
    other.execute("plan")
    with contextlib.nullcontext() if close else pytest.raises(TaskRefused, match="manual__1"):
        other.execute("begin")


def test_a_task_that_is_cleared_alone_and_refused_in_the_triggerer_gives_the_lock_back(
    folder: Path, hosts: Any
) -> None:
    from oncluster_airflow.operators.begin import run_of
    from oncluster_airflow.triggers.migration import MigrationStatementTrigger

    run = Run(folder).begin()
    assert run.execute("close") == "unfinished"
    wait = run.dag.get_task(f"{FIRST}.wait_1")
    trigger = MigrationStatementTrigger(
        keeper_conn_id=wait.keeper_conn_id,
        cluster=wait.cluster,
        run=run_of(run.context(wait.task_id)).run.to_json(),
        ref=wait.ref_json,
        deadline_s=None,
        folder=wait.folder,
        closes=True,
    )
    (event,) = asyncio.run(events(trigger))
    assert "was not sent" in event.payload["refused"]

    other = Run(folder, "manual__2")
    other.execute("plan")
    other.execute("begin")


@pytest.mark.parametrize("timeout", [0, 60])
def test_a_wait_for_what_was_never_sent_is_refused(folder: Path, hosts: Any, timeout: int) -> None:
    """`submit` was marked as successful by hand, or another run rolled the migration back since."""
    from oncluster_airflow.errors import TaskRefused

    run = Run(folder, timeout=timeout).begin()
    with pytest.raises(TaskRefused, match=r"1\.up statement 1 was not sent"):
        run.execute(f"{FIRST}.wait_1")


def test_a_new_run_after_a_timeout_attaches_to_what_the_old_one_sent(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 5
    with pytest.raises(DDLTimeout):
        run.statement(FIRST)
    assert run.execute("close") == "unfinished"
    hosts.away.clear()
    again = Run(folder, "manual__2").begin()

    assert again.statement(FIRST)["state"] == "done"
    assert len(hosts.entries()) == 1


def test_a_slow_statement_is_handed_to_a_trigger_that_records_and_ends_the_task(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from airflow.sdk.exceptions import TaskDeferred
    from airflow.triggers.base import TaskSuccessEvent

    hosts.away.add("node02")
    run = Run(folder).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.statement(FIRST)
    path, arguments = handed.value.trigger.serialize()
    assert "sqlite" not in json.dumps(arguments)
    trigger = type(handed.value.trigger)(**json.loads(json.dumps(arguments)))

    async def main() -> list[Any]:
        waiting = asyncio.create_task(events(trigger))
        await asyncio.sleep(0)
        hosts.away.clear()
        return await asyncio.wait_for(waiting, 120)

    (event,) = asyncio.run(main())
    assert path.startswith("oncluster_airflow.triggers.")
    assert isinstance(event, TaskSuccessEvent)
    assert recorded(tmp_path) == {(1, "done"): SIX}
    assert ledger(tmp_path).records("order_cluster")[1].state is MigrationState.APPLIED


def test_the_trigger_ends_at_its_deadline_with_every_host(folder: Path, hosts: Any) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import DDLTimeout

    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    wait = run.dag.get_task(f"{FIRST}.wait_1")
    wait.grace_s = 0.3
    run.execute(f"{FIRST}.submit_1")
    hosts.wait_until(done=5)
    with pytest.raises(TaskDeferred) as handed:
        run.execute(f"{FIRST}.wait_1")
    (event,) = asyncio.run(events(handed.value.trigger))
    with pytest.raises(DDLTimeout, match=r"5 done, 1 (waiting|inactive)"):
        wait.execute_complete(run.context(f"{FIRST}.wait_1"), event.payload)


def test_a_cancelled_trigger_ends_its_thread_and_leaves_the_statement(folder: Path, hosts: Any) -> None:
    import threading

    from airflow.sdk.exceptions import TaskDeferred

    hosts.away.add("node02")
    run = Run(folder).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.statement(FIRST)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("oncluster-wait")]

    async def main() -> None:
        waiting = asyncio.create_task(events(handed.value.trigger))
        while not threads():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while threads():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 120))
    assert len(hosts.entries()) == 1


def deferred(folder: Path, hosts: Any) -> Any:
    """The trigger to which a wait is handed while a host is away; it is back then."""
    from airflow.sdk.exceptions import TaskDeferred

    hosts.away.add("node02")
    run = Run(folder).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.statement(FIRST)
    hosts.away.clear()
    return handed.value.trigger


def interrupted(trigger: Any, cure: Callable[[], object]) -> list[Any]:
    """What a triggerer is told by a trigger that meets trouble, which is cured when it has said so."""

    async def main() -> list[Any]:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        class Seen(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "wait_interrupted" in record.getMessage():
                    loop.call_soon_threadsafe(asked.set)

        log, handler = logging.getLogger("oncluster_airflow.migration_wait"), Seen()
        log.addHandler(handler)
        waiting = asyncio.create_task(events(trigger))
        seen = asyncio.create_task(asked.wait())
        try:
            await asyncio.wait({waiting, seen}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
            assert asked.is_set()
            cure()
            return await asyncio.wait_for(waiting, 120)
        finally:
            seen.cancel()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            log.removeHandler(handler)

    return asyncio.run(main())


def test_a_trigger_that_starts_while_the_ledger_is_away_waits_for_it(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a triggerer that was started over together with the database."""
    from airflow.triggers.base import TaskSuccessEvent

    trigger = deferred(folder, hosts)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'file' / 'ledger.db'}")
    (event,) = interrupted(
        trigger,
        lambda: monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}"),
    )
    assert isinstance(event, TaskSuccessEvent)
    assert recorded(tmp_path) == {(1, "done"): SIX}


def test_a_trigger_whose_deadline_passes_while_the_ledger_is_away_says_so(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the ledger for a moment all the same, where the triggerer was down over the deadline."""
    from oncluster_airflow.errors import DDLTimeout
    from oncluster_airflow.sensors.migration import MigrationStatementSensor
    from oncluster_airflow.triggers import migration

    trigger = deferred(folder, hosts)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'file' / 'ledger.db'}")
    monkeypatch.setattr(migration, "_LEAST_S", 0.5)
    trigger.deadline_s = 0.0
    (event,) = asyncio.run(asyncio.wait_for(events(trigger), 120))

    assert event.payload["state"] == "timeout"
    assert event.payload["note"].startswith("The ledger cannot be reached: ")
    sensor = MigrationStatementSensor(
        task_id="wait", cluster="order_cluster", version=1, direction="up", statement=1
    )
    with pytest.raises(DDLTimeout):
        sensor.execute_complete(Run(folder).context(f"{FIRST}.wait_1"), event.payload)


def test_a_connection_that_is_corrected_during_a_wait_is_what_the_wait_goes_on_with(
    folder: Path, hosts: Any, zookeeper: ZooKeeper, connection: Any, tmp_path: Path
) -> None:
    from airflow.triggers.base import TaskSuccessEvent

    trigger = deferred(folder, hosts)

    def connect(*, port: int, timeout_ms: int) -> None:
        extra = json.dumps({"operation_timeout_ms": timeout_ms})
        connection(
            "zookeeper_default", conn_type="zookeeper", host=zookeeper.hosts[0][0], port=port, extra=extra
        )

    # Nobody listens at port 1.
    connect(port=1, timeout_ms=200)
    (event,) = interrupted(trigger, lambda: connect(port=zookeeper.hosts[0][1], timeout_ms=10_000))
    assert isinstance(event, TaskSuccessEvent)
    assert recorded(tmp_path) == {(1, "done"): SIX}


def test_a_second_run_is_refused_with_the_name_of_the_first(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    first = Run(folder, "manual__1").begin()
    second = Run(folder, "manual__2")
    second.execute("plan")

    def is_refused() -> None:
        with pytest.raises(TaskRefused, match="DAG migrate_order_cluster, run manual__1"):
            second.execute("begin")

    is_refused()
    first.execute(f"{FIRST}.submit_1")
    is_refused()
    first.execute(f"{FIRST}.wait_1")
    is_refused()


def test_a_host_that_is_off_line_does_not_hold_up_an_only_active_run_and_catches_up(
    folder: Path, hosts: Any, tmp_path: Path, zookeeper: Any
) -> None:
    """Up to a change of a replicated table that the host has still to make."""
    from airflow.sdk.exceptions import AirflowSkipException
    from kazoo.client import KazooClient

    from oncluster_airflow.errors import TaskUnavailable

    third = "up.v0003_note"
    (folder / "0002_create_orders.up.sql").write_text(
        "CREATE TABLE IF NOT EXISTS shop.orders (id UInt64) ENGINE = ReplicatedMergeTree ORDER BY id;"
    )
    (folder / "0003_note.up.sql").write_text("ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;")
    (folder / "0003_note.down.sql").write_text("ALTER TABLE shop.orders DROP COLUMN IF EXISTS note;")
    client = KazooClient(zookeeper.connect_string)
    client.start()
    active = "/clickhouse/task_queue/replicas/{}:9000/active"
    for name in SIX:
        client.create(active.format(name), b"x", ephemeral=True, makepath=True)
    client.delete(active.format("node03"))
    hosts.away.add("node03")
    try:
        run = Run(folder, output_mode="throw_only_active", target_version=2).begin()
        run.dag.get_task(f"{FIRST}.wait_1").grace_s = 10
        run.dag.get_task(f"{SECOND}.wait_1").grace_s = 10
        assert run.statement(FIRST)["state"] == "partial"
        assert run.statement(SECOND)["state"] == "partial"
        with pytest.raises(AirflowSkipException, match="partial"):
            run.execute("applied")
        assert run.execute("close") == "partial"
        run = Run(folder, "manual__2", output_mode="throw_only_active").begin()
        with pytest.raises(TaskUnavailable, match="node03:9000 has still to make"):
            run.statement(third)
        assert run.execute("close") == "unfinished"
        hosts.away.clear()
        again = Run(folder, "manual__3").begin()
        assert again.statement(FIRST)["state"] == "done"
        assert again.statement(SECOND)["state"] == "done"
        assert again.statement(third)["state"] == "done"
        assert again.execute("close") == "done"
    finally:
        client.stop()
        client.close()
    assert len(hosts.entries()) == 3
    assert recorded(tmp_path) == {(1, "done"): SIX, (2, "done"): SIX, (3, "done"): SIX}


def test_keeper_that_is_away_during_a_wait_is_waited_for(
    folder: Path, hosts: Any, zookeeper_server: Any, tmp_path: Path
) -> None:
    run = Run(folder).begin()
    hosts.away.add("node02")
    run.execute(f"{FIRST}.submit_1")
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 600

    async def main() -> Any:
        waiting = asyncio.create_task(asyncio.to_thread(run.execute, f"{FIRST}.wait_1"))
        # 1. The wait has begun: the ledger has what the others did.
        while recorded(tmp_path).get((1, "done")) != SIX - {"node02"}:
            await asyncio.sleep(0.02)
        # 2. Keeper stops and comes back; the last host finishes after that.
        await zookeeper_server.restart()
        hosts.away.clear()
        return await waiting

    assert asyncio.run(main())["state"] == "done"
