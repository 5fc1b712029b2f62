"""Sending a result: held back at first, streamed then, and an exception at any time.

As a ClickHouse server does: up to `buffer_bytes` of the result are held back, so that an error until then is
a clean one, with its status and without rows. An error later is written into the stream as an exception
block, announced by the header X-ClickHouse-Exception-Tag, and the connection is broken, so that nobody takes
the result for whole:

    \\r\\n__exception__\\r\\n<tag>\\r\\n<message>\\n<length of message and LF> <tag>\\r\\n__exception__\\r\\n
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Mapping
from typing import IO

from aiohttp import hdrs, web

from engine.errors import OnclusterError
from engine.node.http import blocks
from engine.node.http.client_patience import ClientPatience
from engine.node.http.encoding import Encoder, encoder
from engine.node.http.formats import content_type
from engine.node.http.status import exception_text, status_of
from engine.storage import QueryResult

_BLOCK_BYTES = 1 << 20
_THREAD_BYTES = 1 << 16
_SPOOL_BYTES = 64 << 20


def summary(result: QueryResult) -> str:
    """The value of X-ClickHouse-Summary."""
    return json.dumps(
        {
            "read_rows": str(result.read_rows),
            "read_bytes": str(result.read_bytes),
            "written_rows": str(result.written_rows),
            "written_bytes": str(result.written_bytes),
            "total_rows_to_read": str(result.read_rows),
            "result_rows": str(result.result_rows),
            "result_bytes": "0",
            "elapsed_ns": str(int(result.elapsed_s * 1e9)),
        },
        separators=(",", ":"),
    )


class _BehindProgress(web.StreamResponse):
    """An answer whose status and first headers have been sent: its own come behind them."""

    async def _write_headers(self) -> None:
        writer = self._payload_writer
        assert writer is not None
        headers = self.headers.copy()
        name, value = headers.popitem()
        await writer.write_headers(f"{name}: {value}", headers)
        writer.send_headers()


class ResultSender:
    """The answer to one request; `write` the result, then `finish` or `fail`."""

    def __init__(
        self,
        request: web.Request,
        *,
        headers: Mapping[str, str],
        tag: str,
        version: str,
        buffer_bytes: int | None,
        encoding: str | None,
        compresses_blocks: bool,
        patience: ClientPatience,
    ) -> None:
        self._request = request
        self._patience = patience
        # Of every answer: rows may look like an exception, but they cannot have the tag.
        self._headers = {**headers, "X-ClickHouse-Exception-Tag": tag}
        self._tag = tag
        self._version = version
        self._buffer_bytes = buffer_bytes
        self._encoding = encoding
        self._encoder: Encoder | None = None
        """Made when there is something to encode: most answers to an INSERT are empty."""
        self._compresses_blocks = compresses_blocks
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._spool: IO[bytes] | None = None
        self._response: web.StreamResponse | None = None
        self._is_over = False
        self._has_begun = False
        """Status and headers are on their way, but for those that the result brings."""

    def announce(self, *, format: str) -> None:
        """What the result's format is; before the first `write`."""
        self._headers["X-ClickHouse-Format"] = format
        self._headers["Content-Type"] = content_type(format)

    def show_progress(self, text: str) -> bool:
        """Send a header that tells how far the statement is. False: it is too late for that."""
        transport = self._request.transport
        if self._response is not None or self._is_over or transport is None or transport.is_closing():
            return False
        lines = [f"X-ClickHouse-Progress: {text}"]
        if not self._has_begun:
            self._has_begun = True
            own, self._headers = self._headers, {}
            self._headers["Content-Type"] = own.pop("Content-Type")
            if "X-ClickHouse-Format" in own:
                self._headers["X-ClickHouse-Format"] = own.pop("X-ClickHouse-Format")
            lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in own.items()), *lines]
        transport.write("".join(f"{line}\r\n" for line in lines).encode())
        return True

    async def write(self, data: bytes) -> None:
        """The next piece of the result. Returns when the client has taken enough of it."""
        if self._response is None:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._buffer_bytes is None:
                if self._held_bytes > _SPOOL_BYTES:
                    await self._spill()
                return
            if self._held_bytes <= self._buffer_bytes:
                return
            await self._start()
            return
        await self._send(data)

    async def _spill(self) -> None:
        """wait_end_of_query of a large result: it waits on disk."""
        if self._spool is None:
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `finish` and `fail`
        held, self._held, self._held_bytes = self._held, [], 0
        await asyncio.to_thread(self._spool.writelines, held)

    async def _start(self) -> None:
        self._begin_encoding()
        await self._prepare()
        if self._spool is not None:
            self._spool.seek(0)
            while data := await asyncio.to_thread(self._spool.read, _BLOCK_BYTES):
                await self._send(data)
            self._spool.close()
        held, self._held = self._held, []
        for data in held:
            await self._send(data)

    async def _prepare(self) -> web.StreamResponse:
        kind = _BehindProgress if self._has_begun else web.StreamResponse
        self._response = kind(headers=self._headers)
        await self._response.prepare(self._request)
        return self._response

    def _begin_encoding(self) -> None:
        if self._encoding is not None:
            self._encoder = encoder(self._encoding)
            self._headers["Content-Encoding"] = self._encoding

    async def _packed(self, data: bytes) -> bytes:
        if not self._compresses_blocks and self._encoder is None:
            return data
        if len(data) < _THREAD_BYTES:
            return self._pack(data)
        return await asyncio.to_thread(self._pack, data)

    def _pack(self, data: bytes) -> bytes:
        if self._compresses_blocks:
            pieces = (data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES))
            data = b"".join(blocks.compress_block(piece) for piece in pieces)
        return data if self._encoder is None else self._encoder.encode(data)

    async def _send(self, data: bytes) -> None:
        assert self._response is not None
        packed = await self._packed(data)
        if packed:
            await self._put(packed)

    async def _put(self, data: bytes) -> None:
        """On the wire. HEAD has the headers alone: a body would be the begin of the next answer."""
        assert self._response is not None
        if self._request.method != hdrs.METH_HEAD:
            with self._while_sending():
                await self._response.write(data)

    async def _end(self) -> None:
        assert self._response is not None
        with self._while_sending():
            await self._response.write_eof()

    def _while_sending(self) -> contextlib.AbstractContextManager[None]:
        query_id = self._headers.get("X-ClickHouse-Query-Id", "")
        return self._patience.while_sending(self._request.transport, query_id)

    async def finish(self, result: QueryResult | None) -> web.StreamResponse:
        """The result is whole."""
        self._is_over = True
        if self._response is None and self._spool is None and not self._has_begun:
            if result is not None:
                self._headers["X-ClickHouse-Summary"] = summary(result)
            body = b""
            if self._held_bytes:
                self._begin_encoding()
                body = await self._packed(b"".join(self._held))
            if self._encoder is not None:
                body += self._encoder.flush()
            return web.Response(body=body, headers=self._headers)
        if self._response is None:
            if result is not None:
                self._headers["X-ClickHouse-Summary"] = summary(result)
            await self._start()
        assert self._response is not None
        if self._encoder is not None:
            await self._put(self._encoder.flush())
        await self._end()
        return self._response

    async def fail(self, error: OnclusterError) -> web.StreamResponse:
        """The result cannot be had, or not the rest of it."""
        self._is_over = True
        if self._spool is not None:
            self._spool.close()
        text = exception_text(error, self._version)
        if self._response is None:
            whole = error_response(error, self._version, headers=self._headers, encoding=self._encoding)
            return await self._behind_progress(whole) if self._has_begun else whole
        message = text.rstrip("\n").encode("utf-8", "backslashreplace")
        tag = self._tag.encode()
        block = b"\r\n__exception__\r\n%b\r\n%b\n%d %b\r\n__exception__\r\n" % (
            tag,
            message,
            len(message) + 1,
            tag,
        )
        await self._send(block)
        if self._encoder is not None:
            await self._put(self._encoder.flush())
        # The last chunk of the transfer is never sent: for a client that does not know exception blocks the
        # answer breaks off.
        if self._request.transport is not None:
            self._request.transport.close()
        return self._response

    async def _behind_progress(self, whole: web.Response) -> web.StreamResponse:
        self._headers = {**whole.headers}
        self._headers.pop("Content-Length", None)
        response = await self._prepare()
        assert isinstance(whole.body, bytes)
        await self._put(whole.body)
        await self._end()
        return response


def error_response(
    error: OnclusterError, version: str, *, headers: Mapping[str, str], encoding: str | None = None
) -> web.Response:
    """An exception as the whole answer."""
    status = status_of(error)
    own = {
        **{name: value for name, value in headers.items() if name != "X-ClickHouse-Format"},
        "Content-Type": "text/plain; charset=UTF-8",
        "X-ClickHouse-Exception-Code": str(error.code),
    }
    if status == 401:
        own["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
    body = exception_text(error, version).encode("utf-8", "backslashreplace")
    if encoding is not None:
        packer = encoder(encoding)
        body = packer.encode(body) + packer.flush()
        own["Content-Encoding"] = encoding
    return web.Response(status=status, body=body, headers=own)
