"""ALTER TABLE of columns, indexes, TTL, constraints, and of settings.

Safety argument. The table's `metadata` node is the lock: its version is the number of ALTERs so far.

1. The plan is made from this replica's table, which has applied version v.
2. If data has to be rewritten, block numbers are taken in all partitions (see `mutate`).
3. One multi sets `metadata` if it still has version v, sets `columns`, appends ALTER_METADATA v + 1 to the
   log, and makes the mutation. A replica that lags behind, and the slower of two ALTERs, is refused (517),
   and nothing of its ALTER exists. If only another mutation came first, 2 begins anew.
4. Every replica applies the entry from its queue; this one waits for itself or for all.

A crash after 2 leaves locks that end with the session, after 3 an ALTER that all replicas apply. After a lost
reply to 3 the log is searched for the entry; it is never sent again.

An ALTER of settings or of the table's comment alone concerns this replica only and does not touch Keeper.

Source: ClickHouse's StorageReplicatedMergeTree::alter.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    MultiFailed,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import Op, SetData
from engine.replication.commands.mutate import (
    MutationDraft,
    check_room,
    check_waiting,
    failure_of_alters,
    find_mutation,
    mutations_version,
    unless_failing,
    wait_for_mutation,
)
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync, wait_for_entry
from engine.replication.log_actions import AlterMetadata
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import mutation_number
from engine.replication.part_store import AlterPlan
from engine.replication.replica.block_numbers import BlockNumbers, allocate_everywhere, give_up
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged, commit_logged, log_op
from engine.replication.text import decode_bytes, time_text

log = logging.getLogger(__name__)

_ATTEMPTS = 1000
_PAUSE_S = 0.2


async def alter_table(
    ctx: ReplicaContext,
    commands: str,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    allowed: Collection[str] = (),
    may_rewrite: bool = True,
    fence: Sequence[Op] = (),
    committed: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Carry out `commands`, which is what follows `ALTER TABLE t`, and wait for `sync` (`alter_sync`).
    `allowed` as in `PartStore.plan_alter`; `may_rewrite` is `allow_non_metadata_alters`.
    `committed` is called when the ALTER is certain to happen, before anything is waited for.

    Raises SqlError: what chDB says to the commands, 517 CANNOT_ASSIGN_ALTER if this replica lags behind, 524
    if data would be rewritten that may not be, 692, 242, 344 as `check_waiting`, and 341 UNFINISHED if
    waiting took too long, or if this ALTER or one before it fails on this replica; MultiFailed if an
    operation of `fence` is refused.
    """
    for _ in range(_ATTEMPTS):
        ctx.session()  # not while read-only, not even settings: the table could not be planned from
        version = ctx.metadata_version
        before = await ctx.store.definition()
        plan = await ctx.store.plan_alter(commands, allowed=allowed)
        if ctx.metadata_version != version:
            continue
        settings = _changed_settings(dict(before.settings), dict(plan.definition.settings))
        is_local = (
            plan.definition.columns == before.columns
            and plan.definition.metadata == before.metadata
            and not plan.mutation
        )
        comment = plan.definition.comment if plan.definition.comment != before.comment else None
        if is_local:
            await _alter_locally(ctx, settings, comment)
            if fence:
                await ctx.session().multi(fence)
            if committed is not None:
                await committed()
            return
        if plan.mutation:
            if not may_rewrite:
                raise SqlError(
                    Code.ALTER_OF_COLUMN_IS_FORBIDDEN,
                    f"The following alter commands: '{plan.mutation}' will modify data on disk, but setting "
                    "`allow_non_metadata_alters` is disabled.",
                )
            check_waiting(ctx, sync, "alter_sync")
        altered = await _send(ctx, plan, version, fence)
        if altered is None:
            continue
        await _alter_locally(ctx, settings, comment)
        if committed is not None:
            await committed()
        ctx.log_changed.set()
        log.info("replication.altered table=%s version=%d", ctx.name, version + 1)
        if sync is Sync.NONE:
            return
        await unless_failing(
            ctx,
            wait_for_entry(ctx, altered.entry, sync=sync, inactive_timeout_s=inactive_timeout_s),
            partial(failure_of_alters, ctx, version + 1),
        )
        if altered.mutation is not None:
            await wait_for_mutation(ctx, altered.mutation, sync=sync, inactive_timeout_s=inactive_timeout_s)
        return
    raise _lagging(ctx, "other ALTERs keep coming first")


@dataclass(frozen=True, slots=True)
class _Altered:
    entry: Logged
    mutation: int | None


async def _send(ctx: ReplicaContext, plan: AlterPlan, version: int, fence: Sequence[Op]) -> _Altered | None:
    """One attempt; None if it has to be made anew."""
    keeper = ctx.session()
    held: BlockNumbers | None = None
    mutations = 0
    try:
        if plan.mutation:
            check_room(ctx)
            mutations = await mutations_version(keeper, ctx.paths)
            held = await allocate_everywhere(ctx, keeper)
    except (ConnectionLoss, OperationTimeout, SessionExpired):
        await ctx.env.sleep(_PAUSE_S)
        return None
    try:
        columns, metadata = plan.definition.columns.to_bytes(), plan.definition.metadata.to_bytes()
        action = AlterMetadata(version + 1, held is not None, decode_bytes(columns), decode_bytes(metadata))
        draft = None
        if held is not None:
            draft = MutationDraft.of(ctx, held, plan.mutation, alter_version=version + 1, version=mutations)
        ops: list[Op] = [
            SetData(ctx.paths.metadata, metadata, version),
            SetData(ctx.paths.columns, columns),
            log_op(ctx.paths, LogEntry(action, ctx.replica, time_text(ctx.env.now_s()))),
            *(draft.ops if draft is not None else ()),
        ]
        try:
            done = await commit_logged(ctx, keeper, [*ops, *fence])
        except MultiFailed as failed:
            if failed.index >= len(ops) or not isinstance(failed.error, BadVersion):
                raise
            if failed.index == 0:
                raise _lagging(ctx, f"it has applied version {version}") from None
            return None
    finally:
        if held is not None:
            await give_up(ctx, held)
    if done is None:
        return None
    number = None
    if draft is not None:
        if done.results is not None:
            number = mutation_number(str(done.results[len(ops) - 1]).rpartition("/")[2])
        else:
            number = await find_mutation(ctx, draft.raw)
    return _Altered(done.entries[0], number)


def _lagging(ctx: ReplicaContext, why: str) -> SqlError:
    return SqlError(
        Code.CANNOT_ASSIGN_ALTER,
        f"Metadata on replica {ctx.replica} of {ctx.name} is not up to date with common metadata in Keeper: "
        f"{why}. Probably several ALTERs are executed concurrently.",
        hint="This error can be retried.",
    )


def _changed_settings(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """By name; None for one that is reset."""
    changed: dict[str, str | None] = {
        name: value for name, value in after.items() if before.get(name) != value
    }
    changed |= {name: None for name in before if name not in after}
    return changed


async def _alter_locally(ctx: ReplicaContext, changes: Mapping[str, str | None], comment: str | None) -> None:
    """Settings, on the disk and in the running replica, and the table's comment."""
    if comment is not None:
        await ctx.store.apply_comment(comment)
    if not changes:
        return
    ctx.settings.altered(changes)  # may be refused
    await ctx.store.apply_settings(changes)
    ctx.settings = ctx.settings.altered(changes)  # by others, too, meanwhile
    ctx.merge_wanted.set()
    ctx.queue_changed.set()
    log.info("replication.settings_altered table=%s settings=%s", ctx.name, ",".join(sorted(changes)))
