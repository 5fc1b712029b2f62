"""What there is to tell now. Pure: what is open, what is gone and what was told in, items out.

not told yet                                   → NEW
told, but as something less bad                → WORSE
told longer ago than `remind_after_s`          → REMINDER
told, gone for `settle_s`                      → RESOLVED
told, gone for less than that                  → nothing: a trouble that comes and goes is one trouble
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.operations.alerts.alert import Alert, told_under
from engine.operations.finding import Severity
from engine.operations.records import AlertRecord


class News(enum.StrEnum):
    """Why an alert is in a message. In the order in which a message has them."""

    NEW = "new"
    WORSE = "worse"
    REMINDER = "reminder"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Policy:
    """When people are told.

    - `remind_after_s`: how long after the last time they are told again of what is still there; 0: never.
    - `settle_s`: how long a trouble must be gone before it is said to be over.
    - `least`: what is less bad than this is not told.
    """

    remind_after_s: float = 4 * 3600.0
    settle_s: float = 600.0
    least: Severity = Severity.WARNING


@dataclass(frozen=True, slots=True)
class Gone:
    """A trouble that was not found any more at `at_ms`."""

    alert: Alert
    at_ms: int


@dataclass(frozen=True, slots=True)
class Item:
    """One alert in a message. `times_told` is how often people were told before."""

    news: News
    alert: Alert
    times_told: int = 0
    at_ms: int | None = None
    """When it was over, for RESOLVED."""


def decide(
    still_there: Iterable[Alert],
    gone: Iterable[Gone],
    told: Mapping[str, AlertRecord],
    *,
    now_ms: int,
    policy: Policy,
) -> tuple[Item, ...]:
    """The items of one message over one channel: by news, the worst first, then the oldest."""
    items = []
    for alert in still_there:
        if alert.severity >= policy.least and (item := _still_there(alert, told, now_ms, policy)):
            items.append(item)
    for over in gone:
        records = _records_of(over.alert.trouble, told)
        if records and now_ms - over.at_ms >= policy.settle_s * 1000:
            times = sum(record.times_sent for _, record in records)
            items.append(Item(News.RESOLVED, over.alert, times, over.at_ms))
    order = list(News)
    return tuple(
        sorted(
            items,
            key=lambda item: (
                order.index(item.news),
                -item.alert.severity,
                item.alert.kind,
                item.alert.since_ms or 0,
                item.alert.where,
            ),
        )
    )


def told_fingerprints(trouble: str, told: Mapping[str, AlertRecord]) -> tuple[str, ...]:
    """Under which of the fingerprints of a trouble, one for each severity, people were told."""
    return tuple(told_under(trouble, severity) for severity, _ in _records_of(trouble, told))


def _still_there(alert: Alert, told: Mapping[str, AlertRecord], now_ms: int, policy: Policy) -> Item | None:
    records = _records_of(alert.trouble, told)
    if not records:
        return Item(News.NEW, alert)
    times = sum(record.times_sent for _, record in records)
    if alert.severity > max(severity for severity, _ in records):
        return Item(News.WORSE, alert, times)
    last_ms = max(record.last_sent_ms for _, record in records)
    if policy.remind_after_s and now_ms - last_ms >= policy.remind_after_s * 1000:
        return Item(News.REMINDER, alert, times)
    return None


def _records_of(trouble: str, told: Mapping[str, AlertRecord]) -> list[tuple[Severity, AlertRecord]]:
    return [
        (severity, record)
        for severity in Severity
        if (record := told.get(told_under(trouble, severity))) is not None
    ]
