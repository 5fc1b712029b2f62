"""A load and its report, as the tests of loads use them."""

from __future__ import annotations

from datetime import date
from typing import Any

from engine.config.model import Cluster, Replica, Shard
from engine.etl.report import LoadReport, TableReport
from engine.etl.request import LoadRequest

CLUSTER = Cluster(
    "c",
    (
        Shard(1, (Replica("a1", 9000), Replica("a2", 9000))),
        Shard(2, (Replica("b1", 9000), Replica("b2", 9000))),
    ),
)
FLIGHTS = TableReport("d.flights_all", "d.flights", 10, {1: 4, 2: 6}, "day >= '2013-01-01'")
REPORT = LoadReport("job", "overwrite", "2013-01-01", "2013-01-31", False, 12, 10, 2, (FLIGHTS,))


def request(**changes: Any) -> LoadRequest:
    facts: dict[str, Any] = {"cluster": "c", "first": date(2013, 1, 1), "last": date(2013, 1, 31)}
    return LoadRequest(**facts | changes)
