"""Tells people about tasks that failed, were too slow, wait for an answer, or work again.

A channel that does not work is logged and does not silence the others (`oncluster_airflow.channels`).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import replace

from airflow.sdk import BaseNotifier, Context

from engine.env import SystemEnv
from engine.errors import OnclusterError
from engine.operations.alerts import ChannelFailed, Item, Links, take_back, tell
from engine.operations.records import Records
from oncluster_airflow.channels import Channels, OutgoingChannel, send_over
from oncluster_airflow.notification import Notification, approval_wanted, from_context
from oncluster_airflow.operation_site import is_scheduled
from oncluster_airflow.settings import OperationSettings, Settings, receivers


class Repeats(enum.StrEnum):
    """Whether the same task's failure in another run is told again."""

    EVERY = "every"
    """Each failure. For DAGs that somebody starts."""

    REMIND = "remind"
    """In runs that nobody has asked for once, again after some hours, and once more when the task works again
    (`WorksAgainNotifier`). For DAGs that run every few minutes."""


class OnclusterNotifier(BaseNotifier):
    """For `on_failure_callback` of tasks and DAGs. `email_to` needs `email_conn_id`, a connection of type
    smtp; `webhook_conn_id` and `slack_conn_id` are connections of type http."""

    def __init__(
        self,
        *,
        email_conn_id: str = "",
        email_to: Sequence[str] = (),
        webhook_conn_id: str = "",
        slack_conn_id: str = "",
        repeats: Repeats = Repeats.EVERY,
    ) -> None:
        super().__init__()
        self.channels = Channels(email_conn_id, receivers(email_to), webhook_conn_id, slack_conn_id)
        self.repeats = repeats

    def notify(self, context: Context) -> None:
        told = from_context(dict(context), docs_url=Settings.from_environment().docs_url)
        if self.repeats is Repeats.REMIND and is_scheduled(dict(context)):
            self.remind(told)
        else:
            self.send(told)

    async def async_notify(self, context: Context) -> None:
        """For callbacks in the triggerer, whose loop must not wait for a mail server."""
        await asyncio.to_thread(self.notify, context)

    def send(self, notification: Notification) -> None:
        """Send one message over every channel there is."""
        send_over(self.channels.open(), notification)

    def remind(self, notification: Notification, *, about_run: bool = False) -> None:
        """Send it over the channels that have not had it, or long ago: of the task, or of this run of it."""
        records = open_records(self.log)
        if records is None:
            self.send(notification)
            return
        for channel in self.channels.open():
            _tell_once(records, channel, notification, self.log, notification.run_id if about_run else "")

    def resolve(self) -> Channels:
        """The channels in force."""
        return self.channels.resolve()


class ApprovalWantedNotifier(OnclusterNotifier):
    """Tells people that a plan waits for their answer."""

    def notify(self, context: Context) -> None:
        self.send(approval_wanted(dict(context), docs_url=Settings.from_environment().docs_url))


class WorksAgainNotifier(OnclusterNotifier):
    """For `on_success_callback` of tasks whose failures are told with `Repeats.REMIND`: says once that the
    task works again, where people were told that it does not."""

    def notify(self, context: Context) -> None:
        records = open_records(self.log)
        if records is None:
            return
        worked = from_context(dict(context))
        over = replace(worked, kind="works again", reason=f"run {worked.run_id} went well")
        for channel in self.channels.open():
            sender = _Sender(channel, over)
            try:
                take_back(records, sender, over.as_alert())
            except (ChannelFailed, OnclusterError) as error:
                self.log.error("oncluster.notify_failed channel=%s %s", channel.name, error)


def open_records(log: object) -> Records | None:
    """The memory of what was told; None, and a line in the log, where it cannot be used."""
    try:
        return Records(Settings.from_environment().records_url, env=SystemEnv())
    except OnclusterError as error:
        log.error("oncluster.notify_without_memory: %s", error)  # type: ignore[attr-defined]
        return None


class _Sender:
    """Sends a notification where the engine would send its own message: it says more of a task."""

    def __init__(self, channel: OutgoingChannel, notification: Notification) -> None:
        self._channel = channel
        self._notification = notification
        self.name = channel.name
        self.has_sent = False

    def send(self, _: object) -> None:
        self._channel.send(self._notification)
        self.has_sent = True


def _tell_once(
    records: Records, channel: OutgoingChannel, notification: Notification, log: object, run_id: str
) -> Item | None:
    sender = _Sender(channel, notification)
    try:
        policy = OperationSettings.from_environment().policy
        return tell(
            records,
            sender,
            notification.as_alert(run_id=run_id),
            links=Links(),
            policy=policy,
        )
    except ChannelFailed as error:
        log.error("oncluster.notify_failed channel=%s %s", channel.name, error)  # type: ignore[attr-defined]
    except OnclusterError as error:
        # Without a memory people are told once too often rather than not at all.
        log.error("oncluster.notify_without_memory: %s", error)  # type: ignore[attr-defined]
        if not sender.has_sent:  # else it was the remembering that failed
            send_over((channel,), notification)
    return None
