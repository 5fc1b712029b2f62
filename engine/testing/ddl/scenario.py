"""What one seed of the queue's simulation stands for."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed stands for. Rates are per request to Keeper; kills are gates
    (`engine.testing.ddl.process`)."""

    seed: int
    nodes: int = 3
    statements: int = 5
    fault_rate: float = 0.0
    kill_gates: tuple[int, ...] = ()
    kill_initiator_at: int | None = None
    kill_in_shard_attempt: float = 0.0
    power_cuts: bool = False
    is_keeper_restarted: bool = False
    is_partitioned: bool = False
    is_stopped: bool = False
    has_dead_host: bool = False
    has_slow_host: bool = False
    has_foreign_entries: bool = False
    has_poison: bool = False
    has_small_queue: bool = False
    has_clock_jumps: bool = False
    is_membership_changed: bool = False
    flaky_rate: float = 0.0
    pool_size: int = 1
    replicated_share: float = 0.4
    is_burst: bool = False
    """Many statements at once that make and drop tables: what is run together (`engine.ddl.series`)."""

    @classmethod
    def of_seed(cls, seed: int) -> Scenario:
        """Faults in all mixtures; about one seed in eight has none."""
        rng = random.Random(f"scenario {seed}")
        calm = rng.random() < 0.12

        def sometimes(probability: float) -> bool:
            return not calm and rng.random() < probability

        reach = rng.choice([60, 120, 240])
        kills = () if calm else tuple(rng.randint(1, reach) for _ in range(rng.choice([0, 1, 1, 2, 3])))
        return cls(
            seed,
            nodes=rng.choice([2, 3, 3, 4]),
            statements=rng.randint(2, 6),
            fault_rate=rng.choice([0.0, 0.01, 0.03, 0.08]) if not calm else 0.0,
            kill_gates=kills,
            kill_initiator_at=rng.randint(1, 14) if sometimes(0.25) else None,
            kill_in_shard_attempt=0.5 if sometimes(0.15) else 0.0,
            power_cuts=sometimes(0.3),
            is_keeper_restarted=sometimes(0.1),
            is_partitioned=sometimes(0.2),
            is_stopped=sometimes(0.2),
            has_dead_host=sometimes(0.15),
            has_slow_host=sometimes(0.15),
            has_foreign_entries=sometimes(0.3),
            has_poison=sometimes(0.25),
            has_small_queue=sometimes(0.3),
            has_clock_jumps=sometimes(0.15),
            is_membership_changed=sometimes(0.15),
            flaky_rate=0.1 if sometimes(0.15) else 0.0,
            pool_size=rng.choice([1, 1, 1, 3]),
            replicated_share=rng.choice([0.0, 0.4, 1.0]),
            is_burst=random.Random(f"burst {seed}").random() < 0.15,
        )
