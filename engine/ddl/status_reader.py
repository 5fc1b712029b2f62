"""Reading where the hosts of an entry stand: once, or again at every change.

Who is executing is followed by watches from the moment when an entry has taken `_GRACE_S`. Before that it is
read along with the outcomes: each start and end of an execution would cost a listing that nobody has time
to look at.

Cost for an entry of n hosts, watched from start to end: one read for each host's outcome, and at most one
listing for each moment at which something changed; changes of the same moment share one. Statuses already
read are not read again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from engine.ddl.abandonment import Abandonment, read_abandoned
from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import token_of, without_token
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState, ShardOutcome
from engine.ddl.outcome_record import read_outcome_record
from engine.ddl.session import SessionSource, UpToDate, retrying
from engine.ddl.status import ExecutionStatus
from engine.env import Env
from engine.errors import Code, NoNode, Refused, SqlError
from engine.keeper.base import Children, Keeper, Stat, Watch, WatchEvent
from engine.names import HostId, QueuePaths, entry_number

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_GATHERING_S_PER_HOST = 20e-6
_SHORTEST_GATHERING_S = 0.0025
_LONGEST_GATHERING_S = 0.05
_GRACE_S = 0.25
"""A host that has not begun is asked for its presence only after this: most statements are done by then."""


class NeverEnqueued(Refused):
    """The queue has not come as far as this entry; a Keeper that lost its data counts anew."""


@dataclass(slots=True)
class _View:
    """What is known of one entry so far."""

    name: str
    entry: DDLLogEntry
    stat: Stat
    outcomes: dict[HostId, HostOutcome] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    started_ms: dict[str, int] = field(default_factory=dict)
    away: frozenset[HostId] = frozenset()
    abandoned: Mapping[HostId, Abandonment] = field(default_factory=dict)
    has_active_dir: bool = False
    has_finished_dir: bool = False
    hosts: tuple[HostId, ...] = ()
    ids: dict[str, HostId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hosts = self.entry.distinct_hosts
        self.ids = {str(host): host for host in self.hosts}

    @property
    def unfinished(self) -> list[HostId]:
        return [host for host in self.hosts if host not in self.outcomes]

    def status(self) -> EntryStatus:
        return EntryStatus(
            entry=self.name,
            entry_created_ms=self.stat.ctime_ms,
            query=without_token(self.entry.query),
            hosts=tuple(self.outcomes.get(host) or self._present_state(host) for host in self.hosts),
            initiator=self.entry.initiator or "",
            num_active=len(self.active),
            czxid=self.stat.czxid,
            token=token_of(self.entry) or "",
        )

    def _present_state(self, host: HostId) -> HostOutcome:
        if str(host) in self.active:
            return HostOutcome(host, HostState.RUNNING, started_ms=self.started_ms.get(str(host)))
        if host in self.abandoned:
            return self.abandoned[host].outcome(host)
        return HostOutcome(host, HostState.INACTIVE if host in self.away else HostState.WAITING)

    def record(self, host: HostId, data: bytes, stat: Stat) -> None:
        status = ExecutionStatus.from_bytes(data)
        self.outcomes[host] = HostOutcome(
            host,
            HostState.DONE if status.is_success else HostState.FAILED,
            code=status.code,
            error=status.message,
            started_ms=self.started_ms.get(str(host)),
            finished_ms=stat.ctime_ms,
            duration_ms=max(0, stat.ctime_ms - self.stat.ctime_ms),
        )


@dataclass(slots=True)
class _Alarm:
    """Collects what changed since it was last looked at. Each flag is set by one watch."""

    event: asyncio.Event = field(default_factory=asyncio.Event)
    finished: bool = True
    active: bool = True
    presence: bool = False
    is_following_active: bool = False

    def on_finished(self, _: WatchEvent) -> None:
        self.finished = True
        self.event.set()

    def on_active(self, _: WatchEvent) -> None:
        self.active = True
        self.event.set()

    def on_presence(self, _: WatchEvent) -> None:
        self.presence = True
        self.event.set()

    def ring_all(self) -> None:
        self.finished = self.active = True
        self.event.set()


class StatusReader:
    """Reads entries of one queue through whatever session its source has."""

    def __init__(self, source: SessionSource, env: Env, paths: QueuePaths) -> None:
        self._source = source
        self._env = env
        self._paths = paths

    async def up_to_date(self) -> UpToDate:
        """For `status` of many entries. Raises as Keeper does."""
        fresh = UpToDate(self._paths.root)
        await retrying(self._source, self._env, fresh.bring)
        return fresh

    async def status(self, entry: str, fresh: UpToDate | None = None) -> EntryStatus:
        """As it is now, or was at the time of `fresh`.

        Raises SqlError 341 when neither the entry nor a record of it is there, NeverEnqueued when it cannot
        have been there.
        """
        fresh = fresh or UpToDate(self._paths.root)

        async def read(keeper: Keeper) -> EntryStatus:
            await fresh.bring(keeper)
            view = await self._open(keeper, entry)
            if view is None:
                return await self._status_of_gone(keeper, entry)
            await self._refresh(keeper, view, _Alarm(), is_watching=False)
            await self._read_presence(keeper, view, watch=None)
            status = view.status()
            shards = await self._read_shards(keeper, entry)
            return dataclasses.replace(status, shards=shards)

        return await retrying(self._source, self._env, read)

    async def watch(self, entry: str) -> AsyncGenerator[EntryStatus, None]:
        """Yields at once, then at every change. Raises SqlError 341 when the entry goes away."""

        opened_on: Keeper | None = None

        async def open_entry(keeper: Keeper) -> _View | None:
            nonlocal opened_on
            opened_on = keeper
            view = await self._open(keeper, entry)
            if view is None:  # the server of this session may not know of it yet
                await keeper.sync(self._paths.root)
                view = await self._open(keeper, entry)
            return view

        view = await retrying(self._source, self._env, open_entry)
        if view is None:
            raise entry_is_gone(self._paths.entry(entry))
        alarm = _Alarm()
        shown: EntryStatus | None = None
        session: Keeper | None = None
        presence_at_s = self._env.monotonic_s() + _GRACE_S
        timer: asyncio.Task[None] | None = None
        try:
            while True:

                async def look(keeper: Keeper) -> bool:
                    nonlocal session, opened_on
                    alarm.event.clear()
                    if keeper is not session:  # a new session has no watches
                        session = keeper
                        alarm.finished = alarm.active = True
                        # A session's requests are answered in order: the listings see what sync brings.
                        is_there, _ = await _both(
                            self._refresh(keeper, view, alarm, is_watching=True),
                            keeper.sync(self._paths.root),
                        )
                    else:
                        is_there = await self._refresh(keeper, view, alarm, is_watching=True)
                    if is_there and keeper is not opened_on:
                        # A Keeper that has lost its data may have another entry of this name by now.
                        is_there = await self._is_still_there(keeper, view, None)
                        opened_on = keeper
                    if is_there and alarm.presence and view.unfinished:
                        alarm.presence = False
                        try:
                            await self._read_presence(keeper, view, watch=alarm.on_presence)
                        except BaseException:  # as in `_refresh`
                            alarm.presence = True
                            raise
                    return is_there

                if not await retrying(self._source, self._env, look):
                    raise entry_is_gone(self._paths.entry(entry))
                status = view.status()
                if status != shown:
                    shown = status
                    yield status
                if status.is_complete:
                    return
                if timer is None:
                    timer = asyncio.create_task(self._ask_for_presence(alarm, presence_at_s))
                await alarm.event.wait()
                if len(view.unfinished) > 1:
                    await self._gather_changes(len(view.hosts))
        finally:
            if timer is not None:
                timer.cancel()

    async def _ask_for_presence(self, alarm: _Alarm, at_s: float) -> None:
        await self._env.sleep(max(0.0, at_s - self._env.monotonic_s()))
        alarm.presence = alarm.active = alarm.is_following_active = True
        alarm.event.set()

    async def _gather_changes(self, hosts: int) -> None:
        """Wait a moment, so that outcomes of one moment share one listing: on a busy machine each listing
        takes from the hosts what they need to finish."""
        if hosts > 1:
            pause_s = max(_SHORTEST_GATHERING_S, hosts * _GATHERING_S_PER_HOST)
            await self._env.sleep(min(_LONGEST_GATHERING_S, pause_s))

    # --- reading ------------------------------------------------------------------------------------------

    async def _open(self, keeper: Keeper, entry: str) -> _View | None:
        try:
            node = await keeper.get(self._paths.entry(entry))
        except NoNode:
            return None
        return _View(entry, DDLLogEntry.from_bytes(node.data, where=entry), node.stat)

    async def _refresh(self, keeper: Keeper, view: _View, alarm: _Alarm, *, is_watching: bool) -> bool:
        """Bring the view up to date with what the alarm says has changed; False when the entry is gone."""
        look_at_finished = alarm.finished
        look_at_active = alarm.active or (alarm.finished and not alarm.is_following_active)
        alarm.finished = alarm.active = False
        watch_finished = alarm.on_finished if is_watching else None
        watch_active = alarm.on_active if is_watching and alarm.is_following_active else None
        last = view.unfinished if look_at_finished and len(view.unfinished) == 1 else []
        try:
            finished, active, _ = await asyncio.gather(
                self._list(keeper, self._paths.finished(view.name), watch_finished)
                if look_at_finished
                else _nothing(),
                self._list(keeper, self._paths.active(view.name), watch_active)
                if look_at_active
                else _nothing(),
                # Whose outcome it is that has come is known before it is listed.
                self._read_outcomes(keeper, view, [str(host) for host in last]),
            )
            if look_at_finished:
                view.has_finished_dir = finished is not None
                await self._read_outcomes(keeper, view, finished.names if finished else ())
            if look_at_active:
                view.has_active_dir = active is not None
                await self._read_active(keeper, view, active.names if active else ())
        except BaseException:  # also a cancellation: the next look has to look again
            alarm.finished |= look_at_finished  # a watch may have told of more meanwhile
            alarm.active |= look_at_active
            raise
        if view.has_finished_dir and view.has_active_dir:
            return True
        return await self._is_still_there(keeper, view, alarm if is_watching else None)

    async def _is_still_there(self, keeper: Keeper, view: _View, alarm: _Alarm | None) -> bool:
        stat = await keeper.exists(self._paths.entry(view.name))
        if stat is None or stat.czxid != view.stat.czxid:
            return False
        if alarm is not None:
            # Nobody has made the directories yet: their creation is the change to wait for.
            finished, active, entry = await asyncio.gather(
                keeper.exists(self._paths.finished(view.name), watch=alarm.on_finished),
                keeper.exists(self._paths.active(view.name), watch=alarm.on_active),
                keeper.exists(self._paths.entry(view.name), watch=alarm.on_finished),
            )
            if entry is None:
                return False
            if (finished is not None) > view.has_finished_dir or (active is not None) > view.has_active_dir:
                alarm.ring_all()  # made between the listing and the watch
        return True

    async def _list(self, keeper: Keeper, path: str, watch: Watch | None) -> Children | None:
        try:
            return await keeper.children(path, watch=watch)
        except NoNode:
            return None

    async def _read_outcomes(self, keeper: Keeper, view: _View, names: Sequence[str]) -> None:
        new = [view.ids[n] for n in names if n in view.ids and view.ids[n] not in view.outcomes]
        if not new:
            return
        nodes = await keeper.get_many([self._paths.finished(view.name, host) for host in new])
        for host, node in zip(new, nodes, strict=True):
            if not isinstance(node, Exception):
                view.record(host, node.data, node.stat)

    async def _read_active(self, keeper: Keeper, view: _View, names: Sequence[str]) -> None:
        """Nobody is behind one that no session owns, as a copy of Keeper's tree has it."""
        view.active = frozenset(names)
        new = [name for name in names if name not in view.started_ms]
        if not new:
            return
        stats = await keeper.exists_many([self._paths.active(view.name, name) for name in new])
        for name, stat in zip(new, stats, strict=True):
            if stat is not None and stat.ephemeral_owner:
                view.started_ms[name] = stat.ctime_ms
            elif stat is not None:
                view.active -= {name}

    async def _read_presence(self, keeper: Keeper, view: _View, *, watch: Watch | None) -> None:
        """Which unfinished hosts are away, and which need not be waited for.

        As in ClickHouse, who has no `replicas/<host>/active` is away. Only where no host of the entry has one
        the servers may be too old to say; then a host is known to be away if it once had one. What is left of
        it goes with the directory, which the cleaner removes after a day.
        """
        hosts = view.unfinished
        if not hosts:
            return
        if watch is not None:  # first: what is said between the two is seen twice, never missed
            await keeper.exists(self._paths.abandoned(view.name), watch=watch)
        view.abandoned = await read_abandoned(keeper, self._paths, view.name, view.stat.czxid)
        found = await asyncio.gather(
            *(self._list(keeper, self._paths.replica(host), watch) for host in hosts)
        )
        absent = {
            host: children is not None and children.stat.cversion > 0
            for host, children in zip(hosts, found, strict=True)
            if children is None or not children.names
        }
        if not all(absent.values()) and (
            len(absent) < len(hosts) or await self._is_any_present(keeper, view, watch)
        ):
            absent = dict.fromkeys(absent, True)
        view.away = frozenset(host for host, is_known in absent.items() if is_known)

    async def _is_any_present(self, keeper: Keeper, view: _View, watch: Watch | None) -> bool:
        """Whether a host that has its outcome shows itself."""
        found = await asyncio.gather(
            *(keeper.exists(self._paths.replica_active(host), watch=watch) for host in view.outcomes)
        )
        return any(stat is not None for stat in found)

    async def _read_shards(self, keeper: Keeper, entry: str) -> tuple[ShardOutcome, ...]:
        shards = await self._list(keeper, self._paths.shards(entry), None)
        if shards is None:
            return ()
        nodes = await keeper.get_many([self._paths.shard(entry, shard, "executed") for shard in shards.names])
        return tuple(
            ShardOutcome(shard, None if isinstance(node, Exception) else HostId.parse(node.data.decode()))
            for shard, node in zip(shards.names, nodes, strict=True)
        )

    async def _status_of_gone(self, keeper: Keeper, entry: str) -> EntryStatus:
        """On the session that did not find it: on another one the record may not be known yet."""
        record = await read_outcome_record(keeper, self._paths, entry)
        if record is not None:
            return record.to_status()
        last = await self._last_number(keeper)
        if last is not None and (entry_number(entry) or 0) > last:
            raise NeverEnqueued(f"There is no entry {entry}.", hint=f"The number of the last one is {last}.")
        raise entry_is_gone(self._paths.entry(entry))

    async def _last_number(self, keeper: Keeper) -> int | None:
        """Of the entries there are. Who removes some begins with the oldest, so nothing newer ever was."""
        try:
            names = (await keeper.children(self._paths.root)).names
        except NoNode:
            return None
        return max((number for name in names if (number := entry_number(name)) is not None), default=None)


async def _nothing() -> None:
    return None


async def _both(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Both at once, and an error only when neither is under way any more."""
    one, two = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(one, BaseException):
        raise one
    if isinstance(two, BaseException):
        raise two
    return one, two


def entry_is_gone(path: str) -> SqlError:
    """UNFINISHED 341, in ClickHouse's words."""
    return SqlError(
        Code.UNFINISHED,
        f"Cannot provide query execution status. The query's node {path} has been deleted by the cleaner "
        "since it was finished (or its lifetime is expired)",
    )
