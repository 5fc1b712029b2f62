"""Rows in the format Native on their way into chDB: a block without columns ends them.

chDB reads such a block as the end and leaves what is behind it. So rows that begin with one, as zero bytes
do, are refused unless it is all there is: an empty INSERT of some clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from engine.errors import Code, SqlError

_NO_COLUMNS_NO_ROWS = b"\0\0"


async def beginning_with_rows(rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same rows. Raises SqlError 117."""
    begin, has_begun = b"", False
    async for chunk in rows:
        if has_begun:
            yield chunk
            continue
        begin += chunk
        if begin[:1] == b"\0" and not _NO_COLUMNS_NO_ROWS.startswith(begin):
            raise SqlError(
                Code.INCORRECT_DATA,
                "The rows in format Native begin with a block without columns, and there is more behind it.",
            )
        if begin[:1] not in (b"", b"\0"):
            has_begun = True
            yield begin
    if not has_begun:
        yield begin
