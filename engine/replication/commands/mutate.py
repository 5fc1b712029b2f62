"""Mutations: `ALTER … UPDATE`, `DELETE` and what else rewrites parts. Creating, waiting, killing.

Safety argument. A mutation concerns the rows that were there when it was created, in every partition.

1. Read the version of `mutations`.
2. Take a block number in every partition concerned, all in one multi. If that is all partitions the multi
   checks that none was added. The numbers are held: nothing below them counts as settled yet.
3. One multi makes the entry and sets `mutations` with the version of 1. If another mutation was made since,
   it is refused: so the numbers of two mutations have the same order in every partition, and in `mutations`.
4. Give the numbers up. Inserts that come later have larger ones.

A crash after 2 leaves locks that end with the session, after 3 a mutation that is carried out. After a lost
reply to 3 the entry is looked for by its bytes, in which the block numbers occur once. It is never sent
again. Rows are only rewritten by what merge assignment makes of the entry.

Source: ClickHouse's StorageReplicatedMergeTree::mutate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    MultiFailed,
    NoNode,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import Create, CreateMode, Keeper, Node, Op, SetData, Watch
from engine.replication.commands.waiting import (
    DEFAULT_INACTIVE_TIMEOUT_S,
    Sync,
    replicas_of,
    unfinished,
    wait_on_replicas,
    with_session,
)
from engine.replication.mutation_entry import MutationEntry, mutation_number
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.replica.block_numbers import BlockNumbers, allocate_everywhere, give_up
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.merging.mutation_book import MutationState
from engine.replication.replica.queue.loader import load_mutations
from engine.replication.text import time_text

log = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 1000
_PAUSE_S = 0.2


async def create_mutation(
    ctx: ReplicaContext,
    commands: str,
    *,
    partition_ids: Sequence[str] | None = None,
    alter_version: int = -1,
    fence: Sequence[Op] = (),
    most_unfinished: int = 0,
) -> int:
    """Make a mutation of `commands`, for all partitions or those given; returns its number.
    `most_unfinished` is the statement's `number_of_mutations_to_throw`; 0 leaves it to the table's.

    Raises SqlError 692 TOO_MANY_MUTATIONS, 242 while the replica is read-only; MultiFailed if an operation of
    `fence`, which goes into the same multi, is refused.
    """
    for _ in range(_ATTEMPTS):
        keeper = ctx.session()
        check_room(ctx, most_unfinished)
        try:
            version = await mutations_version(keeper, ctx.paths)
            held = await allocate_everywhere(ctx, keeper, partition_ids)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(_PAUSE_S)
            continue
        try:
            draft = MutationDraft.of(ctx, held, commands, alter_version=alter_version, version=version)
            number = await _send(ctx, keeper, draft, fence)
        finally:
            await give_up(ctx, held)
        if number is not None:
            await _take_note(ctx)
            log.info("replication.mutation_created table=%s number=%010d", ctx.name, number)
            return number
    raise SqlError(
        Code.UNFINISHED, f"Cannot create a mutation of {ctx.name}: other mutations keep coming first"
    )


async def _take_note(ctx: ReplicaContext) -> None:
    """See the new mutation at once, as who created it expects of `system.mutations`; if that fails, the
    watch on `mutations/` brings it a little later."""
    keeper = ctx.keeper
    if keeper is None:
        return
    try:
        await load_mutations(ctx, keeper)
    except (ConnectionLoss, OperationTimeout, SessionExpired, NoNode):
        return


@dataclass(frozen=True, slots=True)
class MutationDraft:
    """The two operations that make a mutation: `ops` of one multi."""

    raw: bytes
    ops: tuple[SetData, Create]

    @classmethod
    def of(
        cls, ctx: ReplicaContext, held: BlockNumbers, commands: str, *, alter_version: int, version: int
    ) -> MutationDraft:
        """`version` is that of `mutations`, read before the numbers were taken."""
        entry = MutationEntry(
            create_time=time_text(ctx.env.now_s()),
            source_replica=ctx.replica,
            block_numbers=tuple(sorted(held.numbers.items())),
            commands=commands,
            alter_version=alter_version,
        )
        raw = entry.to_bytes()
        return cls(
            raw,
            (
                SetData(ctx.paths.mutations, b"", version),
                Create(ctx.paths.mutation_prefix, raw, CreateMode.PERSISTENT_SEQUENTIAL),
            ),
        )


def check_waiting(ctx: ReplicaContext, sync: Sync, setting: str) -> None:
    """Raises SqlError 344 where this replica would wait for mutations of which it hears no failure: it makes
    none of them."""
    if ctx.settings.always_fetch_mutated_part and sync is not Sync.NONE:
        raise SqlError(
            Code.SUPPORT_IS_DISABLED,
            f"Replica {ctx.replica} of {ctx.name} does not execute mutations (always_fetch_mutated_part), "
            "and cannot wait for one, which may fail elsewhere.",
            hint=f"Set {setting} = 0, or ask another replica.",
        )


def check_room(ctx: ReplicaContext, most_unfinished: int = 0) -> None:
    """Raises SqlError 692 if too many mutations are unfinished."""
    limit = most_unfinished or ctx.settings.number_of_mutations_to_throw
    unfinished_count = sum(not state.is_done for state in ctx.queue.mutations.values())
    if limit and unfinished_count >= limit:
        raise SqlError(
            Code.TOO_MANY_MUTATIONS,
            f"Too many unfinished mutations ({unfinished_count}) in table {ctx.name}; the limit is {limit}.",
            hint="See system.mutations; KILL MUTATION removes one that fails.",
        )


async def mutations_version(keeper: Keeper, paths: TablePaths) -> int:
    """Raises NoNode if the table is gone."""
    stat = await keeper.exists(paths.mutations)
    if stat is None:
        raise NoNode(paths.mutations)
    return stat.version


async def find_mutation(ctx: ReplicaContext, raw: bytes) -> int | None:
    """The number of the mutation with these bytes."""

    async def look(keeper: Keeper) -> int | None:
        await keeper.sync(ctx.paths.mutations)
        names = (await keeper.children(ctx.paths.mutations)).names
        numbers = [number for name in names if (number := mutation_number(name)) is not None]
        nodes = await keeper.get_many([ctx.paths.mutation(number) for number in numbers])
        for number, node in zip(numbers, nodes, strict=True):
            if isinstance(node, Node) and node.data == raw:
                return number
        return None

    return await with_session(ctx, look)


async def _send(ctx: ReplicaContext, keeper: Keeper, draft: MutationDraft, fence: Sequence[Op]) -> int | None:
    """None: another mutation was first, or it is certain that nothing was made."""
    try:
        results = await keeper.multi([*draft.ops, *fence])
    except MultiFailed as failed:
        if failed.index == 0 and isinstance(failed.error, BadVersion):
            return None
        raise
    except (ConnectionLoss, OperationTimeout, SessionExpired):
        return await find_mutation(ctx, draft.raw)
    return mutation_number(str(results[1]).rpartition("/")[2])


# -- waiting ------------------------------------------------------------------------------------------------


async def wait_for_mutation(
    ctx: ReplicaContext,
    number: int,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
) -> None:
    """Wait until `sync` (`mutations_sync`) has finished the mutation.

    Raises SqlError 341 UNFINISHED: it was killed, it fails on this replica, or replicas were inactive for too
    long.
    """
    replicas = await replicas_of(ctx, sync)
    if not replicas:
        return
    waits = [(replica, _FinishedMutation(ctx.paths, replica, number).is_done) for replica in replicas]
    late = await unless_failing(
        ctx,
        wait_on_replicas(ctx, waits, inactive_timeout_s=inactive_timeout_s),
        lambda: _failure_before(ctx, number),
    )
    if late:
        raise unfinished(late, f"finish mutation {number:010} of {ctx.paths.root}")


async def unless_failing(
    ctx: ReplicaContext, waiting: Coroutine[Any, Any, T], failure: Callable[[], str]
) -> T:
    """The result of `waiting`, for what mutations hold up. Raises SqlError 341 with what `failure` says of
    those on this replica, as soon as it says something."""
    done = asyncio.ensure_future(waiting)
    failing = asyncio.ensure_future(_first_failure(ctx, failure))
    try:
        await asyncio.wait([done, failing], return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise SqlError(Code.UNFINISHED, failing.result())
        return done.result()
    finally:
        done.cancel()
        failing.cancel()
        await asyncio.gather(done, failing, return_exceptions=True)


class _FinishedMutation:
    """Looks whether one replica is through with one mutation."""

    def __init__(self, paths: TablePaths, replica: ReplicaPaths, number: int) -> None:
        self._paths = paths
        self._replica = replica
        self._number = number

    async def is_done(self, keeper: Keeper, watch: Watch) -> bool:
        if await self._is_passed(keeper, watch):
            return True
        if await keeper.exists(self._paths.mutation(self._number), watch=watch) is not None:
            return False
        # What is done everywhere may have been cleaned up between the two looks.
        if await self._is_passed(keeper, watch):
            return True
        raise SqlError(
            Code.UNFINISHED, f"Mutation {self._number:010} of {self._paths.root} was killed or does not exist"
        )

    async def _is_passed(self, keeper: Keeper, watch: Watch) -> bool:
        pointer = (await keeper.get(self._replica.mutation_pointer, watch=watch)).data
        done = mutation_number(pointer.decode("ascii", "replace"))
        return done is not None and done >= self._number


async def _first_failure(ctx: ReplicaContext, failure: Callable[[], str]) -> str:
    while not (told := failure()):
        await ctx.mutation_news.wait()
    return told


def _failure_before(ctx: ReplicaContext, number: int) -> str:
    """Why a part cannot be mutated on this replica. What fails may be a mutation before this one: parts go
    through them in their order."""
    for earlier, error in ctx.queue.unreadable_mutations.items():
        if earlier <= number:
            return f"Mutation {number:010} waits for mutation {earlier:010}, which nobody can do: {error}"
    return _failed(state for earlier, state in sorted(ctx.queue.mutations.items()) if earlier <= number)


def failure_of_alters(ctx: ReplicaContext, version: int) -> str:
    """Why the data of an ALTER before `version` cannot be rewritten on this replica, which holds up the
    metadata of all behind it."""
    for number, error in ctx.queue.unreadable_mutations.items():
        return f"ALTER of version {version} waits for mutation {number:010}, which nobody can do: {error}"
    return _failed(
        state
        for _, state in sorted(ctx.queue.mutations.items())
        if state.alter_version is not None and state.alter_version < version
    )


def _failed(states: Iterable[MutationState]) -> str:
    for state in states:
        if state.latest_fail_reason and not state.is_done:
            return (
                f"Exception happened during execution of mutation {state.number:010} with part "
                f"{state.latest_failed_part}, reason: {state.latest_fail_reason}. It is tried again; "
                "KILL MUTATION gives it up."
            )
    return ""


# -- killing ------------------------------------------------------------------------------------------------


async def kill_mutation(ctx: ReplicaContext, number: int) -> bool:
    """Remove a mutation; whether there was one. Parts that it has rewritten stay as they are.

    All replicas hear of it by their watch. What executes now is interrupted and done again without it, as
    parts are that are still to be made.
    """
    keeper = ctx.session()
    try:
        await keeper.remove(ctx.paths.mutation(number))
    except NoNode:
        return False
    except (ConnectionLoss, OperationTimeout, SessionExpired):
        # Removing it again is all that is wanted; it was there a moment ago as far as anybody knows.
        await with_session(ctx, lambda again: _remove_if_there(again, ctx.paths.mutation(number)))
    log.info("replication.mutation_killed table=%s number=%010d", ctx.name, number)
    if not ctx.is_readonly:
        await load_mutations(ctx, ctx.session())
    return True


async def _remove_if_there(keeper: Keeper, path: str) -> None:
    try:
        await keeper.remove(path)
    except NoNode:
        return
