"""What all pieces of a running replica share. It has no behaviour beyond access to the session.

One `ReplicaContext` lives as long as the table is attached; a *term* is the time between an activation and
the loss of its session. Background work belongs to a term and is cancelled at its end; what a user asked for
goes on over the end of a term and looks what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.env import Env
from engine.errors import Code, SqlError, UnknownOutcome
from engine.keeper.base import Keeper
from engine.keeper.recipes import SessionHolder
from engine.lifetime import unless_set
from engine.names import TableName
from engine.replication.bandwidth import Bandwidth, PacedReceiver
from engine.replication.fetching import Agreed, PartFetcher, PartReceiver
from engine.replication.host import ReplicaHost
from engine.replication.part_name import PartName
from engine.replication.part_store import PartStore
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.replica.block_numbers import BlockLocks
from engine.replication.replica.fetches import Fetches
from engine.replication.replica.part_listing import PartListing
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replica.switches import Switches
from engine.replication.replica.together import Together
from engine.replication.settings import ReplicatedSettings

T = TypeVar("T")


class Signal:
    """Wakes whoever waits; a wake-up before the wait counts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Until `set` was called since the last `wait`."""
        await self._event.wait()
        self._event.clear()


class Broadcast:
    """Wakes everybody who waits at that moment; nothing is remembered."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def announce(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Until the next `announce`."""
        await self._next.wait()

    def upcoming(self) -> asyncio.Event:
        """Set by the next `announce`: what is announced before somebody waits for it counts, too."""
        return self._next


class InFlight:
    """Parts that an operation has staged and committed, or is about to, and will publish or discard itself.

    Whoever removes parts by range waits for them first, so that a part that was dropped does not appear
    after.
    Start-up leaves them alone; clone, too, but for an entry that drops what the source has dropped.
    """

    def __init__(self) -> None:
        self._parts: dict[PartName, asyncio.Event] = {}
        self._kept: dict[PartName, object] = {}

    def __contains__(self, part: PartName) -> bool:
        return part in self._parts or part in self._kept

    def keep(self, part: PartName, owner: object) -> None:
        """A staged part whose name is void, and that is to get another: it is no leftover, and nobody waits
        for it. Until `let_go`."""
        self._kept[part] = owner

    def is_kept(self, part: PartName, owner: object) -> bool:
        """Whether the part is still its owner's: RESTORE puts all aside, and others get such names then."""
        return self._kept.get(part) is owner

    def let_go(self, part: PartName) -> None:
        self._kept.pop(part, None)

    @asynccontextmanager
    async def hold(self, part: PartName) -> AsyncIterator[None]:
        done = self._parts[part] = asyncio.Event()
        try:
            yield
        finally:
            del self._parts[part]
            done.set()

    async def all_settled(self) -> None:
        """Wait until no part is in flight."""
        while self._parts:
            await next(iter(self._parts.values())).wait()

    async def settled(self, covering: PartName) -> None:
        """Wait until no part inside `covering` is in flight."""
        while waiting := [done for part, done in self._parts.items() if covering.contains(part)]:
            for done in waiting:
                await done.wait()


@dataclass(slots=True)
class ReplicaContext:
    """`keeper` is the session of the present term; None while the replica is read-only.

    `metadata_version` is the version of the table's metadata that this replica has applied.
    `other_table` finds the store of another MergeTree table on this node (REPLACE and MOVE PARTITION).
    """

    name: TableName
    paths: TablePaths
    me: ReplicaPaths
    env: Env
    holder: SessionHolder
    store: PartStore
    fetcher: PartFetcher
    host: ReplicaHost
    server_uuid: str
    settings: ReplicatedSettings
    queue: ReplicaQueue
    other_table: Callable[[str, str], PartStore | None]
    host_id: str = ""
    """This server's name in the clusters, empty if it has none."""
    switches: Switches = field(default_factory=Switches)
    in_flight: InFlight = field(default_factory=InFlight)
    fetches: Fetches = field(default_factory=Fetches)
    commits: Together[tuple[PartName, Agreed]] = field(default_factory=Together)
    """Parts that were fetched on their way into Keeper."""
    keeper: Keeper | None = None
    readonly_reason: str = "the replica has not been activated yet"
    """As far as the replica knows; `why_readonly` asks the holder of its session, too."""
    readonly_since_s: float = 0.0
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the table is being detached or dropped: there is no other term to wait for."""
    metadata_version: int = 0
    is_leader: bool = False
    term_began: Broadcast = field(default_factory=Broadcast)
    """The replica accepts writes (again)."""
    usual_partition: tuple[str, int] = ("", 0)
    """The partition of the inserts before, and how many of them, one after the other, were of it alone."""
    replicas_seen: tuple[Keeper, Sequence[str]] | None = None
    """The table's replicas as a session has seen them, until its watch says that there are others."""
    queue_changed: Signal = field(default_factory=Signal)
    """There may be an entry that can run."""
    merge_wanted: Signal = field(default_factory=Signal)
    """There may be something to merge or to mutate."""
    log_changed: Signal = field(default_factory=Signal)
    """There may be new entries in the table's log."""
    mutation_news: Broadcast = field(default_factory=Broadcast)
    """An entry has left the queue, or a mutation was added, failed or finished."""
    attaching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while parts in `detached/` are attached, so that none is attached twice."""
    parts_to_check: dict[PartName, float] = field(default_factory=dict)
    """Parts to be checked, and when (monotonic seconds). `check_later` adds one."""
    check_wanted: Signal = field(default_factory=Signal)
    """There is a part to be checked."""
    pulling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while log entries are copied to the queue."""
    own_inserts: dict[str, str] = field(default_factory=dict)
    """Entries of the log by inserts of this replica in this term, with their create times, until the log
    pointer has passed them. Their parts are the replica's since the very transaction that made the entry, so
    there is nothing left to be done."""
    inserts_on_their_way: int = 0
    """Transactions of inserts that have been sent and not answered."""
    log_pointer: int = 0
    """The first entry of the log that is not copied yet, as this process knows; 0 before it has looked."""
    unsettled: set[PartName] = field(default_factory=set)
    """Parts fetched straight from the log whose commit was sent and that are not published yet."""
    is_queue_in_doubt: bool = False
    """Entries may have been copied to `queue/` that are not in memory yet."""
    loading_mutations: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from listing `mutations/` until memory says the same, so that lists come in order."""
    pull_started_s: float | None = None
    """Unix time at which the pull under way began."""
    last_pull_s: float = 0.0
    """Unix time of the last complete pull, 0 if there was none."""
    last_pull_error: str = ""
    max_processed_insert_s: float = 0.0
    """Create time (Unix) of the latest insert that was executed."""
    block_locks: BlockLocks = field(default_factory=BlockLocks)
    part_listing: PartListing = field(init=False)
    send_bandwidth: Bandwidth = field(init=False)
    fetch_bandwidth: Bandwidth = field(init=False)

    def __post_init__(self) -> None:
        self.part_listing = PartListing(self.me.parts)
        self.send_bandwidth = Bandwidth(
            self.env, lambda: self.settings.max_replicated_sends_network_bandwidth
        )
        self.fetch_bandwidth = Bandwidth(
            self.env, lambda: self.settings.max_replicated_fetches_network_bandwidth
        )

    def paced(self, receiver: PartReceiver) -> PartReceiver:
        """Where a part goes that is fetched, at the pace that the table's setting wants."""
        if not self.settings.max_replicated_fetches_network_bandwidth:
            return receiver
        return PacedReceiver(receiver, self.fetch_bandwidth)

    @property
    def replica(self) -> str:
        return self.me.name

    @property
    def is_readonly(self) -> bool:
        return self.keeper is None or self.keeper.is_expired

    @property
    def why_readonly(self) -> str:
        return self.holder.explain(self.readonly_reason or "its session with Keeper is over")

    @property
    def is_ending(self) -> bool:
        return self.ending.is_set()

    async def unless_ending(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None when the table ends before, which cancels `work`."""
        return await unless_set(self.ending, work)

    async def any_session_until_end(self) -> Keeper:
        """A session of the node, whether or not there is a term, for looking what became of something.

        Raises UnknownOutcome when the table ends before there is one.
        """
        keeper = await self.unless_ending(self.holder.get())
        if keeper is None:
            raise UnknownOutcome(
                f"Keeper does not answer, and table {self.name} is being detached, dropped or replaced: "
                "it is not known what became of the statement",
                code=Code.KEEPER_EXCEPTION,
            )
        return keeper

    def check_not_ending(self) -> None:
        """Raises SqlError 242 TABLE_IS_READ_ONLY when the table ends: nobody would stop what begins now."""
        if self.is_ending:
            raise SqlError(
                Code.TABLE_IS_READ_ONLY,
                f"Table {self.name} is in readonly mode: it is being detached, dropped or replaced.",
                hint="Repeat the statement when it is there again.",
            )

    def check_later(self, part: PartName, *, delay_s: float = 0.0) -> None:
        """Have a part checked; an earlier date that was set before stays."""
        due = self.env.monotonic_s() + delay_s
        self.parts_to_check[part] = min(due, self.parts_to_check.get(part, due))
        self.check_wanted.set()

    def session(self) -> Keeper:
        """The session of the present term. Raises SqlError 242 TABLE_IS_READ_ONLY."""
        if self.keeper is None or self.keeper.is_expired:
            self.check_not_ending()
            raise SqlError(
                Code.TABLE_IS_READ_ONLY,
                f"Table {self.name} is in readonly mode (replica path: {self.me.root}): {self.why_readonly}",
                hint="The node tries again by itself; see zookeeper_exception in system.replicas.",
            )
        return self.keeper
