"""The spool of Distributed tables under faults: S1, S2, S3 and S5 hold on every seed."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.testing.spool_simulation import Scenario, simulate
from tests.few import few_first

SEEDS = few_first([200, 400], few=1)
SOMETIMES = (
    "killed",
    "power lost",
    "down",
    "refused",
    "request lost",
    "reply lost",
    "deduplicated",
    "bit flipped",
    "broken",
    "refused 225",
    "refused 243",
    "refused 574",
    "split",
    "alone",
    "repeated",
)
"""A simulation that never reaches these proves nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_what_is_promised_holds_under_every_fault(seeds: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(seeds):
        report = simulate(seed, Scenario.of_seed(seed))
        assert not report.violations, f"seed {seed}: {'; '.join(map(str, report.violations))}"
        seen += report.seen
    missing = [name for name in SOMETIMES if not seen[name]]
    assert not missing, f"never reached on {seeds} seeds: {missing}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = Scenario.of_seed(7)
    assert simulate(7, scenario).seen == simulate(7, scenario).seen
