"""A node's log without the secrets of statements that stand in errors."""

from __future__ import annotations

import logging

from engine.sql import redact_prose


class ErrorsWithoutSecrets(logging.Filter):
    """For a handler: what is logged as an exception, as in `error=%s`, is shown as everywhere else.
    ClickHouse quotes the statement in many of its errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                redact_prose(str(value)) if isinstance(value, BaseException) else value
                for value in record.args
            )
        return True
