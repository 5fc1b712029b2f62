"""The DDL queue under every fault, on many seeds (`tests.simulation.seeds`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.testing.ddl.simulation import Scenario, simulate
from tests.simulation.seeds import check, chosen_seeds, run

CHUNKS = 8
SEEDS_OF_A_CHUNK = 250
OFTEN = (
    "ddl.enqueued",
    "ddl.attached",
    "ddl.claimed",
    "ddl.claimed_together",
    "ddl.failed",
    "ddl.refused",
    "ddl.recovered execute",
    "ddl.recovered report done",
    "ddl.removed",
    "ddl.run_without_outcome",
    "ddl.worker_reconnects",
    "ddl.will_try_again",
    "ddl.keeper_retry",
    "initiator tries again",
    "killed",
    "keeper restart",
    "partition",
    "power cut",
    "stopped",
    "poison cluster",
    "poison garbage",
    "poison large",
    "poison odd child",
    "poison select",
    "poison version",
)
"""States that every few hundred seeds must reach: a run that never gets there proves nothing about them."""


def test_the_queue_keeps_its_promises_on_twenty_seeds() -> None:
    run(simulate, chosen_seeds(900_000, 20))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_queue_keeps_its_promises_under_every_fault(chunk: int) -> None:
    seeds = chosen_seeds(chunk * SEEDS_OF_A_CHUNK, SEEDS_OF_A_CHUNK)
    reached = run(simulate, seeds)
    if len(seeds) >= SEEDS_OF_A_CHUNK:
        missing = [state for state in OFTEN if not reached[state]]
        assert not missing, f"never reached: {missing}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(4711), simulate(4711)
    assert first.history.transactions == second.history.transactions
    assert first.history.effects == second.history.effects
    assert first.reached == second.reached


def shard_scenario(seed: int) -> Scenario:
    """Replicated tables, processes killed where a shard's attempt is under way, sessions that end
    unnoticed."""
    base = Scenario.of_seed(seed)
    return replace(
        base,
        nodes=4,
        statements=4,
        fault_rate=0.03,
        kill_gates=(),
        kill_in_shard_attempt=0.5,
        is_stopped=seed % 2 == 0,
        is_membership_changed=seed % 4 == 1,
        has_dead_host=False,
        replicated_share=1.0,
    )


def cleaning_scenario(seed: int) -> Scenario:
    """A queue that holds two entries and forgets after half a minute, with a host that is slow or away."""
    base = Scenario.of_seed(seed)
    return replace(
        base,
        statements=6,
        has_small_queue=True,
        has_slow_host=seed % 2 == 0,
        has_dead_host=seed % 2 == 1,
        is_stopped=seed % 3 == 0,
        has_clock_jumps=seed % 4 == 0,
        has_foreign_entries=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "scenario", "first"),
    [
        ("ddl.shard_takeover execute", shard_scenario, 0),
        ("ddl.shard_takeover report done", shard_scenario, 0),
        ("ddl.shard_attempt_failed", shard_scenario, 0),
        ("ddl.shard_renamed", shard_scenario, 45),
        ("ddl.entry_gone", cleaning_scenario, 0),
        ("ddl.expired_entry_was_executed", cleaning_scenario, 21),
        ("submission of a removed entry", cleaning_scenario, 390),
    ],
)
def test_a_rare_state_is_reached_and_survived(state: str, scenario: object, first: int) -> None:
    """`first`: a little before the seed that gets there today; the search goes on from it."""
    assert callable(scenario)
    for seed in range(first, first + 700):
        report = simulate(seed, scenario(seed))
        check(report)
        if report.reached[state]:
            return
    pytest.fail(f"{state} was never reached")
