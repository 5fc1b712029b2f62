"""What Keeper knows of a statement that one replica executes for its shard: who began it, what took effect.

Safety argument. `tries_to_execute` counts attempts; its version is what `Fence` checks.

1. An attempt begins under the shard's lock: in one transaction the counter rises and `attempt` says who it is
   and that nothing has taken effect. The transaction is refused if `attempt` has changed since it was read.
2. Every transaction by which the statement changes its table checks the counter and writes into `attempt`
   what takes effect with it: the whole statement, or one of its steps. So the two are never apart.
3. Whoever comes after a crash goes through 1, which ends the earlier attempt: what `attempt` says then is
   final. Recorded: it happened, and is not executed again. Not recorded: it did not, and never will.

A crash after 1 leaves an attempt without effect, after 2 a record of the effect; whether the process, the
session or only a reply was lost makes no difference, and neither does which replica looks.

Attempts that record nothing (a ClickHouse server's, an older version's) are marked by a counter that is not
theirs or by the absence of a word on the effect; they are judged by fingerprints (`engine.ddl.recovery`).
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace

from engine.keeper.base import Check, Op, SetData

_MAX_DIGEST_CHARS = 64 << 10
"""Of a fingerprint in Keeper, which takes 1 MiB; where effects are recorded nobody needs it."""


class Effect(enum.Enum):
    """What an attempt has recorded of its effect."""

    NOT_RECORDED = ""
    """It records nothing, whatever it did."""
    NONE = "none"
    PART = "part"
    """Some of several steps."""
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The data of `attempt`: who began the latest attempt, on what, and what took effect since the first.

    `number` is the value of `tries_to_execute` while this attempt is the latest one.
    """

    host: str
    digest_before: str
    effect: Effect = Effect.NOT_RECORDED
    steps: tuple[str, ...] = ()
    number: int = 0

    def to_bytes(self) -> bytes:
        facts: dict[str, object] = {"host": self.host, "before": self.digest_before}
        if self.effect is not Effect.NOT_RECORDED:
            is_short = len(self.digest_before) <= _MAX_DIGEST_CHARS and self.effect is Effect.NONE
            facts["before"] = self.digest_before if is_short else ""
            facts |= {"effect": self.effect.value, "number": self.number}
            if self.steps:
                facts["steps"] = list(self.steps)
        return json.dumps(facts).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Attempt | None:
        """None for what makes no sense."""
        try:
            facts = json.loads(data)
            return cls(
                str(facts["host"]),
                str(facts["before"]),
                Effect(facts.get("effect", "")),
                tuple(map(str, facts.get("steps", ()))),
                int(facts.get("number", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def begun_again(self, host: str, digest_before: str, number: int) -> Attempt:
        """The attempt after this one, which goes on where this one ended."""
        effect = Effect.PART if self.steps else Effect.NONE
        return replace(self, host=host, digest_before=digest_before, effect=effect, number=number)


class Fence:
    """What the transactions of one attempt take along: that it is the latest, and what they record.

    A statement that takes effect in one transaction takes `whole` along, and is done. One that takes several
    takes `step` along in each; `close` is the record that all are done.
    """

    def __init__(self, check: Check | None = None, path: str = "", attempt: Attempt | None = None) -> None:
        """`check` is of the counter, `path` that of `attempt`. Without them nothing is fenced: a client's
        statement."""
        self._check = check
        self._path = path
        self._attempt = attempt
        self._is_kept_open = False
        self._is_closed = False

    @property
    def is_there(self) -> bool:
        return self._check is not None

    @property
    def is_closed(self) -> bool:
        """The record of the whole has been handed out: who got it has committed it or raised."""
        return self._is_closed

    @property
    def paths(self) -> frozenset[str]:
        return frozenset({self._check.path, self._path}) if self._check is not None else frozenset()

    def whole(self) -> tuple[Op, ...] | None:
        """For the one transaction of the statement. None, as of `step`, only after `keep_open`."""
        return self.step("", of=1)

    def step(self, name: str, *, of: int) -> tuple[Op, ...] | None:
        """For one of `of` transactions; None: an earlier attempt has committed it. Steps have the same names
        on all replicas."""
        if of == 1 and not self._is_kept_open:
            return self.close()
        if self._check is None or self._attempt is None:
            return ()
        if name in self._attempt.steps:
            return None
        self._attempt = replace(
            self._attempt, effect=Effect.PART, steps=(*self._attempt.steps, name), digest_before=""
        )
        return self._ops()

    def keep_open(self) -> None:
        """What is the whole of it for others is a step of it: there is more to do besides."""
        self._is_kept_open = True

    def close(self) -> tuple[Op, ...]:
        """For a transaction that ends the statement."""
        if self._check is None or self._attempt is None:
            return ()
        self._is_closed = True
        self._attempt = replace(self._attempt, effect=Effect.WHOLE, steps=(), digest_before="")
        return self._ops()

    def _ops(self) -> tuple[Op, ...]:
        assert self._check is not None and self._attempt is not None
        return (self._check, SetData(self._path, self._attempt.to_bytes()))
