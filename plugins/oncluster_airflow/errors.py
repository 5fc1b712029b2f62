"""How tasks fail, and what Airflow does then.

    OnclusterError.Unavailable, .UnknownOutcome    Airflow tries again; what was sent is attached to
    everything else                                not retried:
      DDLFailed       a host refused the statement
      DDLAbandoned    a person said that some hosts will never do it; the others have done it
      DDLTimeout      the time is over; the statement is still in the queue and hosts go on with it
      DDLGone         the entry left the queue before every host had answered
      ActsFailed      acts of an operation failed; the others are done
      Refused         the request will not work as asked

DDLTimeout is not retried either, because the wait that was asked for is over and somebody should learn it
now, not after twice that time. Clearing the task in the UI, or running the DAG again, waits again for the
same entry.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from engine.errors import OnclusterError, Unavailable, UnknownOutcome
from engine.sql import redact_prose
from oncluster_airflow.outcomes import WaitResult, WaitState, error_text


class DDLWaitError(AirflowFailException):
    """A wait that ended badly; `result` has every host."""

    def __init__(self, message: str, result: WaitResult) -> None:
        super().__init__(message)
        self.result = result


class DDLFailed(DDLWaitError):
    """A host refused the statement."""


class DDLAbandoned(DDLWaitError):
    """Every host has done it but those that a person said not to wait for."""


class DDLTimeout(DDLWaitError):
    """`distributed_ddl_task_timeout` is over and hosts are still unfinished. They go on by themselves."""


class DDLGone(DDLWaitError):
    """The entry was removed before every host had answered, or what became of it on one is not known."""


class ActsFailed(AirflowFailException):
    """Acts of an operation failed or were refused; the others were carried out. Not retried: each has its
    outcome, and a new run plans anew."""


class TaskRefused(AirflowFailException):
    """Will not work as asked; retrying would not help."""


class TaskUnavailable(AirflowException):
    """Something was out of reach, or an answer was lost; a retry finds out and goes on from there."""


def error_of(result: WaitResult) -> DDLWaitError:
    """The exception for a wait that ended badly."""
    match result.state:
        case WaitState.TIMEOUT:
            return DDLTimeout(f"Timeout; the hosts go on in the background. {result.summary}", result)
        case WaitState.ABANDONED:
            words = "; ".join(f"{host.host.readable}: {error_text(host)}" for host in result.abandoned)
            return DDLAbandoned(f"Done on the other hosts. {words}. {result.summary}", result)
        case WaitState.GONE:
            what = result.note or "The entry is no longer in the queue."
            return DDLGone(f"{what} {result.summary}", result)
        case _:
            error = result.first_error
            where = f"There was an error on [{error.host.readable}]: {error_text(error)}" if error else ""
            return DDLFailed(f"{where} {result.summary}".strip(), result)


def as_airflow_error(error: OnclusterError) -> AirflowException:
    """The error tree's word on whether to try again, in Airflow's terms."""
    if isinstance(error, Unavailable | UnknownOutcome):
        return TaskUnavailable(redact_prose(str(error)))
    return TaskRefused(redact_prose(str(error)))
