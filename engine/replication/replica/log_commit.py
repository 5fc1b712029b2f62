"""Sending the multi that makes an entry of the log, and finding out what became of it.

Safety argument. The bytes of an entry occur once: they name a part, a range or a version that is made only
once. So after a lost reply one look decides. The look comes after a `sync`, on the same session or on a new
one; by then a request of the old connection has been executed or never will be.

1. All entries found: it was executed as a whole.
2. None found: nothing of it was, and the caller decides anew from what Keeper says now. That holds as long as
   the log has all that came since it was sent. An entry leaves the log when this replica has copied it, or
   was declared lost (`cleanup.log`): so nothing may be missing between the pointer of then and that of now,
   and the replica must not be lost.
3. Otherwise nobody can tell any more. Whoever has parts staged for the transaction keeps them: they may be
   the replica's, and have nowhere else to come from. The next start, or `cleanup.staged_sweep`, settles them.

It never sends a multi twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperAnswer,
    OperationTimeout,
    SessionExpired,
    UnknownOutcome,
)
from engine.keeper.base import Create, CreateMode, Keeper, Node, Op, OpResult
from engine.replication.log_entry import LogEntry
from engine.replication.paths import TablePaths, sequence_number
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)

_BATCH = 100
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry that is in the log. `name` is its znode's, `raw` its bytes."""

    name: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """What a multi did: the entries, in the order of the operations, and all answers; these are None where
    the reply was lost."""

    entries: tuple[Logged, ...]
    results: tuple[OpResult, ...] | None


def log_op(paths: TablePaths, entry: LogEntry) -> Create:
    """The operation that appends `entry` to the log."""
    return Create(paths.log_prefix, entry.to_bytes(), CreateMode.PERSISTENT_SEQUENTIAL)


async def commit_logged(ctx: ReplicaContext, keeper: Keeper, ops: Sequence[Op]) -> Committed | None:
    """Send `ops`, at least one of which was made by `log_op` for this table or another.

    None: it is certain that nothing was executed, although no answer came. So it is if this raises
    KeeperAnswer (MultiFailed is one); after anything else, also a cancellation, it may have been. Raises
    UnknownOutcome where nobody can tell, or the table ends before.
    """
    first = ctx.log_pointer
    made = [
        (index, op)
        for index, op in enumerate(ops)
        if isinstance(op, Create) and op.path.endswith("/log/log-") and op.mode.is_sequential
    ]
    try:
        results = await keeper.multi(ops)
    except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
        log.warning("replication.commit_unknown table=%s error=%s", ctx.name, error)
        return await _look(ctx, [op for _, op in made], first)
    names = [str(results[index]).rpartition("/")[2] for index, _ in made]
    return Committed(
        tuple(Logged(name, op.data) for name, (_, op) in zip(names, made, strict=True)), tuple(results)
    )


async def find_entry(keeper: Keeper, directory: str, raw: bytes) -> str | None:
    """The name of the newest child of `directory` (a log or a queue) with exactly these bytes."""
    found = await find_entries(keeper, directory, {raw})
    return found[0] if found else None


async def find_entries(keeper: Keeper, directory: str, raws: AbstractSet[bytes]) -> list[str]:
    """The names of children of `directory` with one of these contents, newest first; of each the newest."""
    names = [name for name in (await keeper.children(directory)).names if sequence_number(name) is not None]
    names.sort(key=lambda name: sequence_number(name) or 0, reverse=True)
    missing = set(raws)
    found: list[str] = []
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        nodes = await keeper.get_many([f"{directory}/{name}" for name in batch])
        for name, node in zip(batch, nodes, strict=True):
            if isinstance(node, Node) and node.data in missing:
                missing.remove(node.data)
                found.append(name)
        if not missing:
            break
    return found


async def _look(ctx: ReplicaContext, made: Sequence[Create], first: int) -> Committed | None:
    """`first` is a number that no entry of the transaction can be below, if it is in this table's log."""
    while True:
        keeper = await ctx.any_session_until_end()
        try:
            found: list[Logged] = []
            for op in made:
                directory = op.path.rpartition("/")[0]
                await keeper.sync(directory)
                name = await find_entry(keeper, directory, op.data)
                if name is not None:
                    found.append(Logged(name, op.data))
            if len(found) == len(made):
                return Committed(tuple(found), None)
            if found or not await _is_whole(ctx, keeper, first):
                raise _unknown(ctx, "it is not in the log, which does not go back far enough any more")
            return None
        except (ConnectionLoss, OperationTimeout):
            await ctx.env.sleep(_PAUSE_S)
        except SessionExpired:
            continue
        except KeeperAnswer as error:  # the table is gone, and its log may have had the entry
            raise _unknown(ctx, f"its log cannot be read: {error}") from error


async def _is_whole(ctx: ReplicaContext, keeper: Keeper, first: int) -> bool:
    """Whether nothing from number `first` on has left the log. It is listed again: what was there when the
    entry was looked for, and has gone since, only makes this say no."""
    numbers = {sequence_number(name) for name in (await keeper.children(ctx.paths.log)).names}
    # In this order: a replica that is not lost any more stands where it has been cloned to.
    is_lost, pointer = await keeper.get_many([ctx.me.is_lost, ctx.me.log_pointer])
    if isinstance(pointer, KeeperAnswer):
        raise pointer
    if isinstance(is_lost, Node) and is_lost.data == b"1":
        return False
    now = peers.number(pointer.data)
    return first <= now and numbers.issuperset(range(first, now))


def _unknown(ctx: ReplicaContext, why: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"Keeper did not answer a transaction of table {ctx.name}, and it is not known what became of the "
        f"statement: {why}",
        code=Code.KEEPER_EXCEPTION,
        hint="Look at the table before it is repeated.",
    )
