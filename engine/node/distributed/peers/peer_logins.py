"""How chDB is let in where it reads another node, by `url()` with a header.

A node takes signatures (`engine.distributed.read_signature`): what stands in a statement is good for what the
statement reads, and for nothing else. ClickHouse servers, and nodes of before, take none, and chDB sends them
the password. chDB shows values of headers to nobody (`[HIDDEN]`), and errors that quote a text as it came are
cut (`quoted_text`).

Texts are looked at, quoted and kept for later statements, so there is only a place for the header in them. It
is filled in when a statement begins. Whether a node takes signatures is asked when its key is, and of one
that has none again after a while: it may be another version by then.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.client import NodeClient
from engine.distributed.peers import Peer
from engine.distributed.read_signature import KEY_PATH, LIFETIME_S, ReadingKey
from engine.env import Env
from engine.names import quote_string
from engine.node.statements.reads_key import FilledIn

_KEY_COUNTS_S = LIFETIME_S / 4
_NO_KEY_COUNTS_S = 60.0
_PLACE = "oncluster-authorization-of-"


@dataclass(frozen=True, slots=True)
class ClosedRead:
    """A request of chDB's to a node that does not let everybody in. `target` is its path and query; `place`
    stands in the text for what lets it in."""

    peer: Peer
    target: str
    place: str


@dataclass(frozen=True, slots=True)
class _Told:
    key: ReadingKey | None
    at_s: float

    def counts(self, now_s: float) -> bool:
        return now_s - self.at_s < (_NO_KEY_COUNTS_S if self.key is None else _KEY_COUNTS_S)


def needs_login(peer: Peer) -> bool:
    """Whether it lets nobody in who says nothing."""
    return bool(peer.password) or peer.user not in ("", "default")


class PeerLogins:
    """The keys of one node for others, and what its statements have in their place."""

    def __init__(self, env: Env, client: Callable[[Peer], NodeClient]) -> None:
        self._env = env
        self._client = client
        self._places = env.new_uuid().bytes + env.new_uuid().bytes
        """Nobody can guess a place, and have it filled in where a statement of his own shows it."""
        self._told: dict[Peer, _Told] = {}
        self._locks: dict[Peer, asyncio.Lock] = {}

    def reading(self, peer: Peer, target: str, structure: str) -> tuple[str, ClosedRead | None]:
        """The table function that reads `target`, which is a path with a query, there in the format Native.
        `structure` are its columns, quoted."""
        url = quote_string(f"{peer.url}{target}")
        if not needs_login(peer):
            return f"url({url}, 'Native', {structure})", None
        place = _PLACE + hmac.digest(self._places, f"{peer.user} {peer.url}{target}".encode(), "sha256").hex()
        text = f"url({url}, 'Native', {structure}, headers('Authorization' = '{place}'))"
        return text, ClosedRead(peer, target, place)

    async def authorizations(self, reads: Iterable[ClosedRead], begun: FilledIn) -> dict[str, str]:
        """What stands for the places of these in a statement that begins now; `begun` says what its texts
        have for others. Raises OnclusterError."""
        found = {}
        for read in reads:
            key = await self._key(read.peer)
            found[read.place] = _basic(read.peer) if key is None else key.header(begun.of(read.target))
        return found

    def forget(self, peer: Peer) -> None:
        """It may be another process by now, and have lost what its keys are made of."""
        self._told.pop(peer, None)

    async def _key(self, peer: Peer) -> ReadingKey | None:
        """None for a peer that gives none. Raises OnclusterError where nobody can say: chDB is told a
        password for no other reason."""
        async with self._locks.setdefault(peer, asyncio.Lock()):
            told = self._told.get(peer)
            if told is None or not told.counts(self._env.monotonic_s()):
                text = await self._client(peer).page(KEY_PATH)
                key = None if text is None else ReadingKey.from_text(peer.user or "default", text)
                told = self._told[peer] = _Told(key, self._env.monotonic_s())
            return told.key


def _basic(peer: Peer) -> str:
    return f"Basic {base64.b64encode(f'{peer.user}:{peer.password}'.encode()).decode()}"
