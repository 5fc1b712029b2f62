"""What the node knows of its peers: who failed lately, and which table was seen where, and when.

A probe asks a replica whether it has a table and how far it is behind. Its good answer counts for as long as
who asks allows: a statement that can be tried again on another replica takes one of the last second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.client import NodeClient
from engine.distributed.delivery import CONNECT_TIMEOUT_S, CONNECTION_TRIES, Policy
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.replica_choice import (
    Candidate,
    ReplicaFailures,
    ReplicaOrder,
)
from engine.env import Env
from engine.errors import OnclusterError, ReplyLost, SqlError
from engine.names import quote_string
from engine.node.distributed.functions.read_place import ReadPlace
from engine.node.distributed.peers.peer_logins import PeerLogins
from engine.node.distributed.peers.peer_watch import PeerWatch
from engine.node.distributed.sending.sinks import MAX_ANSWER_BYTES
from engine.storage import ChdbPool

_MAX_SEEN = 10_000
_REQUEST_S = 10.0
"""As long as a request may take whose sender does not say."""


@dataclass(slots=True)
class PeerHealth:
    """One for the whole node."""

    pool: ChdbPool
    env: Env
    own_host: str
    failures: ReplicaFailures
    clients: dict[Peer, NodeClient] = field(default_factory=dict)
    orders: dict[tuple[Peer, ...], ReplicaOrder] = field(default_factory=dict)
    seen_s: dict[tuple[Peer, str, bool], tuple[float, int]] = field(default_factory=dict)
    here_version: int = 0
    watch: PeerWatch = field(init=False)
    logins: PeerLogins = field(init=False)

    def __post_init__(self) -> None:
        self.logins = PeerLogins(self.env, self.client)
        self.watch = PeerWatch(self.env, lambda peer: self.client(peer).ping(), self._fell_silent)

    async def close(self) -> None:
        await self.watch.close()
        for client in self.clients.values():
            await client.close()
        self.clients.clear()

    def client(self, peer: Peer) -> NodeClient:
        if peer not in self.clients:
            self.clients[peer] = NodeClient(
                peer.url,
                user=peer.user,
                password=peer.password,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                retries=CONNECTION_TRIES - 1,
                retry_pause_s=0.0,
                max_answer_bytes=MAX_ANSWER_BYTES,
                timeout_s=_REQUEST_S,
                env=self.env,
            )
        return self.clients[peer]

    def seen(self, peer: Peer, table: str, *, with_delay: bool, max_age_s: float) -> int | None:
        """Seconds that the table there was behind when it was seen last; None if that is too long ago.

        `table` is `ReadPlace.seen_as`. What is behind may have fallen back further since.
        """
        found = self.seen_s.get((peer, table, with_delay))
        if found is None:
            return None
        age_s = self.env.monotonic_s() - found[0]
        if age_s >= max_age_s:
            return None
        return found[1] + (int(age_s) + 1 if found[1] else 0)

    def note_seen(self, peer: Peer, table: str, *, with_delay: bool, delay_s: int = 0) -> None:
        """The table was read there just now."""
        if len(self.seen_s) >= _MAX_SEEN:
            self.seen_s.clear()
        self.seen_s[peer, table, with_delay] = (self.env.monotonic_s(), delay_s)

    def forget(self, peer: Peer) -> None:
        """What was seen there counts no more."""
        for key in [key for key in self.seen_s if key[0] == peer]:
            del self.seen_s[key]
        self.logins.forget(peer)

    def forget_here(self) -> None:
        """A statement that may have made, renamed or dropped a table of this node has run or was given up."""
        self.here_version += 1
        for key in [key for key in self.seen_s if key[0].is_local]:
            del self.seen_s[key]

    def failed(self, peer: Peer) -> None:
        """A connection to the replica failed."""
        self.failures.failed(peer.name)
        self.logins.forget(peer)

    def _fell_silent(self, peer: Peer) -> None:
        self.forget(peer)
        self.failed(peer)

    async def probe(self, peer: Peer, place: ReadPlace, *, mark: str, with_delay: bool, wait_s: float) -> int:
        """Seconds that the table there is behind, asked now. Raises OnclusterError when it cannot be read.

        `mark` is a comment to put before the question, `wait_s` as long as who asks may wait for a replica
        that answers pings: it may have many statements to run before.
        """
        try:
            async with asyncio.timeout(wait_s):
                asking = self._delay_s(peer, place, mark=mark, with_delay=with_delay)
                delay_s = await self.watch.while_it_answers(peer, asking)
        except SqlError:
            raise  # it answers, so nothing is wrong with the connection
        except OnclusterError:
            self.failed(peer)
            raise
        except TimeoutError:
            self.failed(peer)
            raise ReplyLost(f"{peer.url} was asked for its table and has not answered in time.") from None
        self.note_seen(peer, place.seen_as(peer), with_delay=with_delay, delay_s=delay_s)
        return delay_s

    async def _delay_s(self, peer: Peer, place: ReadPlace, *, mark: str, with_delay: bool) -> int:
        client = self.client(peer)
        # With LIMIT alone a table's max_partitions_to_read and a user's force_primary_key would refuse it.
        question = f"{mark} SELECT 1 FROM {place.text(peer)} WHERE 0 LIMIT 0"
        await client.query_text(question, settings=place.parameters, is_bounded=True)
        if not with_delay:
            return 0
        where = quote_string(place.table.database or peer.default_database or "default")
        text = await client.query_text(
            "SELECT max(absolute_delay) FROM system.replicas "
            f"WHERE database = {where} AND table = {quote_string(place.table.table)}",
            is_bounded=True,
        )
        return int(text.strip() or 0)

    def order(self, shard: PeerShard, policy: Policy) -> Sequence[Peer]:
        """The replicas of a shard, the first choice first."""
        if len(shard.peers) == 1:
            return shard.peers
        candidates = [
            Candidate(peer.name.host, self.failures.count(peer.name), peer.priority) for peer in shard.peers
        ]
        if shard.peers not in self.orders:
            self.orders[shard.peers] = ReplicaOrder(own_host=self.own_host, rng=self.env.rng)
        order = self.orders[shard.peers].of(
            candidates,
            policy.load_balancing,
            first_offset=policy.first_offset,
            max_ignored_errors=policy.max_ignored_errors,
        )
        return [shard.peers[at] for at in order]
