"""How a replica is: the facts of `system.replicas`, `system.replication_queue` and `/replicas_status`.

It only reads. What memory says costs nothing; what Keeper says is asked for by itself.

Source: ClickHouse's StorageReplicatedMergeTree::getStatus, getReplicaDelays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import KeeperAnswer
from engine.keeper.base import Keeper
from engine.replication.log_actions import (
    AlterMetadata,
    AttachPart,
    Cleared,
    ClearInRange,
    ClonePartFromShard,
    DropRange,
    GetPart,
    MergeParts,
    MutatePart,
    ReplaceRange,
    SyncPinnedPartUuids,
)
from engine.replication.paths import sequence_number
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.insert_times import unix_s
from engine.replication.replica.queue.queue import QueuedEntry

_INSERTS = (GetPart, AttachPart)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What memory says. Times are Unix seconds, 0 for none; `oldest_…` are names of parts, empty for none."""

    is_leader: bool
    can_become_leader: bool
    is_readonly: bool
    readonly_reason: str
    readonly_since_s: float
    is_session_expired: bool
    future_parts: int
    parts_to_check: int
    zookeeper_path: str
    replica_name: str
    replica_path: str
    columns_version: int
    queue_size: int
    inserts_in_queue: int
    merges_in_queue: int
    part_mutations_in_queue: int
    queue_oldest_time_s: float
    inserts_oldest_time_s: float
    merges_oldest_time_s: float
    part_mutations_oldest_time_s: float
    oldest_part_to_get: str
    oldest_part_to_merge_to: str
    oldest_part_to_mutate_to: str
    last_queue_update_s: float
    absolute_delay_s: float
    last_queue_update_exception: str


@dataclass(frozen=True, slots=True)
class KeeperStatus:
    """What Keeper says; `exception` is why it says nothing, or why the replica cannot be written to."""

    log_max_index: int = 0
    log_pointer: int = 0
    total_replicas: int = 0
    active_replicas: int = 0
    lost_part_count: int = 0
    replica_is_active: Mapping[str, bool] | None = None
    exception: str = ""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of `system.replication_queue`."""

    position: int
    node_name: str
    type: str
    create_time_s: float
    required_quorum: int
    source_replica: str
    new_part_name: str
    parts_to_merge: tuple[str, ...]
    is_detach: bool
    is_currently_executing: bool
    num_tries: int
    last_exception: str
    last_exception_time_s: float
    last_attempt_time_s: float
    num_postponed: int
    postpone_reason: str
    last_postpone_time_s: float
    merge_type: str


def local_status(ctx: ReplicaContext) -> ReplicaStatus:
    """Never waits."""
    queue = ctx.queue
    inserts = _oldest(queue.entries, _INSERTS)
    merges = _oldest(queue.entries, (MergeParts,))
    mutations = _oldest(queue.entries, (MutatePart,))
    return ReplicaStatus(
        is_leader=ctx.is_leader and not ctx.is_readonly,
        can_become_leader=bool(ctx.settings.replicated_can_become_leader),
        is_readonly=ctx.is_readonly,
        readonly_reason=ctx.why_readonly if ctx.is_readonly else "",
        readonly_since_s=ctx.readonly_since_s if ctx.is_readonly else 0.0,
        is_session_expired=ctx.holder.current is None,
        future_parts=sum(len(queued.new_parts) for queued in queue.executing),
        parts_to_check=len(ctx.parts_to_check),
        zookeeper_path=ctx.paths.root,
        replica_name=ctx.replica,
        replica_path=ctx.me.root,
        columns_version=-1,
        queue_size=len(queue),
        inserts_in_queue=queue.count(*_INSERTS),
        merges_in_queue=queue.count(MergeParts),
        part_mutations_in_queue=queue.count(MutatePart),
        queue_oldest_time_s=min(map(_created_s, queue.entries), default=0.0),
        inserts_oldest_time_s=_created_s(inserts),
        merges_oldest_time_s=_created_s(merges),
        part_mutations_oldest_time_s=_created_s(mutations),
        oldest_part_to_get=_new_part(inserts),
        oldest_part_to_merge_to=_new_part(merges),
        oldest_part_to_mutate_to=_new_part(mutations),
        last_queue_update_s=ctx.last_pull_s,
        absolute_delay_s=absolute_delay_s(ctx),
        last_queue_update_exception=ctx.last_pull_error,
    )


async def keeper_status(ctx: ReplicaContext, keeper: Keeper) -> KeeperStatus:
    """Asks Keeper. Raises ConnectionLoss, OperationTimeout, SessionExpired, NoNode."""
    numbers = [sequence_number(name) or 0 for name in (await keeper.children(ctx.paths.log)).names]
    names = (await keeper.children(ctx.paths.replicas)).names
    active = await keeper.exists_many([ctx.paths.replica(name).is_active for name in names])
    pointer, lost = await keeper.get_many([ctx.me.log_pointer, ctx.paths.lost_part_count])
    return KeeperStatus(
        log_max_index=max(numbers, default=0),
        log_pointer=0 if isinstance(pointer, KeeperAnswer) else peers.number(pointer.data),
        total_replicas=len(names),
        active_replicas=sum(stat is not None for stat in active),
        lost_part_count=0 if isinstance(lost, KeeperAnswer) else peers.number(lost.data),
        replica_is_active={name: stat is not None for name, stat in zip(names, active, strict=True)},
        exception=ctx.why_readonly if ctx.is_readonly else "",
    )


def queue_rows(ctx: ReplicaContext) -> list[QueueRow]:
    """The queue in the order in which it will be looked at."""
    return [_row(position, queued) for position, queued in enumerate(ctx.queue.entries)]


def absolute_delay_s(ctx: ReplicaContext) -> float:
    """How old the oldest insert is that is not here yet; time since 1970 if the log was never copied."""
    now_s = ctx.env.now_s()
    if not ctx.last_pull_s:
        return now_s
    if oldest := ctx.queue.oldest_insert():
        return max(0.0, now_s - unix_s(oldest))
    return max(0.0, now_s - ctx.pull_started_s) if ctx.pull_started_s is not None else 0.0


async def delays_s(ctx: ReplicaContext) -> tuple[float, float]:
    """(absolute delay, relative delay): how far this replica is behind, and behind the best active one.

    The second is measured only if the first is large (`min_relative_delay_to_measure`), and is 0 otherwise.
    Raises what Keeper raises, and SqlError 242.
    """
    absolute_s = absolute_delay_s(ctx)
    if absolute_s < ctx.settings.min_relative_delay_to_measure:
        return absolute_s, 0.0
    keeper = ctx.session()
    replicas = await peers.others(ctx, keeper)
    best_s = absolute_s
    active = await keeper.exists_many([replica.is_active for replica in replicas])
    oldest = await keeper.get_many([replica.min_unprocessed_insert_time for replica in replicas])
    for stat, node in zip(active, oldest, strict=True):
        if stat is None or isinstance(node, KeeperAnswer):
            continue
        since_s = peers.number(node.data)
        best_s = min(best_s, ctx.env.now_s() - since_s if since_s else 0.0)
    return absolute_s, max(0.0, absolute_s - max(0.0, best_s))


def type_name(queued: QueuedEntry) -> str:
    """ClickHouse's name of the entry's type."""
    match queued.entry.action:
        case GetPart():
            return "GET_PART"
        case AttachPart():
            return "ATTACH_PART"
        case MergeParts():
            return "MERGE_PARTS"
        case MutatePart():
            return "MUTATE_PART"
        case DropRange(span):
            return "DROP_RANGE" if span.is_range else "DROP_PART"
        case ReplaceRange():
            return "REPLACE_RANGE"
        case AlterMetadata():
            return "ALTER_METADATA"
        case SyncPinnedPartUuids():
            return "SYNC_PINNED_PART_UUIDS"
        case ClonePartFromShard():
            return "CLONE_PART_FROM_SHARD"
        case ClearInRange(what):
            return "CLEAR_COLUMN" if what is Cleared.COLUMN else "CLEAR_INDEX"


def _oldest(entries: Sequence[QueuedEntry], kinds: tuple[type, ...]) -> QueuedEntry | None:
    of_kind = [queued for queued in entries if isinstance(queued.entry.action, kinds)]
    return min(of_kind, key=lambda queued: (_created_s(queued), queued.number), default=None)


def _created_s(queued: QueuedEntry | None) -> float:
    return 0.0 if queued is None else unix_s(queued.entry.create_time)


def _new_part(queued: QueuedEntry | None) -> str:
    if queued is None:
        return ""
    action = queued.entry.action
    if isinstance(action, DropRange | ReplaceRange | ClearInRange):
        return str(action.range)
    made = queued.entry.new_parts
    return str(made[0]) if made else ""


def _row(position: int, queued: QueuedEntry) -> QueueRow:
    action = queued.entry.action
    return QueueRow(
        position=position,
        node_name=queued.name,
        type=type_name(queued),
        create_time_s=_created_s(queued),
        required_quorum=queued.entry.quorum,
        source_replica=queued.entry.source_replica,
        new_part_name=_new_part(queued),
        parts_to_merge=tuple(map(str, queued.sources)),
        is_detach=isinstance(action, DropRange) and action.fate.value == "detach",
        is_currently_executing=queued.is_executing,
        num_tries=queued.num_tries,
        last_exception=queued.last_error,
        last_exception_time_s=queued.last_error_s,
        last_attempt_time_s=queued.last_attempt_s,
        num_postponed=queued.num_postponed,
        postpone_reason=queued.postpone_reason,
        last_postpone_time_s=queued.last_postpone_s,
        merge_type=action.merge_type.name if isinstance(action, MergeParts) else "",
    )
