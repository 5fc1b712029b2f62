"""Why does it not go on? In words, from what was seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.operations.overview.model import ClusterOverview, Level, PartState, Stuck
from engine.operations.overview.stuck_servers import stuck_servers
from engine.operations.overview.stuck_tasks import stuck_tasks


def why_stuck(overview: ClusterOverview) -> tuple[Stuck, ...]:
    """Everything that does not move, the worst and the oldest first."""
    tasks = list(stuck_tasks(overview))
    found = [
        *_keeper(overview),
        *tasks,
        *stuck_servers(overview, told={host for item in tasks for host in item.hosts}),
    ]
    order = list(Level)
    now_ms = overview.at_ms
    found.sort(key=lambda item: (-order.index(item.level), item.since_ms or now_ms, item.what))
    return tuple(found)


def _keeper(overview: ClusterOverview) -> Iterator[Stuck]:
    part = overview.queue
    if part.state is PartState.FAILED:
        yield Stuck(
            what="The queue cannot be read.",
            why=part.error,
            advice=part.advice
            or "Until Keeper answers, no statement ON CLUSTER is executed and replicated tables take no "
            "rows. Look at ZooKeeper or Keeper and at the network to it.",
            level=Level.CRITICAL,
        )
