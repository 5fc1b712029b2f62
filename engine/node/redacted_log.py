"""A node's log without the secrets of statements that stand in errors."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator

from aiohttp.http_exceptions import HttpProcessingError

from engine.sql import redact_prose

_QUOTED_BYTES = re.compile(r"(?:bytearray\()?b['\"]")


class ErrorsWithoutSecrets(logging.Filter):
    """For a handler: what is logged as an exception, as in `error=%s` or as a trace, is shown as everywhere
    else. ClickHouse quotes the statement in many of its errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                redact_prose(str(value)) if isinstance(value, BaseException) else value
                for value in record.args
            )
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            _as_malformed(record, error)
        elif error is not None:
            record.exc_text = "\n".join(
                _trace(error, seen=set())
            )  # what formatters take instead of their own
        return True


def _as_malformed(record: logging.LogRecord, error: HttpProcessingError) -> None:
    """One line for bytes that are no request: anybody can send them, and as often as they like. What the
    parser quotes of them may be a password, as of a header without its colon."""
    said = _QUOTED_BYTES.split(error.message, maxsplit=1)[0].split("\n", maxsplit=1)[0].strip(" :")
    record.msg, record.args = "http.malformed status=%d error=%s; %s", (error.code, said, record.getMessage())
    record.levelno, record.levelname = logging.INFO, "INFO"
    record.exc_info = record.exc_text = None


def _trace(error: BaseException, *, seen: set[int]) -> Iterator[str]:
    """As Python writes it. The lines of source between are ours, and have no secrets."""
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _trace(before, seen=seen)
        yield "caused:" if error.__cause__ is not None else "while this was handled:"
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        yield "".join(traceback.format_tb(error.__traceback__)).rstrip("\n")
    yield redact_prose("".join(traceback.format_exception_only(error)).rstrip("\n"))
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            if id(one) not in seen:
                yield from _trace(one, seen=seen)
