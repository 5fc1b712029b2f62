"""What a ClickHouse server says when it fails, of every version since 18."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.errors import Code, SqlError

_MODERN = re.compile(r"Code: (\d+)\. DB::Exception: ")
_OLD = re.compile(r"Code: (\d+), e\.displayText\(\) = (?:DB::)?\w*Exception: ")
_OLD_END = re.compile(r", e\.what\(\) = |,? ?Stack trace:")
_TAIL = re.compile(r"\s*(?:\(([A-Z][A-Z0-9_]+)\)|\(version [^()]*(?:\([^()]*\))?\))\s*\Z")


def server_error(body: str, *, code: int | None = None) -> SqlError:
    """The exception in `body`; `code` is that of the header X-ClickHouse-Exception-Code and wins.

    Text that is no exception of ClickHouse (a proxy's page, say) is code 1002 with its beginning.
    """
    if (match := _MODERN.search(body)) is not None:
        message, name = body[match.end() :].strip(), ""
        while (tail := _TAIL.search(message)) is not None:
            name = tail.group(1) or name
            message = message[: tail.start()]
        return SqlError(code or int(match.group(1)), message, name=name)
    if (match := _OLD.search(body)) is not None:
        message = body[match.end() :].strip()
        if (end := _OLD_END.search(message)) is not None:
            message = message[: end.start()]
        return SqlError(code or int(match.group(1)), message)
    return SqlError(code or Code.UNKNOWN_EXCEPTION, body.strip()[:500] or "The server gave no reason")


def is_exception(body: str) -> bool:
    """Whether it is, or ends in, what a ClickHouse server says when it fails."""
    return _MODERN.search(body) is not None or _OLD.search(body) is not None


def is_clickhouse(headers: Iterable[str]) -> bool:
    """By the names of an answer's headers. Every server since 18 says its name, whatever it answers."""
    return any(name.lower().startswith("x-clickhouse-") for name in headers)


def exception_block(body: bytes, tag: str) -> str | None:
    """The message of the exception that was written behind a result's data; None if there is none.

    Source: the block that servers since 25.11 announce with X-ClickHouse-Exception-Tag.
    """
    start = body.rfind(f"__exception__\r\n{tag}\r\n".encode())
    if start < 0:
        return None
    text = body[start + len(f"__exception__\r\n{tag}\r\n") :].decode("utf-8", "replace")
    end = re.search(rf"\n\d+ {re.escape(tag)}\r\n", text)
    return text if end is None else text[: end.start()]
