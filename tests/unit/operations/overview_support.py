"""Pictures of clusters, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from engine.operations.overview.gather import explained
from engine.operations.overview.model import (
    Answer,
    ClusterOverview,
    HostFailure,
    HostsView,
    HostView,
    Part,
    PartState,
    Presence,
    QueueView,
    RecordsView,
    ShardPlace,
    Task,
)

NOW_MS = 1_700_000_000_000
A, B, C = "a:9000", "b:9000", "c:9000"


def task(number: int, cells: str, *, age_s: float = 100, query: str = "", **more: object) -> Task:
    """`cells` has a letter for each of the hosts a, b and c."""
    return Task(
        f"query-{number:010d}",
        NOW_MS - int(age_s * 1000),
        cells,
        query=query or f"CREATE TABLE t{number}",
        **more,  # type: ignore[arg-type]
    )


def failure(text: str, code: int = 57) -> HostFailure:
    return HostFailure(code, text, NOW_MS)


def up(host: str, **more: object) -> HostView:
    return HostView(host, Answer.UP, version="24.8", **more)  # type: ignore[arg-type]


def down(host: str) -> HostView:
    return HostView(host, Answer.DOWN, error="cannot be reached")


def queue(*tasks: Task, presence: Mapping[str, Presence] | None = None) -> Part[QueueView]:
    """Tasks newest first; hosts are on line if nothing else is said."""
    known = dict.fromkeys((A, B, C), Presence.ACTIVE) | dict(presence or {})
    return Part(PartState.READY, QueueView("/ddl", (A, B, C), tasks, known), NOW_MS)


def picture(
    queue_part: Part[QueueView] | None = None,
    *hosts: HostView,
    records: RecordsView | None = None,
) -> ClusterOverview:
    """Two shards: a and b, and c. Hosts that are not given are up."""
    views = {name: up(name) for name in (A, B, C)} | {host.host: host for host in hosts}
    return explained(
        ClusterOverview(
            "shop",
            NOW_MS,
            (ShardPlace(1, (A, B)), ShardPlace(2, (C,))),
            Part(PartState.READY, HostsView(views), NOW_MS),
            queue_part or queue(),
            Part(PartState.READY, records or RecordsView(), NOW_MS),
        )
    )
