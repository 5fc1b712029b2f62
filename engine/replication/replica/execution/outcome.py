"""What executors of queue entries tell the runner."""

from __future__ import annotations

from engine.errors import Unavailable
from engine.replication.replica.queue.queue import QueuedEntry


class Postponed(Unavailable):
    """The entry cannot be executed now, and that is no failure; the text is its reason of postponement."""


class TermOver(Unavailable):
    """The replica has to be activated anew, although its session may live; the text says why."""


class LogHole(TermOver):
    """Entries of the log are missing, from number `first` on, that were not copied; `next` is there again."""

    def __init__(self, message: str, *, first: int, next_: int) -> None:
        super().__init__(message)
        self.first = first
        self.next = next_


__all__ = ["LogHole", "Postponed", "QueuedEntry", "TermOver"]
