"""The tables that the sample load writes to, and whether they are there."""

from __future__ import annotations

from engine.errors import ConfigError
from engine.etl.check import Counts

CLUSTER = "order_cluster"
# All of the sample data. Its last evening in New York is the next year in UTC.
FIRST_DAY, LAST_DAY = "2013-01-01", "2014-01-01"
TARGETS = ("flights.flights_all", "flights.flights_quarantine_all", "flights.daily_delays_all")


class TargetsMissing(ConfigError):
    """`missing` are the tables that the host does not have."""

    def __init__(self, missing: tuple[str, ...], host: str) -> None:
        super().__init__(
            f"{host} has no table {', '.join(missing)} to load into.",
            hint=f"Apply the migrations of {CLUSTER} first: oncluster migrate apply --cluster {CLUSTER}.",
        )
        self.missing = missing


async def require_targets(counts: Counts, host: str, targets: tuple[str, ...] = TARGETS) -> None:
    """Raises TargetsMissing, and what asking raises."""
    missing = []
    for target in targets:
        database, _, table = target.partition(".")
        sql = f"SELECT count() FROM system.tables WHERE database = '{database}' AND name = '{table}'"
        if not await counts.count(host, sql):
            missing.append(target)
    if missing:
        raise TargetsMissing(tuple(missing), host)
