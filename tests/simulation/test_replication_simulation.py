"""Replicated tables under every fault, on many seeds (`tests.simulation.seeds`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.testing.replication_scenario import Scenario
from engine.testing.replication_simulation import simulate
from tests.simulation.seeds import chosen_seeds, run

CHUNKS = 8
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
    "replica.fetched_directly",
    "replica.not_fetched_directly",
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
    "keeper lost the table",
    "keeper lost replicas",
    "replica restored",
    "clear column ok",
    "fetch partition ok",
    "insert isolated",
    "holder away",
)
"""States that every few hundred seeds must reach: a run that never gets there proves nothing about them."""


@pytest.mark.parametrize(
    ("first", "count"), [(900_000, 40), pytest.param(900_040, 60, marks=pytest.mark.slow)]
)
def test_replicas_keep_their_promises_on_some_seeds(first: int, count: int) -> None:
    run(simulate, chosen_seeds(first, count))


@pytest.mark.slow
def test_five_replicas_keep_their_promises() -> None:
    run(
        lambda seed: simulate(seed, replace(Scenario.of_seed(seed), replicas=5)),
        chosen_seeds(910_000, 60),
    )


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_replicas_keep_their_promises_under_every_fault(chunk: int) -> None:
    seeds = chosen_seeds(chunk * SEEDS_OF_A_CHUNK, SEEDS_OF_A_CHUNK)
    reached = run(simulate, seeds)
    if len(seeds) >= SEEDS_OF_A_CHUNK:
        missing = [state for state in OFTEN if not reached[state]]
        assert not missing, f"never reached: {missing}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(4711), simulate(4711)
    assert first.history.transactions == second.history.transactions
    assert first.history.visible == second.history.visible
    assert first.reached == second.reached
