"""Removing old entries from the queue, and what replicas that are no more left behind.

An entry is removed for its age (`task_max_lifetime`) or its number (more than `max_tasks_in_queue` entries
handled after it), never because it is finished, and for no other reason.

Safety argument, per entry, oldest first.

1. Leave it if `active` has children: somebody is executing. Leave it if another cleaner, of 18.16, holds
   `lock`. A child that no session owns, of a copy of Keeper's tree, would keep it for ever, and goes first.
2. Read what the hosts reported. A host of the list without outcome is *abandoned* if a person said so,
   else *expired*. An operator's cleaning (`Expiry.BY_AGE`) leaves entries that would expire by number only.
3. One multi{check entry, remove active, remove shards/…, remove finished/…, remove finished, remove entry,
   write outcomes/<entry>}. ClickHouse goes the same way in several requests; in one, a crash leaves the
   entry whole or gone, and no half of it that would kill a worker of 18.16. `active` that got a child
   since makes it NotEmpty, and so does an outcome that came in since: nothing is removed, and all is read
   again. The record of what became of the entry is part of it, so *expired* never stands there for an
   entry that lives, and no entry goes without its record.
4. Entries too large for one request go ClickHouse's way: write the record, remove `active` (not if it has
   children), remove everything but `finished`, then multi{check entry, remove finished, remove entry}.
   From the second step on nobody can begin to execute: workers take `finished` without `active` for an
   entry being removed.

Several cleaners at once meet NoNode and go on. Times are Keeper's: the age of a node is taken from a write
made just now, or from the local clock if that says younger, so a clock that jumped expires nothing.

It never removes an entry with a child in `active`, token nodes, or anything that does not look like an entry.

Source: ClickHouse's DDLWorker::cleanupQueue.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from engine.config.model import DistributedDdl
from engine.ddl.session import SessionSource, session_source
from engine.ddl.survey import FoundEntry, Hindrance, survey
from engine.env import Env
from engine.errors import BadVersion, MultiFailed, NoAuth, NodeExists, NoNode, NotEmpty, OnclusterError
from engine.keeper.base import Check, Keeper, Remove, Stat
from engine.keeper.recipes import (
    SessionHolder,
    create_ancestors,
    create_or_update,
    remove_recursive,
    remove_unowned,
    try_remove,
)
from engine.lifetime import end_if_cancelled
from engine.names import HostId, entry_number

logger = logging.getLogger(__name__)

REPLICA_MAX_INACTIVE_S = 86_400
OUTCOMES_KEPT = 10_000
LANES = 16
"""How many entries a person's cleaning works on at once."""
_MOST_OPS = 4000
_MOST_BYTES = 700_000
_TRIES = 5
_BATCH = 100


class Reason(enum.StrEnum):
    """Why an entry is removed."""

    AGE = "age"
    NUMBER = "number"
    ASKED = "asked"
    """A person named it."""


class Expiry(enum.Enum):
    """What lets an entry go that a host has no outcome for."""

    BY_AGE_AND_NUMBER = "age and number"
    """As ClickHouse does it."""
    BY_AGE = "age"
    NEVER = "never"
    """Such entries stay, whatever they are over."""


class Removal(enum.StrEnum):
    """What became of the attempt."""

    REMOVED = "removed"
    ACTIVE = "active"
    LOCKED = "locked"
    GONE = "gone"
    CHANGING = "changing"
    UNFINISHED = "unfinished"
    """Due, but a host has no outcome and nothing was to be expired for it."""
    FORBIDDEN = "forbidden"
    """Its ACL is for somebody else, such as servers with another <identity>."""
    PLANNED = "planned"


_HINDERED = {Hindrance.ACTIVE: Removal.ACTIVE, Hindrance.LOCKED: Removal.LOCKED}


@dataclass(frozen=True, slots=True)
class CleanedEntry:
    """One entry that was due. `expired` are the hosts that never reported."""

    entry: str
    reason: Reason
    removal: Removal
    expired: tuple[HostId, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanReport:
    """`forbidden`: entries that may not be looked at, so that nobody knows whether they are due."""

    entries: tuple[CleanedEntry, ...]
    stale_replicas: tuple[str, ...]
    forbidden: tuple[str, ...] = ()

    @property
    def removed(self) -> tuple[str, ...]:
        return tuple(e.entry for e in self.entries if e.removal is Removal.REMOVED)


class DDLCleaner:
    """Cleans one queue: in the background by `run` and `wake`, or once by `clean`.

    - `max_entry` is the largest entry number this host has handled; by default the largest there is.
    - `on_present` is told, after each round, which entries there were when it began (the worker forgets its
      intents of others).
    """

    def __init__(
        self,
        keeper: Keeper | SessionHolder | SessionSource,
        env: Env,
        queue: DistributedDdl,
        *,
        max_entry: Callable[[], int] | None = None,
        on_present: Callable[[Keeper, frozenset[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._source = session_source(keeper)
        self._env = env
        self._queue = queue
        self._paths = queue.paths
        self._max_entry = max_entry
        self._on_present = on_present
        self._wake = asyncio.Event()

    # --- in the background --------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do: the worker has been through the queue."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled: after each `wake`, at most once in `cleanup_delay_period_s`."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.clean()
            except OnclusterError as error:
                end_if_cancelled()
                logger.warning("ddl.cleanup_failed error=%s", error)
                self._wake.set()
            except Exception:  # a defect, too: nobody else would clean the queue
                end_if_cancelled()
                logger.exception("ddl.cleanup_failed")
                self._wake.set()
            await self._env.sleep(self._queue.cleanup_delay_period_s * self._env.rng.uniform(0.9, 1.1))

    # --- once ---------------------------------------------------------------------------------------------

    async def clean(
        self,
        *,
        dry_run: bool = False,
        only: Collection[str] | None = None,
        expiry: Expiry = Expiry.BY_AGE_AND_NUMBER,
        lanes: int = 1,
    ) -> CleanReport:
        """Remove what is due; with `dry_run` only say what would be removed.

        `only` names entries; others are not looked at, and what is not due among them stays. Up to `lanes`
        entries are worked on at once, oldest first.
        """
        keeper = await self._source.session()
        await keeper.sync(self._paths.root)
        try:
            children = await keeper.children(self._paths.root)
        except NoNode:
            return CleanReport((), ())
        names = [name for name in children.names if entry_number(name) is not None]
        asked = [name for name in names if only is None or name in only]
        now_s = await self._now_s(keeper)
        due: list[tuple[str, Reason]] = []
        forbidden: list[str] = []
        for start in range(0, len(asked), _BATCH):
            batch = asked[start : start + _BATCH]
            for name, stat in zip(batch, await self._stats(keeper, batch), strict=True):
                if isinstance(stat, NoAuth):
                    forbidden.append(name)
                    continue
                reason = self._reason(name, stat, now_s, names) if stat is not None else None
                if reason is not None:
                    due.append((name, reason))
        if forbidden:
            logger.warning("ddl.may_not_be_cleaned count=%d first=%s", len(forbidden), forbidden[0])
        if due and not dry_run:
            await create_ancestors(keeper, self._paths.outcome(due[0][0]))
        cleaned: list[CleanedEntry] = []
        for start in range(0, len(due), max(1, lanes)):
            cleaned += await asyncio.gather(
                *(
                    self._clean_one(keeper, name, reason, dry_run=dry_run, expiry=expiry)
                    for name, reason in due[start : start + max(1, lanes)]
                )
            )
        stale = await self._clean_replicas(keeper, now_s, dry_run=dry_run)
        if not dry_run:
            await self._prune_outcomes(keeper)
            if self._on_present is not None:
                await self._on_present(keeper, frozenset(names))
        return CleanReport(tuple(cleaned), stale, tuple(forbidden))

    async def remove_entry(self, name: str, *, dry_run: bool = False) -> CleanedEntry:
        """Remove one entry that a person named, with the same care as every other."""
        keeper = await self._source.session()
        await keeper.sync(self._paths.root)
        return await self._clean_one(
            keeper, name, Reason.ASKED, dry_run=dry_run, expiry=Expiry.BY_AGE_AND_NUMBER
        )

    async def _stats(self, keeper: Keeper, names: Sequence[str]) -> Sequence[Stat | NoAuth | None]:
        """One that may not be looked at holds up no other."""

        async def one(path: str) -> Stat | NoAuth | None:
            try:
                return await keeper.exists(path)
            except NoAuth as error:
                return error

        paths = [self._paths.entry(name) for name in names]
        try:
            return await keeper.exists_many(paths)
        except NoAuth:
            return await asyncio.gather(*map(one, paths))

    def _reason(self, name: str, stat: Stat, now_s: float, names: list[str]) -> Reason | None:
        if stat.ctime_ms / 1000 + self._queue.task_max_lifetime_s < now_s:
            return Reason.AGE
        largest = self._max_entry() if self._max_entry is not None else entry_number(names[-1]) or 0
        number = entry_number(name) or 0
        if number + max(1, self._queue.max_tasks_in_queue) < largest:
            return Reason.NUMBER
        return None

    async def _now_s(self, keeper: Keeper) -> float:
        path = f"{self._paths.outcomes_root.rpartition('/')[0]}/clock"
        await create_ancestors(keeper, path)
        await create_or_update(keeper, path, b"")
        stat = await keeper.set(path, b"")
        return min(stat.mtime_ms / 1000, self._env.now_s())

    # --- one entry ----------------------------------------------------------------------------------------

    async def _clean_one(
        self, keeper: Keeper, name: str, reason: Reason, *, dry_run: bool, expiry: Expiry
    ) -> CleanedEntry:
        keep_unfinished = expiry is Expiry.NEVER or (expiry is Expiry.BY_AGE and reason is Reason.NUMBER)
        try:
            removal, expired = await self._remove(
                keeper, name, dry_run=dry_run, keep_unfinished=keep_unfinished
            )
        except NoNode:
            removal, expired = Removal.GONE, ()
        except NoAuth as error:
            logger.warning("ddl.not_removed entry=%s error=%s", name, error)
            removal, expired = Removal.FORBIDDEN, ()
        except (MultiFailed, NotEmpty, NodeExists, BadVersion) as error:
            logger.warning("ddl.not_removed entry=%s error=%s", name, error)
            removal, expired = Removal.CHANGING, ()
        if removal is Removal.REMOVED:
            logger.info("ddl.removed entry=%s reason=%s expired=%d", name, reason.value, len(expired))
        return CleanedEntry(name, reason, removal, expired)

    async def _remove(
        self, keeper: Keeper, name: str, *, dry_run: bool, keep_unfinished: bool
    ) -> tuple[Removal, tuple[HostId, ...]]:
        for _ in range(_TRIES):
            found = await survey(keeper, self._paths, name)
            if isinstance(found, Hindrance):
                return _HINDERED[found], ()
            if keep_unfinished and found.record.expired:
                return Removal.UNFINISHED, found.record.expired
            if dry_run:
                return Removal.PLANNED, found.record.expired
            if found.unowned:
                for path in found.unowned:
                    await remove_unowned(keeper, path)
                continue
            ops = found.removal_ops()
            size = sum(len(op.path) + len(getattr(op, "data", b"")) + 40 for op in ops)
            if len(ops) > _MOST_OPS or size > _MOST_BYTES:
                return await self._remove_stepwise(keeper, found), found.record.expired
            try:
                await keeper.multi(ops)
            except MultiFailed as refusal:
                op = ops[refusal.index]
                if op.path == self._paths.outcome(name) and isinstance(refusal.error, NoNode):
                    await create_ancestors(keeper, op.path)
                    continue
                if isinstance(refusal.error, NoAuth):
                    raise refusal.error from refusal
                continue  # something came in or went since it was read
            return Removal.REMOVED, found.record.expired
        return Removal.CHANGING, ()

    async def _remove_stepwise(self, keeper: Keeper, found: FoundEntry) -> Removal:
        """Step 4."""
        await create_ancestors(keeper, self._paths.outcome(found.name))
        await create_or_update(keeper, self._paths.outcome(found.name), found.record.to_bytes())
        # A person's word about the entry stays behind; it goes with old outcomes.
        answer = await try_remove(keeper, self._paths.active(found.name))
        if isinstance(answer, NotEmpty):
            return Removal.ACTIVE
        await remove_recursive(keeper, found.path, keep_child="finished")
        finished = self._paths.finished(found.name)
        try:
            await keeper.multi([Check(found.path), Remove(finished), Remove(found.path)])
        except MultiFailed as refusal:
            if not isinstance(refusal.error, NoNode):
                return Removal.CHANGING
            if refusal.index == 1:
                await keeper.remove(found.path)
                return Removal.REMOVED
            return Removal.GONE
        return Removal.REMOVED

    # --- what else grows old ------------------------------------------------------------------------------

    async def _clean_replicas(self, keeper: Keeper, now_s: float, *, dry_run: bool) -> tuple[str, ...]:
        """`replicas/<host_id>` without `active` for a day; and an `active` that no session owns."""
        try:
            names = (await keeper.children(self._paths.replicas_root)).names
        except NoNode:
            return ()
        stale = []
        stats = await keeper.exists_many([self._paths.replica(name) for name in names])
        marks = await keeper.exists_many([self._paths.replica_active(name) for name in names])
        for name, stat, mark in zip(names, stats, marks, strict=True):
            if mark is not None and not mark.ephemeral_owner and not dry_run:
                await remove_unowned(keeper, self._paths.replica_active(name))
            if stat is None or stat.num_children or stat.mtime_ms / 1000 + REPLICA_MAX_INACTIVE_S > now_s:
                continue
            if dry_run or await try_remove(keeper, self._paths.replica(name)) is None:
                stale.append(name)
        return tuple(stale)

    async def _prune_outcomes(self, keeper: Keeper) -> None:
        try:
            names = (await keeper.children(self._paths.outcomes_root)).names
        except NoNode:
            return
        old = names[: max(0, len(names) - OUTCOMES_KEPT)]
        for start in range(0, len(old), _BATCH):
            await asyncio.gather(*(self._forget(keeper, name) for name in old[start : start + _BATCH]))

    async def _forget(self, keeper: Keeper, name: str) -> None:
        await try_remove(keeper, self._paths.abandoned(name))
        await try_remove(keeper, self._paths.outcome(name))
