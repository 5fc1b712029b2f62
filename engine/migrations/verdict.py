"""What a statement's states on its hosts mean for the run: go on, wait, stop. Pure.

    done         every required host is done
    partial      the run goes on; the missing hosts take the statement up in queue order
    wait         hosts are at work
    unfinished   the time is over; what is missing continues in the background, and the run can be resumed
    failed       a host failed, and no host that is on line is still at work

ClickHouse's modes say what a timeout and an inactive host mean to a client. For a migration a host that fails
stops the run in every mode, because the next statement usually builds on this one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.migrations.states import CellState, LedgerRow


class Verdict(enum.StrEnum):
    DONE = "done"
    PARTIAL = "partial"
    WAIT = "wait"
    UNFINISHED = "unfinished"
    FAILED = "failed"

    @property
    def goes_on(self) -> bool:
        """The next statement may be sent."""
        return self in (Verdict.DONE, Verdict.PARTIAL)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a statement is waited for, and what counts. `timeout_s` 0: not at all; negative: for ever."""

    timeout_s: int = DEFAULT_TIMEOUT_S
    output_mode: OutputMode = OutputMode.THROW


def judge(rows: Sequence[LedgerRow], patience: Patience, *, is_time_over: bool) -> Verdict:
    """`rows` are the statement's, one per required host.

    As in ClickHouse, when all hosts look off line in an only-active mode they are all waited for.
    """
    states = [row.state for row in rows]
    missing = [state for state in states if state is not CellState.DONE]
    if not missing:
        return Verdict.DONE
    at_work = [state for state in missing if not state.is_final and state is not CellState.INACTIVE]
    if any(state.is_failure for state in missing):
        return Verdict.FAILED if not at_work or is_time_over else Verdict.WAIT
    if patience.timeout_s == 0:
        return Verdict.PARTIAL
    is_anyone_there = any(state is not CellState.INACTIVE for state in states)
    if not at_work and is_anyone_there and patience.output_mode.waits_for_active_only:
        return Verdict.PARTIAL
    if is_time_over:
        return Verdict.UNFINISHED if patience.output_mode.throws_on_timeout else Verdict.PARTIAL
    return Verdict.WAIT
