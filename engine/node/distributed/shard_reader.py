"""One replica of every shard, as chDB reads it: `url()` for another node, the table itself for this one.

Which replica: this node's own if the table is here (`prefer_localhost_replica`), else the first in the order
of load balancing that answers, has the table and is not stale. That is asked before the query begins, with a
cheap probe whose good answer counts for a tenth of a second. After that chDB reads by itself; it tries
nothing twice, so a peer that fails in the middle fails the query: rows are never lost silently.

Credentials never stand in a text: a peer with a password is a named collection of chDB, whose values chDB
hides.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from engine.client import NodeClient
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.replica_choice import Candidate, LoadBalancing, ReplicaErrors, ReplicaOrder
from engine.distributed.select import RemoteSelect, SourceColumn, TooLong
from engine.distributed.select.model import union_all
from engine.distributed.select.shard_choice import is_deterministic, key_columns, rows_of_constants
from engine.distributed.sharding import slot_expression, slots
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId, TableName, quote_identifier, quote_string
from engine.node.replicated.waiting import flag
from engine.storage import ChdbPool

MAX_URL_BYTES = 7000
"""The request line of a node may have 8190."""
PROBE_COUNTS_S = 0.1
MAX_DEPTH = 5
_UNABLE_TO_SKIP = 507
_TOO_DEEP = 581
_DEFAULT_DELAY_S = 300


@dataclass(slots=True)
class PeerHealth:
    """What the node knows of its peers: failures, and when a table was last seen there."""

    pool: ChdbPool
    env: Env
    own_host: str
    clients: dict[Peer, NodeClient] = field(default_factory=dict)
    errors: dict[Peer, ReplicaErrors] = field(default_factory=dict)
    orders: dict[str, ReplicaOrder] = field(default_factory=dict)
    seen_s: dict[tuple[Peer, str, bool], tuple[float, int]] = field(default_factory=dict)
    collections: dict[str, str] = field(default_factory=dict, repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()
        self.clients.clear()

    def client(self, peer: Peer) -> NodeClient:
        if peer not in self.clients:
            self.clients[peer] = NodeClient(
                peer.url,
                user=peer.user,
                password=peer.password,
                connect_timeout_s=1.0,
                timeout_s=10.0,
                env=self.env,
            )
        return self.clients[peer]

    async def probe(self, peer: Peer, database: str, table: str, *, depth: int, with_delay: bool) -> int:
        """Seconds that the table there is behind. Raises OnclusterError when it cannot be read."""
        name = peer.table(database, table)
        key = (peer, name, with_delay)
        seen_s, delay_s = self.seen_s.get(key, (float("-inf"), 0))
        if self.env.monotonic_s() - seen_s < PROBE_COUNTS_S:
            return delay_s
        failures = self.errors.setdefault(peer, ReplicaErrors())
        client = self.client(peer)
        delay_s = 0
        try:
            await client.query_text(f"{_depth_mark(depth)} SELECT 1 FROM {name} LIMIT 0")
            if with_delay:
                where = quote_string(database or peer.default_database or "default")
                text = await client.query_text(
                    "SELECT max(absolute_delay) FROM system.replicas "
                    f"WHERE database = {where} AND table = {quote_string(table)}"
                )
                delay_s = int(text.strip() or 0)
        except OnclusterError:
            failures.failed(self.env.monotonic_s())
            raise
        self.seen_s[key] = (self.env.monotonic_s(), delay_s)
        return delay_s

    def failures_of(self, name: HostId) -> tuple[int, int]:
        """How many failures of this host still count, and the seconds until none does."""
        now_s = self.env.monotonic_s()
        found = [errors for peer, errors in self.errors.items() if peer.name == name]
        return (
            sum(errors.count(now_s) for errors in found),
            max((errors.recovery_s(now_s) for errors in found), default=0),
        )

    def order(self, shard: PeerShard, policy: str) -> Sequence[Peer]:
        now_s = self.env.monotonic_s()
        candidates = [
            Candidate(
                peer.name.host, self.errors[peer].count(now_s) if peer in self.errors else 0, peer.priority
            )
            for peer in shard.peers
        ]
        key = ",".join(peer.url for peer in shard.peers)
        if key not in self.orders:
            self.orders[key] = ReplicaOrder(own_host=self.own_host, rng=self.env.rng)
        try:
            balancing = LoadBalancing(policy)
        except ValueError:
            balancing = LoadBalancing.RANDOM
        return [shard.peers[at] for at in self.orders[key].of(candidates, balancing)]

    async def collection(self, peer: Peer) -> str:
        """The named collection with the peer's credentials; empty where it needs none."""
        if not peer.password and peer.user in ("", "default"):
            return ""
        secret = base64.b64encode(f"{peer.user}:{peer.password}".encode()).decode()
        async with self.lock:
            if secret in self.collections:
                return self.collections[secret]
            # Not named after the secret: names are shown. An older process may have left this one.
            name = f"oncluster_peer_{len(self.collections) + 1}"
            await self.pool.query(f"DROP NAMED COLLECTION IF EXISTS {name}")
            await self.pool.query(
                f"CREATE NAMED COLLECTION {name} AS url = 'http://127.0.0.1/', "
                "`headers.header.name` = 'Authorization' NOT OVERRIDABLE, "
                f"`headers.header.value` = {quote_string(f'Basic {secret}')} NOT OVERRIDABLE"
            )
            self.collections[secret] = name
            return name


@dataclass(slots=True)
class ShardReader:
    """Implements `ShardSource` for one table in one statement."""

    shards: Sequence[PeerShard]
    database: str
    table: str
    health: PeerHealth
    settings: Mapping[str, str]
    depth: int = 0
    sharding_key: str = ""
    column_types: Mapping[str, str] = field(default_factory=dict)
    is_distributed_here: Callable[[TableName], bool] = lambda _: False
    current_database: str = "default"
    skips_unavailable: bool = False
    _choices: dict[int, asyncio.Task[Peer | None]] = field(default_factory=dict)

    def choose_ahead(self) -> None:
        """Begin to ask which replicas can be read, while the statement is still being looked at."""
        if not flag(self.settings, "optimize_skip_unused_shards", False) and self.depth < MAX_DEPTH:
            for shard in self.shards:
                self._choice(shard)

    async def close(self) -> None:
        """Ask no more."""
        for choice in self._choices.values():
            choice.cancel()
        await asyncio.gather(*self._choices.values(), return_exceptions=True)

    async def table_expression(self, select: RemoteSelect) -> str:
        if self.depth >= MAX_DEPTH:
            raise SqlError(
                _TOO_DEEP, "Maximum distributed depth exceeded", name="TOO_LARGE_DISTRIBUTED_DEPTH"
            )
        parts = []
        shards = await self._needed(select)
        peers = await asyncio.gather(*(self._choice(shard) for shard in shards))
        for shard, peer in zip(shards, peers, strict=True):
            if peer is not None:
                parts.append(await self._read(shard, peer, select))
        return union_all(parts, [column for _, column in select.columns])

    async def _read(self, shard: PeerShard, peer: Peer, select: RemoteSelect) -> str:
        sql = select.sql(peer.table(self.database, self.table), shard_number=shard.number)
        columns = [column for _, column in select.columns]
        if self._is_here(peer):
            items = ", ".join(_as_declared(column) for column in columns)
            return f"SELECT {items} FROM ({sql})"
        text = f"{_depth_mark(self.depth + 1)} {sql}"
        url = f"{peer.url}/?default_format=Native&query={quote(text, safe='')}"
        if len(url) > MAX_URL_BYTES:
            raise TooLong
        structure = quote_string(select.structure)
        collection = await self.health.collection(peer)
        if collection:
            read = f"url({collection}, url = {quote_string(url)}, format = 'Native', structure = {structure})"
        else:
            read = f"url({quote_string(url)}, 'Native', {structure})"
        return f"SELECT {', '.join(quote_identifier(column.name) for column in columns)} FROM {read}"

    def _is_here(self, peer: Peer) -> bool:
        if not peer.is_local or not flag(self.settings, "prefer_localhost_replica", True):
            return False
        database = self.database or peer.default_database or self.current_database
        return not self.is_distributed_here(TableName(database, self.table))

    def _choice(self, shard: PeerShard) -> asyncio.Task[Peer | None]:
        if shard.number not in self._choices:
            self._choices[shard.number] = asyncio.create_task(self._choose(shard))
        return self._choices[shard.number]

    async def _choose(self, shard: PeerShard) -> Peer | None:
        max_delay_s = int(self.settings.get("max_replica_delay_for_distributed_queries", _DEFAULT_DELAY_S))
        with_delay = max_delay_s > 0 and len(shard.peers) > 1
        order = self.health.order(shard, self.settings.get("load_balancing", "random"))
        here = [peer for peer in order if self._is_here(peer)]
        failures: list[str] = []
        stale: list[tuple[int, Peer]] = []
        for peer in [*here, *(peer for peer in order if peer not in here)]:
            try:
                if peer in here and not with_delay:
                    await self.health.pool.query(
                        f"SELECT 1 FROM {peer.table(self.database, self.table)} LIMIT 0",
                        database=self.current_database,
                    )
                    return peer
                delay_s = await self.health.probe(
                    peer, self.database, self.table, depth=self.depth + 1, with_delay=with_delay
                )
            except OnclusterError as error:
                if isinstance(error, SqlError) and error.code == _TOO_DEEP:
                    raise
                failures.append(f"{peer.name}: {_first_line(error)}")
                continue
            if not with_delay or delay_s < max_delay_s:
                return peer
            stale.append((delay_s, peer))
        if stale:
            if flag(self.settings, "fallback_to_stale_replicas_for_distributed_queries", True):
                return min(stale, key=lambda one: one[0])[1]
            raise SqlError(
                Code.ALL_REPLICAS_ARE_STALE,
                "Could not find enough connections to up-to-date replicas. Got: 0, needed: 1 "
                f"(shard {shard.number})",
            )
        if self.skips_unavailable or flag(self.settings, "skip_unavailable_shards", False):
            return None
        raise SqlError(
            Code.ALL_CONNECTION_TRIES_FAILED,
            f"All connection tries failed for shard {shard.number}. Log: {'; '.join(failures)}",
            hint="Start one of them, or set skip_unavailable_shards = 1 for an answer without its rows.",
        )

    async def _needed(self, select: RemoteSelect) -> Sequence[PeerShard]:
        force = int(self.settings.get("force_optimize_skip_unused_shards", "0") or 0)
        if not flag(self.settings, "optimize_skip_unused_shards", False):
            return self.shards
        why = "No sharding key"
        if self.sharding_key:
            why = "Sharding key is not deterministic"
            if is_deterministic(self.sharding_key):
                why = f"Sharding key {self.sharding_key} is not used"
                numbers = await self._shards_of_constants(select)
                if numbers is not None:
                    return [shard for at, shard in enumerate(self.shards) if at in numbers]
        if force == 2 or (force == 1 and self.sharding_key):
            raise SqlError(_UNABLE_TO_SKIP, why, name="UNABLE_TO_SKIP_UNUSED_SHARDS")
        return self.shards

    async def _shards_of_constants(self, select: RemoteSelect) -> set[int] | None:
        wanted = key_columns(self.sharding_key, self.column_types)
        rows = rows_of_constants(select.pruned_by, wanted, self.column_types)
        if not rows:
            return None
        owners = slots([shard.weight for shard in self.shards])
        types = ", ".join(
            f"defaultValueOfTypeName({quote_string(self.column_types[name])}) AS {quote_identifier(name)}"
            for name in wanted
        )
        limit = int(self.settings.get("optimize_skip_unused_shards_limit", "1000") or 1000)
        try:
            asked = f"SELECT toTypeName({self.sharding_key}) FROM (SELECT {types})"
            key_type = (await self.health.pool.query(asked, format="TSVRaw")).text.strip()
            slot = slot_expression(self.sharding_key, key_type, len(owners))
            found = (
                await self.health.pool.query(f"SELECT {slot}, count() OVER () FROM {rows}", format="TSVRaw")
            ).text
        except SqlError:
            return None
        lines = found.splitlines()
        if len(lines) > limit:
            return None
        return {owners[int(line.split("\t")[0])] for line in lines}


def _depth_mark(depth: int) -> str:
    """How many nodes a request has passed: a Distributed table that reads itself would go on for ever."""
    return f"/* distributed depth {depth} */"


def _as_declared(column: SourceColumn) -> str:
    name = quote_identifier(column.name)
    if column.type.startswith("AggregateFunction"):
        return name
    return f"CAST({name}, {quote_string(column.type)}) AS {name}"


def _first_line(error: OnclusterError) -> str:
    return str(error).partition("\n")[0][:300]
