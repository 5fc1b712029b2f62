"""A machine of a simulation of replicated tables."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.replication.paths import ReplicaPaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replicated_table import ReplicatedTable
from engine.testing.replication.disk import StoreDisk
from engine.testing.replication.store import MemoryPartStore
from engine.testing.replication.store_events import StoreFaults
from engine.testing.simulated_process import Process
from engine.testing.simulation import SimulationEnv


class Recreation(enum.Enum):
    """What is left to do of a DROP TABLE with a CREATE TABLE behind it."""

    NOTHING = "nothing"
    DROP = "drop"
    CREATE = "create"


@dataclass(slots=True)
class SimulatedNode:
    """A machine: its disks, and the process that runs now, if any."""

    name: str
    number: int
    me: ReplicaPaths
    env: SimulationEnv
    disk: StoreDisk
    source_disk: StoreDisk
    faults: StoreFaults
    process: Process | None = None
    ctx: ReplicaContext | None = None
    table: ReplicatedTable | None = None
    store: MemoryPartStore | None = None
    incarnation: int = 0
    address: str = ""
    """The host's name, by which others find it; at first that of the node."""
    is_kept_down: bool = False
    """Nobody starts a process on it but who says so."""
    recreation: Recreation = Recreation.NOTHING
    cut_off_since: int | None = None
    """Since when (a moment of the history) Keeper cannot be reached."""

    @property
    def is_being_recreated(self) -> bool:
        return self.recreation is not Recreation.NOTHING

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive
