"""Replicated tables under every fault, on many seeds.

A failing seed prints itself. `ONCLUSTER_SEED=n` replays that seed alone; `ONCLUSTER_SEEDS=n` runs n times
as many.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from engine.testing.replication_simulation import Report, simulate

CHUNKS = 6
SEEDS_OF_A_CHUNK = 250
OFTEN = (
    "killed",
    "keeper restart",
    "partition from Keeper",
    "network cut",
    "stopped",
    "session ended",
    "clock jump",
    "damaged on disk",
    "disk lost",
    "duplicate insert",
    "repeated insert",
    "staged received",
    "staged merged",
    "staged mutated",
    "staged attached",
    "staged copied",
    "replica.cloned",
    "replica.staged_published",
    "replica.part_broken",
    "replication.insert_in_doubt",
    "replication.quorum_reached",
    "replication.quorum_failed",
    "replication.replicas_lost",
    "replication.log_cleaned",
    "replica.range_dropped",
    "replica.mutation_fetched",
    "replica.altered",
    "replica dropped and created",
)
"""States that every few hundred seeds must reach: a run that never gets there proves nothing about them."""


def chosen_seeds(first: int, count: int) -> list[int]:
    if "ONCLUSTER_SEED" in os.environ:
        return [int(os.environ["ONCLUSTER_SEED"])]
    widening = int(os.environ.get("ONCLUSTER_SEEDS", "1"))
    return [first + n for n in range(count)] + [
        1_000_000 * more + first + n for more in range(1, widening) for n in range(count)
    ]


def run(seeds: list[int]) -> Counter[str]:
    reached: Counter[str] = Counter()
    for seed in seeds:
        report = simulate(seed)
        check(report)
        reached += report.reached
    return reached


def check(report: Report) -> None:
    if report.violations:
        pytest.fail(f"{report}\nreplay: ONCLUSTER_SEED={report.scenario.seed}")


def test_replicas_keep_their_promises_on_some_seeds() -> None:
    run(chosen_seeds(900_000, 100))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_replicas_keep_their_promises_under_every_fault(chunk: int) -> None:
    seeds = chosen_seeds(chunk * SEEDS_OF_A_CHUNK, SEEDS_OF_A_CHUNK)
    reached = run(seeds)
    if len(seeds) >= SEEDS_OF_A_CHUNK:
        missing = [state for state in OFTEN if not reached[state]]
        assert not missing, f"never reached: {missing}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(4711), simulate(4711)
    assert first.history.transactions == second.history.transactions
    assert first.history.visible == second.history.visible
    assert first.reached == second.reached
