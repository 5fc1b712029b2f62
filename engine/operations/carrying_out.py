"""Carrying out a plan: one act after another, each recorded before it happens.

Safety argument.
1. The run is recorded with its plan. A run id that is known with another plan is refused: what was approved
   is what runs.
2. The cluster's lock of operations is taken in Keeper: two operations that change things never run on one
   cluster at once. Somebody else's holding is `Busy`, with their name; nothing is done.
3. For each act in order: if the records have an outcome for it, it is passed over. Else STARTED is recorded,
   it is performed, and its outcome is recorded.
   A crash before STARTED leaves nothing. A crash behind it leaves an act that may have happened: the run is
   resumed under the same id, and the act is performed again. So every performer looks first and answers
   NOT_NEEDED when the effect is there; it rests on proofs that it looks up anew, not on the plan.
4. Before each act the lock is looked at. When the session is over somebody else may act already: the run
   stops (`Busy`) and may be resumed.
An act that fails or is refused does not stop the others, unless the performer raises: then the error is
recorded as that act's failure when it is certain that nothing happened, and leaves it STARTED when it is not
(`UnknownOutcome`), so that a resumed run looks. An act that stopped half way and can go on stays STARTED, too
(`HalfDone`).

This module never decides what to do, and never acts without a record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.errors import Busy, Code, OnclusterError, Refused, SqlError, UnknownOutcome
from engine.keeper.recipes import KeeperLock
from engine.operations.act import Act, ActResult, ActState, Danger, Plan
from engine.operations.site import Site

Performer = Callable[[Act], Awaitable[ActResult]]


class ApprovalMissing(Refused):
    """The plan has acts that somebody has to approve, and nobody did."""


class HalfDone(UnknownOutcome):
    """An act has done a part and met an obstacle; the message says which. Performed again, it goes on."""


class Progress(Protocol):
    """Hears of each act before and after it."""

    def __call__(self, act: Act, result: ActResult, *, number: int, of: int) -> None: ...


def _no_progress(act: Act, result: ActResult, *, number: int, of: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a plan's acts, in its order."""

    run_id: str
    plan: Plan
    results: tuple[tuple[Act, ActResult], ...]

    @property
    def is_good(self) -> bool:
        return all(result.state.is_good for _, result in self.results)

    def count(self, state: ActState) -> int:
        return sum(1 for _, result in self.results if result.state is state)

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "operation": self.plan.operation,
            "cluster": self.plan.cluster,
            "acts": [
                {**act.to_json(), "state": result.state.value, "detail": result.detail}
                for act, result in self.results
            ],
            "notes": list(self.plan.notes),
        }


async def carry_out(
    site: Site,
    plan: Plan,
    perform: Performer,
    *,
    run_id: str,
    approved_by: str = "",
    progress: Progress = _no_progress,
) -> Report:
    """Perform the plan's acts, or what an earlier process of this run left of them.

    Raises ApprovalMissing, Refused (the run has another plan), Busy (somebody else operates; `holder`),
    RecordsUnavailable and Keeper's errors. A run that raised is resumed by calling this again.
    """
    if plan.needs_approval and not approved_by:
        dangers = sum(act.danger is not Danger.SAFE for act in plan.acts)
        raise ApprovalMissing(
            f"The {plan.operation} plan for {plan.cluster} has {dangers} acts that need approval.",
            hint="Read the plan and approve it.",
        )
    lock = KeeperLock(site.keeper, site.env, lock_path(site), f"{site.operator}, {plan.operation}")
    if await lock.try_acquire() is None:
        raise await _busy(lock, plan)
    try:
        site.records.begin_run(run_id, plan, requested_by=site.operator, approved_by=approved_by)
        before = site.records.acts_of(run_id)
        results = []
        for number, act in enumerate(plan.acts, start=1):
            result = before.get(act.act_id)
            if result is None or not result.state.is_final:
                if not await lock.is_held():
                    raise await _busy(lock, plan)
                result = await _perform(site, act, perform, run_id, progress, number, len(plan.acts))
            results.append((act, result))
        return Report(run_id, plan, tuple(results))
    finally:
        await _release(lock)


async def _perform(
    site: Site, act: Act, perform: Performer, run_id: str, progress: Progress, number: int, of: int
) -> ActResult:
    started = ActResult(ActState.STARTED)
    site.records.record_act(run_id, act.act_id, started, operator=site.operator)
    progress(act, started, number=number, of=of)
    try:
        result = await perform(act)
    except HalfDone as error:
        result = replace(started, detail=f"{error.message} Remove the cause and resume the run {run_id}.")
    except UnknownOutcome as error:
        # The records keep it as begun: whoever resumes the run looks what became of it.
        result = replace(started, detail=f"The outcome is not known: {error}")
    except SqlError as error:
        result = ActResult(ActState.FAILED, error.display_text)
    except OnclusterError as error:
        result = ActResult(ActState.FAILED, str(error))
    site.records.record_act(run_id, act.act_id, result, operator=site.operator)
    progress(act, result, number=number, of=of)
    return result


async def _busy(lock: KeeperLock, plan: Plan) -> Busy:
    holder = await lock.holder() or "somebody whose session has just ended"
    return Busy(
        f"The {plan.operation} of {plan.cluster} has to wait: {holder} is at work on it.",
        holder=holder,
        code=Code.ABORTED,
        hint="Wait until they are done, then resume this run or plan again.",
    )


async def _release(lock: KeeperLock) -> None:
    try:
        await lock.release()
    except UnknownOutcome:
        # The lock goes with the session, which the caller closes or has lost.
        return


def lock_path(site: Site) -> str:
    """Where the lock of operations on the site's cluster stands in Keeper."""
    return f"{site.queue.paths.operations(site.cluster)}/lock"
