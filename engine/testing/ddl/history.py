"""What happened in a simulation of the queue, as an observer who sees every transaction at once.

`ObservedTree` tells it each transaction of the memory Keeper. `History` is
what the checkers of `engine.testing.ddl.checkers` read; a test can also make one by hand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.names import QueuePaths
from engine.testing.ddl.model import Effect
from engine.testing.keeper_history import (
    Changed,
    Created,
    Event,
    KeeperHistory,
    ObservedTree,
    Removed,
    Transaction,
)

__all__ = [
    "Acknowledged",
    "Changed",
    "Created",
    "Event",
    "Expectation",
    "History",
    "ObservedTree",
    "Removed",
    "SeenEffect",
    "Transaction",
]


@functools.lru_cache(maxsize=4096)  # each checker asks for the path of each event
def _entry_of(root: str, path: str) -> tuple[str, str]:
    if not path.startswith(root):
        return "", ""
    name, _, rest = path[len(root) :].partition("/")
    return name, rest


@dataclass(frozen=True, slots=True)
class SeenEffect:
    """An effect on a host's disk or in a shard's replicated table (`shard` set), with its moment."""

    at: int
    effect: Effect
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An initiator was told that its token stands as this entry; empty when it was told that it is gone."""

    token: str
    entry: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the workload knows of an entry that it made. `is_certain`: success changes something, for sure."""

    hosts: tuple[str, ...]
    objects: tuple[str, ...] = ()
    is_certain: bool = True
    runs_once_per_shard: bool = False


@dataclass(slots=True)
class History(KeeperHistory):
    """Everything the checkers need. `expectations` is keyed by entry name, `shard_of` by host;
    `foreign` are entries whose initiators keep to other rules."""

    paths: QueuePaths = field(default_factory=QueuePaths)
    effects: list[SeenEffect] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    expectations: dict[str, Expectation] = field(default_factory=dict)
    live_hosts: frozenset[str] = frozenset()
    shard_of: dict[str, str] = field(default_factory=dict)
    lifetime_s: float = 7 * 86_400
    max_tasks: int = 1000
    foreign: set[str] = field(default_factory=set)

    def events(self) -> Iterator[tuple[Transaction, Event]]:
        for transaction in self.transactions:
            for event in transaction.events:
                yield transaction, event

    def entry_of(self, path: str) -> tuple[str, str]:
        """The entry that a path belongs to and the rest of the path; empty names for other paths."""
        return _entry_of(self.paths.root + "/", path)

    def outcomes(self) -> dict[tuple[str, str], tuple[Transaction, bytes]]:
        """The final text of each `finished/<host>` that ever was, by (entry, host), with its transaction."""
        found: dict[tuple[str, str], tuple[Transaction, bytes]] = {}
        for transaction, event in self.events():
            name, rest = self.entry_of(event.path)
            if rest.startswith("finished/") and not isinstance(event, Removed):
                found[name, rest.removeprefix("finished/")] = (transaction, event.data)
        return found
