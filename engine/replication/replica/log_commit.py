"""Sending the multi that makes an entry of the log, and finding out what became of it.

Safety argument. The bytes of an entry occur once: they name a part, a range or a version that is made only
once. So after a lost reply one look decides. The look comes after a `sync`, on the same session or on a new
one; by then a request of the old connection has been executed or never will be. Found: it was executed as a
whole. Not found: nothing of it was, and the caller decides anew from what Keeper says now.

It never sends a multi twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from engine.errors import ConnectionLoss, NoNode, OperationTimeout, SessionExpired
from engine.keeper.base import Create, CreateMode, Keeper, Node, Op, OpResult
from engine.replication.log_entry import LogEntry
from engine.replication.paths import TablePaths, sequence_number
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

    None: it is certain that nothing was executed, although no answer came. Raises MultiFailed.
    """
    made = [
        (index, op)
        for index, op in enumerate(ops)
        if isinstance(op, Create) and op.path.endswith("/log/log-") and op.mode.is_sequential
    ]
    try:
        results = await keeper.multi(ops)
    except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
        log.warning("replication.commit_unknown table=%s error=%s", ctx.name, error)
        return await _look(ctx, [op for _, op in made])
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


async def _look(ctx: ReplicaContext, made: Sequence[Create]) -> Committed | None:
    while True:
        keeper = await ctx.any_session_until_end()
        try:
            found: list[Logged] = []
            for op in made:
                directory = op.path.rpartition("/")[0]
                await keeper.sync(directory)
                name = await find_entry(keeper, directory, op.data)
                if name is None:
                    return None
                found.append(Logged(name, op.data))
            return Committed(tuple(found), None)
        except NoNode:
            return None  # the table is gone
        except (ConnectionLoss, OperationTimeout):
            await ctx.env.sleep(_PAUSE_S)
        except SessionExpired:
            continue
