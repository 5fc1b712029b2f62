"""One statement: submitted once however often the task runs, waited for wherever the task runs."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient

from engine.config.model import ZooKeeper
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState
from engine.names import HostId
from tests.airflow.dag_run import events
from tests.airflow.migration_support import PATIENT_S

pytestmark = pytest.mark.slow

SQL = "CREATE TABLE IF NOT EXISTS shop.orders ON CLUSTER order_cluster (id UInt64) ENGINE = Memory"


class TaskInstance:
    """What a task sees of itself: names and XCom. Values pass through JSON, as in Airflow."""

    map_index = -1
    dag_id = "shop"
    run_id = "manual__1"

    def __init__(self, task_id: str = "submit") -> None:
        self.task_id = task_id
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, *, key: str, value: object) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))


class Memory:
    """`task_state_store`: outlives the tries of a task instance."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))


def context(ti: TaskInstance, **more: object) -> Any:
    return {"ti": ti, "task_instance": ti, **more}


def submit(ti: TaskInstance | None = None, sql: str = SQL, **more: object) -> dict[str, Any]:
    from oncluster_airflow.operators import SubmitStatementOperator

    return SubmitStatementOperator(task_id="submit", sql=sql).execute(context(ti or TaskInstance(), **more))


def sensor(submission: dict[str, Any], **options: Any) -> Any:
    from oncluster_airflow.sensors import DDLFinishedSensor

    return DDLFinishedSensor(task_id="wait", submission=submission, **{"grace_s": PATIENT_S} | options)


# --- submitting ---------------------------------------------------------------------------------------------


def test_executing_a_submit_task_twice_submits_once(hosts: Any) -> None:
    first = submit()
    second = submit()

    assert second["entry"] == first["entry"]
    assert (first["attached"], second["attached"]) == (False, True)
    assert len(hosts.entries()) == 1


def test_two_tries_at_the_same_time_submit_once(hosts: Any) -> None:
    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(asyncio.to_thread(submit), asyncio.to_thread(submit))

    first, second = asyncio.run(both())

    assert first["entry"] == second["entry"]
    assert len(hosts.entries()) == 1


def test_a_retry_returns_what_an_earlier_try_remembered_without_asking_keeper(
    hosts: Any, connection: Any
) -> None:
    memory = Memory()
    first = submit(task_state_store=memory)
    connection("zookeeper_default", conn_type="zookeeper", host="127.0.0.1", port=1)
    second = submit(task_state_store=memory)

    assert second == first | {"attached": True}


def test_a_statement_that_was_corrected_is_not_taken_for_the_one_that_was_sent(hosts: Any) -> None:
    """Somebody repairs the DAG file and clears the task: the new text was not sent."""
    from oncluster_airflow.errors import TaskRefused

    memory = Memory()
    submit(task_state_store=memory)
    for remembered in (memory, Memory()):
        with pytest.raises(TaskRefused, match="another statement"):
            submit(sql=SQL.replace("UInt64", "UInt32"), task_state_store=remembered)
    assert len(hosts.entries()) == 1


def test_another_task_or_run_submits_its_own_statement(hosts: Any) -> None:
    submit(TaskInstance("submit"))
    submit(TaskInstance("again"))

    assert len(hosts.entries()) == 2


def test_a_table_gets_one_uuid_for_all_hosts_in_every_try(hosts: Any) -> None:
    """A path in Keeper may be made of it."""
    assert submit()["entry"] == submit()["entry"]
    [query] = hosts.queries()
    assert re.search(r"shop\.orders UUID '[0-9a-f-]{36}' ON CLUSTER order_cluster", query)


def test_braces_in_sql_are_not_taken_for_templates(hosts: Any) -> None:
    submit(sql="ALTER TABLE shop.orders ON CLUSTER order_cluster COMMENT COLUMN id '{{ ds }}'")

    assert hosts.queries()[0].endswith("COMMENT COLUMN id '{{ ds }}'")


def test_a_password_in_a_statement_is_neither_logged_nor_left_in_xcom(
    hosts: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sql = "CREATE USER u ON CLUSTER order_cluster IDENTIFIED WITH sha256_password BY 'hunter2'"
    hosts.failing["node01"] = (62, f"Code: 62. DB::Exception: cannot run {sql}")
    submission = submit(sql=sql)
    ti = TaskInstance("wait")
    with pytest.raises(Exception, match="node01") as raised:
        sensor(submission).execute(context(ti))

    told = capsys.readouterr().out + caplog.text + json.dumps([submission, ti.xcoms])
    assert "CREATE USER" in told
    assert "hunter2" not in told
    assert "hunter2" not in str(raised.value)


def test_settings_may_be_numbers_and_words_and_nothing_else(hosts: Any) -> None:
    from oncluster_airflow.operators import SubmitStatementOperator

    given: dict[str, Any] = {"max_threads": 2, "mutations_sync": "1", "log_queries": True, "max_ratio": 0.5}
    task = SubmitStatementOperator(task_id="submit", sql=SQL, statement_settings=given)
    task.execute(context(TaskInstance()))
    (settings,) = hosts.settings()
    sent = {"max_threads": "2", "mutations_sync": "1", "log_queries": "1", "max_ratio": "0.5"}
    assert {name: settings.get(name) for name in sent} == sent
    given["max_threads"] = None
    with pytest.raises(TypeError, match="statement_settings: max_threads is None"):
        SubmitStatementOperator(task_id="other", sql=SQL, statement_settings=given)


def test_an_unknown_cluster_is_refused_at_once_and_names_those_there_are(hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    with pytest.raises(TaskRefused, match=r"no_such_cluster.*log_cluster, order_cluster"):
        submit(sql="DROP TABLE IF EXISTS t ON CLUSTER no_such_cluster")
    assert hosts.entries() == []


def test_keeper_out_of_reach_is_an_error_that_airflow_retries(connection: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from oncluster_airflow.errors import TaskUnavailable

    connection(
        "zookeeper_default",
        conn_type="zookeeper",
        host="127.0.0.1",
        port=1,
        extra={"session_timeout_ms": 1000, "operation_timeout_ms": 1000},
    )
    with pytest.raises(TaskUnavailable) as raised:
        submit()
    assert not isinstance(raised.value, AirflowFailException)


# --- waiting on the worker ----------------------------------------------------------------------------------


def test_a_statement_that_is_quick_needs_no_trigger(hosts: Any) -> None:
    ti = TaskInstance("wait")
    result = sensor(submit()).execute(context(ti))

    assert result["state"] == "done"
    assert [host["state"] for host in result["hosts"]] == ["done"] * 6


def test_a_failing_host_fails_the_sensor_with_every_hosts_status(
    hosts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from oncluster_airflow.errors import DDLFailed

    hosts.failing["node05"] = (57, "Code: 57. DB::Exception: Table already exists")
    ti = TaskInstance("wait")
    with pytest.raises(DDLFailed, match=r"There was an error on \[node05:9000\]: Code: 57") as raised:
        sensor(submit()).execute(context(ti))

    expected = {f"node0{n}": "failed" if n == 5 else "done" for n in range(1, 7)}
    assert {host["host"]: host["state"] for host in ti.xcoms["ddl_hosts"]} == expected
    assert {outcome.host.host: str(outcome.state) for outcome in raised.value.result.hosts} == expected
    log = capsys.readouterr().out
    for host, state in expected.items():
        assert re.search(rf"^{host}:9000 +{state} ", log, re.MULTILINE), host


def test_never_throw_shows_the_error_and_succeeds(hosts: Any) -> None:
    hosts.failing["node05"] = (57, "exists")
    result = sensor(submit(), output_mode="never_throw").execute(context(TaskInstance("wait")))

    assert result["state"] == "failed"


def test_timeout_zero_does_not_wait(hosts: Any) -> None:
    hosts.away |= {f"node0{n}" for n in range(1, 7)}
    result = sensor(submit(), task_timeout_s=0).execute(context(TaskInstance("wait")))

    assert result["state"] == "not_waited"


@pytest.mark.parametrize(
    "options",
    [
        {"task_timeout_s": value}
        for value in ("", "soon", "None", None, "5m", 1.5, True, [], float("nan"), float("inf"), 10**12)
    ]
    + [{"output_mode": value} for value in ("", "thrown", None, 0)]
    + [
        {"submission": value}
        for value in (None, "None", "", {}, {"entry": "query-0000000001"}, [1], "query-1")
    ],
    ids=str,
)
def test_what_cannot_be_meant_fails_the_wait_at_once_and_says_what_can(options: dict[str, Any]) -> None:
    """Text may come from a template; as an error of Python it would be tried again in vain."""
    from oncluster_airflow.errors import TaskRefused
    from oncluster_airflow.sensors import DDLFinishedSensor

    (name,) = options
    task = DDLFinishedSensor(task_id="wait", **({"submission": "query-0000000001"} | options))
    with pytest.raises(TaskRefused, match=name) as caught:
        task.execute(context(TaskInstance("wait")))
    assert len(str(caught.value)) > 60


@pytest.mark.parametrize("timeout", [0, "0", " 0 ", 0.0])
def test_a_timeout_may_be_text_as_a_template_makes_it(timeout: Any) -> None:
    result = sensor({**_SUBMITTED}, task_timeout_s=timeout).execute(context(TaskInstance("wait")))

    assert result["state"] == "not_waited"


_SUBMITTED = {
    "entry": "query-0000000001",
    "token": "t",
    "hosts": ["node01:9000"],
    "queue": "/ddl",
    "replicas": "/replicas",
    "attached": False,
}


def test_without_deferral_a_timeout_fails_with_the_hosts_that_are_done_and_running(hosts: Any) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.stuck.add("node02")
    submission = submit()
    hosts.wait_until(done=5, running=1)
    ti = TaskInstance("wait")
    with pytest.raises(DDLTimeout, match="5 done, 1 running"):
        sensor(submission, task_timeout_s=1, deferrable=False).execute(context(ti))

    assert ti.xcoms["ddl_state"] == "timeout"


def test_a_sensor_after_a_timeout_attaches_to_the_same_entry(hosts: Any) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.stuck.add("node02")
    submission = submit()
    with pytest.raises(DDLTimeout):
        sensor(submission, task_timeout_s=1, deferrable=False).execute(context(TaskInstance("wait")))
    hosts.stuck.clear()
    result = sensor(submit()).execute(context(TaskInstance("wait")))

    assert result["state"] == "done"
    assert len(hosts.entries()) == 1


# --- waiting in the triggerer -------------------------------------------------------------------------------


def deferred(submission: dict[str, Any], **options: Any) -> Any:
    """The TaskDeferred of a sensor whose grace is over."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as raised:
        sensor(submission, grace_s=0.2, **options).execute(context(TaskInstance("wait")))
    return raised.value


def test_a_slow_statement_is_handed_to_the_triggerer(hosts: Any) -> None:
    hosts.away.add("node03")
    handed = deferred(submit())

    assert handed.method_name == "execute_complete"
    assert handed.timeout.total_seconds() > 180


def test_negative_timeout_waits_for_ever(hosts: Any) -> None:
    hosts.away.add("node03")
    handed = deferred(submit(), task_timeout_s=-1)

    assert handed.trigger.deadline_s is None
    assert handed.timeout is None


def rebuilt(trigger: Any) -> Any:
    """The trigger as another process gets it."""
    from airflow._shared.module_loading import import_string
    from airflow.serialization.serialized_objects import BaseSerialization

    path, arguments = trigger.serialize()
    stored = json.loads(json.dumps(BaseSerialization.serialize(arguments)))
    return import_string(path)(**BaseSerialization.deserialize(stored))


def test_a_trigger_survives_its_way_through_the_database_and_carries_no_secret(
    hosts: Any, connection: Any
) -> None:
    connection("guarded", conn_type="zookeeper", host="h", login="user", password="hunter2")
    from oncluster_airflow.triggers import DDLFinishedTrigger

    trigger = DDLFinishedTrigger(
        keeper_conn_id="guarded",
        queue="/q",
        replicas="/r",
        entry="query-0000000001",
        output_mode="throw",
        deadline_s=12.5,
    )
    assert rebuilt(trigger).serialize() == trigger.serialize()
    assert "hunter2" not in json.dumps(trigger.serialize())


def test_the_trigger_ends_the_task_when_the_last_host_is_done(hosts: Any) -> None:
    from airflow.triggers.base import TaskSuccessEvent

    hosts.away.add("node03")
    trigger = rebuilt(deferred(submit()).trigger)

    async def main() -> list[Any]:
        waiting = asyncio.create_task(events(trigger))
        await asyncio.sleep(0)
        hosts.away.clear()
        return await asyncio.wait_for(waiting, 120)

    (event,) = asyncio.run(main())
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is not None
    assert event.xcoms["return_value"]["state"] == "done"


def test_the_trigger_resumes_the_task_at_the_deadline_with_every_host(hosts: Any) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.away.add("node03")
    hosts.stuck.add("node04")
    submission = submit()
    hosts.wait_until(done=4, running=1)
    (event,) = asyncio.run(events(deferred(submission, task_timeout_s=1).trigger))
    ti = TaskInstance("wait")
    with pytest.raises(DDLTimeout, match=r"4 done, 1 running, 1 (waiting|inactive)"):
        sensor(submission).execute_complete(context(ti), event.payload)

    assert ti.xcoms["ddl_state"] == "timeout"


def test_the_trigger_outlives_its_keeper_session_and_misses_nothing(hosts: Any, zookeeper: ZooKeeper) -> None:
    from oncluster_airflow.hooks import keeper as keeper_hook

    hosts.away.add("node03")
    trigger = deferred(submit()).trigger

    async def main() -> list[Any]:
        waiting = asyncio.create_task(events(trigger))
        sessions = keeper_hook._sessions_of_this_loop()
        while not sessions.current:
            await asyncio.sleep(0.01)
        (shared,) = sessions.current.values()
        # 1. The server ends the session: another client comes with its id and password and says good-bye.
        #    Ours comes back at once, and may be there again before that.
        client_id = shared.keeper._connection.client_id
        while not shared.keeper.is_expired:
            await asyncio.to_thread(_end_session, zookeeper, client_id)
        # 2. The last host finishes; the watch that would have told is gone with the session.
        hosts.away.clear()
        return await asyncio.wait_for(waiting, 120)

    (event,) = asyncio.run(main())
    assert event.xcoms["return_value"]["state"] == "done"


def _end_session(config: ZooKeeper, client_id: tuple[int, bytes]) -> None:
    thief = KazooClient(config.connect_string, client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()


def test_triggers_of_one_triggerer_share_one_session(hosts: Any) -> None:
    from oncluster_airflow.hooks import keeper as keeper_hook

    hosts.away.add("node03")
    handed = [deferred(submit(TaskInstance(f"submit_{n}"))).trigger for n in range(3)]

    async def main() -> tuple[int, int]:
        waiting = [asyncio.create_task(events(trigger)) for trigger in handed]
        sessions = keeper_hook._sessions_of_this_loop()
        while not sessions.current or next(iter(sessions.current.values())).users < 3:
            await asyncio.sleep(0.01)
        open_sessions = len(sessions.current)
        hosts.away.clear()
        await asyncio.wait_for(asyncio.gather(*waiting), 120)
        return open_sessions, len(sessions.current)

    assert asyncio.run(main()) == (1, 0)


def test_an_entry_that_was_removed_ends_the_wait_as_gone(hosts: Any, zookeeper: ZooKeeper) -> None:
    from oncluster_airflow.errors import DDLGone

    hosts.away |= {f"node0{n}" for n in range(1, 7)}
    submission = submit()
    client = KazooClient(zookeeper.connect_string)
    client.start()
    client.delete(f"{submission['queue']}/{submission['entry']}", recursive=True)
    client.stop()
    client.close()
    with pytest.raises(DDLGone):
        sensor(submission).execute(context(TaskInstance("wait")))


def test_cancelling_the_trigger_leaves_the_statement_in_the_queue(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.away.add("node03")
    submission = submit()
    trigger = deferred(submission).trigger

    async def main() -> None:
        looked = asyncio.Event()

        async def seen(_: EntryStatus) -> None:
            looked.set()

        monkeypatch.setattr(trigger, "seen", seen)
        waiting = asyncio.create_task(events(trigger))
        await asyncio.wait_for(looked.wait(), 120)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await trigger.cleanup()
        await trigger.on_kill()

    asyncio.run(main())
    assert hosts.entries() == [submission["entry"]]
    hosts.away.clear()
    result = sensor(submission).execute(context(TaskInstance("wait")))
    assert {host["state"] for host in result["hosts"]} == {"done"}


# --- judging ------------------------------------------------------------------------------------------------


def status(*states: HostState) -> Any:
    outcomes = tuple(HostOutcome(HostId(f"n{i}", 9000), state) for i, state in enumerate(states))
    failed = tuple(o for o in outcomes if o.state is HostState.FAILED)
    unfinished = tuple(o for o in outcomes if not o.state.is_final)
    return SimpleNamespace(
        hosts=outcomes,
        failed=failed,
        unfinished=unfinished,
        is_complete=not unfinished,
        is_done_on_all_hosts=all(o.state is HostState.DONE for o in outcomes),
    )


@pytest.mark.parametrize(
    ("mode", "states", "expected"),
    [
        ("throw", (HostState.DONE, HostState.DONE), "done"),
        ("throw", (HostState.DONE, HostState.INACTIVE), None),
        ("throw", (HostState.FAILED, HostState.RUNNING), None),
        ("throw", (HostState.FAILED, HostState.DONE), "failed"),
        ("throw", (HostState.DONE, HostState.EXPIRED), "gone"),
        ("throw_only_active", (HostState.DONE, HostState.INACTIVE), "done_on_active"),
        ("throw_only_active", (HostState.FAILED, HostState.INACTIVE), "failed"),
        ("throw_only_active", (HostState.DONE, HostState.RUNNING, HostState.INACTIVE), None),
        ("none_only_active", (HostState.INACTIVE, HostState.INACTIVE), None),
    ],
)
def test_when_a_wait_is_over(mode: str, states: tuple[HostState, ...], expected: str | None) -> None:
    from engine.ddl.output import OutputMode
    from oncluster_airflow.outcomes import judge

    assert judge(status(*states), OutputMode(mode)) == expected
