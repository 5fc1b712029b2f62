"""INSERT into a replicated table: from parts that are written to parts that all replicas will have.

Safety argument. Parts of one `commit` go together (one by one if quorums may not run in parallel):

1. Numbers are allocated, one transaction for all, which also looks for the block ids
   (`replica.block_numbers`). Whose id is known is a duplicate. A crash leaves nothing: the numbers are
   abandoned with the session. The number of a single part may have been taken before (`early_number`); its
   id is looked for in 3 then.
2. Each part is staged under its name: durable, read by nobody. A crash leaves a staged part that Keeper does
   not know; start-up throws it away.
3. One transaction commits all of them: log entries, removal of the number locks, quorum nodes with the checks
   that this replica is still active, block ids, the replica's `parts`. All or nothing. A crash after it
   leaves staged parts that Keeper knows; start-up publishes them.
4. The parts are published; from then on readers see them.
5. With a quorum: wait for the other replicas. A crash, or giving up, changes nothing any more.

No answer to 3 is resolved by looking, never by sending it again. First the number lock is removed, on a new
session if the old one is over. If that removes it, the transaction did not happen and cannot happen any more:
it contains that very removal. If the lock is gone already, the replica's `parts` say what happened; nobody
removes a node there while the part is in flight (`InFlight`). Only then a new number is taken, and the staged
part renamed. A block id that is found then and names one of our own earlier names is our own success.

What is not known in the end (Keeper stays away) is 319 UNKNOWN_STATUS_OF_INSERT, and the part is left staged
for the part check and the next activation to decide. Repeating the INSERT is safe with deduplication. An
INSERT of more parts than fit into one transaction that fails after the first ends with 319, too, and so does
one of whose parts some have their quorum and of others it was given up.

Block ids are written to `blocks/` as `<partition>_<low>_<high>`: of the data's hash, or of `<token>_<n>`
where n counts the parts of that partition in this INSERT. That is the layout that servers of all versions
read, unless they are set to `new_unified_hash`, and `compatible_double_hashes` of 26.x writes it, too. What
newer servers write to `deduplication_hashes` is hashed from rows in a way that depends on their block
structure; the same rows inserted through such a server and through us are not recognised as one insert.

Source: ClickHouse's ReplicatedMergeTreeSink.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperUnavailable,
    MalformedEntry,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.killable import ends_by_kill
from engine.replication.block_id import BlockId
from engine.replication.commands.early_number import EarlyNumber, note_partitions
from engine.replication.commands.insert_group import Committed, insert_group, pause
from engine.replication.commands.insert_transaction import Pending, Quorum, pause_s, unknown_status
from engine.replication.commands.table_size import check_table_size
from engine.replication.part_name import PartName
from engine.replication.part_store import NewPart, Part
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum import check_quorum, holders, set_failed_aside
from engine.replication.replica.quorum_waiting import (
    QuorumEnd,
    Wake,
    any_session,
    wait_for_quorum,
    wait_until_active,
)

__all__ = ["AUTO_QUORUM", "InsertOptions", "Inserted", "Inserter"]

AUTO_QUORUM = -1
"""`insert_quorum = 'auto'`: more than half of the replicas."""
_GROUP = 40
"""Parts per transaction: about six operations each, and a request has to stay below 1 MiB."""
_TRIES_OF_CHECK = 5
"""How often a read-only replica is asked again before the rows are read."""


@dataclass(frozen=True, slots=True)
class InsertOptions:
    """Settings of one INSERT: `insert_deduplicate`, `insert_deduplication_token`, `insert_quorum` (0 and 1
    are off), `insert_quorum_parallel`, `insert_quorum_timeout`, `insert_keeper_max_retries`,
    `parts_to_delay_insert` and `parts_to_throw_insert` (0 leaves it to the table's settings of that name)."""

    deduplicate: bool = True
    token: str = ""
    quorum: int = 0
    quorum_parallel: bool = True
    quorum_timeout_s: float = 600.0
    max_retries: int = 20
    parts_to_delay: int = 0
    parts_to_throw: int = 0


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of one part. `name` of a duplicate is the part that was written for it before."""

    new: NewPart
    name: PartName
    is_duplicate: bool


class _GivenUp(SqlError):
    """285: the quorum of one part was given up, and the part is not inserted."""


class Inserter:
    """One INSERT statement. `commit` may be called several times; parts are numbered on for the token."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self._ctx = ctx
        self._ordinals: Counter[str] = Counter()
        self._early: EarlyNumber | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        early, self._early = self._early, None
        if early is not None:
            await early.close()

    def rows_are_coming(self, options: InsertOptions) -> None:
        """Called behind `check`, before rows are written: a number may be asked for in the meantime. Only
        within `async with`, which gives it up if it is not used."""
        if options.quorum in (0, 1) and self._early is None:
            self._early = EarlyNumber.expected(self._ctx)

    async def check(self, options: InsertOptions) -> None:
        """What has to hold before rows are read; slows the INSERT down when there are many parts.

        Raises SqlError: 242 for a read-only replica, 252 for too many parts, 285 and 286 for a quorum that
        cannot be had, 164 if the replica is not active, 1016 for a table that is too large.
        """
        await check_table_size(self._ctx)
        await self._wait_for_merges(options)
        for attempt in range(1, _TRIES_OF_CHECK + 1):
            is_last = attempt == _TRIES_OF_CHECK
            try:
                keeper = self._ctx.session()
                quorum = await self._quorum(options)
                if quorum is not None:
                    await check_quorum(self._ctx, keeper, quorum.required, is_parallel=quorum.is_parallel)
                return
            except (ConnectionLoss, OperationTimeout, SessionExpired):
                if is_last:
                    raise
            except SqlError as error:
                is_over = is_last or self._ctx.is_ending
                if is_over or error.code not in (Code.TABLE_IS_READ_ONLY, Code.READONLY):
                    raise
            await pause(self._ctx, attempt)

    async def commit(self, parts: Sequence[NewPart], options: InsertOptions) -> Sequence[Inserted]:
        """Insert what the store has written, in order. All `parts` are used up when this returns.

        Raises SqlError: 319 when it is not known whether all was inserted; with any other code, and with
        KeeperUnavailable, nothing was.
        """
        pending = [self._pending(new, options) for new in parts]
        note_partitions(self._ctx, [new.partition_id for new in parts])
        results: dict[int, Inserted] = {}
        try:
            while waiting := [index for index in range(len(parts)) if index not in results]:
                quorum = await self._quorum(options)
                chosen = _next_group([(index, pending[index]) for index in waiting], quorum)
                group = [pending[index] for index in chosen]
                early = (
                    await self._early.take(group[0].partition_id) if self._early and len(parts) == 1 else None
                )
                done = await insert_group(
                    self._ctx, group, quorum, max_retries=options.max_retries, early=early
                )
                given_up: _GivenUp | None = None
                for index, result in zip(chosen, done, strict=True):
                    each = pending[index]
                    try:
                        if quorum is None or await self._is_reached(each, result, quorum, options):
                            results[index] = Inserted(parts[index], result.name, result.is_duplicate)
                        # Otherwise the block was forgotten meanwhile: the rows are new, and inserted now.
                    except _GivenUp as error:  # what became of the others of its transaction has to be said
                        given_up = error
                if given_up is not None:
                    raise given_up
        except OnclusterError as error:
            if results and error.code != Code.UNKNOWN_STATUS_OF_INSERT:
                reason = f"{len(results)} of {len(parts)} parts were inserted, then: {error}"
                raise unknown_status(self._ctx, reason) from error
            raise
        finally:
            for new, each in zip(parts, pending, strict=True):
                if not each.names:
                    await self._ctx.store.discard_inserted(new)
        return [results[index] for index in range(len(parts))]

    def _pending(self, new: NewPart, options: InsertOptions) -> Pending:
        async def stage(name: PartName) -> Part:
            return await self._ctx.store.stage_inserted(new, name)

        return Pending(new.partition_id, self._block_id(new, options), stage, level=new.level)

    def _block_id(self, new: NewPart, options: InsertOptions) -> BlockId | None:
        ordinal = self._ordinals[new.partition_id]
        self._ordinals[new.partition_id] += 1
        if not options.deduplicate or not self._ctx.settings.replicated_deduplication_window:
            return None
        if options.token:
            return BlockId.of_token(new.partition_id, f"{options.token}_{ordinal}")
        low, high = (int.from_bytes(new.data_hash[at : at + 8], "little") for at in (0, 8))
        return BlockId(new.partition_id, low, high)

    async def _wait_for_merges(self, options: InsertOptions) -> None:
        """`max_parts_in_total`, `parts_to_delay_insert`, `parts_to_throw_insert`. Raises SqlError 252."""
        ctx, settings = self._ctx, self._ctx.settings
        to_delay = options.parts_to_delay or settings.parts_to_delay_insert
        to_throw = options.parts_to_throw or settings.parts_to_throw_insert
        counts = Counter(part.partition_id for part in ctx.store.active)
        if counts.total() >= settings.max_parts_in_total:
            raise SqlError(
                Code.TOO_MANY_PARTS,
                f"Too many parts ({counts.total()}) in all partitions in total in table {ctx.name}. This "
                "indicates wrong choice of partition key. The threshold can be modified with the setting "
                "max_parts_in_total of the table.",
            )
        fullest, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        is_too_many, is_many = count >= to_throw, count >= to_delay > 0
        if not (is_too_many or is_many) or self._are_large(fullest):
            return
        if is_too_many:
            raise SqlError(
                Code.TOO_MANY_PARTS,
                f"Too many parts ({count} in one partition of {ctx.name}). Merges are processing "
                "significantly slower than inserts.",
                hint="Insert more rows at once, into fewer partitions.",
            )
        over = min(1.0, (count - to_delay + 1) / max(1, to_throw - to_delay))
        delay_s = max(settings.min_delay_to_insert_ms / 1e3, settings.max_delay_to_insert * over)
        with ends_by_kill():
            await ctx.env.sleep(delay_s)

    def _are_large(self, partition_id: str) -> bool:
        """Parts so large that many of them are no sign of merges that do not keep up."""
        limit_bytes = self._ctx.settings.max_avg_part_size_for_too_many_parts
        sizes = [
            part.size_bytes
            for name, part in self._ctx.store.active.items()
            if name.partition_id == partition_id
        ]
        return 0 < limit_bytes < sum(sizes) / max(1, len(sizes))

    # -- quorum --------------------------------------------------------------------------------------------

    async def _quorum(self, options: InsertOptions) -> Quorum | None:
        """With 'auto', of the replicas that there are now. Waits for Keeper as long as retries say."""
        required, attempt = options.quorum, 0
        while required == AUTO_QUORUM:
            try:
                keeper = await any_session(self._ctx, timeout_s=pause_s(self._ctx, 10))
                required = len((await keeper.children(self._ctx.paths.replicas)).names) // 2 + 1
            except (ConnectionLoss, OperationTimeout, SessionExpired, KeeperUnavailable) as error:
                attempt += 1
                if attempt > options.max_retries:
                    raise KeeperUnavailable(f"Nothing was inserted into {self._ctx.name}: {error}") from error
                await self._ctx.env.sleep(pause_s(self._ctx, attempt))
        return Quorum(required, options.quorum_parallel) if required > 1 else None

    async def _is_reached(
        self, pending: Pending, result: Committed, quorum: Quorum, options: InsertOptions
    ) -> bool:
        """Wait for the quorum of a part. False: it was a duplicate of one whose block was forgotten since.

        Raises SqlError 319 after `quorum_timeout_s` and when the table ends, _GivenUp if the quorum of our
        own part was given up.
        """
        deadline_s = self._ctx.env.monotonic_s() + options.quorum_timeout_s
        try:
            with ends_by_kill():
                end = await self._ctx.unless_ending(self._quorum_end(pending, result, quorum, deadline_s))
        except MalformedEntry as error:  # by now the rows are inserted
            raise unknown_status(self._ctx, f"Waiting for quorum: {error}") from error
        if end is None:
            raise unknown_status(self._ctx, "The table ended while waiting for quorum")
        if end is QuorumEnd.TIMEOUT:
            raise unknown_status(self._ctx, "Timeout while waiting for quorum")
        if end is QuorumEnd.FAILED:
            if not pending.names:
                return False
            await self._set_aside(result.name)
            raise _GivenUp(
                Code.TOO_FEW_LIVE_REPLICAS,
                f"The quorum of part {result.name} of {self._ctx.name} was given up while this replica was "
                "not active: no other replica had got it. It is not inserted.",
                hint="Repeat the INSERT.",
            )
        if not result.is_duplicate and not await wait_until_active(self._ctx, deadline_s=deadline_s):
            raise unknown_status(self._ctx, "Replica became inactive while waiting for quorum")
        return True

    async def _set_aside(self, part: PartName) -> None:
        """Where there is no session, or where it ends meanwhile, the next activation does it."""
        attempt = 0
        while not self._ctx.is_ending:
            try:
                await set_failed_aside(self._ctx, part)
                return
            except (ConnectionLoss, OperationTimeout):
                attempt += 1
                await pause(self._ctx, attempt)
            except (SessionExpired, KeeperUnavailable):
                return
            except SqlError as error:
                if error.code != Code.TABLE_IS_READ_ONLY:
                    raise
                return

    async def _quorum_end(
        self, pending: Pending, result: Committed, quorum: Quorum, deadline_s: float
    ) -> QuorumEnd:
        end = await wait_for_quorum(
            self._ctx,
            result.name,
            deadline_s=deadline_s,
            is_parallel=quorum.is_parallel and not result.is_duplicate,
        )
        if end is QuorumEnd.REACHED and result.is_duplicate:
            # The first insert may have asked for fewer replicas, or for none.
            end = await self._wait_for_holders(pending, result.name, quorum.required, deadline_s)
        return end

    async def _wait_for_holders(
        self, pending: Pending, part: PartName, required: int, deadline_s: float
    ) -> QuorumEnd:
        """Until `required` replicas have `part`; FAILED when its block id does not name it any more."""
        ctx = self._ctx
        while (left_s := deadline_s - ctx.env.monotonic_s()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    keeper = await any_session(ctx)
                    wake = Wake()
                    if len(await holders(keeper, ctx.paths, part, watch=wake)) >= required:
                        return QuorumEnd.REACHED
                    if pending.block_id is not None:
                        try:
                            block = await keeper.get(ctx.paths.block(pending.block_id), watch=wake)
                        except NoNode:
                            return QuorumEnd.FAILED
                        if block.data != str(part).encode():
                            return QuorumEnd.FAILED
                    await wake.wait()
            except TimeoutError:
                break
            except (ConnectionLoss, OperationTimeout, SessionExpired, KeeperUnavailable):
                await ctx.env.sleep(pause_s(ctx, 3))
        return QuorumEnd.TIMEOUT


def _next_group(waiting: Sequence[tuple[int, Pending]], quorum: Quorum | None) -> Sequence[int]:
    """Parts for one transaction: with one block id each, and only one if quorums come one after the other."""
    group: list[int] = []
    block_ids: set[BlockId] = set()
    for index, each in waiting:
        is_alone = quorum is not None and not quorum.is_parallel
        if group and (is_alone or len(group) == _GROUP or each.block_id in block_ids):
            break
        group.append(index)
        if each.block_id is not None:
            block_ids.add(each.block_id)
    return group
