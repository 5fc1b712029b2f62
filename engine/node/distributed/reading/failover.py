"""A SELECT begins anew on other replicas when one fails before a row has reached the client.

The argument that no row is ever doubled. What a SELECT makes is held back until it is whole, or until more
than `HELD_BYTES` of it are there; only then somebody outside sees the first byte. Until then everything that
was made is thrown away when the statement begins anew; from then on it never does. Statements that change
something (INSERT … SELECT, CREATE … AS SELECT) never begin anew: a part of their rows may be stored.

Who failed? chDB says "Connection refused." and not of whom, so the replicas that the statement has read are
asked again, each at once: who does not answer has failed. Where all answer, each is read by itself: whose
rows do not come has failed. Who fell silent is known already (`peer_watch`). A replica fails a statement at
most once, and a break that nobody can be shown to have caused, or a table that was away for a moment, is met
once, so this ends. A shard without a
replica that is left gives the error that came first if one of them answers probes and yet breaks off; else it
is as if none could be reached (279, or the shard is skipped). With `skip_unavailable_shards_mode =
'unavailable_or_exception_before_processing'` a replica fails the statement also by an error of its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from engine.distributed.peers import Peer
from engine.errors import Code, OnclusterError, ReplyLost, SqlError
from engine.node.distributed.functions.read_place import ReadPlace
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.peers.peer_logins import ClosedRead
from engine.node.distributed.peers.peer_watch import Watching
from engine.node.distributed.reading.early_reads import EarlyReads
from engine.node.distributed.reading.patience import patience_s, time_limit_s
from engine.node.distributed.reading.quoted_text import with_place_in, without_shards
from engine.node.distributed.reading.rows_to_read import ToRead
from engine.node.distributed.registry.overlooked import explained
from engine.node.statements.reads_key import FilledIn
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind
from engine.storage import QueryResult

log = logging.getLogger(__name__)

HELD_BYTES = 1 << 20
"""As much as the HTTP interface holds back by itself."""
_LEAST_WAIT_S = 0.01
PROBE_COUNTS_S = 1.0
PROBE_COUNTS_ONCE_S = 0.1
"""For what cannot begin anew."""
_AGAIN_S = 10.0
"""As long as a replica may take to answer a probe after a statement has failed."""

_FROM_REMOTE = Code.RECEIVED_ERROR_FROM_REMOTE_IO_SERVER
_BROKEN = frozenset({Code.POCO_EXCEPTION, Code.DNS_ERROR, Code.NETWORK_ERROR, Code.SOCKET_TIMEOUT})
GONE = frozenset(
    {
        Code.UNKNOWN_TABLE,
        Code.UNKNOWN_DATABASE,
        Code.TABLE_IS_DROPPED,
        Code.ABORTED,
        Code.QUERY_WAS_CANCELLED,
    }
)
"""What a replica answers that has no such table, or is stopping: another may be asked. Any other refusal is
for a person to see."""
_AWAY = GONE - {Code.ABORTED, Code.QUERY_WAS_CANCELLED}
_SHUT_OUT = frozenset({Code.AUTHENTICATION_FAILED})
"""It may be another process than the one that gave the key."""
_FAR_CODE = re.compile(r"body: '.{0,64}?Code: (\d+)\b", re.DOTALL)
_BODY = re.compile(
    r"Received error from remote server (?P<url>https?://[^/?\s]+).*? body: 'Code: (?P<code>\d+)\. "
    r"DB::Exception: (?P<text>.*?)(?: \((?P<name>[A-Z0-9_]+)\))?(?: \(version [^()]*\))?\s*': ",
    re.DOTALL,
)
"""How chDB tells of what another server answered."""
_OTHER_SERVERS = re.compile(
    r"\b(?:url|s3|gcs|azure|hdfs|iceberg|delta|hudi|mysql|postgresql|mongo|redis|odbc|jdbc|ytsaurus)\w*\s*\(",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Read:
    """What the statement reads of a replica: `sql` reads it by itself, `mark` begins requests to it.
    `has_others`: its shard has. `may_fail`: what it answers with an error is read of another replica of its
    shard, or is left out."""

    peer: Peer
    place: ReadPlace
    mark: str
    sql: str
    has_others: bool = False
    may_fail: bool = False
    closed: ClosedRead | None = None


@dataclass(slots=True, eq=False)
class Failover:
    """What happened to one statement so far."""

    health: PeerHealth
    asked: Asked
    statement: Statement
    failed: dict[Peer, OnclusterError] = field(default_factory=dict)
    reads: set[Read] = field(default_factory=set)
    to_read: set[ToRead] = field(default_factory=set)
    """What counts for `max_rows_to_read`."""
    early: EarlyReads | None = None
    """How what the statement reads may be asked before chDB asks."""
    version: int = -1
    """Of the tables' names (`DistributedTables.version`), when the statement began."""
    watches_names: bool = False
    """Names may come to mean Distributed tables while it runs."""
    filled_in: FilledIn = field(default_factory=FilledIn)
    """By what other nodes know what they do for the statement, and by what they let it in."""
    is_killed: bool = False
    """It is over before its time, and never begins anew."""
    watching: Watching | None = None
    """While the statement runs: for which of its replicas it would wait in vain."""
    _broke_off: dict[Peer, OnclusterError] = field(default_factory=dict)
    _had_unknown: bool = False
    _since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._since_s = self.health.env.monotonic_s()

    @property
    def can_begin_anew(self) -> bool:
        """The statement changes nothing, and reads other nodes."""
        return self.statement.kind is StatementKind.SELECT and bool(self.reads)

    @property
    def probe_counts_s(self) -> float:
        """For how long a replica that was seen needs not be asked."""
        return PROBE_COUNTS_S if self.statement.kind is StatementKind.SELECT else PROBE_COUNTS_ONCE_S

    @property
    def wait_s(self) -> float:
        """As long as the statement waits for a node that is silent. Raises SqlError 36."""
        return min(patience_s(self.asked), max(_LEAST_WAIT_S, self._left_s))

    @property
    def _left_s(self) -> float:
        """Of `max_execution_time`, however often the statement has begun."""
        return time_limit_s(self.asked) - (self.health.env.monotonic_s() - self._since_s)

    @property
    def is_out_of_time(self) -> bool:
        """`max_execution_time` has passed."""
        return self._left_s <= 0

    def begin_watching(self) -> None:
        """The statement begins to run."""
        if self.can_begin_anew:
            self.watching = self.health.watch.begin(read.peer for read in self.reads if read.has_others)

    def watch_on(self) -> None:
        """It was cancelled: chDB may go on to wait for a replica that is silent."""
        if self.watching is not None:
            self.health.watch.linger(self.watching.peers)

    def end_watching(self) -> None:
        """It is over, or a part of its answer is out. May be called twice."""
        if self.watching is not None:
            self.watching.end()

    def failures_among(self, peers: Sequence[Peer]) -> list[str]:
        """What to say of those that failed. Raises what one did that answers and yet breaks off."""
        for peer in peers:
            if peer in self._broke_off:
                raise self._broke_off[peer]
        return [
            f"{peer.name.readable}: {first_line(self.failed[peer])}" for peer in peers if peer in self.failed
        ]

    async def begins_anew(self, error: SqlError) -> bool:
        """Whether the statement, of which nobody has seen anything, shall begin anew after `error`."""
        is_shut_out = _is_gone(error, _SHUT_OUT)
        if is_shut_out:
            for read in self.reads:
                self.health.logins.forget(read.peer)
        if self.is_killed:
            return False
        is_broken = error.code in _BROKEN
        culprits = self._those_who_are_silent() or self._those_who_may_fail(error)
        is_known = is_broken or is_shut_out or culprits or _is_gone(error, GONE)
        if not self.can_begin_anew or not is_known or self._left_s <= 0:
            return False
        reads = [read for read in self.reads if read.peer not in self.failed]
        culprits = culprits or await self._those_who_fail(reads, self._probe)
        if not culprits and is_broken and not _is_slow(error):
            culprits = await self._those_who_fail(reads, self._read)
            for peer in culprits:
                self.health.failed(peer)
                self._broke_off[peer] = self.explained(error)
        may_be_well_again = (is_broken and not _is_slow(error)) or is_shut_out or _is_gone(error, _AWAY)
        if not culprits and may_be_well_again and not self._had_unknown:
            self._had_unknown = True
            for read in reads:
                self.health.forget(read.peer)
            return True
        for peer, failure in culprits.items():
            self.health.forget(peer)
            self.failed[peer] = failure
            log.info("distributed.failover replica=%s error=%s", peer.name, first_line(failure))
        return bool(culprits)

    def _those_who_are_silent(self) -> dict[Peer, OnclusterError]:
        silent = self.watching.silent if self.watching is not None else set[Peer]()
        return {
            peer: ReplyLost(f"{peer.url} does not even answer pings.")
            for peer in silent
            if peer not in self.failed
        }

    def _those_who_may_fail(self, error: SqlError) -> dict[Peer, OnclusterError]:
        """The replica whose error this is, if the statement goes on without it."""
        found = self._body_of(error)
        return {
            read.peer: self._as_given(error)
            for read in self.reads
            if found is not None and read.may_fail and read.peer.url == found["url"]
        }

    async def _those_who_fail(
        self, reads: Sequence[Read], ask: Callable[[Read], Awaitable[object]]
    ) -> dict[Peer, OnclusterError]:
        async def failure(read: Read) -> OnclusterError | None:
            try:
                await ask(read)
            except OnclusterError as error:
                return error
            return None

        failures = await asyncio.gather(*map(failure, reads))
        return {read.peer: error for read, error in zip(reads, failures, strict=True) if error is not None}

    async def _probe(self, read: Read) -> None:
        wait_s = min(self.wait_s, _AGAIN_S)
        await self.health.probe(read.peer, read.place, mark=read.mark, with_delay=False, wait_s=wait_s)

    async def _read(self, read: Read) -> None:
        await self.health.pool.query(f"SELECT count() FROM ({self.filled_in.of(read.sql)})", format="Null")

    def explained(self, error: SqlError) -> SqlError:
        """The same with ClickHouse's code and the replicas that were read, where a connection broke or
        `max_execution_time` has passed; the error of a replica as that replica gave it, with its code; and
        what quotes the statement without what reads the shards."""
        if self.is_killed:
            return SqlError(Code.QUERY_WAS_CANCELLED, "Query was cancelled.")
        error = explained(error)
        if not self.reads:
            return error
        if error.code == _FROM_REMOTE:
            return self._as_given(error)
        if error.code == Code.SOCKET_TIMEOUT and self.is_out_of_time:
            return SqlError(Code.TIMEOUT_EXCEEDED, error.message)
        if error.code != Code.POCO_EXCEPTION or _OTHER_SERVERS.search(self.asked.sql):
            return with_place_in(self.asked.sql, without_shards(error))
        names = ", ".join(sorted({f"{read.peer.name.host}:{read.peer.name.port}" for read in self.reads}))
        code = Code.SOCKET_TIMEOUT if _is_slow(error) else Code.NETWORK_ERROR
        if code == Code.SOCKET_TIMEOUT and self.is_out_of_time:
            code = Code.TIMEOUT_EXCEEDED
        return SqlError(code, f"{error.message.rstrip('.')}, while reading from {names}")

    @staticmethod
    def _body_of(error: SqlError) -> re.Match[str] | None:
        return _BODY.search(error.message) if error.code == _FROM_REMOTE else None

    def _as_given(self, error: SqlError) -> SqlError:
        found = self._body_of(error)
        names = {read.peer.url: read.peer.name for read in self.reads}
        if found is None or found["url"] not in names:
            return error
        text = f"Received from {names[found['url']].readable}. DB::Exception: {found['text']}"
        return SqlError(int(found["code"]), text, name=found["name"] or "")


class BegunAnswer:
    """An answer whose beginning is there: all of it, or more than `HELD_BYTES`."""

    def __init__(
        self, answer: Answer, held: list[bytes], result: QueryResult | None, failover: Failover
    ) -> None:
        self.format = answer.format
        self.native_revision = answer.native_revision
        self._answer = answer
        self._held = held
        self._result = result
        self._failover = failover

    @classmethod
    async def of(cls, answer: Answer, failover: Failover, *, held_bytes: int = HELD_BYTES) -> BegunAnswer:
        """Raises SqlError for a statement that fails before that."""
        held: list[bytes] = []
        size = 0
        while size <= held_bytes:
            data = await answer.read()
            if not data:
                failover.end_watching()
                return cls(answer, held, await answer.finish(), failover)
            held.append(data)
            size += len(data)
        failover.end_watching()
        return cls(answer, held, None, failover)

    async def read(self) -> bytes:
        if self._held:
            return self._held.pop(0)
        return b"" if self._result is not None else await self._answer.read()

    async def finish(self) -> QueryResult:
        """Raises SqlError."""
        if self._result is not None:
            return self._result
        try:
            return await self._answer.finish()
        except SqlError as error:
            explained = self._failover.explained(error)
            if explained is error:
                raise
            raise explained from error


def received_from(peer: Peer, error: SqlError) -> SqlError:
    """A replica's own error, with its code, and who gave it."""
    text = f"Received from {peer.name.readable}. DB::Exception: {error.message}"
    return SqlError(error.code, text, name=error.name)


def _is_gone(error: SqlError, codes: AbstractSet[int]) -> bool:
    found = _FAR_CODE.search(error.message) if error.code == _FROM_REMOTE else None
    return found is not None and int(found[1]) in codes


def _is_slow(error: SqlError) -> bool:
    return error.code == Code.SOCKET_TIMEOUT or error.message.startswith("Timeout")


def first_line(error: OnclusterError) -> str:
    return str(error).partition("\n")[0][:300]
