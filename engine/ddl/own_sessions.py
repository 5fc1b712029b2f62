"""The sessions in which the workers of one server live: one for each queue.

They mark the same host ids where their queues share a `replicas_path`, so each has to know which marks are a
living sibling's, and when that one's session is over and its marks go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OwnSessions:
    """For the event loop alone."""

    def __init__(self) -> None:
        self._living: dict[int, Callable[[], None]] = {}

    @property
    def count(self) -> int:
        return len(self._living)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._living

    @contextmanager
    def living(self, session_id: int, *, when_another_ends: Callable[[], None]) -> Iterator[None]:
        """For the length of a worker's life in one session."""
        self._living[session_id] = when_another_ends
        try:
            yield
        finally:
            del self._living[session_id]
            for tell in list(self._living.values()):
                tell()
