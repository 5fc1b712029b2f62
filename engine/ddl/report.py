"""What one host writes into an entry: that it is executing, and how it went.

Safety argument.

1. claim: create `active/<host>`, ephemeral, with this server's UUID. It must stand before the effect: the
   cleaner does not remove an entry that has it. The session's end takes it away; one that an earlier
   session of this server left behind is removed, anybody else's is waited for.
2. report: one multi{remove active/<host>, create finished/<host> `0`, [create shards/…/executed], [set
   finished/<host> to the error], [remove the shard's lock]}. All or nothing, so there is never an outcome
   without the shard being marked, nor the other way round. A lost reply is found as NodeExists with our
   own text.
3. Where `active/<host>` has gone with its session, the report is written without removing it. Where the whole
   entry has gone, there is nobody to report to.

It never creates anything below an entry that is gone or that is being removed (`finished` without
`active`), and never changes an outcome that is there.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.ddl.identity import NodeIdentity
from engine.ddl.status import ExecutionStatus
from engine.errors import BadArguments, Code, MultiFailed, NodeExists, NoNode, SqlError
from engine.keeper.base import Create, CreateMode, Keeper, Op, Remove, SetData
from engine.keeper.recipes import remove_ephemeral_if_content_matches
from engine.names import HostId, QueuePaths

logger = logging.getLogger(__name__)

_MOST_TRIES = 20


class Claim(enum.Enum):
    CLAIMED = "claimed"
    GONE = "gone"
    BEING_REMOVED = "being removed"


class StatusDirs(enum.Enum):
    """What became of making `active` and `finished`."""

    PRESENT = "present"
    GONE = "gone"
    BEING_REMOVED = "being removed"


@dataclass(frozen=True, slots=True)
class Report:
    """An outcome on its way into the entry. `executed_shard` and `executed_by` are set where a replica ran
    for its shard."""

    name: str
    host: HostId
    status: ExecutionStatus
    executed_shard: str | None = None
    executed_by: str | None = None
    lock_path: str | None = None


class Reporter:
    """Writes for one host, in one session."""

    def __init__(self, keeper: Keeper, paths: QueuePaths, identity: NodeIdentity) -> None:
        self._keeper = keeper
        self._paths = paths
        self._stamp = identity.stamp

    async def report_and_claim(self, reports: Sequence[Report], claims: Sequence[tuple[str, HostId]]) -> bool:
        """Reports, and claims of (entry, host), in one request. False: nothing of it, do them singly; also
        where they are too long together."""
        ops = [op for report in reports for op in self._report_ops(report)]
        for name, host in claims:
            ops.append(Create(self._paths.active(name, host), self._stamp, CreateMode.EPHEMERAL))
        try:
            await self._keeper.multi(ops)
        except (MultiFailed, BadArguments):
            return False
        return True

    async def unclaim_all(self, claims: Sequence[tuple[str, HostId]]) -> None:
        """Take claims back without an outcome."""
        try:
            await self._keeper.multi([Remove(self._paths.active(name, host)) for name, host in claims])
        except MultiFailed:
            for name, host in claims:
                await self.unclaim(name, host)

    async def claim(self, name: str, host: HostId) -> Claim:
        """Step 1. Raises Busy when somebody else's `active/<host>` does not go away."""
        path = self._paths.active(name, host)
        for _ in range(_MOST_TRIES):
            try:
                await self._keeper.create(path, self._stamp, mode=CreateMode.EPHEMERAL)
                return Claim.CLAIMED
            except NoNode:
                match await self.create_status_dirs(name):
                    case StatusDirs.GONE:
                        return Claim.GONE
                    case StatusDirs.BEING_REMOVED:
                        return Claim.BEING_REMOVED
                    case StatusDirs.PRESENT:
                        continue
            except NodeExists:
                stat = await self._keeper.exists(path)
                if stat is not None and stat.ephemeral_owner == self._keeper.session_id:
                    return Claim.CLAIMED
                await remove_ephemeral_if_content_matches(self._keeper, path, self._stamp)
        raise SqlError(Code.UNFINISHED, f"Cannot create {path}: it comes and goes")

    async def unclaim(self, name: str, host: HostId) -> None:
        """Take the claim back without an outcome."""
        try:
            await self._keeper.remove(self._paths.active(name, host))
        except NoNode:
            pass

    async def create_status_dirs(self, name: str) -> StatusDirs:
        """Make `active` and `finished` together, where the initiator has not."""
        try:
            await self._keeper.multi([Create(self._paths.active(name)), Create(self._paths.finished(name))])
        except MultiFailed as refusal:
            if isinstance(refusal.error, NoNode):
                return StatusDirs.GONE
            if not isinstance(refusal.error, NodeExists):
                raise
            return StatusDirs.PRESENT if refusal.index == 0 else StatusDirs.BEING_REMOVED
        return StatusDirs.PRESENT

    async def report(self, report: Report) -> bool:
        """Step 2 and 3. False when the entry is gone."""
        ops = self._report_ops(report)
        for _ in range(_MOST_TRIES):
            try:
                await self._keeper.multi(ops)
                logger.debug("ddl.reported entry=%s code=%d", report.name, report.status.code)
                return True
            except MultiFailed as refusal:
                op = ops[refusal.index]
                finished = self._paths.finished(report.name, report.host)
                match refusal.error:
                    case NodeExists() if op.path == finished:
                        return await self._accept_existing(report)
                    case NodeExists() | NoNode() if op.path != finished:
                        ops = [other for other in ops if other is not op]  # its purpose is fulfilled
                    case NoNode():
                        if not await self._create_finished(report.name):
                            logger.warning("ddl.entry_gone_before_report entry=%s", report.name)
                            return False
                    case _:
                        raise
        raise SqlError(Code.UNFINISHED, f"Cannot write the outcome of {report.name}")

    async def report_without_claim(self, report: Report) -> bool:
        """An outcome of an entry that never got to run: nobody can read it, or it makes no sense here."""
        if await self._keeper.exists(self._paths.finished(report.name)) is None:
            dirs = await self.create_status_dirs(report.name)
            if dirs is StatusDirs.GONE:
                return False
        return await self.report(report)

    def _report_ops(self, report: Report) -> list[Op]:
        finished = self._paths.finished(report.name, report.host)
        ops: list[Op] = [
            Remove(self._paths.active(report.name, report.host)),
            Create(finished, b"0\n"),
        ]
        if report.executed_shard is not None:
            path = self._paths.shard(report.name, report.executed_shard, "executed")
            ops.append(Create(path, (report.executed_by or str(report.host)).encode()))
        if not report.status.is_success:
            ops.append(SetData(finished, report.status.to_bytes()))
        if report.lock_path is not None:
            ops.append(Remove(report.lock_path))
        return ops

    async def _accept_existing(self, report: Report) -> bool:
        """`finished/<host>` is there: ours, by a reply that was lost, or somebody's who has our name."""
        path = self._paths.finished(report.name, report.host)
        try:
            node = await self._keeper.get(path)
        except NoNode:
            return False
        if node.data != report.status.to_bytes():
            logger.warning(
                "ddl.outcome_differs entry=%s host=%s kept=%r", report.name, report.host, node.data[:80]
            )
        await self._drop_leftovers(report)
        return True

    async def _drop_leftovers(self, report: Report) -> None:
        """Of a report that was written in part by an earlier request, only the claim and the lock can be
        left."""
        for path in (self._paths.active(report.name, report.host), report.lock_path):
            if path is None:
                continue
            stat = await self._keeper.exists(path)
            if stat is not None and stat.ephemeral_owner == self._keeper.session_id:
                try:
                    await self._keeper.remove(path)
                except NoNode:
                    continue

    async def _create_finished(self, name: str) -> bool:
        """`finished` is missing. Whoever removes an entry removes `active` first: with it, nobody is
        removing."""
        try:
            await self._keeper.multi([Create(self._paths.finished(name))])
        except MultiFailed as refusal:
            return isinstance(refusal.error, NodeExists)
        if await self._keeper.exists(self._paths.active(name)) is None:
            try:
                await self._keeper.create(self._paths.active(name))
            except NodeExists:
                pass
            except NoNode:
                return False
        return True
