"""Failures reach people: the log, a web address, a mailbox."""

from __future__ import annotations

import datetime
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from engine.ddl.outcome import HostOutcome, HostState
from engine.names import HostId
from tests.airflow.sinks import StallingSink, serving


def context_of(error: BaseException) -> dict[str, Any]:
    start = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
    ti = SimpleNamespace(
        dag_id="migrate_order_cluster",
        run_id="manual__1",
        task_id="up.0003.wait_1",
        start_date=start,
        log_url="http://127.0.0.1:8080/dags/migrate_order_cluster/runs/manual__1/tasks/up.0003.wait_1",
    )
    return {"ti": ti, "exception": error}


def timeout_error() -> BaseException:
    from oncluster_airflow.errors import error_of
    from oncluster_airflow.outcomes import WaitResult, WaitState

    hosts = (
        HostOutcome(HostId("node01", 9000), HostState.DONE, duration_ms=12),
        HostOutcome(HostId("node02", 9000), HostState.RUNNING),
        HostOutcome(HostId("node03", 9000), HostState.INACTIVE),
    )
    return error_of(WaitResult(WaitState.TIMEOUT, "query-0000000007", hosts))


def test_a_timeout_is_posted_with_every_host_and_what_to_do(connection: Any, http_sink: Any) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    port = http_sink.server_address[1]
    connection("hooks", conn_type="http", host="127.0.0.1", port=port, schema="http")
    OnclusterNotifier(webhook_conn_id="hooks")(context_of(timeout_error()))

    (body,) = http_sink.bodies
    assert body["kind"] == "timeout"
    assert [(host["host"], host["state"]) for host in body["hosts"]] == [
        ("node01", "done"),
        ("node02", "running"),
        ("node03", "inactive"),
    ]
    assert body["entry"] == "query-0000000007"
    assert body["since"] == "2026-03-01T12:00:00+00:00"
    assert "not submitted again" in body["advice"]
    assert "node03:9000" in body["advice"]
    assert body["link"] in body["text"]


def test_of_a_task_that_is_not_tried_again_nobody_claims_that_it_has_sent_nothing() -> None:
    from oncluster_airflow.errors import TaskRefused
    from oncluster_airflow.notification import kind_and_advice

    kind, advice = kind_and_advice(TaskRefused("shard 1, node01: 3 rows, 4 expected"))
    assert kind == "refused" and "reason" in advice and "nothing was sent" not in advice


def test_a_failure_is_mailed(connection: Any, smtp_sink: Any) -> None:
    from oncluster_airflow.errors import error_of
    from oncluster_airflow.notifier import OnclusterNotifier
    from oncluster_airflow.outcomes import WaitResult, WaitState

    port = smtp_sink.server_address[1]
    connection(
        "mail",
        conn_type="smtp",
        host="127.0.0.1",
        port=port,
        extra={"disable_ssl": True, "disable_tls": True, "from_email": "oncluster@example.org"},
    )
    failed = HostOutcome(HostId("node05", 9000), HostState.FAILED, code=57, error="Table already exists")
    error = error_of(WaitResult(WaitState.FAILED, "query-0000000009", (failed,)))
    OnclusterNotifier(email_conn_id="mail", email_to=["dba@example.org"])(context_of(error))

    (mail,) = smtp_sink.mails
    assert "To: dba@example.org" in mail
    assert "Subject: [oncluster] failed: migrate_order_cluster" in mail.replace("=C2=B7", "")[:2000] or (
        "Subject: =?utf-8?" in mail
    )


def test_a_channel_that_does_not_work_does_not_silence_the_others(
    connection: Any, http_sink: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    connection(
        "mail", conn_type="smtp", host="127.0.0.1", port=1, extra={"disable_ssl": True, "retry_limit": 1}
    )
    port = http_sink.server_address[1]
    connection("hooks", conn_type="http", host="127.0.0.1", port=port, schema="http")
    notifier = OnclusterNotifier(email_conn_id="mail", email_to=["dba@example.org"], webhook_conn_id="hooks")
    with caplog.at_level(logging.ERROR):
        notifier(context_of(timeout_error()))

    assert len(http_sink.bodies) == 1


def test_a_web_address_that_answers_500_does_not_hide_the_failure(connection: Any, http_sink: Any) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    http_sink.status = 500
    port = http_sink.server_address[1]
    connection("hooks", conn_type="http", host="127.0.0.1", port=port, schema="http")
    OnclusterNotifier(webhook_conn_id="hooks")(context_of(timeout_error()))

    assert len(http_sink.bodies) == 1


@pytest.mark.parametrize("kind", ["webhook", "email"])
def test_a_server_that_never_comes_to_an_end_is_left_and_the_others_are_told(
    kind: str,
    connection: Any,
    http_sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from oncluster_airflow import channels
    from oncluster_airflow.notifier import OnclusterNotifier

    monkeypatch.setattr(channels, "_SEND_TIMEOUT_S", 0.5)
    stalled = {"webhook_conn_id": "stalled"} if kind == "webhook" else {"email_conn_id": "stalled"}
    connection("chat", conn_type="http", host="127.0.0.1", port=http_sink.server_address[1], schema="http")
    with serving(StallingSink()) as sink:
        where = {"host": "127.0.0.1", "port": sink.server_address[1]}
        if kind == "webhook":
            connection("stalled", conn_type="http", schema="http", **where)
        else:
            connection("stalled", conn_type="smtp", extra={"disable_ssl": True, "disable_tls": True}, **where)
        notifier = OnclusterNotifier(email_to=["dba@example.org"], slack_conn_id="chat", **stalled)
        notifier(context_of(timeout_error()))

    assert len(http_sink.bodies) == 1
    assert f"channel={kind} connection stalled: it did not take the message within 0.5 s" in caplog.text


def test_channels_come_from_the_environment_when_nothing_else_names_them(
    monkeypatch: pytest.MonkeyPatch, connection: Any, http_sink: Any
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    port = http_sink.server_address[1]
    connection("hooks", conn_type="http", host="127.0.0.1", port=port, schema="http")
    monkeypatch.setenv("ONCLUSTER_NOTIFY_WEBHOOK_CONN", "hooks")
    OnclusterNotifier()(context_of(ValueError("no")))

    assert http_sink.bodies[0]["kind"] == "failed"


def test_the_variable_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, connection: Any, http_sink: Any
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    port = http_sink.server_address[1]
    connection("hooks", conn_type="http", host="127.0.0.1", port=port, schema="http")
    monkeypatch.setenv("AIRFLOW_VAR_ONCLUSTER_NOTIFY", '{"webhook_conn_id": "hooks"}')
    monkeypatch.setenv("ONCLUSTER_NOTIFY_WEBHOOK_CONN", "nobody")
    OnclusterNotifier()(context_of(ValueError("no")))

    assert len(http_sink.bodies) == 1


@pytest.mark.parametrize(
    "receivers", ['"dba@example.org, ops@example.org"', '["dba@example.org", "ops@example.org"]']
)
def test_receivers_of_mail_are_a_list_or_one_text(receivers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is a sequence, too, of letters."""
    from oncluster_airflow.notifier import OnclusterNotifier

    monkeypatch.setenv("AIRFLOW_VAR_ONCLUSTER_NOTIFY", f'{{"email_to": {receivers}}}')
    for notifier in (OnclusterNotifier(), OnclusterNotifier(email_to=json.loads(receivers))):
        assert notifier.resolve().email_to == ("dba@example.org", "ops@example.org")


def test_what_the_variable_cannot_mean_is_logged_and_the_rest_holds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, airflow_logs: None
) -> None:
    from oncluster_airflow.channels import Channels

    odd: dict[str, Any] = {"webhook_conn": "hooks", "email_conn_id": 5, "email_to": {}}
    value = {**odd, "slack_conn_id": "chat", "webhook_conn_id": None}
    monkeypatch.setenv("AIRFLOW_VAR_ONCLUSTER_NOTIFY", json.dumps(value))
    assert Channels().resolve() == Channels(slack_conn_id="chat")
    for name in odd:
        assert f"{name} is not as it should be" in caplog.text
    monkeypatch.setenv("AIRFLOW_VAR_ONCLUSTER_NOTIFY", "[5]")
    assert Channels().resolve() == Channels()


@pytest.mark.parametrize("missing", ["receivers", "connection"])
def test_mail_without_receivers_or_without_a_connection_is_logged(
    missing: str, caplog: pytest.LogCaptureFixture, airflow_logs: None
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    half = {"email_conn_id": "mail"} if missing == "receivers" else {"email_to": "dba@example.org"}
    OnclusterNotifier(**half)(context_of(ValueError("no")))
    assert f"channel=email it has no {missing}" in caplog.text


@pytest.mark.parametrize("extra", [{"cert": 5}, {"proxies": {"http": 5}}])
def test_a_connection_that_airflows_hook_trips_over_does_not_silence_the_others(
    extra: dict[str, Any],
    connection: Any,
    http_sink: Any,
    caplog: pytest.LogCaptureFixture,
    airflow_logs: None,
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    where = {"conn_type": "http", "host": "127.0.0.1", "port": http_sink.server_address[1], "schema": "http"}
    connection("odd", **where, extra=extra)
    connection("chat", **where)
    OnclusterNotifier(webhook_conn_id="odd", slack_conn_id="chat")(context_of(ValueError("no")))

    assert len(http_sink.bodies) == 1
    assert "channel=webhook connection odd: TypeError" in caplog.text


def test_passwords_do_not_leave_in_messages(connection: Any, http_sink: Any) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    port = http_sink.server_address[1]
    connection("hooks", conn_type="http", host="127.0.0.1", port=port, schema="http")
    error = RuntimeError("CREATE USER u IDENTIFIED WITH sha256_password BY 'hunter2'")
    OnclusterNotifier(webhook_conn_id="hooks")(context_of(error))

    assert "hunter2" not in json.dumps(http_sink.bodies)
