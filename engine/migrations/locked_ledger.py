"""A cluster's ledger, written to only by whoever holds the lock of its migrations.

Safety argument. `acquire` takes the lease, which bears a fence greater than any before it, and registers the
fence with the ledger before anything is written under it: from then on the ledger refuses every writer of an
earlier lease. A crash in between leaves a lease that its run re-enters or others wait out. Then it is written
down in Keeper that the ledger has the fence, so an older copy of the ledger is known as one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.config.model import DistributedDdl
from engine.ddl.client import DDLQueueClient
from engine.env import Env
from engine.errors import OnclusterError
from engine.keeper.base import Keeper
from engine.migrations import lock
from engine.migrations.errors import MigrationRefused
from engine.migrations.ledger import Ledger
from engine.migrations.ledger_writer import LedgerWriter
from engine.migrations.lock import Lease
from engine.migrations.model import RunRequest
from engine.migrations.observe import Observer
from engine.migrations.states import MigrationRecord, untouched

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockedLedger:
    """One cluster's, in one Keeper session."""

    keeper: Keeper
    ledger: Ledger
    cluster: str
    queue: DistributedDdl
    env: Env

    @property
    def lock_path(self) -> str:
        return self.queue.paths.migrations(self.cluster)

    async def check(self) -> None:
        """Raises MigrationRefused when this ledger does not know what was applied on the cluster, or not the
        latest of it."""
        await self.keeper.sync(self.lock_path)
        recorded = await lock.recorded(self.keeper, self.lock_path)  # before the ledger, which may be ahead
        found = await lock.look(self.keeper, self.lock_path)
        ledger_id = self.ledger.ledger_id if self.ledger.is_made else ""
        lock.check_ledger(found, ledger_id=ledger_id, ledger_url=self.ledger.url)
        if recorded is None or recorded.ledger_id != ledger_id:
            return
        known = self.ledger.max_fence(self.cluster)
        if known < recorded.fence:
            raise MigrationRefused(
                f"The ledger at {self.ledger.url} is an older copy of itself: its last lock is number "
                f"{known}, and it has had {recorded.fence}. What was done since then it would do again, or "
                "not undo.",
                hint="Use the newest copy. If that is lost: compare (`oncluster drift check`), `mark` what "
                "is applied, then repeat with --adopt-ledger.",
            )

    async def acquire(self, request: RunRequest) -> Lease:
        """Raises Busy (names the holder), MigrationRefused, Keeper's errors and LedgerUnavailable."""
        if not request.adopt_ledger:
            await self.check()  # before the ledger is made: its address may be mistyped
        claim = lock.Claim(
            run_id=request.run_id,
            holder=request.holder or request.requested_by,
            binding=request.binding,
            ledger_id=self.ledger.ledger_id,
            ledger_url=self.ledger.url,
            ledger_max_fence=self.ledger.max_fence(self.cluster),
            ttl_s=request.ttl_s,
            adopt_ledger=request.adopt_ledger,
        )
        lease = await lock.acquire(self.keeper, self.lock_path, claim, env=self.env)
        try:
            self.ledger.register_fence(
                self.cluster, lease.fence, run_id=request.run_id, holder=lease.text.holder
            )
            await lock.record(self.keeper, lease)
        except OnclusterError:
            await self.give_back(lease)
            raise
        return lease

    async def give_back(self, lease: Lease) -> None:
        """Best effort: a lease that cannot be given back now is waited out by the next run."""
        try:
            await lock.release(self.keeper, lease)
        except OnclusterError as error:
            logger.warning("migration.lock_not_released base=%s error=%s", lease.base, error)

    def record(self, version: int, *, statement: int | None = None) -> MigrationRecord:
        return self.ledger.record(self.cluster, version, statement=statement) or untouched(version)

    def writer(self, run_id: str, lease: Lease) -> LedgerWriter:
        return self.ledger.writer(self.cluster, run_id=run_id, fence=lease.fence)

    def observer(self, run_id: str, lease: Lease) -> Observer:
        """Records what it sees in the queue."""
        client = DDLQueueClient(self.keeper, self.env, self.queue.paths)
        return Observer(client, self.writer(run_id, lease), self.env)
