"""One replica of every shard, as chDB reads it: `url()` for another node, the table itself for this one.

Which replica: this node's own if the table is here (`prefer_localhost_replica`), else the first in the order
of load balancing that answers, has the table and is not stale. That is asked before the query begins, with a
cheap probe whose good answer counts for a while. After that chDB reads by itself and tries nothing twice, so
a peer that fails in the middle fails the query: rows are never lost silently. Whether the statement then
begins anew without that peer is for `failover` to say.

What lets chDB in there is filled in when the statement begins: see `peer_logins`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.distributed.definition import SkipMode
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.select import RemoteSelect, ShardSource, TooLong
from engine.distributed.select.model import of_each_shard, union_all
from engine.errors import Code, OnclusterError, SqlError
from engine.names import TableName, quote_for_url, quote_identifier, quote_string
from engine.node.distributed.functions.read_place import ReadPlace
from engine.node.distributed.peers.asking_in_turn import AskingInTurn
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.declared_types import as_declared
from engine.node.distributed.reading.early_reads import EarlyReads, early_url
from engine.node.distributed.reading.failover import GONE, Failover, Read, first_line, received_from
from engine.node.distributed.reading.leaf_limits import has_leaf_limits
from engine.node.distributed.reading.needed_shards import needed_shards
from engine.node.distributed.reading.read_settings import forwarded, of_shards
from engine.node.distributed.reading.rows_to_read import ToRead
from engine.node.distributed.reading.table_filters import filter_of, filter_setting
from engine.node.distributed.reading.url_settings import settings_of_reads
from engine.node.distributed.reading.zones import has_session_zone, with_zones
from engine.node.distributed.sending.policy import policy_of
from engine.node.statements.asked_settings import flag, number
from engine.node.statements.reads_key import READS_PLACE

MAX_URL_BYTES = 250_000
"""The request line of a node may have 1 MiB, as with ClickHouse."""
MAX_DEPTH = 5
ONE_ROW = "/* one row */ "
"""Behind the depth: the node that is asked needs no stream for its answer, and may put SETTINGS behind it."""
_DEFAULT_DELAY_S = 300
_HEDGED_MS = 1000
"""ClickHouse's is 50, for a connection that is open; here a node answers a statement, and may be busy."""


@dataclass(slots=True)
class ShardReader:
    """Implements `ShardSource` for one table in one statement."""

    shards: Sequence[PeerShard]
    place: ReadPlace
    health: PeerHealth
    settings: Mapping[str, str]
    failover: Failover
    depth: int = 0
    sharding_key: str = ""
    column_types: Mapping[str, str] = field(default_factory=dict)
    is_distributed_here: Callable[[TableName], bool] = lambda _: False
    current_database: str = "default"
    skipping: SkipMode | None = None
    """Which shards the answer may leave out."""
    elsewhere: str = ""
    """What is the same table, with all shards, in a statement on another node."""
    own: TableName | None = None
    """The Distributed table on this node, if it is one."""
    may_set: bool = True
    """The user may change settings."""
    _choices: dict[int, asyncio.Task[Peer | None]] = field(default_factory=dict)
    _orders: dict[int, Sequence[Peer]] = field(default_factory=dict)
    _early_urls: dict[Peer, str] = field(default_factory=dict)

    def choose_ahead(self) -> None:
        """Begin to ask which replicas can be read, while the statement is still being looked at."""
        if self.reads_all_shards and self.depth < MAX_DEPTH:
            for shard in self.shards:
                self._choice(shard)

    @property
    def reads_all_shards(self) -> bool:
        """No shard is left out because of what the statement says."""
        return not flag(self.settings, "optimize_skip_unused_shards", False)

    def known_choice(self) -> tuple[Peer, ...] | None:
        """The replica of every shard, where all were seen lately; None where one has to be asked."""
        if not self.reads_all_shards or self.depth >= MAX_DEPTH or self._choices or self.failover.failed:
            return None
        chosen = []
        for shard in self.shards:
            peer = self._known(shard)
            if peer is None:
                return None
            chosen.append(peer)
        return tuple(chosen)

    @property
    def chosen(self) -> tuple[Peer, ...] | None:
        """The replica of every shard, behind `table_expression`; None where a shard was left out."""
        peers = [
            choice.result() if choice.done() and not choice.cancelled() else None
            for choice in (self._choices.get(shard.number) for shard in self.shards)
            if choice is not None
        ]
        whole = tuple(peer for peer in peers if peer is not None)
        return whole if len(whole) == len(self.shards) else None

    async def close(self) -> None:
        """Ask no more."""
        for choice in self._choices.values():
            choice.cancel()
        if self._choices:
            await asyncio.gather(*self._choices.values(), return_exceptions=True)

    async def table_expression(self, select: RemoteSelect, sources: Sequence[ShardSource] = ()) -> str:
        if self.depth >= MAX_DEPTH:
            raise SqlError(Code.TOO_LARGE_DISTRIBUTED_DEPTH, "Maximum distributed depth exceeded")
        shards = await needed_shards(
            self.shards, select, self.sharding_key, self.column_types, self.settings, self.health.pool
        )
        peers = await asyncio.gather(*(self._choice(shard) for shard in shards))
        chosen = [(shard, peer) for shard, peer in zip(shards, peers, strict=True) if peer is not None]
        # chDB begins with what stands first, and asks nobody before it has read this node's own rows.
        chosen.sort(key=lambda one: self._is_here(one[1]) is (select.of_each is None))
        parts = [await self._read(shard, peer, select, sources) for shard, peer in chosen]
        expression = union_all([of_each_shard(select, part) for part in parts], select.result)
        self.failover.early = self._early(expression, [peer for _, peer in chosen], parts, select)
        return expression

    def _early(
        self, expression: str, peers: Sequence[Peer], parts: Sequence[str], select: RemoteSelect
    ) -> EarlyReads | None:
        """The same rows added up, where all other nodes may be asked early."""
        here = [part for peer, part in zip(peers, parts, strict=True) if self._is_here(peer)]
        others = [peer for peer in peers if not self._is_here(peer)]
        if not others or len(here) > 1 or not all(self._early_urls[peer] for peer in others):
            return None
        requests = tuple((peer, self._early_urls[peer]) for peer in others)
        columns = tuple((column.name, column.type) for _, column in select.columns)
        return EarlyReads(expression, here[0] if here else "", requests, columns)

    async def _others(
        self, peer: Peer, select: RemoteSelect, sources: Sequence[ShardSource]
    ) -> Mapping[int, str]:
        """The texts of other Distributed tables in what `peer` is asked."""
        texts = {}
        for other in select.others:
            source = sources[other.slot]
            if not isinstance(source, ShardReader):
                raise TypeError(source)
            if other.is_local:
                texts[other.slot] = other.text(source.place.text(peer))
            elif self._is_here(peer):
                texts[other.slot] = await source.table_expression(other.read)
            else:
                texts[other.slot] = other.text(source.elsewhere)
        return texts

    async def _read(
        self, shard: PeerShard, peer: Peer, select: RemoteSelect, sources: Sequence[ShardSource]
    ) -> str:
        table = self.place.text(peer)
        others = await self._others(peer, select, sources)
        names = self._names(select)
        if self._is_here(peer):
            sql = as_declared(select).sql(
                table, shard_number=shard.number, shards=len(self.shards), others=others
            )
            self._note_to_read(None, sql)
            return f"SELECT {names} FROM ({sql})" if self._zones(select) else sql
        sql = select.sql(table, shard_number=shard.number, shards=len(self.shards), others=others)
        mark = depth_mark(self.depth + 1)
        question = f"{mark} {ONE_ROW if select.has_one_row else ''}{sql}"
        filters = self._filters(peer, select, sources)
        settings = forwarded({**self.settings, **filters}, sql)
        key = f"&session_timeout={READS_PLACE}"
        parameters = f"{settings}{self.place.url_parameters}{key}&query={quote_for_url(question)}"
        target = f"/?default_format=Native{parameters}"
        if len(peer.url) + len(target) > MAX_URL_BYTES:
            raise TooLong
        read, closed = self.health.logins.reading(peer, target, quote_string(select.structure))
        text = f"SELECT {names} FROM {read}{settings_of_reads(self.settings) if self.may_set else ''}"
        self.failover.reads.add(
            Read(
                peer,
                self.place,
                mark,
                text,
                has_others=len(shard.peers) > 1,
                may_fail=self.skipping is SkipMode.ANY_ERROR,
                closed=closed,
            )
        )
        self._note_to_read(peer, sql, filters)
        self._early_urls[peer] = early_url(peer, parameters, select)
        return text

    def _note_to_read(self, peer: Peer | None, sql: str, filters: Mapping[str, str] | None = None) -> None:
        there = {**of_shards(self.settings, sql), **self.place.parameters, **(filters or {})}
        noted = ToRead.of(self.settings, peer, sql, self.current_database, there)
        if noted is not None:
            self.failover.to_read.add(noted)

    def _names(self, select: RemoteSelect) -> str:
        """The columns of the result by name, with the time zones that they have in tables."""
        own = self._zones(select)
        return ", ".join(
            quote_identifier(column.name) if own is None else with_zones(text, column, own, select)
            for text, column in select.columns
        )

    def _zones(self, select: RemoteSelect) -> TableName | None:
        """The table whose columns' time zones are not those of the statement."""
        if not self.settings.get("session_timezone") or select.block:
            return None
        return self.own if any(has_session_zone(column.type) for _, column in select.columns) else None

    def _filters(self, peer: Peer, select: RemoteSelect, sources: Sequence[ShardSource]) -> Mapping[str, str]:
        """`additional_table_filters` for the shard's own tables."""
        if self.place.function:
            return {}
        others = [sources[other.slot] for other in select.others]
        found = {}
        for reader in (self, *others):
            if isinstance(reader, ShardReader) and not reader.place.function:
                name = reader._table_at(peer)
                found[name] = filter_of(reader.settings, name, alias="", current=self.current_database)
        return filter_setting(found)

    def _is_here(self, peer: Peer) -> bool:
        if self.place.function or not self._is_preferred(peer):
            return False
        return not self.is_distributed_here(self._table_at(peer))

    def _is_preferred(self, peer: Peer) -> bool:
        prefers = flag(self.settings, "prefer_localhost_replica", True)
        return peer.is_local and prefers and not has_leaf_limits(self.settings)

    def _table_at(self, peer: Peer) -> TableName:
        table = self.place.table
        return table.within(peer.default_database or self.current_database)

    def _choice(self, shard: PeerShard) -> asyncio.Task[Peer | None]:
        if shard.number not in self._choices:
            self._choices[shard.number] = asyncio.create_task(self._choose(shard))
        return self._choices[shard.number]

    def _order(self, shard: PeerShard) -> Sequence[Peer]:
        """The replicas that this statement may still read, this node's own table first.

        Made once: making one takes a turn of round robin, and draws lots.
        """
        if shard.number not in self._orders:
            self._orders[shard.number] = self._new_order(shard)
        return self._orders[shard.number]

    def _new_order(self, shard: PeerShard) -> Sequence[Peer]:
        order = self.health.order(shard, policy_of(self.settings))
        here = [peer for peer in order if self._is_here(peer)]
        others = [peer for peer in order if peer not in here and peer not in self.failover.failed]
        if self.place.function:
            others.sort(key=self._is_preferred, reverse=True)
        return [*here, *others]

    @property
    def _reads_stale(self) -> bool:
        return flag(self.settings, "fallback_to_stale_replicas_for_distributed_queries", True)

    def _max_delay_s(self, shard: PeerShard) -> int:
        """From how far behind a replica is stale; 0 where nobody asks: the only one is read, stale or not."""
        if (len(shard.peers) == 1 and self._reads_stale) or self.place.function:
            return 0
        return int(number(self.settings, "max_replica_delay_for_distributed_queries", _DEFAULT_DELAY_S))

    def _known(self, shard: PeerShard) -> Peer | None:
        """The first choice, if it was seen lately and is not stale."""
        peer = self._order(shard)[0] if shard.peers else None
        if peer is None:
            return None
        max_delay_s = self._max_delay_s(shard)
        name = self.place.seen_as(peer)
        with_delay = max_delay_s > 0
        if self._is_here(peer) and not with_delay:
            name = f"{self.current_database} {name}"
        delay_s = self.health.seen(peer, name, with_delay=with_delay, max_age_s=self.failover.probe_counts_s)
        return peer if delay_s is not None and (not with_delay or delay_s < max_delay_s) else None

    async def _delay_s(self, peer: Peer, max_delay_s: int) -> int:
        """Seconds that the table there is behind. Raises OnclusterError where it cannot be read.

        Who would be stale by what was seen before is asked again: that only says how far it is at most.
        """
        with_delay = max_delay_s > 0
        name = self.place.seen_as(peer)
        counts_s = self.failover.probe_counts_s
        if self._is_here(peer) and not with_delay:
            version = self.health.here_version
            await self.health.pool.query(
                f"SELECT 1 FROM {name} WHERE 0 LIMIT 0", database=self.current_database
            )
            if version == self.health.here_version:
                self.health.note_seen(peer, f"{self.current_database} {name}", with_delay=False)
            return 0
        delay_s = self.health.seen(peer, name, with_delay=with_delay, max_age_s=counts_s)
        if delay_s is None or (with_delay and delay_s >= max_delay_s):
            mark = depth_mark(self.depth + 1)
            delay_s = await self.health.probe(
                peer, self.place, mark=mark, with_delay=with_delay, wait_s=self.failover.wait_s
            )
        return delay_s

    def _silence_s(self, peer: Peer) -> float | None:
        """After how long a silence another replica is asked too."""
        if self._is_here(peer) or not flag(self.settings, "use_hedged_requests", True):
            return None
        return number(self.settings, "hedged_connection_timeout_ms", _HEDGED_MS) / 1000

    async def _choose(self, shard: PeerShard) -> Peer | None:
        max_delay_s = self._max_delay_s(shard)
        failures: list[str] = []
        refusal: SqlError | None = None
        stale: list[tuple[int, Peer]] = []
        asking = AskingInTurn(
            self._order(shard), lambda peer: self._delay_s(peer, max_delay_s), silence_s=self._silence_s
        )
        async with aclosing(asking.answers()) as answers:
            async for peer, delay_s in answers:
                if isinstance(delay_s, OnclusterError):
                    if isinstance(delay_s, SqlError) and delay_s.code == Code.TOO_LARGE_DISTRIBUTED_DEPTH:
                        raise delay_s
                    if isinstance(delay_s, SqlError) and (refusal is None or refusal.code in GONE):
                        refusal = received_from(peer, delay_s)
                    failures.append(f"{peer.name.readable}: {first_line(delay_s)}")
                elif not max_delay_s or delay_s < max_delay_s:
                    for silent in asking.silent:
                        self.health.failed(silent)
                    return peer
                else:
                    stale.append((delay_s, peer))
        if stale:
            if self._reads_stale:
                return min(stale, key=lambda one: one[0])[1]
            if self.skipping is not None and any(not peer.is_local for _, peer in stale):
                return None
            raise SqlError(
                Code.ALL_REPLICAS_ARE_STALE,
                "Could not find enough connections to up-to-date replicas. Got: 0, needed: 1 "
                f"(shard {shard.number})",
            )
        failures += self.failover.failures_among(shard.peers)
        if refusal is not None and not self._may_be_left_out(refusal):
            raise refusal  # it answers, and has no such table, or says no
        if self.skipping is not None:
            return None
        if self.failover.is_out_of_time:
            raise SqlError(
                Code.TIMEOUT_EXCEEDED,
                f"Timeout exceeded while no replica of shard {shard.number} answered. "
                f"Log: {'; '.join(failures)}",
            )
        raise SqlError(
            Code.ALL_CONNECTION_TRIES_FAILED,
            f"All connection tries failed for shard {shard.number}. Log: {'; '.join(failures)}",
            hint=f"{'Start one of them' if refusal is None else 'Make the table there'}, or set "
            "skip_unavailable_shards = 1 for an answer without its rows.",
        )

    def _may_be_left_out(self, refusal: SqlError) -> bool:
        """A shard that can be reached, and whose replicas answer this."""
        if self.skipping is SkipMode.ANY_ERROR:
            return True
        return self.skipping is not SkipMode.UNREACHABLE and refusal.code in GONE


def depth_mark(depth: int) -> str:
    """How many nodes a request has passed: a Distributed table that reads itself would go on for ever."""
    return f"/* distributed depth {depth} */"
