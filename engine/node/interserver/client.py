"""Fetching a part from another replica over HTTP, ours or a real ClickHouse.

The bytes go straight from the connection into the store. Connections are kept and used again; one is dropped
when an answer did not end as it should. What a peer says is checked in `receiving`, what came in the store's
`finish`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType

import aiohttp

from engine.errors import Code, MalformedEntry
from engine.node.interserver.credentials import Credentials
from engine.node.interserver.protocol import NEWEST_VERSION, VERIFY_PARAMETER, VERSION_COOKIE, endpoint_of
from engine.node.interserver.receiving import FetchLimits, PartReading, TruncatedStream
from engine.replication.fetching import PartReceiver, PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.paths import ReplicaPaths

_READ_BUFFER_BYTES = 1 << 20
_MAX_ERROR_BYTES = 16 << 10
_KEEP_ALIVE_S = 10.0
_MAX_DOUBTFUL = 1000
_HTTP_OK = 200
_HTTP_TOO_MANY = 429
_CODE = re.compile(r"Code: (\d+)")


class HttpPartFetcher:
    """Implements PartFetcher. Use as an asynchronous context manager, or call `close`.

    `tls` is for peers whose scheme is https. `newest_version` can be lowered to speak as an older server.
    """

    def __init__(
        self,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        limits: FetchLimits | None = None,
        newest_version: int = NEWEST_VERSION,
    ) -> None:
        self._headers = {} if credentials is None else {"Authorization": credentials.to_header()}
        self._tls = tls
        self._limits = limits or FetchLimits()
        self._newest_version = newest_version
        self._client: aiohttp.ClientSession | None = None
        self._doubtful: dict[tuple[str, PartName], None] = {}
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(self._limits.connections_per_host)
        )
        """By peer; a wait for a free connection is no silence of the peer's."""

    async def __aenter__(self) -> HttpPartFetcher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a fetch under way fails with PartUnavailable."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def fetch(
        self,
        source: ReplicaHost,
        replica: ReplicaPaths,
        part: PartName,
        *,
        into: PartReceiver,
        expected: PartHeader | None,
    ) -> Part:
        """See PartFetcher. What comes is checked against its own list of files and against `expected`."""
        peer = f"{source.host}:{source.port}"
        scheme = source.scheme or "http"
        host = f"[{source.host}]" if ":" in source.host and not source.host.startswith("[") else source.host
        doubtful = (replica.root, part)
        parameters = {
            "endpoint": endpoint_of(replica.root),
            "part": str(part),
            "client_protocol_version": str(self._newest_version),
            "compress": "false",
            **({VERIFY_PARAMETER: "1"} if doubtful in self._doubtful else {}),
        }
        try:
            async with self._asked(f"{scheme}://{host}:{source.port}/", parameters) as response:
                if response.status != _HTTP_OK:
                    raise await _refusal(response, part, peer)
                version = _version(response, part, newest=self._newest_version)
                content = _Content(response.content, self._limits)
                receiver = PartReading(content, part=str(part), version=version, limits=self._limits)
                async with into.receive(part) as incoming:
                    await receiver.receive(incoming)
                    staged = await incoming.finish(expected)
        except PartDiffers:
            self._doubt(doubtful)
            raise
        except TruncatedStream:
            raise _unavailable(part, peer, "its answer broke off") from None
        except MalformedEntry as error:
            self._doubt(doubtful)
            raise PartDiffers(str(part), f"what came from {peer} is unreadable: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unavailable(part, peer, str(error) or type(error).__name__) from error
        if staged.name != part:
            raise PartDiffers(str(part), f"{peer} sent part {staged.name}")
        self._doubtful.pop(doubtful, None)
        return staged

    @asynccontextmanager
    async def _asked(self, url: str, parameters: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, when its head is here, which has a time limit of its own: also a head can drip."""
        limits = self._limits
        async with self._turns[url], AsyncExitStack() as stack:
            async with asyncio.timeout(limits.connect_s + limits.silence_s):
                request = self._session().post(
                    url,
                    params=parameters,
                    headers=self._headers,
                    ssl=self._tls if url.startswith("https:") and self._tls is not None else True,
                    allow_redirects=False,
                )
                response = await stack.enter_async_context(request)
            yield response

    def _doubt(self, part: tuple[str, PartName]) -> None:
        """The next request for it asks the sender to look at its own copy first, so that it notices
        damage."""
        self._doubtful[part] = None
        while len(self._doubtful) > _MAX_DOUBTFUL:
            self._doubtful.pop(next(iter(self._doubtful)))

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            limits = self._limits
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=limits.connect_s, sock_read=limits.silence_s
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=_READ_BUFFER_BYTES,
            )
        return self._client


class _Content:
    """The body of an answer as a PieceSource. A part is read in many small pieces (lengths, names, hashes):
    they are cut from what has come."""

    def __init__(self, stream: aiohttp.StreamReader, limits: FetchLimits) -> None:
        self._stream = stream
        self._limits = limits
        self._time_s = asyncio.get_running_loop().time
        self._waited_s = 0.0
        self._came = 0
        self._held = b""
        self._at = 0

    async def read(self, limit: int) -> bytes:
        if self._at == len(self._held):
            self._held, self._at = await self._next(), 0
        piece = self._held[self._at : self._at + limit]
        self._at += len(piece)
        return piece

    async def _next(self) -> bytes:
        """What was received at a time, uncopied; empty at the end. Raises TimeoutError for a drip."""
        while True:
            began_s = self._time_s()
            piece, is_end_of_chunk = await self._stream.readchunk()
            self._count(len(piece), self._time_s() - began_s)
            if piece or not is_end_of_chunk:
                return piece

    def _count(self, size: int, waited_s: float) -> None:
        """Only the waiting for the peer counts, not what the store takes."""
        self._came += size
        self._waited_s += waited_s
        if self._waited_s < self._limits.silence_s:
            return
        if self._came < self._limits.least_bytes:
            raise TimeoutError(f"only {self._came} bytes came in {self._waited_s:.0f} s")
        self._came, self._waited_s = 0, 0.0


def _version(response: aiohttp.ClientResponse, part: PartName, *, newest: int) -> int:
    """What the body is written in; a server without the cookie is an old one."""
    cookie = response.cookies.get(VERSION_COOKIE)
    text = "0" if cookie is None else cookie.value
    if not text.isascii() or not text.isdigit() or len(text) > 3 or int(text) > newest:
        raise PartDiffers(str(part), f"the peer speaks version {text[:20]!r}, and {newest} was asked for")
    return int(text)


async def _refusal(response: aiohttp.ClientResponse, part: PartName, peer: str) -> PartUnavailable:
    text = (await response.content.read(_MAX_ERROR_BYTES)).decode("utf-8", "replace").strip()
    code = int(match.group(1)) if (match := _CODE.search(text)) else 0
    if response.status == _HTTP_TOO_MANY:
        text = text or response.reason or "it sends too many parts already"
        code = code or int(Code.TOO_MANY_SIMULTANEOUS_QUERIES)
    error = _unavailable(part, peer, f"HTTP {response.status}: {text.splitlines()[0][:500] if text else ''}")
    error.code = code or int(Code.NETWORK_ERROR)
    return error


def _unavailable(part: PartName, peer: str, reason: str) -> PartUnavailable:
    return PartUnavailable(
        f"Part {part} cannot be fetched from {peer}: {reason}", code=int(Code.NETWORK_ERROR)
    )
