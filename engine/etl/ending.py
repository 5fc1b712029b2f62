"""How the Spark application tells who has started it whether to start it again: by its exit code."""

from __future__ import annotations

from engine.errors import Code, OnclusterError, Refused, SqlError

FAILED = 1
REFUSED = 5
"""As that of the command line: it would be the same however often it is tried."""

# What is wrong with the load itself, or with the tables that it is for. Of other errors of a server (memory,
# a lost Keeper, a full disk) nobody knows how long they last.
_FOR_GOOD = frozenset(
    {
        Code.NO_SUCH_COLUMN_IN_TABLE,
        Code.BAD_ARGUMENTS,
        Code.UNKNOWN_IDENTIFIER,
        Code.NOT_IMPLEMENTED,
        Code.TYPE_MISMATCH,
        Code.UNKNOWN_TABLE,
        Code.UNKNOWN_DATABASE,
        Code.INCOMPATIBLE_COLUMNS,
        Code.ACCESS_DENIED,
        Code.AUTHENTICATION_FAILED,
    }
)


def exit_code_of(error: OnclusterError) -> int:
    """REFUSED for what no other try would do, else FAILED."""
    if isinstance(error, SqlError):
        return REFUSED if error.code in _FOR_GOOD else FAILED
    return REFUSED if isinstance(error, Refused) else FAILED
