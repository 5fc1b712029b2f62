"""One replica of a Replicated database follows the log.

Safety argument. Entries are looked at in the order of their numbers, and each is done when `entries` says so:
the pointer never passes an entry that was committed and not carried out. What fails is tried again, and after
a number of equal errors the definitions are compared with Keeper's.

Source: ClickHouse's DatabaseReplicatedDDLWorker and DatabaseReplicated.
"""

from __future__ import annotations

import asyncio
import logging

from engine.databases.cluster import read_cluster
from engine.databases.digest import LOST_DIGEST
from engine.databases.entries import EntryExecutor
from engine.databases.entry_cleanup import clean_log
from engine.databases.progress import Progress
from engine.databases.replica import DatabaseReplica
from engine.databases.session_start import begin_session
from engine.errors import (
    Code,
    KeeperAnswer,
    MultiFailed,
    OnclusterError,
    SessionExpired,
    SqlError,
    Unavailable,
    UnknownOutcome,
    ran_out,
)
from engine.keeper.base import Keeper
from engine.keeper.recipes import Signal, try_remove
from engine.lifetime import end_if_cancelled, unless_set
from engine.names import entry_number

log = logging.getLogger(__name__)

_PAUSE_S = 5.0
_SHORT_PAUSE_S = 0.5
_CLEAN_EVERY = 100
"""Entries."""

_FINAL = frozenset({Code.TABLE_NOT_EMPTY, Code.ASYNC_LOAD_WAIT_FAILED})
"""It gets no better by waiting: a table that is empty elsewhere has rows here (DROP … IF EMPTY), or it could
not be loaded here."""


class DatabaseWorker:
    """Runs from `start` until `progress` is stopping."""

    def __init__(self, replica: DatabaseReplica, progress: Progress) -> None:
        self._replica = replica
        self._progress = progress
        self._executor = EntryExecutor(replica, progress)
        self._errors: tuple[str, int] = ("", 0)
        self._cleaned = 0

    def start(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(
            self._run(), name=f"database {self._replica.paths.root}"
        )

    async def leave(self) -> None:
        """The last step: the others see at once that the replica is gone."""
        keeper, self._progress.active_in = self._progress.active_in, None
        if keeper is not None and not keeper.is_expired:
            try:
                await try_remove(keeper, self._replica.paths.replica(self._replica.me, "active"))
            except OnclusterError as error:
                log.info("databases.active_stays database=%s error=%s", self._replica.name, error)

    async def _run(self) -> None:
        progress, replica = self._progress, self._replica
        while not progress.is_stopping:
            pause_s = _PAUSE_S
            try:
                keeper = await unless_set(progress.stopping, replica.holder.get())
                if keeper is None:
                    return
                await self._begin(keeper)
                await self._follow(keeper)
                pause_s = 0.0
            except (Unavailable, UnknownOutcome) as error:
                end_if_cancelled()
                progress.note_keeper_away(error.message)
                pause_s = _SHORT_PAUSE_S
            except (OnclusterError, OSError) as error:
                end_if_cancelled()
                log.error("databases.failed database=%s error=%s", replica.name, error)
                if isinstance(error, KeeperAnswer):  # what should be in Keeper is not
                    progress.restarts = True
                    progress.note_down(f"ZooKeeper answers: {error.message}")
                elif ran_out(error):  # perhaps behind the effect: what was begun is looked at first
                    progress.restarts = True
                await self._count_error(error)
            except Exception as error:  # a defect, too: nobody else would go on with the log
                end_if_cancelled()
                log.exception("databases.failed database=%s", replica.name)
                await self._count_error(error)
            if pause_s and not progress.is_stopping:
                await progress.nap(pause_s)

    async def _count_error(self, error: Exception) -> None:
        """The same error again and again: what is here is perhaps not what the log goes by."""
        progress, replica = self._progress, self._replica
        if ran_out(error):
            return  # it says nothing of what is here
        text = str(error)
        last, count = self._errors
        self._errors = (text, count + 1 if text == last else 1)
        most = replica.settings.max_retries_before_automatic_recovery
        keeper = replica.holder.current
        if not most or keeper is None:
            return
        is_final = isinstance(error, SqlError) and error.code in _FINAL
        if self._errors[1] < most and not is_final:
            return
        self._errors = ("", 0)
        progress.restarts = True
        try:
            await keeper.set(replica.paths.replica(replica.me, "digest"), LOST_DIGEST)
            if is_final:
                progress.wake()
        except OnclusterError as error:
            log.warning("databases.not_marked_lost database=%s error=%s", replica.name, error)

    async def _begin(self, keeper: Keeper) -> None:
        progress = self._progress
        # If the connection was lost, the server of the new one may not know what has got no answer.
        await keeper.sync(self._replica.paths.root)
        if progress.active_in is keeper and not progress.restarts:
            progress.be_writable()
            return
        progress.restarts = False
        try:
            await begin_session(self._replica, progress, self._executor, keeper)
        except BaseException:  # whatever it is: the session goes on, and what was to be compared was not
            progress.restarts = True
            raise

    async def _follow(self, keeper: Keeper) -> None:
        """Until the node stops; raises at the end of the session."""
        progress, paths = self._progress, self._replica.paths
        while not progress.is_stopping and not progress.restarts:
            signal = Signal()
            names = (await keeper.children(paths.log, watch=signal)).names
            entries = sorted(
                n for name in names if (n := entry_number(name)) is not None and n > progress.pointer
            )
            if entries and await self._has_missed_entries(keeper):
                progress.restarts = True
                return
            for number in entries:
                if progress.is_stopping or progress.restarts:
                    return
                is_other_cluster = await self._executor.process(keeper, number)
                if progress.restarts:
                    return
                if is_other_cluster:
                    # Before the next entry, which may be a statement of this replica: it waits for whoever is
                    # there. And before the pointer: if this fails, it is done again.
                    progress.cluster = await read_cluster(keeper, paths, self._replica.group)
                self._errors = ("", 0)
                progress.pointer = max(progress.pointer, number)
                progress.announce()
            if entries:
                await self._clean(keeper)
                continue
            await self._wait(signal)

    async def _wait(self, signal: Signal) -> None:
        """For another entry, or for `wake`. Raises SessionExpired."""
        waits = [asyncio.ensure_future(signal.wait()), asyncio.ensure_future(self._progress.woken())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            ends = await asyncio.gather(*waits, return_exceptions=True)
        self._progress.sleep_again()
        for end in ends:
            if isinstance(end, SessionExpired):
                raise end

    async def _has_missed_entries(self, keeper: Keeper) -> bool:
        """Whether entries behind the pointer may have been removed (`clean_log`): a listing lacks them.

        Asked after the listing, in the same session: what is missing there was removed for a pointer that is
        no newer than this one.
        """
        paths, pointer = self._replica.paths, self._progress.pointer
        newest = int((await keeper.get(paths.max_log_ptr)).data)
        keep = int((await keeper.get(paths.logs_to_keep)).data)
        if pointer + keep >= newest:
            return False
        log.warning(
            "databases.too_far_behind database=%s ptr=%d newest=%d", self._replica.name, pointer, newest
        )
        return True

    async def _clean(self, keeper: Keeper) -> None:
        """Now and then remove entries that everybody has had time for."""
        pointer = self._progress.pointer
        if pointer < self._cleaned + _CLEAN_EVERY:
            return
        self._cleaned = pointer
        try:
            await clean_log(keeper, self._replica.paths)
        except MultiFailed as error:
            log.warning("databases.not_cleaned database=%s error=%s", self._replica.name, error)
