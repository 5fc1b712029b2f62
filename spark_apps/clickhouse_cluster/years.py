"""The years that Date32 and DateTime64 hold, which are more on newer servers.

A server that has not a year stores the nearest that it has, and says nothing. Versions differ: 1900 to 2299,
and 1 to 9999 in 26.9. So the server is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import SqlError
from spark_apps.clickhouse_cluster.http import Server


@dataclass(frozen=True, slots=True)
class Years:
    """Both included."""

    first: int
    last: int


FEW_YEARS = Years(1900, 2299)
MANY_YEARS = Years(1, 9999)
"""All that Spark and Python have."""


def years_of(server: Server) -> Years:
    """Raises NodeUnavailable, ReplyLost."""
    first, last = f"{MANY_YEARS.first:04}-01-01", f"{MANY_YEARS.last}-12-31"
    ends = ", ".join(
        f"toString(toDate32('{day}')), toString(toDateTime64('{day} 00:00:00', 3, 'UTC'))"
        for day in (first, last)
    )
    try:
        found = server.text(f"SELECT {ends} FORMAT TSVRaw").split("\t")
    except SqlError:  # it has not even the functions, or refuses the days
        return FEW_YEARS
    return MANY_YEARS if [text[:10] for text in found] == [first, first, last, last] else FEW_YEARS
