"""A request's body: its encodings undone, its SQL told from its rows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from aiohttp import web

from engine.errors import Code, SqlError
from engine.node.http.blocks import decompressed
from engine.node.http.client_patience import ClientPatience
from engine.node.http.encoding import decoded
from engine.node.http.query import HttpQuery
from engine.sql.insert_with import insert_begin, with_behind_insert
from engine.storage.statement_text import InsertText, insert_with_rows

_SUBQUERY = re.compile(rb"\(\s*(?:SELECT|WITH|FROM)\b", re.IGNORECASE)
"""Rows with such a thing are SQL that somebody has to look at, as long as they fit into a statement."""


@dataclass(frozen=True, slots=True)
class QueryText:
    """`sql` is the statement; with `insert` it is an INSERT whose rows are in `rows`."""

    sql: str
    insert: InsertText | None
    rows: AsyncIterator[bytes] | None


def body_of(request: web.Request, query: HttpQuery, patience: ClientPatience) -> AsyncIterator[bytes]:
    """The body's bytes as the client meant them. Raises SqlError, or aiohttp's error when it breaks off."""
    received = patience.received(_chunks(request))
    chunks = decoded(request.headers.get("Content-Encoding", ""), received)
    return decompressed(chunks) if query.decompresses_blocks else chunks


async def no_body() -> AsyncIterator[bytes]:
    return
    yield b""


async def _chunks(request: web.Request) -> AsyncIterator[bytes]:
    content = request.content
    if request.content_length is None:  # in chunks of the client's, which may be tiny: together
        while chunk := await content.readany():
            yield chunk
        return
    while chunk := (await content.readchunk())[0]:  # as it was received, uncopied
        yield chunk


async def read_query(query: HttpQuery, body: AsyncIterator[bytes], *, limit: int) -> QueryText:
    """The statement, which is the `query` parameter and the body together, with a line break in between.

    An INSERT's rows are not read but left in `rows`; only what came along with the statement is. Raises
    SqlError 62 for a statement over `limit`, for an empty one, and for text that does not scan.
    """
    text = bytearray(query.query.encode("utf-8", "surrogateescape"))
    had_parameter = bool(text)
    is_at_end = False
    if had_parameter and (insert := _with_rows(text, is_whole=True)) is not None:
        # The parameter says it all: not a byte of the body is needed to know what to do with it.
        has_rows = bool(_text(text)[insert.rows_at :].strip())
        if insert.format == "Values":
            begin, is_at_end = await _up_to(body, limit - len(text))
            if is_at_end and _SUBQUERY.search(begin) is not None:
                return QueryText(_text(text + b"\n" + begin), None, None)
            body = _together(begin, body)
        return _insert(text, insert, body, separator=has_rows)
    async for chunk in body:
        if had_parameter:
            text += b"\n"
            had_parameter = False
        text += chunk
        if len(text) > limit:
            break
    else:
        is_at_end = True
    if not text.strip():
        raise SqlError(Code.SYNTAX_ERROR, "Empty query")
    insert = _with_rows(text[:limit], is_whole=is_at_end)
    if insert is not None and (not is_at_end or insert.format != "Values"):
        return _insert(text, insert, body, separator=False)
    if not is_at_end:
        raise SqlError(
            Code.SYNTAX_ERROR,
            f"Max query size exceeded (can be increased with the `max_query_size` setting): {limit} bytes",
        )
    return QueryText(with_behind_insert(_text(text)), None, None)


async def _up_to(body: AsyncIterator[bytes], limit: int) -> tuple[bytes, bool]:
    """The first bytes of the body, a chunk more than `limit` at most, and whether that was all."""
    begin = bytearray()
    async for chunk in body:
        begin += chunk
        if len(begin) > limit:
            return bytes(begin), False
    return bytes(begin), True


async def _together(begin: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if begin:
        yield begin
    async for chunk in body:
        yield chunk


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "surrogateescape")


def _with_rows(data: bytes | bytearray, *, is_whole: bool) -> InsertText | None:
    text = _text(data)
    begin = insert_begin(text)
    if begin is None:
        return None
    try:
        insert = insert_with_rows(text[begin:])
        if insert is None or not begin:
            return insert
        head = insert.head
        if insert.input_structure:  # a SELECT is told by its WITH what names mean; rows are not
            head = with_behind_insert(text[:begin] + head)
        return replace(insert, head=head, rows_at=begin + insert.rows_at)
    except SqlError:
        if is_whole:
            raise
        return None


def _insert(text: bytearray, insert: InsertText, body: AsyncIterator[bytes], *, separator: bool) -> QueryText:
    head_bytes = len(_text(text)[: insert.rows_at].encode("utf-8", "surrogateescape"))
    first = bytes(text[head_bytes:]) + (b"\n" if separator else b"")

    return QueryText(insert.head, insert, _together(first, body))
