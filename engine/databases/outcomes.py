"""What became of an entry on each replica: rows as they finish, then perhaps an error.

Source: ClickHouse's ReplicatedDatabaseQueryStatusSource.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from engine.databases.cluster import ClusterReplica
from engine.databases.paths import DatabasePaths
from engine.ddl.output import OutputMode
from engine.env import Env
from engine.errors import Code, ConnectionLoss, NoNode, OperationTimeout, SessionExpired, SqlError
from engine.keeper.base import Keeper, Node
from engine.keeper.recipes import SessionHolder, Signal

OUTPUT_COLUMNS = (
    ("shard", "String"),
    ("replica", "String"),
    ("status", "Enum8('OK' = 0, 'IN_PROGRESS' = 1, 'QUEUED' = 2, 'UNFINISHED' = 3)"),
    ("num_hosts_remaining", "UInt64"),
    ("num_hosts_active", "UInt64"),
)
_LOOK_S = 1.0
_RETRY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One row of the answer."""

    shard: str
    replica: str
    status: str
    num_hosts_remaining: int
    num_hosts_active: int

    def values(self) -> tuple[object, ...]:
        return (
            self.shard,
            self.replica,
            self.status,
            self.num_hosts_remaining,
            self.num_hosts_active,
        )


async def outcome_rows(
    holder: SessionHolder,
    env: Env,
    paths: DatabasePaths,
    number: int,
    replicas: Sequence[ClusterReplica],
    *,
    mode: OutputMode,
    timeout_s: float,
    synced: bool = False,
) -> AsyncGenerator[ReplicaRow, None]:
    """Rows in the order in which replicas are found finished. `timeout_s` 0 ends at once, negative waits for
    ever. Raises SqlError 159, or 341 when the entry vanishes.

    Keeper is waited for no longer than replicas are: what it said last holds then.
    """
    if timeout_s == 0:
        return
    begun_s = env.monotonic_s()
    waited = {replica.full_name: replica for replica in replicas}
    where = paths.entry(number, "synced" if synced else "finished")
    reported: set[str] = set()
    finished: set[str] = set()
    active: set[str] = set()
    offline: set[str] = set()
    while True:
        left_s = None if timeout_s < 0 else max(0.0, timeout_s - (env.monotonic_s() - begun_s))
        signal: Signal | None = Signal()
        try:
            async with asyncio.timeout(left_s):
                keeper = await holder.get()
            finished = set((await keeper.children(where, watch=signal)).names)
            active = set((await keeper.children(paths.entry(number, "active"))).names)
            offline = await _offline(keeper, paths, waited) if mode.waits_for_active_only else set()
        except NoNode:
            raise SqlError(
                Code.UNFINISHED,
                "Cannot provide query execution status. The query's node "
                f"{paths.entry(number)} has been deleted by the cleaner since it was finished (or its "
                "lifetime is expired)",
            ) from None
        except (ConnectionLoss, OperationTimeout, SessionExpired, TimeoutError):
            signal = None
        for name in [name for name in waited if name in finished and name not in reported]:
            reported.add(name)
            yield _row(waited[name], "OK", len(waited) - len(reported), len(active))
        rest = [name for name in waited if name not in reported]
        if not rest:
            return
        is_late = timeout_s >= 0 and env.monotonic_s() - begun_s >= timeout_s
        only_offline = mode.waits_for_active_only and set(rest) <= offline and len(offline) < len(waited)
        if is_late or only_offline:
            for name in rest:
                status = "IN_PROGRESS" if name in active else "QUEUED"
                yield _row(waited[name], status, len(rest), len(active))
            if is_late and mode.throws_on_timeout:
                raise _late(paths, number, rest, waited, active, timeout_s)
            return
        if signal is None:
            await env.sleep(_RETRY_PAUSE_S)
            continue
        left_s = _LOOK_S if timeout_s < 0 else timeout_s - (env.monotonic_s() - begun_s)
        try:
            async with asyncio.timeout(max(0.01, min(_LOOK_S, left_s))):
                await signal.wait()
        except (TimeoutError, SessionExpired):
            pass


async def _offline(keeper: Keeper, paths: DatabasePaths, names: dict[str, ClusterReplica]) -> set[str]:
    nodes = await keeper.get_many([paths.replica(name, "active") for name in names])
    return {
        name
        for name, node in zip(names, nodes, strict=True)
        if not isinstance(node, Node) or node.data.endswith(b"\tUNSYNCED")
    }


def _row(replica: ClusterReplica, status: str, remaining: int, active: int) -> ReplicaRow:
    return ReplicaRow(replica.name.shard, replica.name.replica, status, remaining, active)


def _late(
    paths: DatabasePaths,
    number: int,
    rest: Sequence[str],
    waited: dict[str, ClusterReplica],
    active: set[str],
    timeout_s: float,
) -> SqlError:
    running = len(active & set(rest))
    return SqlError(
        Code.TIMEOUT_EXCEEDED,
        f"ReplicatedDatabase DDL task {paths.entry(number)} is not finished on {len(rest)} of {len(waited)} "
        f"hosts ({running} of them are currently executing the task, {len(rest) - running} are inactive). "
        f"They are going to execute the query in background. Was waiting for {timeout_s:g} seconds, which is "
        "longer than distributed_ddl_task_timeout",
    )
