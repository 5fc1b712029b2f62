"""Runs of the cleanup, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.cli.output import JsonValue, print_table
from engine.operations.act import ActResult, ActState
from engine.operations.records import RunRecord
from engine.wording import moment

Acts = Mapping[str, ActResult]
"""Of one run, by their ids; those that were not begun are missing."""


def show_runs(runs: Sequence[RunRecord], acts: Mapping[str, Acts]) -> None:
    """One line a run; `acts` by the runs' ids."""
    print_table(
        ("run", "operation", "begun", "by", "acts"),
        [
            (
                run.run_id,
                run.plan.operation,
                moment(run.at_ms),
                run.requested_by,
                _count(run, acts[run.run_id]),
            )
            for run in runs
        ],
        empty="(no run yet)",
    )


def show_run(run: RunRecord, acts: Acts) -> None:
    """One line an act."""
    print_table(
        ("state", "what", "host", "detail"),
        [
            (state, act.what, act.host, detail)
            for act in run.plan.acts
            for state, detail in [_state(acts, act.act_id)]
        ],
        title=f"{run.plan.operation} of {run.plan.cluster}, run {run.run_id}, {moment(run.at_ms)}, "
        f"by {run.requested_by}",
        empty="(nothing to do)",
    )


def run_as_json(run: RunRecord, acts: Acts) -> dict[str, JsonValue]:
    return {
        "run_id": run.run_id,
        "operation": run.plan.operation,
        "cluster": run.plan.cluster,
        "requested_by": run.requested_by,
        "approved_by": run.approved_by,
        "at_ms": run.at_ms,
        "acts": [
            {**act.to_json(), "state": state, "detail": detail}
            for act in run.plan.acts
            for state, detail in [_state(acts, act.act_id)]
        ],
    }


def _state(acts: Acts, act_id: str) -> tuple[str, str]:
    result = acts.get(act_id)
    return (ActState.PLANNED.value, "") if result is None else (result.state.value, result.detail)


def _count(run: RunRecord, acts: Acts) -> str:
    counts: dict[str, int] = {}
    for act in run.plan.acts:
        state, _ = _state(acts, act.act_id)
        counts[state] = counts.get(state, 0) + 1
    return ", ".join(f"{number} {state}" for state, number in counts.items()) or "none"
