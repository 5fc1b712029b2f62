"""Replicated tables under every fault, on many seeds (`tests.simulation.seeds`)."""

from __future__ import annotations

import pytest

from engine.keeper.faults import Direction
from engine.testing.replication.disk import Damage
from engine.testing.replication.mishaps import POISON
from engine.testing.replication.simulation import simulate
from tests.simulation.seeds import chosen_seeds, run

CHUNKS = 8
SEEDS_OF_A_CHUNK = 250
OFTEN = (
    "duplicate insert",
    "repeated insert",
    "staged received",
    "staged merged",
    "staged mutated",
    "staged attached",
    "staged copied",
    "replica.cloned",
    "replica.committed_together",
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
    "alter ok",
    "read without Keeper",
    "replica restored",
    "clear column ok",
    "fetch partition ok",
    "insert isolated",
    "holder away",
)
"""States that every few hundred seeds must reach: a run that never gets there proves nothing about them."""
FAULTS = {
    "reply lost after commit": ("reply lost",),
    "request lost": ("request lost",),
    "session expiry with the process alive": ("session expired", "session ended"),
    "SIGSTOP past the session timeout, then CONT": ("stopped",),
    # At each step: `test_replication_kills`.
    "kill -9": ("killed",),
    "kill -9 with unforced writes forgotten": ("unforced writes forgotten",),
    "partition from Keeper, also one-way": tuple(f"partition from Keeper: {way.value}" for way in Direction),
    # One link at a time, in one direction.
    "partition between replicas": ("network cut", "transfer broken off"),
    # The Keeper of the simulation is one server: to a client a change of leader is a short restart.
    "Keeper restart, leader change": ("keeper restart",),
    "Keeper's data lost": ("keeper lost the table", "keeper lost replicas"),
    "stale read": ("stale reads",),
    "duplicate and reordered delivery": ("reply delayed", "duplicate insert"),
    "disk full, EIO": ("disk full", "EIO", "disk lost"),
    "bit flip, truncation, empty file": tuple(
        f"{damage.value} {where}"
        for damage in (Damage.BIT_FLIP, Damage.TRUNCATION, Damage.EMPTY_FILE)
        for where in ("on disk", "in transfer")
    ),
    "clock jump": ("clock jump",),
    "host renamed, DNS gone": ("host renamed", "host not found"),
    "cluster membership changed while a task runs": ("replica dropped and created",),
    "the same operation started twice at once": ("the same insert at once",),
    "a host that is slow": ("slow disk",),
    "poison entry": tuple(POISON),
}
"""What goes wrong, and how a run says that it has; each has to happen as often."""


def test_replicas_keep_their_promises_on_some_seeds() -> None:
    run(simulate, chosen_seeds(900_000, 15))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_replicas_keep_their_promises_under_every_fault(chunk: int) -> None:
    seeds = chosen_seeds(chunk * SEEDS_OF_A_CHUNK, SEEDS_OF_A_CHUNK)
    reached = run(simulate, seeds)
    if len(seeds) >= SEEDS_OF_A_CHUNK:
        wanted = [*OFTEN, *(state for states in FAULTS.values() for state in states)]
        missing = [state for state in wanted if not reached[state]]
        assert not missing, f"never reached: {missing}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(4711), simulate(4711)
    assert first.history.transactions == second.history.transactions
    assert first.history.visible == second.history.visible
    assert first.reached == second.reached
