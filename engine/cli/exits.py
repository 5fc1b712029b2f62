"""What each kind of error is as the exit code of the process.

0  ok                  1  failed                 2  wrong usage          3  not finished in time
4  unavailable, retry  5  refused                6  outcome unknown      70 stored data is corrupt
130 interrupted (Ctrl-C)                         143 terminated (SIGTERM)
"""

from __future__ import annotations

import enum

import click

from engine.errors import Code, Corrupt, OnclusterError, Refused, SqlError, Unavailable, UnknownOutcome


class ExitCode(enum.IntEnum):
    """What the process answers; the module's docstring is the table."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNFINISHED = 3
    UNAVAILABLE = 4
    REFUSED = 5
    UNKNOWN_OUTCOME = 6
    CORRUPT = 70
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM arrived; clean-up has run. Like KeyboardInterrupt it is no error of the program."""


def exit_code_for(error: BaseException) -> ExitCode:
    """The exit code of an error, by its place in the tree of `engine.errors`."""
    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case Terminated():
            return ExitCode.TERMINATED
        case click.UsageError():
            return ExitCode.USAGE
        case Refused() if not isinstance(error, SqlError):
            # Also where it quotes the code of a host that did not finish: to repeat that changes nothing.
            return ExitCode.REFUSED
        case OnclusterError(code=Code.UNFINISHED | Code.TIMEOUT_EXCEEDED):
            return ExitCode.UNFINISHED
        case Unavailable():
            return ExitCode.UNAVAILABLE
        case UnknownOutcome():
            return ExitCode.UNKNOWN_OUTCOME
        case Refused():
            return ExitCode.REFUSED
        case Corrupt():
            return ExitCode.CORRUPT
        case _:
            return ExitCode.FAILED
