"""What executors of queue entries tell the runner."""

from __future__ import annotations

from engine.errors import Unavailable
from engine.replication.replica.queue import QueuedEntry


class Postponed(Unavailable):
    """The entry cannot be executed now, and that is no failure; the text is its reason of postponement."""


class TermOver(Unavailable):
    """The replica has to be activated anew, although its session may live; the text says why."""


__all__ = ["Postponed", "QueuedEntry", "TermOver"]
