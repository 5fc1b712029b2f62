"""A replica of a replicated table, running: what starts it, stops it, and says how it is.

Its loops are those of a term (`replica.term`): copying the log, executing the queue, checking parts, cleaning
up, assigning merges, finishing mutations. The store is loaded once, before anything else, and with or without
Keeper: readers never wait for a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from engine.errors import Code, SqlError
from engine.replication.commands.create import Created
from engine.replication.commands.restore import Structure, attach_restored, restore_replica
from engine.replication.creation import NewReplica
from engine.replication.replica import log_puller, part_check, quorum
from engine.replication.replica.background import keep_running
from engine.replication.replica.cleanup import staged_sweep
from engine.replication.replica.cleanup import turns as cleanup
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import runner
from engine.replication.replica.merging import assigner as merge_assigner
from engine.replication.replica.merging import mutation_tracker
from engine.replication.replica.queue.view import ReplicaStatus, local_status
from engine.replication.replica.term import Loop, Startup, retire, run_terms

log = logging.getLogger(__name__)


async def _settle(ctx: ReplicaContext) -> None:
    """Once in a term: what became of quorum inserts while this replica was away, and what a RESTORE REPLICA
    that crashed has left to be attached."""

    async def step(ctx: ReplicaContext) -> None:
        await quorum.forget_failed(ctx)
        await quorum.report_held(ctx)
        await attach_restored(ctx)
        await asyncio.Event().wait()

    await keep_running(ctx, "settle", step)


PAUSE_AFTER_PROGRAM_ERROR_S = 10.0
_KEEPER_WAIT_S = 10.0

LOOPS: Sequence[Loop] = (
    log_puller.run,
    runner.run,
    part_check.run,
    staged_sweep.run,
    cleanup.run,
    merge_assigner.run,
    mutation_tracker.run,
    _settle,
)


class ReplicatedTable:
    """One replica on this node. `start` and `stop` may alternate; `ctx` is for commands and for looking."""

    def __init__(self, ctx: ReplicaContext, *, loops: Sequence[Loop] = LOOPS) -> None:
        self.ctx = ctx
        self._loops = loops
        self._startup: Startup | None = None
        self._task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        """Held by whoever starts or stops: two restarts at once must not leave two terms, or none."""
        self.program_errors: list[BaseException] = []
        """What ended terms and should not have; for tests and for whoever looks."""

    async def start(self, *, force: bool = False) -> None:
        """Load the parts, let readers in, and begin to activate in the background; returns before that is
        done.

        `force` skips the sanity checks of this start (the local flag `force_restore_data`). Raises what the
        store raises when it cannot load at all.
        """
        async with self._changing:
            await self._start(force=force)

    async def _start(self, *, force: bool = False) -> None:
        if self._startup is None:
            loaded = await self.ctx.store.load()
            self._startup = Startup(broken=loaded.broken, broken_bytes=loaded.broken_bytes)
            self.ctx.readonly_since_s = self.ctx.env.now_s()
        self._startup.is_forced |= force
        self._startup.is_stopping = False
        if self._task is None:
            self._task = asyncio.create_task(
                self._supervise(self._startup), name=f"supervisor of {self.ctx.name}"
            )

    async def stop(self) -> None:
        """End the term and give `is_active` up. Operations of users end with 242."""
        async with self._changing:
            await self._stop()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        assert self._startup is not None
        self._startup.is_stopping = True
        keeper = self.ctx.holder.current
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if keeper is not None and not keeper.is_expired:
            await retire(self.ctx, keeper)

    async def restart(self) -> None:
        """End the term and begin another: everything is read from Keeper anew (SYSTEM RESTART REPLICA). None
        begins where the table ends meanwhile."""
        async with self._changing:
            try:
                await self._stop()
            finally:  # also when whoever asked goes away in the middle
                await self._start_again()

    async def restore(self, table_uuid: UUID) -> Created:
        """Make the replica in Keeper again and start it (SYSTEM RESTORE REPLICA); `attach_restored` is due
        when it is active. Nothing else starts it meanwhile. Raises as `restore_replica`, KeeperUnavailable,
        and SqlError 242 for a table that ends."""
        if not self.ctx.is_readonly:
            raise SqlError(Code.BAD_ARGUMENTS, "Replica must be readonly")
        keeper = await self.ctx.holder.get(timeout_s=_KEEPER_WAIT_S)  # others start and stop meanwhile
        async with self._changing:
            self.ctx.check_not_ending()
            await self._stop()
            try:
                definition = await self.ctx.store.definition()
                new = NewReplica(
                    metadata=definition.metadata.to_bytes(),
                    columns=definition.columns.to_bytes(),
                    table_uuid=table_uuid,
                    server_uuid=UUID(self.ctx.server_uuid),
                )
                return await restore_replica(self.ctx, keeper, new, definition, structure=Structure.ADOPT)
            finally:  # also when whoever asked goes away in the middle
                await self._start_again()

    async def _start_again(self) -> None:
        if not self.ctx.is_ending:
            await self._start()

    async def wait_until_active(self, *, timeout_s: float | None = None) -> bool:
        """Whether the replica accepts writes; waits for it at most `timeout_s`, or until the table ends."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.ctx.is_readonly and not self.ctx.is_ending:
                    await self.ctx.term_began.wait()
        except TimeoutError:
            return False
        return not self.ctx.is_readonly

    @property
    def status(self) -> ReplicaStatus:
        """What can be said without asking Keeper."""
        return local_status(self.ctx)

    async def _supervise(self, startup: Startup) -> None:
        """One term after another. An error in the program ends a term, too: it is logged with its trace, and
        the next one begins after a pause, so that one bad entry does not stop a table for good."""
        while not startup.is_stopping:
            terms = asyncio.create_task(
                run_terms(self.ctx, startup, self._loops), name=f"replica {self.ctx.name}"
            )
            try:
                await asyncio.wait([terms])
            finally:
                terms.cancel()
                await asyncio.wait([terms])
            if startup.is_stopping:
                return
            # What they waited for may have been cancelled, and not they.
            error = RuntimeError("cancelled") if terms.cancelled() else terms.exception()
            if error is None:
                return
            self.program_errors.append(error)
            self.ctx.readonly_reason = f"an error in the program ended the term: {error!r}"
            log.error("replica.died table=%s error=%r", self.ctx.name, error, exc_info=error)
            if (keeper := self.ctx.holder.current) is not None:
                await retire(self.ctx, keeper)
            await self.ctx.env.sleep(PAUSE_AFTER_PROGRAM_ERROR_S)
