"""Which seeds a simulation runs on, and what is said about the one that fails.

A failing seed prints itself. `ONCLUSTER_SEED=n` replays that seed alone; `ONCLUSTER_SEEDS=n` runs n times
as many.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from engine.testing.simulation_report import Report


def chosen_seeds(first: int, count: int) -> list[int]:
    if "ONCLUSTER_SEED" in os.environ:
        return [int(os.environ["ONCLUSTER_SEED"])]
    widening = int(os.environ.get("ONCLUSTER_SEEDS", "1"))
    return [first + n for n in range(count)] + [
        1_000_000 * more + first + n for more in range(1, widening) for n in range(count)
    ]


def check(report: Report[Any, Any]) -> None:
    if report.violations:
        pytest.fail(f"{report}\nreplay: ONCLUSTER_SEED={report.scenario.seed}")


def run(simulate: Callable[[int], Report[Any, Any]], seeds: Iterable[int]) -> Counter[str]:
    """Check every seed; returns how often each state was reached."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        report = simulate(seed)
        check(report)
        reached += report.reached
    return reached
