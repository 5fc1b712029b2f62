"""Block numbers: each insert, mutation and dropped partition gets one, and no two the same.

Safety argument.

1. A number is the sequence number of an ephemeral node below `block_numbers/<partition>`. Keeper never
   gives one twice as long as that directory stands, and nobody removes it. A crash after this leaves a node
   that goes with its session: the number is *abandoned*, no part will ever have it.
2. While the node stands the number is *committing*: no merge crosses it and no mutation counts as finished
   below it. So it has to go, and it goes in the very transaction that uses the number (`unlock`): either the
   part exists and the lock is gone, or neither.
3. The node's removal is also the fence. Who has sent that transaction and got no answer removes the node:
   once this has succeeded, the transaction was not executed and never will be (`abandon`).
4. An insert with a block id looks for it in the transaction of step 1, by making the id's node and removing
   it again, which fails if it is there. The id is made for good in the transaction of step 2, so of two
   equal inserts that come this far together one fails there.
5. If the reply to step 1 is lost a node of this session stands that nobody knows. `allocate_all` removes
   such nodes before it asks again, or leaves that to the next one and to the cleanup. It can hit the lock of
   another replica of this table on this node; that insert is refused as a whole, and starts over with
   another number.

It never removes a directory below `block_numbers`: the numbers would begin again.

Source: ClickHouse's EphemeralLockInZooKeeper and ReplicatedMergeTree. The value of a lock is that of versions
from 22.11 on, which older ones understand too.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    Corrupt,
    KeeperAnswer,
    MultiFailed,
    NodeExists,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import Check, Children, Create, CreateMode, Keeper, Op, Remove, SetData
from engine.keeper.checks import MAX_REQUEST_BYTES, request_bytes
from engine.keeper.recipes import MULTI_BATCH_SIZE, try_remove
from engine.replication.block_id import BlockId
from engine.replication.part_name import PartName, is_partition_id, is_patch_partition
from engine.replication.paths import TablePaths, sequence_number
from engine.replication.replica.cleanup.unknown_locks import remove_unknown_locks

if TYPE_CHECKING:
    from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)

_TRIES = 5
_REFUSALS = 20
"""More often than for each wanted number no partition is new and no block comes and goes: something is odd,
such as a node in the way that is no lock."""
_PAUSE_S = 0.1
_MAX_ASKED_BYTES = MAX_REQUEST_BYTES // 2
"""Of one request for numbers: the other half is for what a session adds to each path and node."""


class Purpose(enum.Enum):
    """What a number is for; it decides only what the lock's value says."""

    INSERT = "insert"
    OTHER = "other"
    """A mutation, an ALTER or a dropped partition."""


class BlockLocks:
    """The locks that this replica holds, and where it may hold one without knowing."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.asking: Counter[str] = Counter()
        """By partition, requests for a number that are under way."""
        self.doubtful: set[str] = set()
        """Partitions in which a reply to such a request was lost."""


class Abandoned(enum.Enum):
    """What `abandon` found."""

    REMOVED = "removed"
    """The lock stood: what would have removed it was not executed, and cannot be any more."""
    WAS_GONE = "was gone"
    """It went before: with its session, by somebody's hand, or in the transaction that was to remove it."""


@dataclass(frozen=True, slots=True)
class BlockNumber:
    """A number that is held. `keeper` is the session that its lock belongs to."""

    partition_id: str
    number: int
    path: str
    keeper: Keeper
    locks: BlockLocks = field(repr=False, compare=False)

    @property
    def unlock(self) -> Remove:
        """Belongs into the transaction that uses the number; NoNode means that the number was taken away."""
        return Remove(self.path)

    def used(self) -> None:
        """Tell that the transaction with `unlock` was executed."""
        self.locks.held.discard(self.path)

    def leave(self) -> None:
        """Give the number up without asking Keeper now: `remove_unknown_locks` does it later, or the end of
        the session."""
        self.locks.held.discard(self.path)
        self.locks.doubtful.add(self.partition_id)

    async def abandon(self, keeper: Keeper | None = None) -> Abandoned:
        """Give the number up, on another session if this one is over.

        Raises UnknownOutcome; call it again then.
        """
        self.locks.held.discard(self.path)
        try:
            answer = await try_remove(keeper or self.keeper, self.path)
        except BaseException:  # a cancelled caller, too, leaves it to `remove_unknown_locks`
            self.leave()
            raise
        return Abandoned.WAS_GONE if answer is not None else Abandoned.REMOVED


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """Numbers in several partitions, taken at one moment."""

    held: tuple[BlockNumber, ...]

    @property
    def numbers(self) -> Mapping[str, int]:
        """By partition, in the order of the ids."""
        return {each.partition_id: each.number for each in self.held}

    @property
    def unlock(self) -> Sequence[Op]:
        """Belongs into the transaction that uses the numbers."""
        return [each.unlock for each in self.held]

    def used(self) -> None:
        """Tell that the transaction with `unlock` was executed."""
        for each in self.held:
            each.used()

    async def release(self) -> None:
        """Give all up. Does nothing once the session is over, which does it too. Raises UnknownOutcome; call
        it again then."""
        left = [each for each in self.held if not each.keeper.is_expired]
        try:
            while left:
                batch = [each.abandon() for each in left[:MULTI_BATCH_SIZE]]
                answers = await asyncio.gather(*batch, return_exceptions=True)
                del left[:MULTI_BATCH_SIZE]
                for answer in answers:
                    if isinstance(answer, BaseException):
                        raise answer
        finally:
            for each in left:
                each.leave()


@dataclass(frozen=True, slots=True)
class Known:
    """A block id that is in Keeper already, and the part that was written for it."""

    block_id: BlockId
    part: PartName


@dataclass(frozen=True, slots=True)
class Wanted:
    """A number in one partition, unless `block_id` is known."""

    partition_id: str
    block_id: BlockId | None = None


async def allocate(
    ctx: ReplicaContext, partition_id: str, *, purpose: Purpose = Purpose.OTHER
) -> BlockNumber:
    """A fresh number in a partition, which may be new. Raises as `allocate_all`."""
    (number,) = await allocate_all(ctx, [Wanted(partition_id)], purpose=purpose)
    assert isinstance(number, BlockNumber)
    return number


async def allocate_everywhere(
    ctx: ReplicaContext, keeper: Keeper, partition_ids: Sequence[str] | None = None
) -> BlockNumbers:
    """A fresh number in each of `partition_ids`, made if they are new, or in every partition there is.

    All at one moment, as far as one request carries them: what is inserted later has larger numbers in all of
    them. In every partition means that none was added until the last was taken; those of patch parts do not
    count, which no mutation rewrites. Raises UnknownOutcome, and does not ask again then.
    """
    while True:
        checks: list[Op] = []
        wanted = [Wanted(name) for name in sorted(set(partition_ids or ()))]
        if partition_ids is None:
            children = await keeper.children(ctx.paths.block_numbers)
            wanted = [
                Wanted(name)
                for name in children.names
                if is_partition_id(name) and not is_patch_partition(name)
            ]
            checks = [Check(ctx.paths.block_numbers, children.stat.version)]
        held: list[BlockNumber] = []
        try:
            for some in _for_one_request(ctx.paths, wanted):
                held += await _ask(ctx, keeper, some, Purpose.OTHER, checks)
            return BlockNumbers(tuple(held))
        except MultiFailed as failed:
            await BlockNumbers(tuple(held)).release()
            if isinstance(failed.error, NoNode):
                await _add_partitions(keeper, ctx.paths, {want.partition_id for want in wanted})
            elif not isinstance(failed.error, BadVersion):
                raise
        except BaseException:  # also a cancellation: nobody would give up what was taken before
            for number in held:
                number.leave()
            raise


async def give_up(ctx: ReplicaContext, numbers: BlockNumbers) -> None:
    """Release them, whatever happens: one that stays held would stop merges in its partition. What Keeper
    does not let go soon is left to `remove_unknown_locks`."""
    for _ in range(_TRIES):
        try:
            await numbers.release()
            return
        except (ConnectionLoss, OperationTimeout):
            await ctx.env.sleep(_PAUSE_S)
        except OnclusterError:  # the session is over, or Keeper takes no writes, as an etcd that is full
            return


def _for_one_request(paths: TablePaths, wanted: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """As many at once as one request to Keeper carries."""
    some: list[Wanted] = []
    size = 0
    for want in wanted:
        size += request_bytes(_lock(paths, want.partition_id, Purpose.OTHER))
        if some and size > _MAX_ASKED_BYTES:
            yield some
            some, size = [], 0
        some.append(want)
    yield some


async def allocate_all(
    ctx: ReplicaContext, wanted: Sequence[Wanted], *, purpose: Purpose = Purpose.INSERT
) -> Sequence[BlockNumber | Known]:
    """Fresh numbers for all of `wanted`, in their order, at one moment, except where the block id is known.

    Raises SqlError 242 while the replica is read-only, UnknownOutcome when Keeper does not answer (no number
    is held then, or it goes with the session), NoNode for a table that is not there.
    """
    keeper = ctx.session()
    known: dict[int, Known] = {}
    lost = refused = 0
    while True:
        asked = [index for index in range(len(wanted)) if index not in known]
        try:
            if ctx.block_locks.doubtful:
                await remove_unknown_locks(ctx, keeper)
            numbers = await _ask(ctx, keeper, [wanted[index] for index in asked], purpose, ())
        except MultiFailed as failed:
            refused += 1
            if refused > _REFUSALS + len(wanted):
                raise
            if isinstance(failed.error, NodeExists):
                known |= await _known(keeper, ctx.paths, {index: wanted[index] for index in asked})
            elif isinstance(failed.error, NoNode):
                await _add_partitions(keeper, ctx.paths, {wanted[index].partition_id for index in asked})
            else:
                raise
            continue
        except (ConnectionLoss, OperationTimeout):
            lost += 1
            if lost == _TRIES:
                raise
            await ctx.env.sleep(_PAUSE_S * 2**lost * ctx.env.rng.uniform(0.5, 1.0))
            continue
        found: dict[int, BlockNumber | Known] = {**known, **dict(zip(asked, numbers, strict=True))}
        return [found[index] for index in range(len(wanted))]


def _lock(paths: TablePaths, partition_id: str, purpose: Purpose) -> Create:
    holder = paths.insert_lock_holder if purpose is Purpose.INSERT else paths.other_lock_holder
    return Create(
        paths.block_number_prefix(partition_id),
        holder.encode("utf-8", "surrogateescape"),
        CreateMode.EPHEMERAL_SEQUENTIAL,
    )


async def _ask(
    ctx: ReplicaContext, keeper: Keeper, wanted: Sequence[Wanted], purpose: Purpose, checks: Sequence[Op]
) -> tuple[BlockNumber, ...]:
    paths, locks = ctx.paths, ctx.block_locks
    ops: list[Op] = list(checks)
    at: list[int] = []
    for want in wanted:
        if want.block_id is not None:
            node = paths.block(want.block_id)
            ops += [Create(node), Remove(node)]
        at.append(len(ops))
        ops.append(_lock(paths, want.partition_id, purpose))
    partitions = sorted({want.partition_id for want in wanted})
    locks.asking.update(partitions)
    try:
        results = await keeper.multi(ops)
        made = [results[index] for index in at] if ops else []
    except KeeperAnswer:
        raise
    except BaseException:  # the caller may be cancelled, too, while the request is under way
        locks.doubtful.update(partitions)
        raise
    finally:
        locks.asking.subtract(partitions)
    numbers: list[BlockNumber] = []
    for want, path in zip(wanted, made, strict=True):
        assert isinstance(path, str)
        number = sequence_number(path.rpartition("/")[2])
        assert number is not None
        locks.held.add(path)
        numbers.append(BlockNumber(want.partition_id, number, path, keeper, locks))
    return tuple(numbers)


async def _known(keeper: Keeper, paths: TablePaths, wanted: Mapping[int, Wanted]) -> Mapping[int, Known]:
    """Which of the wanted have a block id that is in Keeper; possibly none, if it went since."""
    with_id = {index: want.block_id for index, want in wanted.items() if want.block_id is not None}
    nodes = await keeper.get_many([paths.block(block_id) for block_id in with_id.values()])
    return {
        index: Known(block_id, part_of_block(paths.block(block_id), node.data))
        for (index, block_id), node in zip(with_id.items(), nodes, strict=True)
        if not isinstance(node, KeeperAnswer)
    }


def part_of_block(path: str, data: bytes) -> PartName:
    """The part that a block id's node names. Raises Corrupt for anything else."""
    try:
        return PartName.parse(data.decode())
    except (UnicodeDecodeError, SqlError):
        raise Corrupt(
            f"{path} does not name a part", code=Code.BAD_DATA_PART_NAME, hint="Remove the node by hand."
        ) from None


async def _add_partitions(keeper: Keeper, paths: TablePaths, partition_ids: set[str]) -> None:
    """Make directories for numbers. Raises NoNode if the table itself is not there.

    `block_numbers` is set with each, so that whoever takes a number in *all* partitions notices.
    """
    ordered = sorted(partition_ids)
    stats = await keeper.exists_many([paths.partition_block_numbers(name) for name in ordered])
    for name, stat in zip(ordered, stats, strict=True):
        if stat is not None:
            continue
        ops: list[Op] = [Create(paths.partition_block_numbers(name)), SetData(paths.block_numbers, b"")]
        try:
            await keeper.multi(ops)
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists):
                raise failed.error from failed
    if await keeper.exists(paths.blocks) is None:
        raise NoNode(paths.blocks)


async def committing(
    ctx: ReplicaContext, partition_ids: AbstractSet[str] | None = None
) -> Mapping[str, set[int]]:
    """By partition, the numbers that are held by somebody now, in all partitions or in these. Partitions
    without any are left out.

    Read it *before* the log is pulled: what is not in it is then either in the log or will never be a part.
    """
    keeper = ctx.session()
    partitions = sorted(partition_ids or ())
    if partition_ids is None:
        names = (await keeper.children(ctx.paths.block_numbers)).names
        partitions = [name for name in names if is_partition_id(name)]
    directories = [ctx.paths.partition_block_numbers(name) for name in partitions]
    found: dict[str, set[int]] = {}
    seen: list[tuple[str, int, str]] = []
    for partition_id, directory, children in zip(
        partitions, directories, await keeper.children_many(directories), strict=True
    ):
        if not isinstance(children, Children):
            continue
        for name in children.names:
            number = sequence_number(name)
            if number is not None:
                seen.append((partition_id, number, f"{directory}/{name}"))
    alive = await _with_living_holder(keeper, ctx.paths, [path for _, _, path in seen])
    for (partition_id, number, _), is_alive in zip(seen, alive, strict=True):
        if is_alive:
            found.setdefault(partition_id, set()).add(number)
    return found


async def _with_living_holder(keeper: Keeper, paths: TablePaths, locks: Sequence[str]) -> Sequence[bool]:
    """A lock of no session is a copy's; one of servers before 22.11 is as alive as its holder in `temp`."""
    holders: list[str] = []
    for node in await keeper.get_many(locks):
        data = "" if isinstance(node, KeeperAnswer) else node.data.decode("utf-8", "replace")
        is_old = data.startswith(f"{paths.temp}/") and data not in (
            paths.insert_lock_holder,
            paths.other_lock_holder,
        )
        is_gone = isinstance(node, KeeperAnswer) or not (is_old or node.stat.ephemeral_owner)
        holders.append("gone" if is_gone else data if is_old else "")
    to_ask = sorted({holder for holder in holders if holder not in ("", "gone")})
    stats = dict(zip(to_ask, await keeper.exists_many(to_ask), strict=True))
    living = {holder for holder, stat in stats.items() if stat is not None and stat.ephemeral_owner}
    return [holder == "" or holder in living for holder in holders]


async def cancel_committing(keeper: Keeper, paths: TablePaths, partition_id: str, *, below: int) -> int:
    """Take all numbers below `below` away from who holds them; returns how many.

    For DROP and REPLACE PARTITION: an insert that has such a number is refused and starts over with one that
    is above the dropped range. Repeatable.
    """
    directory = paths.partition_block_numbers(partition_id)
    try:
        names = (await keeper.children(directory)).names
    except NoNode:
        return 0
    taken = 0
    for name in names:
        number = sequence_number(name)
        if number is not None and number < below:
            taken += await try_remove(keeper, f"{directory}/{name}") is None
    return taken
