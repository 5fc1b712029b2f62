"""Following the queue: which entries are there, whose they are, and whether they make sense here.

Entries are read in batches, ahead of their execution, and go into the `Backlog` in queue order. What needs no
execution ends here: entries of others are passed over, entries that nobody can read or that name no
cluster of ours get an error.

An entry none of whose hosts is known to be this one, while DNS does not know some of them, may be ours, and
so may one that Keeper lets us not read, because its ACL is for servers with another <identity>: it is looked
at again as long as it is there, after `DNS_PATIENCE_S` seldom, and holds up nobody meanwhile. One whose hosts
DNS takes for other machines is passed over, and the names are asked for again as seldom: a container that is
started again has another address, and DNS says the one before for a while. If an entry turns out to be ours
after a later one has been executed, it is refused, because statements must not take effect out of their
order.

Source: ClickHouse's DDLWorker::scheduleTasks and initAndCheckTask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engine.config.model import Topology
from engine.ddl.backlog import Backlog
from engine.ddl.entry import DDLLogEntry
from engine.ddl.failures import status_of
from engine.ddl.identity import NodeIdentity, Resolver
from engine.ddl.matching import HostMatcher, Match
from engine.ddl.replicas import ReplicaMarker
from engine.ddl.report import Report, Reporter
from engine.ddl.runner import StatementRunner
from engine.ddl.status import ExecutionStatus
from engine.ddl.task import check_initiator, interpret, interpret_without_cluster
from engine.ddl.worker_memory import LOOK_AGAIN_S, LOOK_SELDOM_S, WorkerMemory
from engine.env import Env
from engine.errors import Code, MalformedEntry, NoAuth, NoNode, SqlError
from engine.keeper.base import Keeper, Node, WatchEvent
from engine.keeper.recipes import create_ancestors, create_if_not_exists
from engine.names import HostId, QueuePaths, entry_name, entry_number

logger = logging.getLogger(__name__)

_SHORTEST_WAIT_S = 0.1
_PREFETCH = 64
_TOO_LATE = ExecutionStatus(
    Code.UNFINISHED,
    f"Code: {int(Code.UNFINISHED)}. DB::Exception: This entry was not begun in its turn, because no host "
    "name in it resolved to this machine, because Keeper did not let it be read or because it was being "
    "removed, and later entries have been executed since. Submit the statement again under a new token. "
    "(UNFINISHED)",
)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """An entry that was read before it was known to be there; `done` names it if `host` has an outcome."""

    host: HostId
    name: str
    node: Node
    done: set[str]


class _HasMissed(Exception):
    """Entries that were passed over are this node's; they come before the one that told it."""


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
            try:
                for start in range(0, len(new), _PREFETCH):
                    await self._look_at(new[start : start + _PREFETCH])
                    await self._backlog.wait_until_shorter_than(2 * _PREFETCH)
            except _HasMissed:
                continue
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
        if not memory.undecided and not memory.passed_over and not self._marker.refused:
            await memory.wake.wait()
            return
        now_s = self._env.monotonic_s()
        pauses_s = [known.again_s - now_s for known in memory.undecided.values()]
        if self._marker.refused:
            pauses_s.append(LOOK_AGAIN_S)
        if memory.passed_over:
            pauses_s.append(LOOK_SELDOM_S)
        try:
            async with asyncio.timeout(max(min(pauses_s), _SHORTEST_WAIT_S)):
                await memory.wake.wait()
        except TimeoutError:
            if self._marker.refused:
                await self._marker.mark(self._topology())
                await self._marker.mark_others(self._topology())
            await self._look_for_missed()

    async def _look_for_missed(self) -> None:
        """Names that DNS took for other machines may be this one's now."""
        memory = self._memory
        for hosts in list(memory.passed_over):
            if (await self._matcher.match(hosts)).host is not None:
                logger.warning("ddl.was_passed_over entries=%d", len(memory.passed_over[hosts]))
                memory.reconsider(hosts, self._env.monotonic_s())

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
            self._not_found(name, entry.hosts, match)
            return
        if entry.hosts in memory.passed_over:
            memory.reconsider(entry.hosts, self._env.monotonic_s())
            raise _HasMissed
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
        latest = max(memory.latest_executed, self._backlog.latest)
        if name in memory.undecided and latest > (entry_number(name) or 0):
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

    def _not_found(self, name: str, hosts: tuple[HostId, ...], match: Match) -> None:
        memory = self._memory
        if match.unresolved:
            self._put_off(name, "ddl.host_unresolved")
            return
        logger.debug("ddl.not_for_this_host entry=%s", name)
        if match.elsewhere:
            memory.pass_over(name, hosts)
        else:
            memory.settle(name)

    def _put_off(self, name: str, why: str) -> None:
        """It may be ours."""
        memory = self._memory
        if name not in memory.undecided:
            logger.warning("%s entry=%s", why, name)
        memory.look_again(name, self._env.monotonic_s())
