"""From the DDL queue into the ledger: looks and watches. Reads the queue, changes nothing in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.ddl.client import DDLQueueClient
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState
from engine.ddl.status_reader import NeverEnqueued, entry_is_gone
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError
from engine.migrations.ledger_writer import LedgerWriter
from engine.migrations.states import LedgerRow
from engine.names import HostId
from engine.sql import redact_prose

_MAX_ERROR_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Target:
    """One attempt and its hosts. `entry` is empty while nobody has recorded it."""

    token: str
    entry: str
    hosts: tuple[HostId, ...]


def targets_of(rows: Sequence[LedgerRow]) -> list[Target]:
    """The attempts behind the rows that are not final, with the hosts for which they count."""
    return _by_token(row for row in rows if not row.state.is_final)


def given_up_targets(rows: Sequence[LedgerRow]) -> list[Target]:
    """Those of hosts that were given up by others, and may have done it after all."""
    return _by_token(row for row in rows if row.state.is_given_up)


def _by_token(rows: Iterable[LedgerRow]) -> list[Target]:
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(row.token, []).append(row)
    return [Target(token, mine[0].entry, tuple(row.host for row in mine)) for token, mine in found.items()]


def _own(target: Target, status: EntryStatus) -> EntryStatus:
    """Raises SqlError 341 when it is the status of somebody else's statement: a Keeper that has lost its data
    numbers its entries anew."""
    if status.token != target.token:
        raise entry_is_gone(status.entry)
    return status


def _recorded(outcome: HostOutcome, status: EntryStatus) -> HostOutcome:
    """As it stands in the ledger: who does not know what became of it has not failed for certain."""
    return replace(
        outcome,
        state=HostState.UNKNOWN if status.is_in_doubt(outcome) else outcome.state,
        error=redact_prose(outcome.error)[:_MAX_ERROR_CHARS],
    )


def _is_gone(error: OnclusterError) -> bool:
    return isinstance(error, NeverEnqueued) or (isinstance(error, SqlError) and error.code == Code.UNFINISHED)


@dataclass(frozen=True, slots=True)
class Observer:
    """Records what the queue says of attempts."""

    client: DDLQueueClient
    writer: LedgerWriter
    env: Env

    async def look(self, target: Target) -> None:
        """One look. An entry that is gone without a record, or whose name is another's by now, makes its open
        hosts `unknown`."""
        entry = target.entry or await self._find(target)
        if not entry:
            return
        try:
            self._record(target, _own(target, await self.client.status(entry)))
        except (SqlError, NeverEnqueued) as error:
            if not _is_gone(error):
                raise
            self._record_gone(target)

    async def changes(
        self,
        targets: Sequence[Target],
        *,
        deadline_s: float | None,
        keep_alive: Callable[[], Awaitable[None]] | None,
        keep_alive_every_s: float,
    ) -> AsyncIterator[bool]:
        """Yields False after each change that was recorded, True once when the deadline has passed.

        `deadline_s` is on `env.monotonic_s`. Ends when every host of every target has an outcome.
        """
        arrived: asyncio.Queue[tuple[Target, EntryStatus | Exception | None]] = asyncio.Queue()
        found = [replace(item, entry=item.entry or await self._find(item)) for item in targets]
        followers = [asyncio.create_task(self._follow(item, arrived)) for item in found if item.entry]
        running = len(followers)
        keep_alive_s = self.env.monotonic_s() + keep_alive_every_s
        try:
            while running:
                limits = [] if deadline_s is None else [deadline_s]
                if keep_alive is not None:
                    limits.append(keep_alive_s)
                patience_s = max(0.0, min(limits) - self.env.monotonic_s()) if limits else None
                try:
                    async with asyncio.timeout(patience_s):
                        target, seen = await arrived.get()
                except TimeoutError:
                    if deadline_s is not None and self.env.monotonic_s() >= deadline_s:
                        yield True
                        return
                    if keep_alive is not None:
                        await keep_alive()
                        keep_alive_s = self.env.monotonic_s() + keep_alive_every_s
                    continue
                match seen:
                    case None:
                        running -= 1
                        continue
                    case OnclusterError() if _is_gone(seen):
                        await self.look(target)  # who removed it may have recorded what became of it
                    case Exception():
                        raise seen
                    case EntryStatus():
                        self._record(target, seen)
                yield False
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def _follow(
        self, target: Target, arrived: asyncio.Queue[tuple[Target, EntryStatus | Exception | None]]
    ) -> None:
        try:
            async for status in self.client.watch(target.entry):
                arrived.put_nowait((target, _own(target, status)))
        except Exception as error:  # noqa: BLE001 - raised by who waits, and not lost with this task
            arrived.put_nowait((target, error))
        arrived.put_nowait((target, None))

    async def _find(self, target: Target) -> str:
        """The entry of an attempt whose sender did not come to record it; empty if it was never enqueued."""
        submission = await self.client.find(target.token)
        if submission is None:
            return ""
        if not submission.entry:
            self._record_gone(target)
            return ""
        self.writer.record_submission(target.token, entry=submission.entry, outcome=submission.outcome.value)
        return submission.entry

    def _record(self, target: Target, status: EntryStatus) -> None:
        hosts = frozenset(target.hosts)
        self.writer.record_outcomes(
            target.token, [_recorded(outcome, status) for outcome in status.hosts if outcome.host in hosts]
        )

    def _record_gone(self, target: Target) -> None:
        self.writer.record_outcomes(
            target.token,
            [
                HostOutcome(
                    host,
                    HostState.UNKNOWN,
                    Code.UNFINISHED,
                    "The entry is not in the queue any more and nothing was recorded about it: whether this "
                    "host has done it is not known.",
                )
                for host in target.hosts
            ],
        )
