"""What the initiator answers: rows as hosts finish, then perhaps an error (`distributed_ddl_output_mode`).

Differences to ClickHouse's stream, whose rows and errors are the same: rows come when Keeper's watches say
so and not at the next poll. Source: ClickHouse's DDLQueryStatusSource.
"""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from engine.ddl.outcome import EntryStatus, HostOutcome
from engine.ddl.session import SessionSource, retrying, session_source
from engine.ddl.status_reader import StatusReader
from engine.env import Env
from engine.errors import Code, SqlError, Unavailable, UnknownOutcome
from engine.keeper.base import Keeper, WatchEvent
from engine.keeper.recipes import SessionHolder
from engine.names import HostId, QueuePaths

DEFAULT_TIMEOUT_S = 180
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]+)\)(?: \(version [^()]*(?:\([^()]*\))?\))?\s*\Z")
"""Of a code, behind the text of a host's error."""


class OutputMode(enum.StrEnum):
    """The values of the setting `distributed_ddl_output_mode`."""

    THROW = "throw"
    NONE = "none"
    NULL_STATUS_ON_TIMEOUT = "null_status_on_timeout"
    NEVER_THROW = "never_throw"
    THROW_ONLY_ACTIVE = "throw_only_active"
    NULL_STATUS_ON_TIMEOUT_ONLY_ACTIVE = "null_status_on_timeout_only_active"
    NONE_ONLY_ACTIVE = "none_only_active"

    @classmethod
    def parse(cls, text: str) -> OutputMode:
        """Raises SqlError 36 BAD_ARGUMENTS, naming the values there are."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(f"'{mode.value}'" for mode in cls)
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Unexpected value of DistributedDDLOutputMode: '{text}'. Must be one of [{known}]",
            ) from None

    @property
    def has_rows(self) -> bool:
        return self not in (OutputMode.NONE, OutputMode.NONE_ONLY_ACTIVE)

    @property
    def is_nullable(self) -> bool:
        """Whether `status` and `error` are Nullable."""
        return self.has_rows and self is not OutputMode.THROW

    @property
    def waits_for_active_only(self) -> bool:
        return self in (
            OutputMode.THROW_ONLY_ACTIVE,
            OutputMode.NULL_STATUS_ON_TIMEOUT_ONLY_ACTIVE,
            OutputMode.NONE_ONLY_ACTIVE,
        )

    @property
    def throws_host_errors(self) -> bool:
        return self is not OutputMode.NEVER_THROW

    @property
    def throws_on_timeout(self) -> bool:
        return self in (
            OutputMode.THROW,
            OutputMode.NONE,
            OutputMode.THROW_ONLY_ACTIVE,
            OutputMode.NONE_ONLY_ACTIVE,
        )


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row; `status` and `error` None are NULL."""

    host: str
    port: int
    status: int | None
    error: str | None
    num_hosts_remaining: int
    num_hosts_active: int

    def values(self) -> tuple[object, ...]:
        return (
            self.host,
            self.port,
            self.status,
            self.error,
            self.num_hosts_remaining,
            self.num_hosts_active,
        )


def output_columns(mode: OutputMode) -> tuple[tuple[str, str], ...]:
    """Names and ClickHouse types of the columns."""
    status, error = ("Nullable(Int64)", "Nullable(String)") if mode.is_nullable else ("Int64", "String")
    return (
        ("host", "String"),
        ("port", "UInt16"),
        ("status", status),
        ("error", error),
        ("num_hosts_remaining", "UInt64"),
        ("num_hosts_active", "UInt64"),
    )


async def result_stream(
    keeper: Keeper | SessionHolder | SessionSource,
    env: Env,
    paths: QueuePaths,
    entry: str,
    *,
    mode: OutputMode = OutputMode.THROW,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> AsyncGenerator[OutputRow, None]:
    """Rows in the order in which hosts are found finished; at the end the error, if the mode throws one.

    `timeout_s` 0 ends at once and without a row; negative waits for ever. Raises SqlError: the first
    failed host's code, 159 TIMEOUT_EXCEEDED, or 341 UNFINISHED when the entry vanishes, in every mode.
    Closing the stream leaves the task running.
    """
    if timeout_s == 0:
        return
    stream = _Stream(session_source(keeper), env, paths, entry, mode, timeout_s)
    try:
        async with aclosing(stream.rows()) as rows:
            async for row in rows:
                if mode.has_rows:
                    yield row
    finally:
        await stream.close()
    if stream.first_error is not None:
        raise stream.first_error


class _Stream:
    def __init__(
        self,
        source: SessionSource,
        env: Env,
        paths: QueuePaths,
        entry: str,
        mode: OutputMode,
        timeout_s: float,
    ) -> None:
        self._source = source
        self._env = env
        self._paths = paths
        self._entry = entry
        self._mode = mode
        self._timeout_s = timeout_s
        self._started_s = env.monotonic_s()
        self._updates = StatusReader(source, env, paths).watch(entry)
        self._pending: asyncio.Future[EntryStatus] | None = None
        self._reported: set[HostId] = set()
        self._presence_changed = asyncio.Event()
        self.first_error: SqlError | None = None

    async def rows(self) -> AsyncGenerator[OutputRow, None]:
        status: EntryStatus | None = None
        while True:
            try:
                update = await self._next_update(is_first=status is None)
            except SqlError as error:
                self._remember(error)
                return
            if update is not None:
                status = update
                for row in self._new_rows(status):
                    yield row
                if status.is_complete:
                    return
            if status is None:
                continue
            if self._has_timed_out():
                for row in self._unfinished_rows(status):
                    yield row
                if self._mode.throws_on_timeout:
                    self._remember(await self._timeout_error(status))
                return
            if self._mode.waits_for_active_only and await self._only_offline_hosts_are_left(status):
                for row in self._unfinished_rows(status):
                    yield row
                return

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._updates.aclose()

    # --- waiting ------------------------------------------------------------------------------------------

    async def _next_update(self, *, is_first: bool) -> EntryStatus | None:
        """The next status; None when the time is up or a host came or went. The first one is waited for as
        long as Keeper is: without it nobody knows whose rows are missing."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._updates))
        waits: set[asyncio.Future[object]] = {self._pending}  # type: ignore[arg-type]  # Future is invariant
        presence: asyncio.Task[bool] | None = None
        if self._mode.waits_for_active_only:
            presence = asyncio.create_task(self._presence_changed.wait())
            waits.add(presence)  # type: ignore[arg-type]  # as above
        try:
            left_s = None if is_first else self._time_left_s()
            await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if presence is not None:
                presence.cancel()
        self._presence_changed.clear()
        if not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def _elapsed_s(self) -> float:
        return self._env.monotonic_s() - self._started_s

    def _time_left_s(self) -> float | None:
        return None if self._timeout_s < 0 else max(0.0, self._timeout_s - self._elapsed_s())

    def _has_timed_out(self) -> bool:
        return self._timeout_s >= 0 and self._elapsed_s() >= self._timeout_s

    # --- rows ---------------------------------------------------------------------------------------------

    def _new_rows(self, status: EntryStatus) -> list[OutputRow]:
        rows = []
        for outcome in status.hosts:
            if not outcome.state.is_final or outcome.host in self._reported:
                continue
            self._reported.add(outcome.host)
            if outcome.code != 0 and self._mode.throws_host_errors:
                self._remember(_host_error(outcome))
            remaining = len(status.hosts) - len(self._reported)
            rows.append(_row(outcome.host, outcome.code, outcome.error, remaining, status.num_active))
        return rows

    def _unfinished_rows(self, status: EntryStatus) -> list[OutputRow]:
        if not self._mode.is_nullable:
            return []
        rest = [outcome.host for outcome in status.hosts if outcome.host not in self._reported]
        if self._mode.throws_on_timeout and self._has_timed_out():
            return []
        return [_row(host, None, None, len(rest), status.num_active) for host in rest]

    def _remember(self, error: SqlError) -> None:
        """The first error wins."""
        if self.first_error is None:
            self.first_error = error

    # --- hosts that are away ------------------------------------------------------------------------------

    async def _only_offline_hosts_are_left(self, status: EntryStatus) -> bool:
        offline = await self._offline(
            [outcome.host for outcome in status.hosts], watch_for={o.host for o in status.unfinished}
        )
        return all(outcome.host in offline for outcome in status.unfinished)

    async def _offline(self, hosts: Sequence[HostId], *, watch_for: set[HostId]) -> set[HostId]:
        """Hosts that need not be waited for: those without `active`, but none, if it is all of them."""
        offline = await self._without_active(hosts, watch_for=watch_for)
        return set() if len(offline) == len(hosts) else offline

    async def _without_active(
        self, hosts: Sequence[HostId], *, watch_for: set[HostId], patience_s: float = 60.0
    ) -> set[HostId]:
        """Hosts that have no `replicas/<host_id>/active`."""

        async def look(keeper: Keeper) -> set[HostId]:
            found = await asyncio.gather(
                *(
                    keeper.exists(
                        self._paths.replica_active(host),
                        watch=self._on_presence if host in watch_for else None,
                    )
                    for host in hosts
                )
            )
            return {host for host, stat in zip(hosts, found, strict=True) if stat is None}

        return await retrying(self._source, self._env, look, patience_s=patience_s)

    def _on_presence(self, event: WatchEvent) -> None:
        self._presence_changed.set()

    # --- errors -------------------------------------------------------------------------------------------

    async def _timeout_error(self, status: EntryStatus) -> SqlError:
        unfinished = [outcome.host for outcome in status.unfinished]
        try:
            inactive = (
                f"{len(await self._without_active(unfinished, watch_for=set(), patience_s=0.0))} are inactive"
            )
        except (Unavailable, UnknownOutcome) as error:
            inactive = f"nobody knows how many are inactive: {error}"
        return SqlError(
            Code.TIMEOUT_EXCEEDED,
            f"Distributed DDL task {self._paths.entry(self._entry)} is not finished on {len(unfinished)} of "
            f"{len(status.hosts)} hosts ({status.num_active} of them are currently executing the task, "
            f"{inactive}). They are going to execute the query in background. "
            f"Was waiting for {self._elapsed_s():g} seconds, which is longer than "
            "distributed_ddl_task_timeout",
        )


def _host_error(outcome: HostOutcome) -> SqlError:
    name = _NAME.search(outcome.error)
    return SqlError(
        outcome.code,
        f"There was an error on [{outcome.host.host}:{outcome.host.port}]: {outcome.error}",
        name="" if name is None else name[1],
    )


def _row(
    host: HostId, status: int | None, error: str | None, num_hosts_remaining: int, num_hosts_active: int
) -> OutputRow:
    return OutputRow(host.host, host.port, status, error, num_hosts_remaining, num_hosts_active)
