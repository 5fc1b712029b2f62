"""Everything that is not a function of its arguments: clocks, sleeping, random numbers, fresh ids.

Protocol code takes an `Env` and asks nothing else, so that the same code runs in a node, inside an Airflow
trigger, and under a seeded event loop with virtual time (`engine.testing.simulation`).
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Protocol


class Env(Protocol):
    """What protocol code may ask of the world."""

    @property
    def rng(self) -> random.Random:
        """The source of every random choice (jitter, load balancing)."""
        ...

    def now_s(self) -> float:
        """Wall clock, Unix seconds. For showing and for ages only, never for ordering or ownership."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; for timeouts."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Suspend the caller for `delay_s` seconds."""
        ...

    def new_uuid(self) -> uuid.UUID:
        """A fresh random UUID."""
        ...


class SystemEnv:
    """The real clocks and the operating system's randomness."""

    def __init__(self) -> None:
        self._rng = random.SystemRandom()

    @property
    def rng(self) -> random.Random:
        return self._rng

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    def new_uuid(self) -> uuid.UUID:
        return uuid.uuid4()
