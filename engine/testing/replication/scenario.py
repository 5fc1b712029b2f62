"""What one seed of the simulation of replicated tables stands for."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rates of `fault_rate` are per request to Keeper, the others per write, transfer or second; kills are
    gates of processes (`engine.testing.simulated_process`)."""

    seed: int
    replicas: int = 3
    steps: int = 8
    fault_rate: float = 0.0
    kill_gates: tuple[int, ...] = ()
    is_keeper_restarted: bool = False
    is_partitioned: bool = False
    is_network_cut: bool = False
    is_stopped: bool = False
    is_expired: bool = False
    has_clock_jumps: bool = False
    has_damaged_transfers: bool = False
    has_damaged_disks: bool = False
    has_full_disks: bool = False
    has_io_errors: bool = False
    has_lost_disk: bool = False
    has_slow_replica: bool = False
    has_short_log: bool = False
    has_dropped_replica: bool = False
    has_quorum: bool = False
    is_sequential: bool = False
    """All inserts have a quorum, and none runs beside another."""
    has_mutations: bool = False
    has_alters: bool = False
    has_partition_commands: bool = False
    has_merges: bool = True
    has_impatient_users: bool = False
    """Clients go away in the middle of a statement."""
    has_operators: bool = False
    """Somebody restarts replicas, and stops and starts merges and fetches."""
    has_rare_commands: bool = False
    """CLEAR COLUMN and CLEAR INDEX IN PARTITION, FETCH PARTITION."""
    has_keeper_loss: bool = False
    """Keeper loses nodes of replicas or of the whole table, and a person says SYSTEM RESTORE REPLICA."""
    has_isolated_inserts: bool = False
    """Servers are cut off with inserts whose quorum is given up then."""
    has_absent_holders: bool = False
    """Servers are cut off with rows that nobody else has got yet."""
    has_long_absence: bool = False
    """One replica is away from Keeper for so long that a very short log goes on without it."""
    has_poison: bool = False
    """Somebody writes an entry into the log that nobody can read, and a person takes it out."""
    has_renamed_hosts: bool = False
    """Machines come back under other names, which are not known to DNS for a while."""
    has_killed_publishers: bool = False
    """Each process is killed once between what Keeper has and what readers see."""
    partitions: int = 1
    keeper_latency_s: float = 0.0

    @classmethod
    def of_seed(cls, seed: int) -> Scenario:
        """Faults in all mixtures; about one seed in eight has none."""
        rng = random.Random(f"replication scenario {seed}")
        calm = rng.random() < 0.12

        def sometimes(probability: float) -> bool:
            return not calm and rng.random() < probability

        reach = rng.choice([60, 200, 500])
        kills = () if calm else tuple(rng.randint(1, reach) for _ in range(rng.choice([0, 1, 1, 2, 3])))
        return cls(
            seed,
            replicas=rng.choice([3, 3, 3, 4, 5]),
            steps=rng.randint(3, 11),
            fault_rate=rng.choice([0.0, 0.005, 0.01, 0.03]) if not calm else 0.0,
            kill_gates=kills,
            is_keeper_restarted=sometimes(0.15),
            is_partitioned=sometimes(0.2),
            is_network_cut=sometimes(0.2),
            is_stopped=sometimes(0.15),
            is_expired=sometimes(0.2),
            has_clock_jumps=sometimes(0.15),
            has_damaged_transfers=sometimes(0.2),
            has_damaged_disks=sometimes(0.2),
            has_full_disks=sometimes(0.1),
            has_lost_disk=sometimes(0.12),
            has_slow_replica=sometimes(0.15),
            has_short_log=sometimes(0.4),
            has_dropped_replica=sometimes(0.2),
            has_quorum=(has_quorum := rng.random() < 0.35),
            is_sequential=has_quorum and rng.random() < 0.3,
            has_mutations=rng.random() < 0.45,
            has_alters=rng.random() < 0.3,
            has_partition_commands=rng.random() < 0.5,
            has_merges=rng.random() < 0.8,
            has_impatient_users=sometimes(0.25),
            has_operators=sometimes(0.2),
            partitions=rng.choice([1, 1, 2]),
            keeper_latency_s=rng.choice([0.0, 0.0, 0.01, 0.2]),
            has_keeper_loss=sometimes(0.17),
            has_rare_commands=rng.random() < 0.3,
            has_isolated_inserts=has_quorum and sometimes(0.5),
            has_absent_holders=sometimes(0.25),
            has_killed_publishers=sometimes(0.25),
            has_long_absence=sometimes(0.15),
            has_io_errors=sometimes(0.1),
            has_poison=sometimes(0.1),
            has_renamed_hosts=sometimes(0.12),
        )
