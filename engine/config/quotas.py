"""The section `quotas`: how much a user may use within each of several intervals.

Source: ClickHouse's UsersConfigAccessStorage (parseQuota) and QuotaCache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from engine.config import reading
from engine.config.element import Element
from engine.errors import ConfigError


class QuotaAmount(Enum):
    """What is counted; the value is its name in the configuration and in `system.quotas_usage`."""

    QUERIES = "queries"
    QUERY_SELECTS = "query_selects"
    QUERY_INSERTS = "query_inserts"
    ERRORS = "errors"
    RESULT_ROWS = "result_rows"
    RESULT_BYTES = "result_bytes"
    READ_ROWS = "read_rows"
    READ_BYTES = "read_bytes"
    EXECUTION_TIME = "execution_time"
    WRITTEN_BYTES = "written_bytes"
    FAILED_SEQUENTIAL_AUTHENTICATIONS = "failed_sequential_authentications"


class QuotaKey(Enum):
    """Who shares what is counted: statements with the same key do."""

    USER_NAME = "user"
    IP_ADDRESS = "keyed_by_ip"
    FORWARDED_IP_ADDRESS = "keyed_by_forwarded_ip"
    CLIENT_KEY_OR_USER_NAME = "keyed"


@dataclass(frozen=True, slots=True)
class QuotaInterval:
    """Limits by amount, the execution time in seconds; what is not in `limits` is counted only."""

    duration_s: int
    limits: Mapping[QuotaAmount, float]
    is_randomized: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """The intervals stand from the longest to the shortest. Of IP addresses as many bits are looked at as
    are given; None is all of them. `not_kept` names what configuration says in vain."""

    name: str
    key: QuotaKey = QuotaKey.USER_NAME
    intervals: tuple[QuotaInterval, ...] = ()
    ipv4_prefix_bits: int | None = None
    ipv6_prefix_bits: int | None = None
    not_kept: tuple[str, ...] = ()

    def limits(self, amount: QuotaAmount) -> bool:
        """Whether any interval does."""
        return any(amount in interval.limits for interval in self.intervals)


_NOT_KEPT = "queries_per_normalized_hash"
_KEYED_BY_QUERY = "keyed_by_normalized_query_hash"


def read_quotas(root: Element) -> dict[str, Quota]:
    """By name. Raises ConfigError."""
    elements = [element for section in root.all("quotas") for element in section.children]
    return {element.name: _quota(element) for element in reversed(elements)}


def _quota(element: Element) -> Quota:
    intervals = [
        interval
        for interval in element.all("interval")
        if reading.integer(interval, "duration", 0)  # as in ClickHouse: without one it says nothing
    ]
    not_kept = {
        child.name
        for interval in intervals
        for child in interval.children
        if child.name == _NOT_KEPT and child.text not in ("", "0")
    }
    if element.first(_KEYED_BY_QUERY) is not None:
        not_kept.add(_KEYED_BY_QUERY)
    return Quota(
        name=element.name,
        key=_key(element),
        intervals=tuple(sorted(map(_interval, intervals), key=lambda each: -each.duration_s)),
        ipv4_prefix_bits=_bits(element, "ipv4_prefix_bits", 32),
        ipv6_prefix_bits=_bits(element, "ipv6_prefix_bits", 128),
        not_kept=tuple(sorted(not_kept)),
    )


def _key(element: Element) -> QuotaKey:
    for key in (QuotaKey.IP_ADDRESS, QuotaKey.FORWARDED_IP_ADDRESS, QuotaKey.CLIENT_KEY_OR_USER_NAME):
        if element.first(key.value) is not None:
            return key
    return QuotaKey.USER_NAME


def _bits(element: Element, name: str, most: int) -> int | None:
    return reading.integer(element, name, most, at_most=most) if element.first(name) is not None else None


def _interval(element: Element) -> QuotaInterval:
    limits = {amount: _limit(element, amount) for amount in QuotaAmount}
    return QuotaInterval(
        reading.integer(element, "duration", 0),
        {amount: limit for amount, limit in limits.items() if limit},
        is_randomized=reading.boolean(element, "randomize", False),
    )


def _limit(element: Element, amount: QuotaAmount) -> float:
    """0 is none."""
    child = element.first(amount.value)
    if child is None or not child.text:
        return 0
    if amount is not QuotaAmount.EXECUTION_TIME:
        return reading.integer_of(child)
    try:
        seconds = float(child.text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{child.source}: <{child.name}> is '{child.text}'", hint="Write seconds.")
    return seconds
