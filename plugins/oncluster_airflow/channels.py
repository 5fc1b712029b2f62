"""The ways to people: the log, a mailbox, a web address, a chat program.

Where to is looked up when there is something to tell; the first that is set counts:

1. what a notifier was given in a DAG file,
2. the Airflow variable `oncluster_notify`, JSON: {"email_conn_id": …, "email_to": [...],
   "webhook_conn_id": …, "slack_conn_id": …},
3. the environment (`oncluster_airflow.settings`).

The address of a chat program's webhook is a secret: it stands in the connection's password, so that Airflow
hides it, and is taken out of everything that is logged here.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from airflow.providers.http.hooks.http import HttpHook
from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.sdk import BaseHook, Variable
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from engine.operations.alerts import ChannelFailed
from oncluster_airflow.settings import Settings, receivers

VARIABLE = "oncluster_notify"
_CONNECTIONS = ("email_conn_id", "webhook_conn_id", "slack_conn_id")
_HTTP_TIMEOUT_S = 15
_SEND_TIMEOUT_S = 60.0
"""For a whole message. Timeouts of sockets begin anew with each byte, so a server that sends one now and then
would hold the task that tells of its failure for ever; Airflow's mail hook tries five times."""

log = logging.getLogger(__name__)


class Outgoing(Protocol):
    """What can be sent: messages about findings, and notifications about tasks."""

    @property
    def subject(self) -> str: ...
    @property
    def text(self) -> str: ...
    def to_json(self) -> dict[str, Any]: ...
    def to_slack(self) -> dict[str, Any]: ...


class OutgoingChannel(Protocol):
    """An `engine.operations.alerts.Channel` that takes notifications, too."""

    @property
    def name(self) -> str: ...

    def send(self, message: Outgoing) -> None:
        """Raises ChannelFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Channels:
    """Where messages go besides the log."""

    email_conn_id: str = ""
    email_to: tuple[str, ...] = ()
    webhook_conn_id: str = ""
    slack_conn_id: str = ""

    def or_else(self, other: Channels) -> Channels:
        """What is not set here is taken from `other`."""
        return Channels(
            self.email_conn_id or other.email_conn_id,
            self.email_to or other.email_to,
            self.webhook_conn_id or other.webhook_conn_id,
            self.slack_conn_id or other.slack_conn_id,
        )

    def resolve(self) -> Channels:
        """The channels in force."""
        settings = Settings.from_environment()
        environment = Channels(
            settings.email_conn_id, settings.email_to, settings.webhook_conn_id, settings.slack_conn_id
        )
        return self.or_else(_variable()).or_else(environment)

    def open(self) -> tuple[OutgoingChannel, ...]:
        """The log and what else is in force."""
        found = self.resolve()
        channels: list[OutgoingChannel] = [LogChannel()]
        if found.email_conn_id and found.email_to:
            channels.append(EmailChannel(found.email_conn_id, found.email_to))
        elif found.email_conn_id or found.email_to:
            lacks = "receivers" if found.email_conn_id else "connection"
            log.error("oncluster.notify_failed channel=email it has no %s", lacks)
        if found.webhook_conn_id:
            channels.append(WebhookChannel(found.webhook_conn_id))
        if found.slack_conn_id:
            channels.append(SlackChannel(found.slack_conn_id))
        return tuple(channels)


@dataclass(frozen=True, slots=True)
class LogChannel:
    """The log of the task; always there."""

    name: str = "log"

    def send(self, message: Outgoing) -> None:
        log.warning("oncluster.notify %s\n%s", message.subject, message.text)


@dataclass(frozen=True, slots=True)
class EmailChannel:
    """A mailbox, over a connection of type smtp."""

    conn_id: str
    to: Sequence[str]
    name: str = "email"

    def send(self, message: Outgoing) -> None:
        _in_time(self.conn_id, lambda: self._send(message))

    def _send(self, message: Outgoing) -> None:
        with SmtpHook(smtp_conn_id=self.conn_id) as smtp:
            smtp.send_email_smtp(
                to=list(self.to),
                from_email=smtp.from_email or "oncluster@localhost",
                subject=message.subject,
                html_content=f"<pre>{escape(message.text)}</pre>",
            )


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """A web address that gets a JSON document by POST, over a connection of type http."""

    conn_id: str
    name: str = "webhook"

    def send(self, message: Outgoing) -> None:
        _in_time(self.conn_id, lambda: _post(self.conn_id, message.to_json()))


@dataclass(frozen=True, slots=True)
class SlackChannel:
    """Slack's incoming webhooks, and chat programs that understand the same.

    A connection of type http: host `hooks.slack.com`, schema `https`, and in the password what comes after it
    in the address, such as `services/T…/B…/X…`.
    """

    conn_id: str
    name: str = "slack"

    def send(self, message: Outgoing) -> None:
        _in_time(self.conn_id, lambda: _post(self.conn_id, message.to_slack()))


def send_over(channels: Sequence[OutgoingChannel], message: Outgoing) -> tuple[str, ...]:
    """Send over every channel; one that does not work is logged and does not silence the others.

    Returns the names of those that worked.
    """
    worked = []
    for channel in channels:
        try:
            channel.send(message)
            worked.append(channel.name)
        except ChannelFailed as error:
            log.error("oncluster.notify_failed channel=%s %s", channel.name, error)
    return tuple(worked)


def _in_time(conn_id: str, send: Callable[[], None]) -> None:
    """In a thread, which is left alone when the time is over: the message may still arrive. Raises
    ChannelFailed, whatever went wrong: a field of the connection that Airflow's hook trips over is no reason
    to leave out the other channels."""
    outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - raised below, as what it is here
            outcome.put(error)
        else:
            outcome.put(None)

    # Not of a pool, whose threads are waited for when the process ends.
    threading.Thread(target=work, name=f"oncluster-notify-{conn_id}", daemon=True).start()
    try:
        error = outcome.get(timeout=_SEND_TIMEOUT_S)
    except queue.Empty:
        raise ChannelFailed(
            f"connection {conn_id}: it did not take the message within {_SEND_TIMEOUT_S:g} s"
        ) from None
    if isinstance(error, ChannelFailed):
        raise error
    if error is not None:
        raise ChannelFailed(f"connection {conn_id}: {_without_secrets(error, conn_id)}") from None


def _post(conn_id: str, body: dict[str, Any]) -> None:
    """Not by the hook's own `run`, which logs the whole address when something is wrong with it."""
    connection = BaseHook.get_connection(conn_id)
    # With a login the password is for that; without one it is the secret part of the address.
    endpoint = (connection.password or "").lstrip("/") if not connection.login else ""
    hook = HttpHook(method="POST", http_conn_id=conn_id)
    session = hook.get_conn()
    # A POST that is redirected would arrive as a GET, without the message.
    answer = session.post(
        hook.url_from_endpoint(endpoint or None),
        json=body,
        timeout=_HTTP_TIMEOUT_S,
        allow_redirects=False,
    )
    if answer.status_code >= 300:
        raise ChannelFailed(f"connection {conn_id}: HTTP {answer.status_code} {answer.reason}")


def _without_secrets(error: Exception, conn_id: str) -> str:
    """The error's text; libraries put whole addresses into it."""
    text = f"{type(error).__name__}: {error}"
    try:
        connection = BaseHook.get_connection(conn_id)
    except (AirflowException, AirflowRuntimeError):
        return text
    for secret in (connection.password, (connection.password or "").lstrip("/")):
        if secret:
            text = text.replace(secret, "***")
    return text


def _variable() -> Channels:
    """A field that cannot be meant is logged, and the others hold."""
    try:
        value: Any = Variable.get(VARIABLE, default={}, deserialize_json=True)
        given = {name: field for name, field in dict(value).items() if field is not None}
    except (AirflowRuntimeError, AirflowException, ValueError, TypeError) as error:
        log.error("oncluster.notify_failed variable=%s: %s", VARIABLE, error)
        return Channels()
    found: dict[str, Any] = {}
    for name, field in given.items():
        if name == "email_to" and isinstance(field, str | list):
            found[name] = receivers(field if isinstance(field, str) else map(str, field))
        elif name in _CONNECTIONS and isinstance(field, str):
            found[name] = field
        else:
            log.error(
                "oncluster.notify_failed variable=%s: %s is not as it should be; there are %s (text) and "
                "email_to (a list)",
                VARIABLE,
                name,
                ", ".join(_CONNECTIONS),
            )
    return Channels(**found)
