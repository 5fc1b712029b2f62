"""Shards that are asked before chDB has planned the statement that adds up their answers.

chDB asks another node when it has analysed and planned a statement, so a count on two nodes takes the sum
of both. What a shard is asked is known before. Here it is asked at once, and chDB's statement, which adds a
value that is waited for, is planned at the same time. It is done where the answer is a row of sums of
integers. If it is nothing else (`row_of_sums`), chDB is asked for this node's own part only.

Whatever goes wrong with such a request, the statement runs as it would have without: chDB asks by itself, and
its error, if there is one, is what failover looks at. Nobody has seen anything of the first try. Only a shard
that did not answer in time is not asked again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from engine.distributed.peers import Peer
from engine.distributed.select import RemoteSelect
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.node.distributed.peers.peer_logins import needs_login
from engine.node.distributed.peers.peer_watch import PeerWatch
from engine.node.distributed.reading.row_of_sums import sum_of, summed_columns, text_row
from engine.node.statements.reads_key import FilledIn
from engine.storage import QueryResult
from engine.storage.awaited_values import MAX_COLUMNS, RANGES, Awaited

_INTEGER = re.compile(r"-?[0-9]{1,20}\Z")
_MAX_BYTES = 1 << 15
_CONNECT_S = 1.0
_UNSEEN_S = 0.05
"""So long a statement may wait without one in chDB, where it would be seen and could be killed."""


@dataclass(frozen=True, slots=True)
class EarlyReads:
    """`text` is the subquery over all shards in a statement. It may be replaced by the sums of what `here`
    gives, which is a SELECT of one row or empty, and of the answers to `requests`, which are peers and URLs.
    `columns` are names and types."""

    text: str
    here: str
    requests: tuple[tuple[Peer, str], ...]
    columns: tuple[tuple[str, str], ...]

    def filled_in(self, with_: FilledIn) -> EarlyReads:
        """The same for one statement."""
        requests = tuple((peer, with_.of(url)) for peer, url in self.requests)
        return replace(self, text=with_.of(self.text), requests=requests)

    def own(self) -> str:
        """This node's own row."""
        return self.here or self._row([0] * len(self.columns))

    def sums(self, awaited: list[Awaited], own: Sequence[int] | None = None) -> str:
        """The other subquery; `awaited` are the answers, in order. `own` is what `own()` gave, if it is
        known."""
        items = []
        for at, (name, type_) in enumerate(self.columns):
            here = f"here.{quote_identifier(name)}"
            parts = [here, *(each.value(at, type_, after=here) for each in awaited)]
            items.append(f"{' + '.join(parts)} AS {quote_identifier(name)}")
        return f"(SELECT {', '.join(items)} FROM ({self.own() if own is None else self._row(own)}) AS here)"

    def text_of_sums(self, columns: Sequence[str], rows: Sequence[Sequence[int]]) -> bytes:
        """The sums of these columns, of which every row has all, as a line of text."""
        sums = {
            name: sum_of([row[at] for row in rows], type_) for at, (name, type_) in enumerate(self.columns)
        }
        return text_row([sums[name] for name in columns])

    def _row(self, values: Sequence[int]) -> str:
        """No constants, or nothing would be waited for."""
        items = (
            f"CAST(dummy, '{type_}') + CAST('{value}', '{type_}') AS {quote_identifier(name)}"
            for value, (name, type_) in zip(values, self.columns, strict=True)
        )
        return f"SELECT {', '.join(items)} FROM system.one"


def early_url(peer: Peer, parameters: str, select: RemoteSelect) -> str:
    """The request that `select` is on `peer`, with `parameters` in its URL; empty where chDB has to ask."""
    types = [column.type for _, column in select.columns]
    if not select.is_sum or len(types) > MAX_COLUMNS or not all(type_ in RANGES for type_ in types):
        return ""
    return f"{peer.url}/?default_format=TSVRaw{parameters}" if peer.scheme == "http" else ""


Run = Callable[[str], Awaitable[QueryResult]]
"""Runs a statement in chDB."""


class EarlyClient:
    """The connections to other nodes, which stay open."""

    def __init__(self, env: Env, watch: PeerWatch) -> None:
        self._env = env
        self._watch = watch
        self._session: aiohttp.ClientSession | None = None

    def new_awaited(self) -> Awaited:
        return Awaited(lambda: self._env.new_uuid().int)

    async def ask(self, peer: Peer, url: str, *, wait_s: float) -> bytes | None:
        """The answer; None for one that is none. Raises aiohttp.ClientError, OSError, TimeoutError.

        `wait_s` of silence are too much. It is one row, which does not come in pieces for as long again.
        """
        return await self._watch.unless_silent(peer, self._ask(peer, url, wait_s=wait_s))

    async def _ask(self, peer: Peer, url: str, *, wait_s: float) -> bytes | None:
        timeout = aiohttp.ClientTimeout(total=2 * wait_s, sock_connect=_CONNECT_S, sock_read=wait_s)
        auth = aiohttp.BasicAuth(peer.user, peer.password, "utf-8") if needs_login(peer) else None
        where = URL(url, encoded=True)
        async with self._open_session().get(
            where, auth=auth, allow_redirects=False, timeout=timeout
        ) as reply:
            body = b""
            while chunk := await reply.content.readany():
                body += chunk
                if len(body) > _MAX_BYTES:
                    return None
        return body if reply.status == 200 else None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding", "Accept", "User-Agent"),
            )
        return self._session


class EarlyStatement:
    """Implements `engine.node.statements.statement.Early` for one statement."""

    def __init__(
        self,
        client: EarlyClient,
        reads: EarlyReads,
        *,
        format: str,
        wait_s: float,
        is_killed: Callable[[], bool],
    ) -> None:
        """`format` is that of a statement which names none."""
        self._is_killed = is_killed
        self._client = client
        self._reads = reads
        self._format = format
        self._wait_s = wait_s
        self._has_failed = False
        self._late: Peer | None = None

    async def run(self, sql: str, run: Run) -> QueryResult:
        before, text, behind = sql.partition(self._reads.text)
        if not text:
            return await run(sql)
        awaited = [self._client.new_awaited() for _ in self._reads.requests]
        asking = [
            asyncio.create_task(self._ask(peer, url, each))
            for (peer, url), each in zip(self._reads.requests, awaited, strict=True)
        ]
        try:
            # Each writes its request in its first step. A thread of chDB's that began before would hold up
            # this one for a turn of the scheduler's.
            await asyncio.sleep(0)
            own = None
            if columns := summed_columns(before, behind, self._format):
                result = await run(self._reads.own() + behind)
                own = integers_of(result.data, self._reads.columns)
                if own is not None:
                    await asyncio.wait(asking, timeout=_UNSEEN_S)
                    rows = [own, *(each.values for each in awaited if each.values is not None)]
                    if len(rows) > len(awaited):
                        return replace(result, data=self._reads.text_of_sums(columns, rows))
            if not self._has_failed:
                return await run(before + self._reads.sums(awaited, own) + behind)
        except SqlError:
            if not self._has_failed:
                raise
        finally:
            for each in awaited:
                each.close()
            for task in asking:
                task.cancel()
        if self._is_killed():
            raise SqlError(Code.QUERY_WAS_CANCELLED, "Query was cancelled.")
        if self._late is not None:
            raise SqlError(Code.SOCKET_TIMEOUT, f"Timeout: no answer from {self._late.name}")
        return await run(sql)

    async def _ask(self, peer: Peer, url: str, awaited: Awaited) -> None:
        values = None
        try:
            answer = await self._client.ask(peer, url, wait_s=self._wait_s)
            values = None if answer is None else integers_of(answer, self._reads.columns)
        except aiohttp.ConnectionTimeoutError:
            pass  # it was not asked: another replica may be
        except TimeoutError:
            self._late = peer
        except (aiohttp.ClientError, OSError):
            pass
        finally:  # whatever it is: a thread of chDB's waits, and nobody else would wake it
            if values is None:
                self._has_failed = True
                awaited.close()
            else:
                awaited.give(values)


def integers_of(answer: bytes, columns: tuple[tuple[str, str], ...]) -> list[int] | None:
    """The one row of an answer; None for anything else."""
    line, end, rest = answer.decode("latin-1").partition("\n")
    texts = line.split("\t")
    if not end or rest or len(texts) != len(columns) or not all(map(_INTEGER.match, texts)):
        return None
    values = [int(text) for text in texts]
    in_range = all(value in RANGES[type_] for value, (_, type_) in zip(values, columns, strict=True))
    return values if in_range else None
