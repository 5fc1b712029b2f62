"""The tables and columns that the sample load writes to, and whether they are there."""

from __future__ import annotations

from engine.errors import ConfigError
from engine.etl.check import Counts
from engine.names import quote_string

CLUSTER = "order_cluster"
# All of the sample data. Its last evening in New York is the next year in UTC.
FIRST_DAY, LAST_DAY = "2013-01-01", "2014-01-01"
TARGETS = ("flights.flights_all", "flights.flights_quarantine_all", "flights.daily_delays_all")
# Of the last migration that the load needs.
COLUMNS = ("flights.flights_all.airline", "flights.daily_delays_all.seats")


class TargetsMissing(ConfigError):
    """`missing` are the tables that the host does not have, or else the columns."""

    def __init__(self, missing: tuple[str, ...], host: str) -> None:
        what = "column" if missing[0].count(".") == 2 else "table"
        super().__init__(
            f"{host} has no {what} {', '.join(missing)} to load into.",
            hint=f"Apply the migrations of {CLUSTER} first: oncluster migrate apply --cluster {CLUSTER}.",
        )
        self.missing = missing


async def require_targets(counts: Counts, host: str) -> None:
    """Raises TargetsMissing, and what asking raises."""
    for targets in (TARGETS, COLUMNS):
        missing = tuple([target for target in targets if not await _is_there(counts, host, target)])
        if missing:
            raise TargetsMissing(missing, host)


async def require_over(cluster: str, counts: Counts, host: str) -> None:
    """Raises ConfigError where the Distributed tables name another cluster: the load would go there, and the
    check would look here. One that a macro names is not looked at."""
    names = ", ".join(quote_string(target.partition(".")[2]) for target in TARGETS)
    named = f"""trim(BOTH {quote_string("'")} FROM extract(engine_full, '^Distributed[(]([^,]+)'))"""
    elsewhere = await counts.count(
        host,
        f"SELECT count() FROM system.tables WHERE database = 'flights' AND name IN ({names}) "
        f"AND engine = 'Distributed' AND {named} != {quote_string(cluster)} AND {named} NOT LIKE '%{{%'",
    )
    if elsewhere:
        raise ConfigError(
            f"The tables of the load are not over the cluster '{cluster}'.",
            hint=f"Name the cluster of {TARGETS[0]} with --cluster.",
        )


async def _is_there(counts: Counts, host: str, target: str) -> bool:
    """`database.table`, or `database.table.column`."""
    database, table, *column = target.split(".")
    where = f"database = '{database}' AND {'table' if column else 'name'} = '{table}'"
    if column:
        where += f" AND name = '{column[0]}'"
    of = "columns" if column else "tables"
    return bool(await counts.count(host, f"SELECT count() FROM system.{of} WHERE {where}"))
