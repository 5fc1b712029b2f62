"""Replicated databases under faults: B1, B2 and B3 hold, and what was answered with success stays."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.testing.simulation import run_simulation
from tests.simulation.databases_run import simulate
from tests.simulation.seeds import chosen_seeds


@pytest.mark.slow
def test_all_replicas_come_to_the_committed_definitions() -> None:
    reached: Counter[str] = Counter()
    for seed in chosen_seeds(1, 40):
        reached += run_simulation(seed, lambda env, seed=seed: simulate(env, seed))  # type: ignore[misc]
    for state in ("ok", "failed", "died", "started again", "committed", "older disk", "moved aside"):
        assert reached[state], f"{state} was never reached: {reached}"


def test_one_run_without_kills_is_quick() -> None:
    assert run_simulation(3, lambda env: simulate(env, 3))["committed"]
