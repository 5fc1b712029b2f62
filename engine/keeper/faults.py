"""What may go wrong between a client and the memory Keeper, drawn at random from one seeded plan."""

from __future__ import annotations

import enum
import itertools
import random
from dataclasses import dataclass, field


class Fault(enum.Enum):
    """One thing that happens to one request."""

    REQUEST_LOST = "request lost"
    """The connection breaks and the request was not executed."""
    REPLY_LOST = "reply lost"
    """The request is executed, then the connection breaks."""
    REPLY_LOST_AND_LAG = "reply lost, and the next server lags"
    """The same, and the server to which the session connects then has not applied the request yet: reads see
    the tree as it was before, as with `STALE_READS`. Half of the lost replies of a plan are of this kind."""
    SESSION_EXPIRED = "session expired"
    """The server declares the session over although its process lives; the request is not executed."""
    REPLY_DELAYED = "reply delayed"
    """The request is executed; this reply and everything after it arrive late."""
    STALE_READS = "stale reads"
    """Reads of this session see the tree as it is now until a sync, a write of its own, or `stale_s`
    later."""


class Direction(enum.Enum):
    """Which way a partition blocks."""

    BOTH = "both"
    TO_KEEPER = "to keeper"
    FROM_KEEPER = "from keeper"


@dataclass(slots=True)
class FaultPlan:
    """Probabilities per request (and per connect), and the one source of their randomness.

    `calm()` ends the faults: from then on nothing is drawn, so that what must hold “after faults stop” can be
    checked in the same run.
    """

    rng: random.Random
    request_lost: float = 0.0
    reply_lost: float = 0.0
    session_expired: float = 0.0
    reply_delayed: float = 0.0
    stale_reads: float = 0.0
    connect_refused: float = 0.0
    delay_s: tuple[float, float] = (0.1, 15.0)
    stale_s: tuple[float, float] = (0.1, 5.0)
    is_calm: bool = False
    happened: dict[Fault, int] = field(default_factory=dict)
    _ends: tuple[tuple[float, Fault], ...] = field(init=False, repr=False)
    """Where each fault's share of a drawn number ends; the last end is the share of all."""

    def __post_init__(self) -> None:
        rates = {
            Fault.REQUEST_LOST: self.request_lost,
            Fault.REPLY_LOST: self.reply_lost / 2,
            Fault.REPLY_LOST_AND_LAG: self.reply_lost / 2,
            Fault.SESSION_EXPIRED: self.session_expired,
            Fault.REPLY_DELAYED: self.reply_delayed,
            Fault.STALE_READS: self.stale_reads,
        }
        self._ends = tuple(zip(itertools.accumulate(rates.values()), rates, strict=True))

    @classmethod
    def rough(cls, rng: random.Random, *, rate: float = 0.02) -> FaultPlan:
        """All kinds of faults; about `rate` of the requests meet one."""
        return cls(
            rng,
            request_lost=rate * 0.3,
            reply_lost=rate * 0.3,
            session_expired=rate * 0.1,
            reply_delayed=rate * 0.15,
            stale_reads=rate * 0.15,
            connect_refused=rate,
        )

    def calm(self) -> None:
        self.is_calm = True

    def draw(self) -> Fault | None:
        """The fault that the next request meets."""
        if self.is_calm:
            return None
        at = self.rng.random()
        if at >= self._ends[-1][0]:
            return None
        fault = next(fault for end, fault in self._ends if at < end)
        self.happened[fault] = self.happened.get(fault, 0) + 1
        return fault

    def draws_refusal(self) -> bool:
        """Whether the next attempt to connect is refused."""
        return not self.is_calm and self.rng.random() < self.connect_refused

    def draw_delay_s(self) -> float:
        return self.rng.uniform(*self.delay_s)

    def draw_stale_s(self) -> float:
        return self.rng.uniform(*self.stale_s)
