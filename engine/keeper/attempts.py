"""Which host a session tries next, how long it waits for an answer, and when it tries again.

Hosts are tried in turn, in an order of each session's own. In the first round each gets a part of the time
only: a host that takes a connection and says nothing, as a server may that is just starting, must not use up
the patience of whoever waits for the session. From the second round on each gets all of it, for a server
under load may be slow. Between rounds there are pauses, which grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.env import Env

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Connect to this host; give it up after `patience_s`."""

    host: str
    port: int
    patience_s: float


class Attempts:
    """Of one session, over all its connections."""

    def __init__(self, hosts: Sequence[tuple[str, int]], env: Env, *, patience_s: float) -> None:
        self._env = env
        self._hosts = list(hosts)
        env.rng.shuffle(self._hosts)
        self._next = 0
        self._longest_s = patience_s
        self._first_s = patience_s / (len(self._hosts) + 2)
        self._patience_s = self._first_s
        self._pause_s = _FIRST_PAUSE_S
        self._left = len(self._hosts)
        """Hosts left in this round."""

    @property
    def last(self) -> tuple[str, int]:
        """The host that was tried last."""
        return self._hosts[self._next - 1]

    async def next(self) -> Attempt:
        """After a pause, where a round begins anew."""
        if not self._left:
            await self._env.sleep(self._pause_s * self._env.rng.uniform(0.5, 1.0))
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
            self._left = len(self._hosts)
        host, port = self._hosts[self._next]
        attempt = Attempt(host, port, self._patience_s)
        self._next = (self._next + 1) % len(self._hosts)
        self._left -= 1
        if not self._left:
            self._patience_s = self._longest_s
        return attempt

    def succeeded(self) -> None:
        """There was a connection: the next one is sought with a short pause, and a first round again."""
        self._left = 0
        self._pause_s = _FIRST_PAUSE_S
        self._patience_s = self._first_s
