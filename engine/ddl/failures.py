"""Errors of statements of the queue: which are outcomes, and which are tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.ddl.status import ExecutionStatus
from engine.errors import Code, OnclusterError, SqlError, ran_out

RETRIABLE_CODES = frozenset(
    {
        Code.KEEPER_EXCEPTION,
        Code.UNFINISHED,
        Code.NOT_A_LEADER,
        Code.TABLE_IS_READ_ONLY,
        Code.CANNOT_ASSIGN_ALTER,
        Code.CANNOT_ALLOCATE_MEMORY,
        Code.TOO_MANY_SIMULTANEOUS_QUERIES,
        Code.MEMORY_LIMIT_EXCEEDED,
    }
)
"""ClickHouse's: errors after which the statement is tried again."""
_MAY_HAVE_HAPPENED = frozenset({Code.KEEPER_EXCEPTION, Code.UNFINISHED})

_DEFECTS = (TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""Errors in the program that are the same at each try, other than those of a disk or of memory."""


def is_retriable(error: SqlError) -> bool:
    """Whether the statement is tried again; every other error is an outcome."""
    return error.code in RETRIABLE_CODES or ran_out(error)


def may_have_happened(error: SqlError) -> bool:
    """Whether the statement may have taken effect, and is tried again: the next attempt looks first.

    A statement that found no memory may have found none for its last words: chDB has then dropped, renamed or
    made what it was to.
    """
    return error.code in _MAY_HAVE_HAPPENED or ran_out(error)


class TryAgain(OnclusterError):
    """The statement did not get to an outcome; it stays this host's to run."""

    @property
    def is_defect(self) -> bool:
        """The program cannot carry it out."""
        cause = self.__cause__
        while isinstance(cause, OnclusterError):
            cause = cause.__cause__
        return self.code == Code.UNKNOWN_EXCEPTION and isinstance(cause, _DEFECTS)


def status_of(error: OnclusterError, *, prefix: str = "") -> ExecutionStatus:
    """The status that reports an error."""
    text = (
        error.display_text if isinstance(error, SqlError) else f"Code: {error.code}. DB::Exception: {error}"
    )
    return ExecutionStatus(error.code or Code.UNKNOWN_EXCEPTION, prefix + text)


@contextmanager
def errors_of_the_program_are_tried_again() -> Iterator[None]:
    """An error in the program must not end the worker. Whether the statement took effect is unknown: the
    intent stays, and the next attempt looks at it before anything is executed."""
    try:
        yield
    except OnclusterError:
        raise
    except Exception as error:
        raise TryAgain(f"{type(error).__name__}: {error}", code=Code.UNKNOWN_EXCEPTION) from error
