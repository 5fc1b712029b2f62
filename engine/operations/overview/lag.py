"""Replication lag over time, made small enough to be drawn. Pure.

For each host: the greatest delay of its tables in each of a fixed number of intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.operations.records import Sample

LAG_METRIC = "absolute_delay_s"
"""`absolute_delay` of `system.replicas`, in seconds, as the health check samples it."""

POINTS = 120


@dataclass(frozen=True, slots=True)
class LagSeries:
    """One host's line: pairs of a time (Unix milliseconds) and a delay in seconds, oldest first."""

    host: str
    points: tuple[tuple[int, float], ...]

    @property
    def greatest_s(self) -> float:
        return max((value for _, value in self.points), default=0.0)


def lag_series(
    samples: Sequence[Sample], *, since_ms: int, until_ms: int, most: int = 8, points: int = POINTS
) -> tuple[LagSeries, ...]:
    """A line for each of the `most` hosts that were furthest behind, the worst first.

    An interval without samples has no point: nothing was measured there, and nothing is drawn.
    """
    width_ms = max(1, -(-(until_ms - since_ms) // points))
    worst: dict[str, dict[int, float]] = {}
    for sample in samples:
        if not since_ms <= sample.at_ms <= until_ms:
            continue
        at_ms = since_ms + (sample.at_ms - since_ms) // width_ms * width_ms
        line = worst.setdefault(sample.host, {})
        line[at_ms] = max(sample.value, line.get(at_ms, 0.0))
    series = [LagSeries(host, tuple(sorted(line.items()))) for host, line in worst.items()]
    series.sort(key=lambda line: (-line.greatest_s, line.host))
    return tuple(series[:most])
