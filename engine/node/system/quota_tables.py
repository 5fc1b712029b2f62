"""`system.quotas_usage` and `system.quota_usage`: what a node has counted of its users' quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.config.quotas import QuotaAmount
from engine.node.quotas import CountedInterval, QuotaUse
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row
from engine.sql import Token


class QuotasUsageTable:
    """Of everybody."""

    name = "quotas_usage"
    columns = ""

    def __init__(self, uses: Callable[[], Sequence[QuotaUse]]) -> None:
        self._uses = uses

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        return [{**row, "is_current": use is asked.quota_use} for use in self._uses() for row in _rows(use)]


class QuotaUsageTable:
    """Of the one who asks."""

    name = "quota_usage"
    columns = ""

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        return [] if asked.quota_use is None else list(_rows(asked.quota_use))


def _rows(use: QuotaUse) -> Iterator[Row]:
    for counted in use.intervals:
        yield {"quota_name": use.quota.name, "quota_key": use.key, **_interval(counted)}


def _interval(counted: CountedInterval) -> Row:
    duration_s, limits = counted.interval.duration_s, counted.interval.limits
    return {
        "start_time": int(counted.end_s - duration_s),
        "end_time": int(counted.end_s),
        "duration": duration_s,
        **{amount.value: counted.used.get(amount, 0) for amount in QuotaAmount},
        **{f"max_{amount.value}": limits.get(amount) for amount in QuotaAmount},
    }
