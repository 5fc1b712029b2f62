"""Numbers of entries, and entries in the log.

An entry's number comes from `counter`, one at a time: who takes one holds `counter_lock` until the entry is
there, so that entries appear in the order of their numbers.

Source: ClickHouse's DatabaseReplicatedDDLWorker::enqueueQueryImpl.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from engine.databases.paths import DatabasePaths, ReplicaName
from engine.ddl.entry import DEFAULT_VERSION, MAX_ENTRY_BYTES, DDLLogEntry
from engine.ddl.text import encode_bytes
from engine.env import Env
from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperAnswer,
    MultiFailed,
    NodeExists,
    NoNode,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import Create, CreateMode, Keeper, Op, Remove, Stat
from engine.keeper.recipes import remove_unowned, try_remove

T = TypeVar("T")

_ATTEMPTS = 1000
_PAUSE_S = 0.05


async def enqueue(
    keeper: Keeper, env: Env, paths: DatabasePaths, me: ReplicaName, entry: DDLLogEntry, *, is_committed: bool
) -> int:
    """The number of the new entry, which is proposed with it, or committed at once. One at a time.

    Raises SqlError 341 when no number can be had, 36 for an entry that is too large, SessionExpired when
    nobody can tell.
    """
    data = entry.to_bytes()
    if len(data) > MAX_ENTRY_BYTES:
        raise SqlError(
            Code.BAD_ARGUMENTS, f"The statement takes {len(data)} bytes in the log, {MAX_ENTRY_BYTES} fit"
        )
    holder = encode_bytes(str(me))
    counter = await _take_number(keeper, env, paths, holder)
    number = int(counter[-10:])
    path = paths.entry(number)
    if is_committed:
        state = Create(f"{path}/committed", holder)
    else:
        state = Create(f"{path}/try", holder, mode=CreateMode.EPHEMERAL)
    ops: list[Op] = [
        Create(path, data),
        state,
        Remove(counter),
        Remove(paths.counter_lock),
        *(Create(f"{path}/{name}") for name in ("active", "finished", "synced")),
    ]
    try:
        await keeper.multi(ops)
    except (ConnectionLoss, OperationTimeout):
        if await _what_became(keeper, env, path) is None:
            await _give_up(keeper, env, paths, counter)
            raise
    except KeeperAnswer:  # as of an etcd that is full
        with suppress(KeeperAnswer):  # it may refuse this, too, and then the next number clears its way
            await _give_up(keeper, env, paths, counter)
        raise
    return number


async def _give_up(keeper: Keeper, env: Env, paths: DatabasePaths, counter: str) -> None:
    for path in (counter, paths.counter_lock):
        await on_same_session(env, partial(try_remove, keeper, path))


async def _take_number(keeper: Keeper, env: Env, paths: DatabasePaths, holder: bytes) -> str:
    for _ in range(_ATTEMPTS):
        try:
            results = await keeper.multi(
                [
                    Create(paths.counter_lock, holder, mode=CreateMode.EPHEMERAL),
                    Create(f"{paths.counter}/cnt-", mode=CreateMode.EPHEMERAL_SEQUENTIAL),
                ]
            )
            return str(results[1])
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists):
                raise
            await on_same_session(env, lambda: _clear_way(keeper, paths, holder))
        except (ConnectionLoss, OperationTimeout):
            pass  # if it was executed, the next one meets its lock
        await env.sleep(_PAUSE_S)
    raise SqlError(
        Code.UNFINISHED,
        f"Cannot enqueue query: {paths.counter_lock} is held by another replica",
        hint="This error can be retried.",
    )


async def _clear_way(keeper: Keeper, paths: DatabasePaths, holder: bytes) -> None:
    """Of a lock that no session owns, and of this replica's own: that is of a request without an answer, or
    of an entry that was refused. Its number is never used."""
    if await remove_unowned(keeper, paths.counter_lock):
        return
    try:
        node = await keeper.get(paths.counter_lock)
    except NoNode:
        return
    if node.stat.ephemeral_owner == keeper.session_id and node.data == holder:
        await try_remove(keeper, paths.counter_lock)


async def _what_became(keeper: Keeper, env: Env, path: str) -> Stat | None:
    """Of a node of a request without an answer. Behind a sync that has been executed, or never will be; the
    server of the new connection may not have heard of it before."""

    async def look() -> Stat | None:
        await keeper.sync(path)
        return await keeper.exists(path)

    return await on_same_session(env, look)


async def on_same_session(env: Env, ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to what may be asked again, as soon as there is a connection. Raises SessionExpired."""
    while True:
        try:
            return await ask()
        except (ConnectionLoss, OperationTimeout):
            await env.sleep(_PAUSE_S)


async def enqueue_empty(keeper: Keeper, env: Env, paths: DatabasePaths, me: ReplicaName) -> None:
    """An entry by which the others learn that the replicas are others now."""
    entry = DDLLogEntry(version=DEFAULT_VERSION, query="", hosts=(), initiator=str(me))
    await enqueue(keeper, env, paths, me, entry, is_committed=True)
