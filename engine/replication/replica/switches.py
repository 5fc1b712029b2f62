"""What SYSTEM STOP … has stopped on this replica. Lasts until SYSTEM START …, or the end of the process."""

from __future__ import annotations

import enum


class Activity(enum.Enum):
    """What can be stopped; the value is the words of the SYSTEM command."""

    MERGES = "MERGES"
    TTL_MERGES = "TTL MERGES"
    FETCHES = "FETCHES"
    SENDS = "REPLICATED SENDS"
    QUEUES = "REPLICATION QUEUES"
    PULLING = "PULLING REPLICATION LOG"
    MOVES = "MOVES"
    CLEANUP = "CLEANUP"


class Switches:
    """All activities go on until they are stopped."""

    def __init__(self) -> None:
        self._stopped: set[Activity] = set()

    def stop(self, activity: Activity) -> None:
        self._stopped.add(activity)

    def start(self, activity: Activity) -> None:
        self._stopped.discard(activity)

    def is_stopped(self, activity: Activity) -> bool:
        return activity in self._stopped
