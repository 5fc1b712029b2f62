"""What a part store in memory is told to suffer, and what it tells those who watch it."""

from __future__ import annotations

import enum
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import Code, SqlError
from engine.replication.part_name import PartName
from engine.testing.replication.disk import StoredPart

_SLOW_S = 2.0


def nobody_counts(_what: str) -> None:
    """For faults of which nobody asks whether they happened."""


@dataclass(slots=True)
class StoreFaults:
    """How often a write meets a full disk, a step an EIO, a part is damaged when it is sent, and the process
    is killed when Keeper has a part and readers have not; how long a write takes.

    `seen` is told of each that happens."""

    rng: random.Random = field(default_factory=lambda: random.Random("store faults"))
    disk_full: float = 0.0
    io_error: float = 0.0
    damage_sent: float = 0.0
    kill_at_publish: float = 0.0
    write_s: tuple[float, float] = (0.0, 0.0)
    seen: Callable[[str], None] = nobody_counts

    def calm(self) -> None:
        self.disk_full = self.io_error = self.damage_sent = self.kill_at_publish = 0.0
        self.write_s = (0.0, 0.0)

    def need_space(self) -> None:
        """Raises SqlError 243."""
        if self.draws(self.disk_full):
            self.seen("disk full")
            raise SqlError(Code.NOT_ENOUGH_SPACE, "Cannot reserve space, not enough space on the disk")

    def touch_disk(self) -> None:
        """Raises OSError EIO."""
        if self.draws(self.io_error):
            self.seen("EIO")
            raise OSError(errno.EIO, "Input/output error")

    def draw_write_s(self) -> float:
        """How long the next write takes."""
        least, most = self.write_s
        taken_s = self.rng.uniform(least, most) if most > 0 else 0.0
        if taken_s > _SLOW_S:
            self.seen("slow disk")
        return taken_s

    def draws(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability


@dataclass(frozen=True, slots=True)
class Visible:
    """What readers see of a partition changed: `added` came, `removed` went, `active` is there now."""

    added: tuple[PartName, ...]
    removed: tuple[PartName, ...]
    active: tuple[PartName, ...]


class Origin(enum.Enum):
    """Where a staged part came from."""

    INSERTED = "inserted"
    MERGED = "merged"
    MUTATED = "mutated"
    COPIED = "copied"
    ATTACHED = "attached"
    RECEIVED = "received"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Staged:
    """A part is complete and durable under its name."""

    name: PartName
    origin: Origin
    content: StoredPart
