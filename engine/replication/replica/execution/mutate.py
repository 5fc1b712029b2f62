"""Executes MUTATE_PART: rewrites a part by the mutations between its version and the wanted one.

Safety argument: as for merges (`merge`). A mutation that was killed meanwhile is left out; then the
result may differ from that of a replica that was faster, and is fetched from there. A mutation that is killed
or stopped while it runs here is interrupted (`making`), and the entry is executed anew, without it or when it
may go on. Where all were killed the part is checked and copied. What fails is noted
with the mutations for `system.mutations`, and the entry is tried again later.

Source: ClickHouse's MutateFromLogEntryTask.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.errors import Code, OnclusterError, SqlError
from engine.replication.log_actions import MutatePart
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.replica import patches
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import get as execute_get
from engine.replication.replica.execution.making import make
from engine.replication.replica.execution.merge import (
    DAMAGED,
    commit_or_fetch,
    have_already,
    suspect,
    why_fetch,
)
from engine.replication.replica.execution.outcome import Postponed
from engine.replication.replica.newer_columns import why_too_early
from engine.replication.replica.queue.loader import load_mutations
from engine.replication.replica.queue.queue import MutationState, QueuedEntry
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)


async def execute_mutate(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Have the result, whichever way. Raises SqlError, Postponed, or what a fetch raises."""
    action = queued.entry.action
    assert isinstance(action, MutatePart)
    if await have_already(ctx, action.result):
        return
    reason = "always_fetch_mutated_part is set" if ctx.settings.always_fetch_mutated_part else ""
    reason = reason or patches.patched(ctx.queue.virtual_parts, action.source.partition_id)
    if reason := reason or await why_fetch(ctx, queued, [action.source], action.result):
        log.info("replica.mutation_fetched table=%s part=%s reason=%s", ctx.name, action.result, reason)
        await execute_get.fetch_result(ctx, action.result)
        return
    if reason := _why_stopped(ctx, action) or await why_too_early(ctx, [action.source]):
        raise Postponed(reason)
    states = await _mutations_of(ctx, action)
    if reason := ctx.queue.why_mutations_unknown(action.result):
        await _fetch_instead(ctx, action, reason)
        return
    try:
        if action.result not in ctx.store.staged:
            commands = ", ".join(state.entry.commands for state in states)
            if commands:
                work = ctx.store.mutate(action.source, action.result, commands)
                await make(ctx, action.result, work, why_not=lambda: _why_not(ctx, states, action))
            else:  # all of them were killed; nothing reads the part then, and damage must not get a new name
                await ctx.store.verify(action.source)
                await ctx.store.stage_copy(ctx.store, action.source, action.result)
    except PartDiffers as error:
        await suspect(ctx, [action.source], action.result, error)
    except SqlError as error:
        if error.code not in DAMAGED or await _is_whole(ctx, action.source):
            _note_failure(ctx, states, action, error)
            if error.code != Code.NOT_IMPLEMENTED:
                raise
            await _fetch_instead(ctx, action, error.message)  # a real server may be able to
        else:
            await suspect(ctx, [action.source], action.result, error)
    else:
        await commit_or_fetch(ctx, queued, action.result)
    _note_success(states, action)


async def _fetch_instead(ctx: ReplicaContext, action: MutatePart, reason: str) -> None:
    """Whoever has assigned it could read the mutation. Raises SqlError until one has the part."""
    try:
        await execute_get.fetch_result(ctx, action.result)
    except SqlError as error:
        raise SqlError(error.code, f"{error.message}, and it cannot be made here: {reason}") from error


async def _is_whole(ctx: ReplicaContext, part: PartName) -> bool:
    """Whether every byte of a part is as it should be: the error is the mutation's own then."""
    try:
        await ctx.store.verify(part)
    except PartDiffers:
        return False
    return True


def _why_not(ctx: ReplicaContext, states: Sequence[MutationState], action: MutatePart) -> str:
    if any(state.number not in ctx.queue.mutations for state in states):
        return f"A mutation was killed while {action.result} was made"
    return _why_stopped(ctx, action)


def _why_stopped(ctx: ReplicaContext, action: MutatePart) -> str:
    if ctx.switches.is_stopped(Activity.MERGES):
        return f"Not mutating into {action.result} because mutations are stopped now"
    return ""


async def _mutations_of(ctx: ReplicaContext, action: MutatePart) -> Sequence[MutationState]:
    """In order. Where the last of them is not known here, Keeper is asked: only if it is not there either it
    was killed. Leaving out one that was not would be a wrong result, and the first one counts."""
    for is_asked in (False, True):
        states = ctx.queue.mutation_commands(action.source, action.result.mutation)
        wanted = (action.result.partition_id, action.result.mutation)
        if is_asked or (states and wanted in states[-1].entry.block_numbers):
            break
        keeper = ctx.session()
        await keeper.sync(ctx.paths.mutations)
        await load_mutations(ctx, keeper)
    return states


def _note_failure(
    ctx: ReplicaContext, states: Sequence[MutationState], action: MutatePart, error: OnclusterError
) -> None:
    for state in states:
        state.latest_failed_part = str(action.source)
        state.latest_fail_s = ctx.env.now_s()
        state.latest_fail_reason = error.display_text if isinstance(error, SqlError) else str(error)
        state.latest_fail_error = error.name if isinstance(error, SqlError) else ""
    ctx.mutation_news.announce()


def _note_success(states: Sequence[MutationState], action: MutatePart) -> None:
    """A part that failed and was done in the end does not count as failed any more."""
    for state in states:
        if state.latest_failed_part == str(action.source):
            state.forget_failure()
