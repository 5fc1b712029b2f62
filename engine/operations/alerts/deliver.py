"""Sending what there is to tell, channel by channel, and remembering what was told.

Each channel has a memory of its own: a mailbox that did not work gets what it has missed when it works again,
and the chat, which knows it already, gets nothing twice. A message is sent, then remembered; a crash in
between sends it once more. Two that deliver at the same moment may both send. Nothing is lost either way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.operations.alerts.alert import Alert
from engine.operations.alerts.decide import Gone, Item, News, Policy, decide, told_fingerprints
from engine.operations.alerts.message import Links, Message
from engine.operations.records import AlertRecord, Records

log = logging.getLogger(__name__)

_OVERLAP_MS = 3_600_000


class ChannelFailed(Exception):
    """A message could not be sent. The text has no secrets."""


class Channel(Protocol):
    """A way to people. `name` stands in the records and stays the same."""

    @property
    def name(self) -> str: ...

    def send(self, message: Message) -> None:
        """Raises ChannelFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """How many items each channel was sent, and why others were sent none."""

    sent: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def deliver(
    records: Records,
    channels: Iterable[Channel],
    cluster: str,
    *,
    links: Links = Links(),  # noqa: B008 - frozen
    policy: Policy = Policy(),  # noqa: B008 - frozen
) -> Delivered:
    """Tell what is new, worse, still there or over among the cluster's recorded findings.

    Raises RecordsUnavailable before anything is sent, and between channels.
    """
    now_ms = records.now_ms()
    still_there = [Alert.of_record(record) for record in records.open_findings(cluster)]
    troubles = {alert.trouble for alert in still_there}
    sent: dict[str, int] = {}
    failed: dict[str, str] = {}
    for channel in channels:
        told = records.alerts(cluster, channel.name)
        gone = _gone(records, cluster, told, troubles)
        items = decide(still_there, gone, told, now_ms=now_ms, policy=policy)
        if items and _send(channel, Message(cluster, items, links), failed):
            sent[channel.name] = len(items)
            _remember(records, channel.name, items, told)
    return Delivered(sent, failed)


def tell(
    records: Records,
    channel: Channel,
    alert: Alert,
    *,
    links: Links = Links(),  # noqa: B008 - frozen
    policy: Policy = Policy(),  # noqa: B008 - frozen
) -> Item | None:
    """Tell of one trouble that is no finding, unless people know of it. What was sent, None for nothing.

    Raises ChannelFailed, RecordsUnavailable.
    """
    told = records.alerts(alert.cluster, channel.name)
    items = decide([alert], [], told, now_ms=records.now_ms(), policy=policy)
    if not items:
        return None
    channel.send(Message(alert.cluster, items, links))
    _remember(records, channel.name, items, told)
    return items[0]


def take_back(
    records: Records,
    channel: Channel,
    alert: Alert,
    *,
    links: Links = Links(),  # noqa: B008 - frozen
) -> Item | None:
    """Say that a trouble is over which people were told of by `tell`; None when they were not told.

    Raises ChannelFailed, RecordsUnavailable.
    """
    told = records.alerts(alert.cluster, channel.name)
    now_ms = records.now_ms()
    items = decide([], [Gone(alert, now_ms)], told, now_ms=now_ms, policy=replace(Policy(), settle_s=0.0))
    if not items:
        return None
    channel.send(Message(alert.cluster, items, links))
    _remember(records, channel.name, items, told)
    return items[0]


def _gone(records: Records, cluster: str, told: Mapping[str, AlertRecord], troubles: set[str]) -> list[Gone]:
    """What people were told of and is no more, each once, with its last end."""
    if not told:
        return []
    # Somebody may have seen the end of it while somebody else was still telling of its begin.
    since_ms = min(record.first_sent_ms for record in told.values()) - _OVERLAP_MS
    last: dict[str, Gone] = {}
    for record in records.resolved_findings(cluster, since_ms=since_ms):
        alert = Alert.of_record(record)
        at_ms = record.resolved_ms or 0
        known = last.get(alert.trouble)
        if alert.trouble not in troubles and (known is None or known.at_ms < at_ms):
            last[alert.trouble] = Gone(alert, at_ms)
    return list(last.values())


def _send(channel: Channel, message: Message, failed: dict[str, str]) -> bool:
    try:
        channel.send(message)
    except ChannelFailed as error:
        failed[channel.name] = str(error)
        log.error("alerts.channel_failed channel=%s cluster=%s: %s", channel.name, message.cluster, error)
        return False
    return True


def _remember(records: Records, channel: str, items: Sequence[Item], told: Mapping[str, AlertRecord]) -> None:
    records.record_message(
        items[0].alert.cluster,
        channel,
        told=[_told_as(item, told) for item in items if item.news is not News.RESOLVED],
        over=[
            fingerprint
            for item in items
            if item.news is News.RESOLVED
            for fingerprint in told_fingerprints(item.alert.trouble, told)
        ],
    )


def _told_as(item: Item, told: Mapping[str, AlertRecord]) -> str:
    """A reminder of what has become less bad goes on under what it was told as."""
    known = told_fingerprints(item.alert.trouble, told)
    return known[-1] if item.news is News.REMINDER and known else item.alert.fingerprint
