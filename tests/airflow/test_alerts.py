"""Alerts arrive: in a real mailbox, at a web address, in a chat program; once, and without secrets."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.env import SystemEnv
from engine.migrations.files import Direction
from engine.migrations.ledger import Ledger
from engine.names import HostId
from engine.operations.alerts import Links, deliver
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.records import Records
from tests.unit.migrations.ledger_support import write_ledger

CLUSTER = "order_cluster"
SECRET = "services/T0AAA/B0BBB/s3cr3tt0k3n"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    monkeypatch.setenv("ONCLUSTER_RECORDS_URL", url)
    return Records(url, env=SystemEnv())


@pytest.fixture
def mailbox(connection: Any, smtp_sink: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A mailbox as the environment names it."""
    connection(
        "mail",
        conn_type="smtp",
        host="127.0.0.1",
        port=smtp_sink.server_address[1],
        extra={"disable_ssl": True, "disable_tls": True, "from_email": "oncluster@example.org"},
    )
    monkeypatch.setenv("ONCLUSTER_NOTIFY_EMAIL_CONN", "mail")
    monkeypatch.setenv("ONCLUSTER_NOTIFY_EMAIL_TO", "dba@example.org, boss@example.org")
    return smtp_sink


def chat_at(connection: Any, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    connection("chat", conn_type="http", host="127.0.0.1", port=port, schema="http", password=SECRET)
    monkeypatch.setenv("ONCLUSTER_NOTIFY_SLACK_CONN", "chat")


@pytest.fixture
def chat(connection: Any, http_sink: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A chat program whose address is secret."""
    chat_at(connection, monkeypatch, http_sink.server_address[1])
    return http_sink


def lagging(host: str = "node03:9000", severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding(
        FindingKind.LAGGING,
        severity,
        CLUSTER,
        f"shop.orders on {host} is 4,000 s behind",
        "Look at the replica's queue.",
        host=host,
        subject="shop.orders",
        evidence={"absolute_delay_s": 4000},
        since_ms=1_772_366_400_000,
    )


def told(records: Records, *findings: Finding) -> Any:
    from oncluster_airflow.channels import Channels

    records.see_findings(CLUSTER, "health", findings)
    return deliver(records, Channels().open(), CLUSTER, links=Links("http://airflow/run/7", "https://docs/"))


# --- findings -----------------------------------------------------------------------------------------------


def test_a_mail_says_what_happened_where_since_when_what_to_do_and_where_to_look(
    records: Records, mailbox: Any
) -> None:
    told(records, lagging(), lagging("node05:9000"))

    ((subject, body),) = mailbox.parsed
    assert subject == "[oncluster] order_cluster: critical: lagging"
    for part in (
        "shop.orders on node03:9000 is 4,000 s behind",
        "shop.orders on node05:9000",
        "since 2026-03-01T12:00:00+00:00",
        "What to do: Look at the replica",
        "https://docs/runbooks/lagging.md",
        "http://airflow/run/7",
    ):
        assert part in body
    assert "boss@example.org" in mailbox.mails[0]


def test_a_chat_program_gets_a_coloured_attachment_at_its_secret_address(records: Records, chat: Any) -> None:
    told(records, lagging())

    assert chat.paths == [f"/{SECRET}"]
    (body,) = chat.bodies
    assert set(body) == {"text", "attachments"}
    assert body["text"] == (
        "[oncluster] order_cluster: critical: shop.orders on node03:9000 is 4,000 s behind"
    )
    first = body["attachments"][0]
    assert first["color"] == "#c0392b" and first["blocks"][0]["text"]["type"] == "mrkdwn"
    assert "Runbook: https://docs/runbooks/lagging.md" in first["blocks"][0]["text"]["text"]


def test_every_channel_is_told_once_and_one_that_was_broken_hears_it_later(
    records: Records, mailbox: Any, chat: Any
) -> None:
    chat.status = 503
    first = told(records, lagging())
    assert first.sent == {"log": 1, "email": 1}
    assert first.failed == {"slack": "connection chat: HTTP 503 Service Unavailable"}

    chat.status = 200
    assert told(records, lagging()).sent == {"slack": 1}
    assert told(records, lagging()).sent == {}
    assert (len(mailbox.mails), len(chat.bodies)) == (1, 2)


def test_a_mailbox_out_of_reach_does_not_silence_the_chat(
    records: Records, connection: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 1, "timeout": 5}
    connection("mail", conn_type="smtp", host="127.0.0.1", port=1, extra=extra)
    monkeypatch.setenv("ONCLUSTER_NOTIFY_EMAIL_CONN", "mail")
    monkeypatch.setenv("ONCLUSTER_NOTIFY_EMAIL_TO", "dba@example.org")
    delivered = told(records, lagging())

    assert set(delivered.sent) == {"log", "slack"} and set(delivered.failed) == {"email"}
    assert len(chat.bodies) == 1


def test_people_are_told_when_it_is_over(
    records: Records, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.operations.alerts import Policy
    from oncluster_airflow.channels import Channels

    told(records, lagging())
    records.see_findings(CLUSTER, "health", [])
    deliver(records, Channels().open(), CLUSTER, policy=Policy(settle_s=0))

    assert [body["attachments"][0]["color"] for body in chat.bodies] == ["#c0392b", "#239b56"]
    assert chat.bodies[1]["text"] == "[oncluster] order_cluster: over: lagging"


@pytest.mark.parametrize("fault", ["closed", "refusing", "elsewhere"])
def test_the_secret_address_is_in_no_log_and_no_error(
    records: Records,
    connection: Any,
    http_sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    fault: str,
) -> None:
    http_sink.status = {"refusing": 404, "elsewhere": 302}.get(fault, 200)
    chat_at(connection, monkeypatch, 1 if fault == "closed" else http_sink.server_address[1])
    with caplog.at_level(logging.INFO):
        delivered = told(records, lagging())

    assert set(delivered.failed) == {"slack"}
    out, err = capfd.readouterr()
    for text in (*caplog.messages, delivered.failed["slack"], out, err):
        assert "s3cr3t" not in text


# --- tasks --------------------------------------------------------------------------------------------------


def failure(run_id: str, run_type: str = "scheduled", error: BaseException | None = None) -> dict[str, Any]:
    start = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
    ti = SimpleNamespace(
        dag_id="replica_health",
        run_id=run_id,
        task_id="order_cluster.check",
        start_date=start,
        log_url=f"http://airflow/{run_id}",
    )
    run = SimpleNamespace(run_id=run_id, run_type=run_type, dag_id="replica_health", start_date=start)
    return {"ti": ti, "dag_run": run, "exception": error or RuntimeError("no server answers")}


def test_a_task_that_fails_every_five_minutes_is_told_once_and_once_more_when_it_works(
    records: Records, chat: Any
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier, Repeats, WorksAgainNotifier

    notifier = OnclusterNotifier(repeats=Repeats.REMIND)
    for n in range(5):
        notifier(failure(f"scheduled__{n}"))
    for n in range(5, 8):
        WorksAgainNotifier()(failure(f"scheduled__{n}"))
    notifier(failure("scheduled__9"))

    assert [body["text"] for body in chat.bodies] == [
        "[oncluster] failed: replica_health · order_cluster.check",
        "[oncluster] works again: replica_health · order_cluster.check",
        "[oncluster] failed: replica_health · order_cluster.check",
    ]
    text = json.dumps(chat.bodies[0])
    assert "no server answers" in text and "http://airflow/scheduled__0" in text
    assert "runbooks/task-failed.md" in text


def test_every_failure_of_a_run_that_somebody_asked_for_is_told(records: Records, chat: Any) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier, Repeats

    for n in range(2):
        OnclusterNotifier(repeats=Repeats.REMIND)(failure(f"manual__{n}", "manual"))

    assert len(chat.bodies) == 2


@pytest.mark.parametrize("trouble", ["cannot be read", "cannot be written"])
def test_without_a_memory_people_are_told_all_the_same_and_once(
    trouble: str, chat: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier, Repeats

    (tmp_path / "file").write_text("no database" * 100)
    nowhere = Path("/proc/oncluster/records.db")  # is not there, and cannot be made
    place = nowhere if trouble == "cannot be written" else tmp_path / "file"
    monkeypatch.setenv("ONCLUSTER_RECORDS_URL", f"sqlite:///{place}")
    OnclusterNotifier(repeats=Repeats.REMIND)(failure("scheduled__1"))

    assert len(chat.bodies) == 1


def test_a_typing_error_in_a_setting_of_alerts_does_not_silence_them(
    records: Records, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier, Repeats

    monkeypatch.setenv("ONCLUSTER_NOTIFY_REMIND_H", "four")
    OnclusterNotifier(repeats=Repeats.REMIND)(failure("scheduled__1"))

    assert len(chat.bodies) == 1


def test_airflows_own_time_limits_are_told_as_such(records: Records, chat: Any) -> None:
    from airflow.sdk.exceptions import AirflowSensorTimeout

    from oncluster_airflow.notifier import OnclusterNotifier

    OnclusterNotifier()(failure("manual__1", "manual", AirflowSensorTimeout("Trigger timeout")))

    assert chat.bodies[0]["text"].startswith("[oncluster] timeout: ")


# --- deadlines ----------------------------------------------------------------------------------------------


def missed(
    run_id: str = "manual__1", dag_id: str = "migrate_order_cluster", state: str = "running"
) -> dict[str, Any]:
    """What Airflow gives a deadline's callback."""
    run = {
        "dag_id": dag_id,
        "dag_run_id": run_id,
        "queued_at": "2026-03-01T12:00:00Z",
        "start_date": "2026-03-01T12:00:01Z",
        "state": state,
        "conf": {"password": "hunter2"},
    }
    return {"dag_run": run, "deadline": {"id": "1", "deadline_time": "2026-03-01T16:00:00Z"}}


def begin_run(url: str, run_id: str, direction: Direction, target: int | None) -> None:
    """As a run leaves it that has sent nothing itself: it attaches to what an earlier one sent."""
    ledger = Ledger(url, env=SystemEnv())
    ledger.register_fence(CLUSTER, 2, run_id=run_id, holder="airflow")
    writer = ledger.writer(CLUSTER, run_id=run_id, fence=2)
    writer.record_run(direction=direction, target=target, requested_by="ada", approved_by="")


def test_a_run_that_is_not_over_in_time_is_told_with_the_hosts_it_waits_for_whoever_sent_it(
    chat: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from oncluster_airflow.deadlines import deadline_missed

    url = f"sqlite:///{tmp_path}/ledger.db"
    states = {HostId("node01", 9000): "done", HostId("node03", 9000): "inactive"}
    write_ledger(url, SystemEnv(), states, cluster=CLUSTER)
    begin_run(url, "manual__1", Direction.UP, None)
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", url)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow:8080")
    worked = asyncio.run(deadline_missed(after_s=14400, cluster=CLUSTER, context=missed()))

    assert worked == "log, slack"
    text = json.dumps(chat.bodies[0])
    for part in (
        "not over yet: migrate_order_cluster",
        "node03:9000",
        "query-0000000007",
        "2026-03-01T12:00:00Z",
        "http://airflow:8080/dags/migrate_order_cluster/runs/manual__1",
        "runbooks/run-too-long.md",
    ):
        assert part in text
    assert "node01" not in text and "hunter2" not in text


@pytest.mark.parametrize(
    ("sent", "run_id", "direction", "target", "is_named"),
    [
        (Direction.UP, "manual__1", Direction.UP, 5, True),
        (Direction.UP, "manual__1", Direction.UP, 4, False),
        (Direction.UP, "manual__1", Direction.DOWN, None, False),
        (Direction.UP, "manual__2", Direction.UP, None, False),
        (Direction.DOWN, "manual__1", Direction.DOWN, 4, True),
        (Direction.DOWN, "manual__1", Direction.DOWN, 5, False),
    ],
)
def test_hosts_that_a_run_does_not_wait_for_are_not_named(
    sent: Direction,
    run_id: str,
    direction: Direction,
    target: int | None,
    is_named: bool,
    chat: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Those of later versions and of the other direction, and any while the run has not begun."""
    from oncluster_airflow.deadlines import deadline_missed

    url = f"sqlite:///{tmp_path}/ledger.db"
    write_ledger(url, SystemEnv(), {HostId("node03", 9000): "inactive"}, cluster=CLUSTER, direction=sent)
    begin_run(url, run_id, direction, target)
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", url)
    asyncio.run(deadline_missed(after_s=60, cluster=CLUSTER, context=missed()))

    assert ("node03" in json.dumps(chat.bodies[0])) is is_named


def test_a_ledger_out_of_reach_does_not_keep_people_from_being_told(
    chat: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from oncluster_airflow.deadlines import deadline_missed

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path}/file/ledger.db")
    asyncio.run(deadline_missed(after_s=60, cluster=CLUSTER, context=missed()))

    assert len(chat.bodies) == 1


def test_nobody_is_told_that_a_run_which_is_over_is_not_over(chat: Any) -> None:
    from oncluster_airflow.deadlines import deadline_missed

    for state in ("failed", "success"):
        assert asyncio.run(deadline_missed(after_s=60, context=missed(state=state))) == ""
    assert chat.bodies == []


def test_a_deadline_is_stored_as_a_number_since_runs_with_another_cannot_be_cleared() -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from oncluster_airflow.deadlines import deadline_of

    with DAG(dag_id="slow", schedule=None, deadline=deadline_of(3600)) as dag:
        pass
    (stored,) = DagSerialization.to_dict(dag)["dag"]["deadline"]
    assert stored.get("__var", stored)["interval"] == 3600.0


def test_a_deadline_goes_through_airflows_database_and_the_triggerer_finds_its_callback(chat: Any) -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.triggers.callback import CallbackTrigger

    from oncluster_airflow.deadlines import deadline_of

    with DAG(dag_id="slow", schedule=None, deadline=deadline_of(60)) as dag:
        pass
    stored = DagSerialization.to_dict(dag)
    assert "oncluster_airflow.deadlines.deadline_missed" in json.dumps(stored, default=str)
    DagSerialization.from_dict(stored)

    callback = deadline_of(60)[0].callback
    trigger = CallbackTrigger(
        callback.path, callback_kwargs={**callback.kwargs, "context": missed(dag_id="slow")}
    )

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    assert [event["state"] for event in asyncio.run(run())][-1] == "success"
    assert len(chat.bodies) == 1
    assert deadline_of(0) == []


def test_a_notifier_in_the_triggerer_does_not_hold_up_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    loop_went_on = threading.Event()
    seen: list[bool] = []
    monkeypatch.setattr(OnclusterNotifier, "notify", lambda *_: seen.append(loop_went_on.wait(60)))

    async def main() -> None:
        sending = asyncio.ensure_future(OnclusterNotifier().async_notify(failure("manual__1", "manual")))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        loop_went_on.set()
        await sending

    asyncio.run(main())
    assert seen == [True]


# --- long waits ---------------------------------------------------------------------------------------------


def test_a_wait_that_takes_long_is_told_once_while_it_goes_on_and_not_again_after_a_restart(
    records: Records, chat: Any
) -> None:
    from engine.ddl.outcome import HostOutcome, HostState
    from oncluster_airflow.late_wait import LateWait, told_when_late
    from oncluster_airflow.outcomes import WaitResult, WaitState

    hosts = (
        HostOutcome(HostId("node01", 9000), HostState.DONE),
        HostOutcome(HostId("node03", 9000), HostState.INACTIVE),
    )
    context = {"ti": failure("manual__1")["ti"]}
    late = LateWait.of_task(context, after_s=0.01, now_s=SystemEnv().now_s())
    assert late is not None
    carried = LateWait.from_json(json.loads(json.dumps(late.to_json())))

    async def wait(*, until_told: bool) -> None:
        told_once = asyncio.Event()

        def known() -> WaitResult:
            loop.call_soon_threadsafe(told_once.set)
            return WaitResult(WaitState.TIMEOUT, "query-0000000007", hosts)

        loop = asyncio.get_running_loop()
        async with told_when_late(carried, known, env=SystemEnv()):
            await told_once.wait()
            while until_told and not chat.bodies:
                await asyncio.sleep(0.01)

    asyncio.run(wait(until_told=True))
    asyncio.run(wait(until_told=False))

    (body,) = chat.bodies
    assert body["text"] == "[oncluster] not over yet: replica_health · order_cluster.check"
    text = json.dumps(body)
    assert "query-0000000007 is waited for on node03:9000" in text
    assert "to be started first: node03:9000" in text and "runbooks/stuck-ddl.md" in text


def test_whoever_is_told_of_a_long_wait_hears_of_hosts_that_an_earlier_run_sent_the_statement_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that begins after the time of another is over attaches to what that one sent."""
    from engine.migrations.model import Run, RunRequest, StatementRef, Step
    from oncluster_airflow.triggers import MigrationStatementTrigger

    url = f"sqlite:///{tmp_path}/ledger.db"
    states = {HostId("node01", 9000): "done", HostId("node03", 9000): "inactive"}
    write_ledger(url, SystemEnv(), states, cluster=CLUSTER)
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", url)

    def known(generation: int, statement: int) -> str:
        step = Step(5, "add_b", Direction.UP, generation, 2)
        run = Run(RunRequest("the second one", Direction.UP), CLUSTER, (step,))
        trigger = MigrationStatementTrigger(
            keeper_conn_id="keeper",
            cluster=CLUSTER,
            run=run.to_json(),
            ref=StatementRef(5, Direction.UP, statement).to_json(),
            deadline_s=None,
        )
        return ", ".join(each.host.readable for each in trigger._known().hosts)

    assert known(generation=1, statement=1) == "node03:9000"
    assert known(generation=1, statement=2) == known(generation=2, statement=1) == ""


def test_a_wait_that_ends_in_time_is_not_told(records: Records, chat: Any) -> None:
    from oncluster_airflow.late_wait import LateWait, told_when_late

    context = {"ti": failure("manual__1")["ti"]}
    late = LateWait.of_task(context, after_s=3600, now_s=SystemEnv().now_s())

    async def wait() -> None:
        async with told_when_late(late, lambda: pytest.fail("told"), env=SystemEnv()):
            await asyncio.sleep(0)

    asyncio.run(wait())
    assert chat.bodies == []
    assert LateWait.of_task(context, after_s=None, now_s=0) is None
