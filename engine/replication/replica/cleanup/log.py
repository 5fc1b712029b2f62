"""The table's log is kept for as long as a replica needs it, and no longer than a limit for replicas that are
gone: those are declared lost, and copy everything when they come back.

Safety argument.

1. Nothing is removed while there are few entries (`min_replicated_logs_to_keep`).
2. For each replica: `host` is read before `is_active` and `log_pointer`. The version of `host` changes in the
   transaction that makes a replica active, so "inactive since I looked" can be checked in a transaction.
3. Active replicas are never lost: what they have not copied stays, without limit. Of the inactive ones
   those are *candidates* whose pointer is behind the newest `max_replicated_logs_to_keep` entries. Replicas
   that are being cloned keep the log from their pointer on; it may have been moved back since it was read, so
   it is read last, and while there is one the candidates are respected, too: it may copy their pointer.
4. Candidates are marked `is_lost` in one transaction that checks all their `host`s: if one came back it
   fails, and nothing is removed. If nobody else were left nothing is done at all (415).
5. Entries go in batches, each with checks that no lost replica became active and that no replica was added
   since step 2. NoNode means that another replica cleans, too. A crash leaves a shorter log; its beginning
   goes first, so what is left is without gaps.

It never removes an entry that a replica which is not lost has yet to copy.

Source: ClickHouse's ReplicatedMergeTreeCleanupThread::clearOldLogs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from engine.errors import BadVersion, Code, MultiFailed, NoNode, SqlError
from engine.keeper.base import Check, Keeper, Node, Op, Remove, SetData
from engine.keeper.recipes import MULTI_BATCH_SIZE
from engine.replication.paths import ReplicaPaths, sequence_number
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)

_HEADROOM = (1.05, 1.15)
"""Drawn anew each time, so that replicas do not all clean at the same moment."""


@dataclass(slots=True)
class _Replicas:
    """What was found: `least` is the first entry that must stay, None if any may go."""

    version: int
    least: int | None = None
    recovering: list[ReplicaPaths] = field(default_factory=list)
    candidates: dict[str, int] = field(default_factory=dict)
    """Pointers of inactive replicas that are too far behind, by name."""
    hosts: dict[str, int] = field(default_factory=dict)
    """Versions of `host` of the replicas that are lost or will be, by name."""
    others: int = 0
    """Replicas that are neither lost nor candidates."""

    def keep(self, pointer: int) -> None:
        self.least = pointer if self.least is None else min(self.least, pointer)


async def clean_log(ctx: ReplicaContext) -> int:
    """Remove what nobody needs; returns the number of entries.

    Raises SqlError: 415 ALL_REPLICAS_LOST if that would declare the last replica lost, 416
    REPLICA_STATUS_CHANGED if one came back meanwhile (try again later); UnknownOutcome, repeatable.
    """
    keeper, settings = ctx.session(), ctx.settings
    names = [
        name for name in (await keeper.children(ctx.paths.log)).names if sequence_number(name) is not None
    ]
    entries = sorted(sequence_number(name) or 0 for name in names)
    if len(entries) < settings.min_replicated_logs_to_keep * ctx.env.rng.uniform(*_HEADROOM) or not entries:
        return 0
    surplus = len(entries) - settings.max_replicated_logs_to_keep
    bound = [*entries, entries[-1] + 1][max(0, surplus)]
    found = await _look(ctx, keeper, bound)
    for replica in found.recovering:
        found.keep(peers.number((await keeper.get(replica.log_pointer)).data))
    if found.recovering:
        for pointer in found.candidates.values():
            found.keep(pointer)
    removable = entries[: max(0, len(entries) - settings.min_replicated_logs_to_keep)]
    doomed = [number for number in removable if found.least is None or number < found.least]
    if not doomed:
        return 0
    if found.candidates:
        await _mark_lost(ctx, keeper, found)
    return await _remove(ctx, keeper, found, doomed)


async def _look(ctx: ReplicaContext, keeper: Keeper, bound: int) -> _Replicas:
    replicas = await keeper.children(ctx.paths.replicas)
    found = _Replicas(replicas.stat.version)
    for name in replicas.names:
        replica = ctx.paths.replica(name)
        host, pointer_node = await keeper.get_many([replica.host, replica.log_pointer])
        (is_active,) = await keeper.exists_many([replica.is_active])
        (lost_node,) = await keeper.get_many([replica.is_lost])
        if not isinstance(host, Node) or not isinstance(pointer_node, Node):
            continue  # it is being dropped: without `host` it can never be active again
        # One that has never copied anything, or whose pointer nobody can read, needs all there is.
        pointer = peers.number(pointer_node.data)
        is_lost = isinstance(lost_node, Node) and lost_node.data == b"1"
        if is_active is not None and is_lost:
            found.recovering.append(replica)
        elif is_lost:
            found.hosts[name] = host.stat.version
        elif is_active is not None or not isinstance(lost_node, Node) or pointer >= bound:
            # Servers before 18.x have no `is_lost` and cannot be told that they are.
            found.others += 1
            found.keep(pointer)
        else:
            found.candidates[name] = pointer
            found.hosts[name] = host.stat.version
    return found


async def _mark_lost(ctx: ReplicaContext, keeper: Keeper, found: _Replicas) -> None:
    if not found.others:
        raise SqlError(
            Code.ALL_REPLICAS_LOST, f"All replicas of {ctx.paths.root} are stale: we won't mark them as lost"
        )
    ops: list[Op] = []
    for name in sorted(found.candidates):
        replica = ctx.paths.replica(name)
        ops += [Check(replica.host, found.hosts[name]), SetData(replica.is_lost, b"1")]
    try:
        await keeper.multi(ops)
    except MultiFailed as failed:
        if not isinstance(failed.error, BadVersion | NoNode):
            raise
        raise SqlError(
            Code.REPLICA_STATUS_CHANGED,
            f"A replica of {ctx.paths.root} became active while it was marked lost",
        ) from None
    log.warning(
        "replication.replicas_lost table=%s replicas=%s", ctx.name, ",".join(sorted(found.candidates))
    )


async def _remove(ctx: ReplicaContext, keeper: Keeper, found: _Replicas, doomed: list[int]) -> int:
    checks: list[Op] = [
        Check(ctx.paths.replica(name).host, version) for name, version in sorted(found.hosts.items())
    ]
    checks.append(Check(ctx.paths.replicas, found.version))
    removed = 0
    for start in range(0, len(doomed), MULTI_BATCH_SIZE):
        batch = doomed[start : start + MULTI_BATCH_SIZE]
        ops: list[Op] = [Remove(f"{ctx.paths.log_prefix}{number:010}") for number in batch]
        try:
            await keeper.multi([*ops, *checks])
        except MultiFailed as failed:
            if isinstance(failed.error, NoNode) and failed.index < len(ops):
                break  # another replica is faster
            if isinstance(failed.error, BadVersion | NoNode):
                raise SqlError(
                    Code.REPLICA_STATUS_CHANGED,
                    f"The replicas of {ctx.paths.root} changed while its log was cleaned",
                ) from None
            raise
        removed += len(batch)
    if removed:
        log.info("replication.log_cleaned table=%s removed=%d", ctx.name, removed)
    return removed
