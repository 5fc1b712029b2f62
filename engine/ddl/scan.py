"""Following the queue: which entries are there, whose they are, and whether they make sense here.

Entries are read in batches, ahead of their execution, and go into the `Backlog` in queue order. What needs no
execution ends here: entries of others are passed over, entries that nobody can read or that name no
cluster of ours get an error.

An entry none of whose hosts is known to be this one, while DNS does not know some of them, may be ours, and
so may one that Keeper lets us not read, because its ACL is for servers with another <identity>: it is looked
at again as long as it is there, after `DNS_PATIENCE_S` seldom, and holds up nobody meanwhile. If it turns out
to be ours after a later entry has been executed, it is refused, because statements must not take effect out
of their order.

Source: ClickHouse's DDLWorker::scheduleTasks and initAndCheckTask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from engine.config.model import Topology
from engine.ddl.backlog import Backlog
from engine.ddl.entry import DDLLogEntry
from engine.ddl.failures import status_of
from engine.ddl.identity import NodeIdentity, Resolver
from engine.ddl.matching import HostMatcher
from engine.ddl.replicas import ReplicaMarker
from engine.ddl.report import Report, Reporter
from engine.ddl.runner import StatementRunner
from engine.ddl.status import ExecutionStatus
from engine.ddl.task import check_initiator, interpret, interpret_without_cluster
from engine.env import Env
from engine.errors import Code, MalformedEntry, NoAuth, NoNode, SqlError
from engine.keeper.base import Keeper, Node, WatchEvent
from engine.keeper.recipes import create_ancestors, create_if_not_exists
from engine.names import HostId, QueuePaths, entry_name, entry_number

logger = logging.getLogger(__name__)

DNS_PATIENCE_S = 30.0
LOOK_AGAIN_S = 5.0
LOOK_SELDOM_S = 60.0
"""A name that DNS has not known for a while mostly is of a host that is no more."""
_SHORTEST_WAIT_S = 0.1
_PREFETCH = 64
_TOO_LATE = ExecutionStatus(
    Code.UNFINISHED,
    f"Code: {int(Code.UNFINISHED)}. DB::Exception: This entry could not be begun in its turn, because a host "
    "name in it did not resolve, because Keeper did not let it be read or because it was being removed, and "
    "later entries have been executed since. Submit the statement again under a new token. (UNFINISHED)",
)


@dataclass(slots=True)
class Undecided:
    """An entry that is perhaps ours, since when, and when it is looked at again."""

    since_s: float
    again_s: float


@dataclass(slots=True)
class WorkerMemory:
    """What a worker remembers of the queue from one session to the next.

    `settled`: nothing more to do here. `undecided`: perhaps ours. `latest_executed` is the
    number of the latest entry that was executed here, `max_entry` of the latest that was handled in any way.
    """

    settled: set[str] = field(default_factory=set)
    undecided: dict[str, Undecided] = field(default_factory=dict)
    queue_czxid: int = 0
    host_guess: HostId | None = None
    max_entry: int = -1
    latest_executed: int = -1
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopping: bool = False
    topology_serial: int = 0

    def settle(self, name: str) -> None:
        self.settled.add(name)
        self.undecided.pop(name, None)
        self.max_entry = max(self.max_entry, entry_number(name) or 0)

    def look_again(self, name: str, now_s: float) -> None:
        """The entry is undecided, now or still."""
        known = self.undecided.setdefault(name, Undecided(now_s, now_s))
        is_new = now_s - known.since_s < DNS_PATIENCE_S
        known.again_s = now_s + (LOOK_AGAIN_S if is_new else LOOK_SELDOM_S)

    def look_at_all_again(self) -> None:
        """Names mean other hosts now, or may."""
        for known in self.undecided.values():
            known.again_s = known.since_s

    def is_put_off(self, name: str, now_s: float) -> bool:
        known = self.undecided.get(name)
        return known is not None and known.again_s > now_s

    def forget_absent(self, present: Collection[str]) -> None:
        """An undecided entry that was removed would be waited for without end."""
        self.settled.intersection_update(present)
        if self.undecided:
            here = frozenset(present)
            self.undecided = {name: known for name, known in self.undecided.items() if name in here}

    def start_over(self) -> None:
        """Look at every entry again. What was executed was: nothing earlier may be executed after it."""
        self.settled.clear()
        self.look_at_all_again()

    def forget_all(self) -> None:
        """Names mean other entries now."""
        self.settled.clear()
        self.undecided.clear()
        self.latest_executed = -1


@dataclass(frozen=True, slots=True)
class _Ahead:
    """An entry that was read before it was known to be there; `done` names it if `host` has an outcome."""

    host: HostId
    name: str
    node: Node
    done: set[str]


class QueueScan:
    """Follows the queue in one session and fills the backlog."""

    def __init__(
        self,
        *,
        keeper: Keeper,
        env: Env,
        paths: QueuePaths,
        memory: WorkerMemory,
        marker: ReplicaMarker,
        matcher: HostMatcher,
        reporter: Reporter,
        runner: StatementRunner,
        backlog: Backlog,
        identity: NodeIdentity,
        resolver: Resolver,
        topology: Callable[[], Topology],
        users: Collection[str] | None,
        on_round: Callable[[Sequence[str]], None] | None,
    ) -> None:
        self._keeper = keeper
        self._env = env
        self._paths = paths
        self._memory = memory
        self._marker = marker
        self._matcher = matcher
        self._reporter = reporter
        self._runner = runner
        self._backlog = backlog
        self._identity = identity
        self._resolver = resolver
        self._topology = topology
        self._users = users
        self._on_round = on_round
        self._is_first = True
        self._latest = -1
        self._is_growing = False
        self._ahead: _Ahead | None = None
        self._topology_serial = memory.topology_serial

    async def run(self) -> None:
        memory = self._memory
        while not memory.is_stopping:
            memory.wake.clear()
            await self._follow_topology()
            present, self._ahead = await self._list_and_read_ahead()
            memory.forget_absent(present)
            waiting = self._backlog.names()
            # The queue may be long and what is new in it short: the others are not looked at one by one.
            unsettled = [name for name in present if name not in memory.settled and name not in waiting]
            now_s = self._env.monotonic_s()
            new = [
                name
                for name in unsettled
                if entry_number(name) is not None and not memory.is_put_off(name, now_s)
            ]
            self._is_growing = bool(new)
            for start in range(0, len(new), _PREFETCH):
                await self._look_at(new[start : start + _PREFETCH])
                await self._backlog.wait_until_shorter_than(2 * _PREFETCH)
            self._is_first = False
            if self._on_round is not None:
                self._on_round(present)
            await self._wait()

    async def _list_and_read_ahead(self) -> tuple[tuple[str, ...], _Ahead | None]:
        """The queue's entries, and in the same request the one that most likely makes it longer, if it does.

        Not while a cleaner makes it shorter, of which the last look tells.

        A session's requests are answered in order: what is read behind the listing is as new as it would be
        if it were read next.
        """
        host = self._memory.host_guess
        if host is None or self._latest < 0 or not self._is_growing:
            return await self._list(), None
        name = entry_name(self._latest + 1)
        present, (node,), done = await asyncio.gather(
            self._list(), self._keeper.get_many([self._paths.entry(name)]), self._finished([name], host)
        )
        return present, _Ahead(host, name, node, done) if isinstance(node, Node) else None

    async def _list(self) -> tuple[str, ...]:
        memory = self._memory
        try:
            children = await self._keeper.children(self._paths.root, watch=self._on_change)
        except NoNode:
            await create_ancestors(self._keeper, self._paths.entry("x"))
            await create_if_not_exists(self._keeper, self._paths.root)
            children = await self._keeper.children(self._paths.root, watch=self._on_change)
        if memory.queue_czxid not in (0, children.stat.czxid):
            logger.warning("ddl.queue_was_recreated root=%s", self._paths.root)
            memory.forget_all()
        memory.queue_czxid = children.stat.czxid
        latest = entry_number(children.names[-1]) if children.names else None
        self._latest = -1 if latest is None else latest
        return children.names

    def _on_change(self, event: WatchEvent) -> None:
        self._memory.wake.set()

    async def _wait(self) -> None:
        """Until the queue changes; sooner when something has to be looked at again."""
        memory = self._memory
        if not memory.undecided and not self._marker.refused:
            await memory.wake.wait()
            return
        now_s = self._env.monotonic_s()
        pauses_s = [known.again_s - now_s for known in memory.undecided.values()]
        if self._marker.refused:
            pauses_s.append(LOOK_AGAIN_S)
        try:
            async with asyncio.timeout(max(min(pauses_s), _SHORTEST_WAIT_S)):
                await memory.wake.wait()
        except TimeoutError:
            if self._marker.refused:
                await self._marker.mark(self._topology())
                await self._marker.mark_others(self._topology())

    async def _follow_topology(self) -> None:
        memory = self._memory
        if self._topology_serial != memory.topology_serial:
            self._topology_serial = memory.topology_serial
            self._matcher.forget()
            memory.look_at_all_again()
            await self._marker.mark(self._topology())

    async def _look_at(self, names: list[str]) -> None:
        guess, ahead = self._memory.host_guess, self._ahead
        if self._is_first and guess is not None and len(names) > 1:
            # After a restart most of the queue has been done: do not read what was.
            done = await self._finished(names, guess)
            for name in done:
                self._memory.settle(name)
            names = [name for name in names if name not in done]
            nodes = await self._keeper.get_many([self._paths.entry(name) for name in names])
            done = set()
        elif ahead is not None and ahead.host == guess and names == [ahead.name]:
            nodes, done = [ahead.node], ahead.done
        elif guess is not None:
            nodes, done = await asyncio.gather(
                self._keeper.get_many([self._paths.entry(name) for name in names]),
                self._finished(names, guess),
            )
        else:
            nodes = await self._keeper.get_many([self._paths.entry(name) for name in names])
            done = set()
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, NoAuth):
                self._put_off(name, "ddl.not_readable")
            elif not isinstance(node, Node) or name in done:
                self._memory.settle(name)
            else:
                await self._decide(name, node)

    async def _finished(self, names: list[str], host: HostId) -> set[str]:
        stats = await self._keeper.exists_many([self._paths.finished(name, host) for name in names])
        return {name for name, stat in zip(names, stats, strict=True) if stat is not None}

    async def _decide(self, name: str, node: Node) -> None:
        """Whose is it, and does it make sense here?"""
        memory = self._memory
        try:
            entry = DDLLogEntry.from_bytes(node.data, where=name)
        except MalformedEntry as error:
            await self._refuse(name, self._identity.host_id, status_of(error))
            return
        match = await self._matcher.match(entry.hosts)
        if match.host is None:
            self._not_found(name, bool(match.unresolved))
            return
        if match.host != memory.host_guess and await self._finished([name], match.host):
            memory.settle(name)
            return
        if memory.host_guess is None:
            memory.host_guess = match.host
        try:
            task = await interpret(
                name,
                node.stat.czxid,
                node.data,
                entry,
                host=match.host,
                topology=self._topology(),
                resolver=self._resolver,
                ports=self._identity.ports,
            )
            if self._users is not None:
                check_initiator(entry, self._users)
        except SqlError as error:
            # It may have run here before the clusters were changed.
            begun = interpret_without_cluster(name, node.stat.czxid, node.data, entry, match.host)
            status = await self._runner.conclude(begun) if begun is not None else None
            await self._refuse(name, match.host, status or status_of(error))
            return
        if name in memory.undecided and memory.latest_executed > (entry_number(name) or 0):
            await self._refuse(name, match.host, _TOO_LATE)
            return
        memory.undecided.pop(name, None)
        self._backlog.add(task)

    async def _refuse(self, name: str, host: HostId, status: ExecutionStatus) -> None:
        """An outcome without execution."""
        if not await self._finished([name], host):
            logger.warning("ddl.refused entry=%s host=%s error=%s", name, host, status.message)
            await self._reporter.report_without_claim(Report(name, host, status))
        self._memory.settle(name)

    def _not_found(self, name: str, may_be_ours: bool) -> None:
        memory = self._memory
        if not may_be_ours:
            logger.debug("ddl.not_for_this_host entry=%s", name)
            memory.settle(name)
            return
        self._put_off(name, "ddl.host_unresolved")

    def _put_off(self, name: str, why: str) -> None:
        """It may be ours."""
        memory = self._memory
        if name not in memory.undecided:
            logger.warning("%s entry=%s", why, name)
        memory.look_again(name, self._env.monotonic_s())
