"""The interserver HTTP port: parts of the replicas on this node, for the other replicas.

Answers are ClickHouse's: 200 with the part, 401 for wrong credentials, 429 with Retry-After when too many
parts are being sent, 500 with `Code: …` for the rest (221 for a replica that is not here, 232 for a part
that it does not have, 236 while sends are stopped). When something fails behind the first byte the
connection is cut, so that the receiver sees a part that is too short and never one that looks whole.

Nothing of the node can be changed through this port, and nothing is read but files of parts.
Source: ClickHouse's InterserverIOHTTPHandler and DataPartsExchange.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from engine.errors import Code, OnclusterError, SqlError
from engine.node.http.status import exception_text
from engine.node.interserver.credentials import InterserverCredentials, refusal_of
from engine.node.interserver.half_open import HalfOpenServer
from engine.node.interserver.protocol import (
    NEWEST_VERSION,
    VERIFY_PARAMETER,
    VERSION_COOKIE,
    replica_path_of,
)
from engine.node.interserver.sending import PartSender
from engine.node.listening import AT_ONCE, listen
from engine.replication.bandwidth import Bandwidth
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import PartStore
from engine.replication.replica.switches import Activity, Switches

log = logging.getLogger(__name__)

_PIECE_BYTES = 256 << 10
_MAY_WAIT = 1024
"""Connections that are not accepted yet."""
_CLOSE_S = 1.0
_KEEP_ALIVE_S = 30.0
_RETRY_AFTER_S = 10
_MAX_LINE_BYTES = 64 << 10
_STOPPED = "Transferring part to replica was cancelled"


class SendingReplica(Protocol):
    """What the port needs of a replica; ReplicaContext is one."""

    @property
    def store(self) -> PartStore: ...

    @property
    def switches(self) -> Switches: ...

    @property
    def send_bandwidth(self) -> Bandwidth: ...

    def check_later(self, part: PartName, *, delay_s: float = 0.0) -> None: ...


@dataclass(frozen=True, slots=True)
class InterserverConfig:
    """What the port is told. Without `credentials` requests must not have any. `max_parallel_sends` of 0 is
    no limit. A peer that takes nothing for `silence_s` is given up: it holds files and a place."""

    listen_host: str
    port: int
    tls: ssl.SSLContext | None = None
    credentials: InterserverCredentials | None = None
    max_parallel_sends: int = 64
    silence_s: float = 60.0


class InterserverServer:
    """Serves from `start` until `stop`. `find` gives the replica with a path in Keeper, if it is here."""

    def __init__(
        self,
        config: InterserverConfig,
        *,
        find: Callable[[str], SendingReplica | None],
        version: str,
    ) -> None:
        self._config = config
        self._find = find
        self._version = version
        self._runner: web.ServerRunner | None = None
        self._sends = 0
        self.port = 0

    @property
    def scheme(self) -> str:
        return "http" if self._config.tls is None else "https"

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        server = HalfOpenServer(
            self._handle, access_log=None, max_line_size=_MAX_LINE_BYTES, keepalive_timeout=_KEEP_ALIVE_S
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        config = self._config
        site = web.TCPSite(
            self._runner, config.listen_host, config.port, ssl_context=config.tls, backlog=AT_ONCE
        )
        try:
            self.port = await listen(site, waiting=_MAY_WAIT)
        except OSError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop; sends under way are cut."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    # -- one request ---------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = refusal_of(request.headers.get("Authorization"), self._config.credentials)
        if refusal:
            log.warning("interserver.refused from=%s reason=%r", request.remote, refusal)
            return web.Response(status=401, text=refusal)
        if self._config.max_parallel_sends and self._sends >= self._config.max_parallel_sends:
            return web.Response(
                status=429,
                reason="Too many concurrent fetches, try again later",
                headers={"Retry-After": str(_RETRY_AFTER_S)},
            )
        self._sends += 1
        try:
            return await self._send(request)
        except OnclusterError as error:
            log.info("interserver.failed from=%s code=%d error=%s", request.remote, error.code, error)
            return web.Response(status=500, text=exception_text(error, self._version))
        finally:
            self._sends -= 1

    async def _send(self, request: web.BaseRequest) -> web.StreamResponse:
        replica, name, version = self._asked(request)
        if replica.switches.is_stopped(Activity.SENDS):
            raise SqlError(Code.ABORTED, _STOPPED)
        if VERIFY_PARAMETER in request.query:
            await self._verify(replica, name)
        async with replica.store.send(name) as part:
            try:
                sender = await PartSender.prepare(part, version)
            except OnclusterError:
                self._suspect(replica, name)
                raise
            response = web.StreamResponse()
            response.content_length = sender.size_bytes
            response.content_type = "application/octet-stream"
            if "client_protocol_version" in request.query:
                response.set_cookie(VERSION_COOKIE, str(version))
            await response.prepare(request)
            try:
                async for piece in replica.send_bandwidth.pace(_pieces(sender)):
                    if replica.switches.is_stopped(Activity.SENDS):
                        raise SqlError(Code.ABORTED, _STOPPED)
                    async with asyncio.timeout(self._config.silence_s):
                        await response.write(piece)
                await response.write_eof()
            except (OnclusterError, OSError) as error:
                if isinstance(error, PartDiffers):
                    self._suspect(replica, name)
                log.warning("interserver.cut part=%s to=%s error=%s", name, request.remote, error)
                if request.transport is not None:
                    request.transport.abort()
        return response

    def _asked(self, request: web.BaseRequest) -> tuple[SendingReplica, PartName, int]:
        """What is asked for. Raises SqlError."""
        query = request.query
        for parameter in ("endpoint", "part"):
            if parameter not in query:
                raise SqlError(Code.BAD_ARGUMENTS, f"The request has no parameter '{parameter}'.")
        if query.get("compress", "false") == "true":
            raise SqlError(Code.NOT_IMPLEMENTED, "Parts are not sent compressed; ask with compress=false.")
        path = replica_path_of(query["endpoint"])
        replica = self._find(path) if path else None
        if replica is None:
            raise SqlError(
                Code.NO_SUCH_INTERSERVER_IO_ENDPOINT, f"No interserver IO endpoint named {query['endpoint']}"
            )
        asked = query.get("client_protocol_version", "0")
        if not asked.isascii() or not asked.isdigit() or len(asked) > 9:
            raise SqlError(Code.BAD_ARGUMENTS, "client_protocol_version is not a number")
        return replica, PartName.parse(query["part"]), min(int(asked), NEWEST_VERSION)

    async def _verify(self, replica: SendingReplica, name: PartName) -> None:
        """The peer got a damaged copy: whose fault was it? Raises PartDiffers if ours."""
        if name not in replica.store.active:
            return
        try:
            await replica.store.verify(name)
        except PartDiffers:
            self._suspect(replica, name)
            raise

    @staticmethod
    def _suspect(replica: SendingReplica, name: PartName) -> None:
        """Have the part checked, and replaced if another replica has a whole one."""
        log.error("interserver.damaged part=%s", name)
        replica.check_later(name)


async def _pieces(sender: PartSender) -> AsyncIterator[bytes]:
    """Of some size: a part may have hundreds of small files."""
    buffer = bytearray()
    async for piece in sender.write():
        if len(buffer) + len(piece) < _PIECE_BYTES:
            buffer += piece
            continue
        if buffer:
            yield bytes(buffer)
            buffer.clear()
        yield piece
    if buffer:
        yield bytes(buffer)
