"""What Spark's Java says about raw files and its start, in one line: it says it in the first of a hundred."""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Iterator

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf
from pyspark.errors import PySparkException

from engine.errors import OnclusterError, Refused, Unavailable

_UNREAD = re.compile(r"\[FAILED_READ_FILE\.(\w+)\] .* reading file (\S+)\.\s+(.*?)\s*SQLSTATE", re.DOTALL)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)\s*SQLSTATE", re.DOTALL)
"""By `raise_error`."""


class RawFileDamaged(Refused):
    """A file that cannot be read, or a line of it."""


@contextlib.contextmanager
def told_in_one_line() -> Iterator[None]:
    """Raises RawFileDamaged in place of what says that; other errors as they are."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        told = _told(str(error))
        if told is None:
            raise
        raise told from error


@contextlib.contextmanager
def told_that_spark_did_not_start() -> Iterator[None]:
    """Raises Unavailable that names the master: Java tells of a context that was stopped, and not why."""
    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage() or error.java_exception).splitlines()[0]
        master = SparkConf().get("spark.master", "its master")
        raise Unavailable(
            f"Spark did not start with {master}: {reason.rstrip('.')}.",
            hint="Is the master's address right, and does it answer from here? Its warnings stand above.",
        ) from error


def _told(text: str) -> OnclusterError | None:
    if unread := _UNREAD.search(text):
        kind, file, more = unread.groups()
        file = urllib.parse.unquote(file.removeprefix("file://")) if file.startswith("file:/") else file
        cause = (_CAUSE.findall(text) or [more or kind])[-1].rstrip(".")
        hint = "It is cut short or damaged: fetch it again." if kind == "NO_HINT" else ""
        return RawFileDamaged(f"{file} cannot be read: {cause}.", hint=hint)
    if raised := _RAISED.search(text):
        return RawFileDamaged(raised.group(1))
    return None
