"""Tells people about failures and timeouts: the log always, e-mail and a webhook where connections are named.

Where to is looked up when there is something to tell, the first that is set:

1. the notifier's arguments,
2. the Airflow variable `oncluster_notify`, JSON: {"email_conn_id": …, "email_to": [...],
   "webhook_conn_id": …},
3. the environment (`oncluster_airflow.settings`).

A channel that does not work is logged and does not silence the others.
"""

from __future__ import annotations

import smtplib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import requests
from airflow.providers.http.hooks.http import HttpHook
from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.sdk import BaseNotifier, Context, Variable
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from oncluster_airflow.notification import Notification, approval_wanted, from_context
from oncluster_airflow.settings import Settings

VARIABLE = "oncluster_notify"
_HTTP_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class Channels:
    """Where messages go besides the log."""

    email_conn_id: str = ""
    email_to: tuple[str, ...] = ()
    webhook_conn_id: str = ""


class OnclusterNotifier(BaseNotifier):
    """For `on_failure_callback` of tasks and DAGs. `email_to` needs `email_conn_id`, a connection of type
    smtp; `webhook_conn_id` is a connection of type http, whose URL gets a JSON document by POST."""

    def __init__(
        self, *, email_conn_id: str = "", email_to: Sequence[str] = (), webhook_conn_id: str = ""
    ) -> None:
        super().__init__()
        self.channels = Channels(email_conn_id, tuple(email_to), webhook_conn_id)

    def notify(self, context: Context) -> None:
        self.send(from_context(dict(context)))

    async def async_notify(self, context: Context) -> None:
        """For deadline alerts, which run in the triggerer; messages are short, so the loop is not blocked
        long."""
        self.notify(context)

    def send(self, notification: Notification) -> None:
        """Send one message over every channel there is."""
        self.log.warning("oncluster.notify kind=%s\n%s", notification.kind, notification.text)
        channels = self.resolve()
        if channels.email_conn_id and channels.email_to:
            try:
                self._send_email(channels, notification)
            except (
                OSError,
                smtplib.SMTPException,
                AirflowException,
                AirflowRuntimeError,
                ValueError,
            ) as error:
                self.log.error(
                    "oncluster.notify_failed channel=email conn=%s: %s", channels.email_conn_id, error
                )
        if channels.webhook_conn_id:
            try:
                self._post(channels.webhook_conn_id, notification)
            except (requests.RequestException, AirflowException, AirflowRuntimeError, ValueError) as error:
                self.log.error(
                    "oncluster.notify_failed channel=webhook conn=%s: %s", channels.webhook_conn_id, error
                )

    def resolve(self) -> Channels:
        """The channels in force."""
        settings = Settings.from_environment()
        variable = self._variable()
        return Channels(
            email_conn_id=self.channels.email_conn_id or variable.email_conn_id or settings.email_conn_id,
            email_to=self.channels.email_to or variable.email_to or settings.email_to,
            webhook_conn_id=self.channels.webhook_conn_id
            or variable.webhook_conn_id
            or settings.webhook_conn_id,
        )

    def _variable(self) -> Channels:
        try:
            value: Any = Variable.get(VARIABLE, default={}, deserialize_json=True)
            return Channels(
                str(value.get("email_conn_id", "")),
                tuple(value.get("email_to", ())),
                str(value.get("webhook_conn_id", "")),
            )
        except (AirflowRuntimeError, AirflowException, ValueError, AttributeError) as error:
            self.log.error("oncluster.notify_failed variable=%s: %s", VARIABLE, error)
            return Channels()

    @staticmethod
    def _send_email(channels: Channels, notification: Notification) -> None:
        with SmtpHook(smtp_conn_id=channels.email_conn_id) as smtp:
            smtp.send_email_smtp(
                to=list(channels.email_to),
                from_email=smtp.from_email or "oncluster@localhost",
                subject=notification.subject,
                html_content=f"<pre>{escape(notification.text)}</pre>",
            )

    @staticmethod
    def _post(conn_id: str, notification: Notification) -> None:
        HttpHook(method="POST", http_conn_id=conn_id).run(
            json=notification.to_json(), extra_options={"timeout": _HTTP_TIMEOUT_S}
        )


class ApprovalWantedNotifier(OnclusterNotifier):
    """Tells people that a plan waits for their answer."""

    def notify(self, context: Context) -> None:
        self.send(approval_wanted(dict(context)))
