"""A small client of ClickHouse's HTTP interface, for servers of any version since 18 and for nodes.

A statement is sent at most once. What was certainly not sent is NodeUnavailable, and is tried again if the
caller asks for it; what was sent and not answered is ReplyLost, and is never tried again. For that every
request has a connection of its own: on one that was used before, nobody can tell a closed connection from a
lost answer.

An answer counts only if a ClickHouse server gave it, which its headers say. A proxy's page, a redirect to a
login or another program on the port is ReplyLost, whatever its status: nobody can tell whether the statement
went further. Redirects are not followed. What a server writes behind an INSERT it refused is its error.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from engine.client.address import server_address
from engine.client.errors import exception_block, is_clickhouse, is_exception, server_error
from engine.env import Env, SystemEnv
from engine.errors import NodeUnavailable, OnclusterError, ReplyLost
from engine.names import quote_identifier

_NONE: Mapping[str, str] = {}
_INTEGERS = ("Int", "UInt")


@dataclass(frozen=True, slots=True)
class QueryRows:
    """A result: names and ClickHouse types of the columns, and rows of Python values.

    Integers are `int` of any size, NULL is None; what JSON has no form for (dates, decimals) is text.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]

    def dicts(self) -> list[dict[str, Any]]:
        names = [name for name, _ in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    @property
    def scalar(self) -> Any:
        """The first value of the first row. Raises IndexError where there is none."""
        return self.rows[0][0]


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Silence:
    """For how long a server may take nothing of an INSERT, and may then say nothing, in seconds: ClickHouse's
    `send_timeout` and `receive_timeout`."""

    send_s: float = 300.0
    receive_s: float = 300.0


class NodeClient:
    """One server. Use as an asynchronous context manager, or `close` it.

    - `url` is `http://host:port` or `https://host:port`; a login in it goes before `user` and `password`.
      `tls` replaces the system's certificates. Raises ConfigError for what is no such URL.
    - `timeout_s` bounds a whole request, `connect_timeout_s` reaching the server.
    - `retries` is how often a server that cannot be reached is tried again.
    - An answer of more than `max_answer_bytes` counts as lost.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str = "default",
        password: str = "",
        database: str = "",
        timeout_s: float = 300.0,
        connect_timeout_s: float = 5.0,
        retries: int = 0,
        retry_pause_s: float = 0.2,
        max_answer_bytes: int = 1 << 30,
        tls: ssl.SSLContext | None = None,
        env: Env | None = None,
    ) -> None:
        address = server_address(url)
        self.url = address.url
        self._user = address.user or user
        self._password = address.password if address.user else password
        self._database = database
        self._connect_timeout_s = connect_timeout_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=connect_timeout_s)
        self._retries = retries
        self._retry_pause_s = retry_pause_s
        self._max_answer_bytes = max_answer_bytes
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._env = env or SystemEnv()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- statements ----------------------------------------------------------------------------------------

    async def query_rows(
        self, sql: str, *, settings: Mapping[str, str] = _NONE, params: Mapping[str, str] = _NONE
    ) -> QueryRows:
        """Run a query without FORMAT and return its rows. Raises SqlError, NodeUnavailable, ReplyLost.

        `params` fill `{name:Type}`; servers before 19 have none of that.
        """
        reply = await self._post(sql, settings=settings, params=params, format="JSONCompact")
        if not reply.body:
            return QueryRows((), ())
        try:
            answer = json.loads(reply.body)
        except ValueError:
            raise server_error(reply.body.decode("utf-8", "replace")) from None
        columns = tuple((column["name"], column["type"]) for column in answer["meta"])
        types = [type_ for _, type_ in columns]
        rows = tuple(tuple(map(_value, row, types)) for row in answer["data"])
        return QueryRows(columns, rows)

    async def query_text(
        self,
        sql: str,
        *,
        format: str = "TabSeparated",
        settings: Mapping[str, str] = _NONE,
        params: Mapping[str, str] = _NONE,
        is_bounded: bool = False,
    ) -> str:
        """The result as the server wrote it. `is_bounded`: the caller sees to it that this ends. Raises as
        `query_rows`."""
        reply = await self._post(sql, settings=settings, params=params, format=format, is_bounded=is_bounded)
        return reply.body.decode("utf-8", "replace")

    async def command(
        self, sql: str, *, settings: Mapping[str, str] = _NONE, query_id: str = "", token: str = ""
    ) -> str:
        """Run a statement that changes something; what it answers, if anything, is returned.

        `token` makes an ON CLUSTER statement of a node's queue run once, however often it is sent.
        """
        headers = {"X-Oncluster-Token": token} if token else {}
        reply = await self._post(sql, settings=settings, query_id=query_id, headers=headers)
        return reply.body.decode("utf-8", "replace")

    async def insert(
        self,
        table: str,
        data: bytes | AsyncIterator[bytes],
        *,
        format: str,
        columns: Sequence[str] = (),
        settings: Mapping[str, str] = _NONE,
        silence: Silence | None = None,
    ) -> None:
        """Insert rows that are encoded in `format`. `table` stands in SQL as it is given: quote it.

        An iterator is streamed; with `silence` for as long as it goes on. Raises as `query_rows`; after
        ReplyLost the rows may be there or not.
        """
        names = f" ({', '.join(map(quote_identifier, columns))})" if columns else ""
        query = f"INSERT INTO {table}{names} FORMAT {format}"
        if silence is None or isinstance(data, bytes):
            reply = await self._post(data, settings=settings, query=query)
        else:
            reply = await self._post_while_it_moves(data, silence, settings=settings, query=query)
        if reply.body:  # a server that had said 200 before it failed
            raise server_error(reply.body.decode("utf-8", "replace"))

    async def ping(self) -> None:
        """Returns when the server answers. Raises NodeUnavailable or ReplyLost when it does not."""
        await self._request("GET", "/ping", {}, b"", {})

    async def page(self, path: str) -> str | None:
        """What a node says to whoever logs in at a path of its own; None where there is none, as on other
        servers. Raises as `query_rows`."""
        reply = await self._request("GET", path, {}, b"", {})
        text = reply.body.decode("utf-8", "replace")
        code = reply.headers.get("X-ClickHouse-Exception-Code", "")
        if code.isdigit() and reply.status != 404:
            raise server_error(text, code=int(code))
        return text if reply.status == 200 else None

    async def version(self) -> tuple[int, ...]:
        """The server's version, such as (18, 16, 1)."""
        text = await self.query_text("SELECT version()")
        return tuple(int(part) for part in text.strip().split(".") if part.isdigit())

    async def _post_while_it_moves(
        self, data: AsyncIterator[bytes], silence: Silence, *, settings: Mapping[str, str], query: str
    ) -> _Reply:
        now_s = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._connect_timeout_s + silence.send_s) as limit:

                def wait(more_s: float) -> None:
                    if not limit.expired():
                        limit.reschedule(now_s() + more_s)

                async def watched() -> AsyncIterator[bytes]:
                    # The next chunk is asked for when the server has taken most of the one before.
                    async for chunk in data:
                        wait(silence.send_s)
                        yield chunk
                    wait(silence.send_s + silence.receive_s)

                return await self._post(watched(), settings=settings, query=query, is_bounded=True)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._lost(error) from error

    # -- requests ------------------------------------------------------------------------------------------

    async def _post(
        self,
        body: str | bytes | AsyncIterator[bytes],
        *,
        settings: Mapping[str, str] = _NONE,
        params: Mapping[str, str] = _NONE,
        query: str = "",
        query_id: str = "",
        format: str = "",
        headers: Mapping[str, str] = _NONE,
        is_bounded: bool = False,
    ) -> _Reply:
        parameters = {"wait_end_of_query": "1", **settings}
        parameters |= {f"param_{name}": value for name, value in params.items()}
        optional = {
            "query": query,
            "query_id": query_id,
            "database": self._database,
            "default_format": format,
        }
        parameters |= {name: value for name, value in optional.items() if value}
        data = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else body
        reply = await self._request("POST", "/", parameters, data, headers, is_bounded=is_bounded)
        if reply.status != 200:
            code = reply.headers.get("X-ClickHouse-Exception-Code", "")
            text = reply.body.decode("utf-8", "replace")
            if is_clickhouse(reply.headers) or is_exception(text):
                raise server_error(text, code=int(code) if code.isdigit() else None)
        if not is_clickhouse(reply.headers):
            raise self._somebody_else(reply)
        tag = reply.headers.get("X-ClickHouse-Exception-Tag")
        if tag and (message := exception_block(reply.body, tag)) is not None:
            raise server_error(message)
        return reply

    async def _request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        data: bytes | AsyncIterator[bytes],
        headers: Mapping[str, str],
        *,
        is_bounded: bool = False,
    ) -> _Reply:
        may_repeat = isinstance(data, bytes)
        for attempt in range(self._retries + 1):
            try:
                return await self._send(method, path, parameters, data, headers, is_bounded=is_bounded)
            except NodeUnavailable:
                if attempt == self._retries or not may_repeat:
                    raise
                await self._env.sleep(self._retry_pause_s * (attempt + 1))
        raise AssertionError("unreachable")

    async def _send(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        data: bytes | AsyncIterator[bytes],
        headers: Mapping[str, str],
        *,
        is_bounded: bool,
    ) -> _Reply:
        """`is_bounded`: the caller sees to it that this ends."""
        timeout = aiohttp.ClientTimeout(connect=self._connect_timeout_s) if is_bounded else self._timeout
        own = {"X-ClickHouse-User": self._user, "X-ClickHouse-Key": self._password, **headers}
        body = bytearray()
        try:
            async with self._open_session().request(
                method,
                self.url + path,
                params=dict(parameters),
                data=data or None,
                headers=own,
                ssl=self._tls,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                try:
                    async for chunk in response.content.iter_any():
                        body += chunk
                        if len(body) > self._max_answer_bytes:
                            raise self._lost(ValueError(f"it has more than {self._max_answer_bytes} bytes"))
                except aiohttp.ClientPayloadError as error:
                    self._raise_if_exception_block(response, bytes(body))
                    raise self._lost(error) from error
                return _Reply(response.status, response.headers, bytes(body))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NodeUnavailable(f"{self.url} cannot be reached: {error}.") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(error) from error

    def _raise_if_exception_block(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        """An exception in the middle of a result breaks the connection behind it."""
        tag = response.headers.get("X-ClickHouse-Exception-Tag")
        message = exception_block(body, tag) if tag else None
        if message is not None:
            raise server_error(message)

    def _lost(self, error: BaseException) -> OnclusterError:
        what = "no answer in time" if isinstance(error, (TimeoutError, asyncio.TimeoutError)) else str(error)
        return ReplyLost(
            f"{self.url} was sent a statement and its answer was lost: {what or type(error).__name__}.",
            hint="It may have been executed: look before sending it again.",
        )

    def _somebody_else(self, reply: _Reply) -> OnclusterError:
        said = " ".join(reply.body.decode("utf-8", "replace").split())[:200]
        where = f", to {target[:200]}" if (target := reply.headers.get("Location", "")) else ""
        return ReplyLost(
            f"{self.url} was sent a statement and answered as no ClickHouse server does: HTTP status "
            f"{reply.status}{where}{f', {said!r}' if said else ''}.",
            hint="Look at what listens there, and at a proxy before it. The statement may have run.",
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0), timeout=self._timeout
            )
        return self._session


def _value(value: Any, type_: str) -> Any:
    """64-bit integers are strings in the JSON of older servers."""
    if not isinstance(value, str):
        return value
    plain = type_.removeprefix("Nullable(").removeprefix("LowCardinality(").removeprefix("Nullable(")
    return int(value) if plain.startswith(_INTEGERS) and value.lstrip("-").isdigit() else value
