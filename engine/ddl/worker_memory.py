"""What a queue's worker knows of entries from one session with Keeper to the next. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from engine.names import HostId, entry_number

DNS_PATIENCE_S = 30.0
LOOK_AGAIN_S = 5.0
LOOK_SELDOM_S = 60.0
"""A name that DNS has not known for a while mostly is of a host that is no more."""


@dataclass(slots=True)
class Undecided:
    """An entry that is perhaps ours, since when, and when it is looked at again."""

    since_s: float
    again_s: float


@dataclass(slots=True)
class WorkerMemory:
    """What a worker remembers of the queue from one session to the next.

    `settled`: nothing more to do here. `undecided`: perhaps ours. `passed_over`: settled
    as long as DNS takes all these hosts for other machines. `latest_executed` is the
    number of the latest entry that was executed here, `max_entry` of the latest that was handled in any way.
    """

    settled: set[str] = field(default_factory=set)
    undecided: dict[str, Undecided] = field(default_factory=dict)
    passed_over: dict[tuple[HostId, ...], set[str]] = field(default_factory=dict)
    queue_czxid: int = 0
    host_guess: HostId | None = None
    max_entry: int = -1
    latest_executed: int = -1
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    topology_serial: int = 0

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    def settle(self, name: str) -> None:
        self.settled.add(name)
        self.undecided.pop(name, None)
        self.max_entry = max(self.max_entry, entry_number(name) or 0)

    def look_again(self, name: str, now_s: float) -> None:
        """The entry is undecided, now or still."""
        known = self.undecided.setdefault(name, Undecided(now_s, now_s))
        is_new = now_s - known.since_s < DNS_PATIENCE_S
        known.again_s = now_s + (LOOK_AGAIN_S if is_new else LOOK_SELDOM_S)

    def look_at_all_again(self) -> None:
        """Names mean other hosts now, or may."""
        for known in self.undecided.values():
            known.again_s = known.since_s

    def pass_over(self, name: str, hosts: tuple[HostId, ...]) -> None:
        self.settle(name)
        self.passed_over.setdefault(hosts, set()).add(name)

    def reconsider(self, hosts: tuple[HostId, ...], now_s: float) -> None:
        """DNS takes one of these hosts for this one now."""
        for name in self.passed_over.pop(hosts, ()):
            self.settled.discard(name)
            self.undecided[name] = Undecided(now_s, now_s)

    def is_put_off(self, name: str, now_s: float) -> bool:
        known = self.undecided.get(name)
        return known is not None and known.again_s > now_s

    def forget_absent(self, present: Collection[str]) -> None:
        """An undecided entry that was removed would be waited for without end."""
        self.settled.intersection_update(present)
        if self.undecided or self.passed_over:
            here = frozenset(present)
            self.undecided = {name: known for name, known in self.undecided.items() if name in here}
            kept = {hosts: names & here for hosts, names in self.passed_over.items()}
            self.passed_over = {hosts: names for hosts, names in kept.items() if names}

    def start_over(self) -> None:
        """Look at every entry again. What was executed was: nothing earlier may be executed after it."""
        self.settled.clear()
        self.look_at_all_again()

    def forget_all(self) -> None:
        """Names mean other entries now."""
        self.settled.clear()
        self.undecided.clear()
        self.passed_over.clear()
        self.latest_executed = -1
