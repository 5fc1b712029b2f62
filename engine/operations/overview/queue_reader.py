"""Reading the whole queue again and again, cheaply: what cannot change is read once.

A queue of 1,000 tasks on 100 hosts has 100,000 outcomes. An outcome never changes once it is written, so it
is kept; a task whose hosts all have theirs is never asked for again. Each look is bounded in time and goes
on where the last one stopped: first what is in the queue and who is executing, then outcomes, those of the
window that is looked at before the others.

A queue usually serves several clusters, and who may see one of them need not see the others: of an entry
whose ON CLUSTER names another cluster nothing leaves this file but that a host has it before its own. An
entry of which it cannot be told is shown without its text.

It only reads. One reader serves one queue; whoever has several callers lets one look at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.ddl.abandonment import AbandonedHosts, Abandonment
from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import without_token
from engine.ddl.status import ExecutionStatus
from engine.env import Env
from engine.errors import Code, Corrupt, MalformedEntry, NoNode, SqlError
from engine.keeper.base import Children, Keeper, Node
from engine.names import HostId, QueuePaths, entry_number
from engine.operations.overview.model import (
    Cell,
    HostFailure,
    Presence,
    QueueView,
    Task,
    TaskForm,
)
from engine.sql import expand_macros, parse_statement, redact, redact_prose

_ENTRIES_A_BATCH = 100
_OUTCOMES_A_BATCH = 1000
_SHOWN_ERRORS = 100
_LONGEST_QUERY = 2000
_LONGEST_ERROR = 4000


@dataclass(slots=True)
class _Failure:
    code: int
    text: str
    at_ms: int


@dataclass(slots=True)
class _Known:
    """What is known of one entry. `outcomes` has a letter for each host that has finished.

    `cluster` is the one it is for; `entry` is None where that, or anything of it, cannot be read.
    """

    name: str
    created_ms: int
    czxid: int
    entry: DDLLogEntry | None
    cluster: str = ""
    is_foreign: bool = False
    """It is for another cluster: its outcomes are not read."""
    listed: frozenset[str] = frozenset()
    outcomes: dict[str, str] = field(default_factory=dict)
    failures: dict[str, _Failure] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    abandoned: dict[str, Abandonment] = field(default_factory=dict)
    form: TaskForm = TaskForm.USUAL
    is_listed: bool = False
    listed_s: float = -1.0
    """When its hosts were read last, on the monotonic clock."""
    shown: Task | None = None
    """The task as it was shown last; kept once it is settled."""

    @property
    def unread(self) -> list[str]:
        if self.is_foreign:
            return []
        return [host for host, letter in self.outcomes.items() if letter == Cell.UNREAD.value]

    @property
    def is_settled(self) -> bool:
        """Nothing about it will change but its removal."""
        return (
            self.is_listed
            and self.entry is not None
            and self.form is TaskForm.USUAL
            and not self.active
            and self.listed <= self.outcomes.keys()
            and not self.unread
        )

    def cells(self, columns: Sequence[str], presence: dict[str, Presence]) -> str:
        letters = []
        for host in columns:
            letter = self.outcomes.get(host)
            if letter is None:
                if host in self.active:
                    letter = Cell.RUNNING.value
                elif host in self.abandoned:
                    letter = Cell.ABANDONED.value
                elif host not in self.listed or self.form is TaskForm.BEING_REMOVED:
                    letter = Cell.NONE.value
                else:
                    is_away = presence.get(host) is Presence.AWAY
                    letter = Cell.AWAY.value if is_away else Cell.WAITING.value
            letters.append(letter)
        return "".join(letters)


class QueueReader:
    """The memory of one queue, as far as it concerns `cluster` and its `hosts`. `macros` are those of the
    configuration: in an entry of a foreign program the cluster may be one."""

    def __init__(
        self,
        env: Env,
        paths: QueuePaths,
        hosts: Iterable[HostId],
        *,
        cluster: str,
        macros: Mapping[str, str] | None = None,
    ) -> None:
        self._env = env
        self._paths = paths
        self._cluster = cluster
        self._macros = macros or {}
        self._hosts = {str(host): host for host in hosts}
        self._own = frozenset(self._hosts)
        self._known: dict[str, _Known] = {}
        self._queue_czxid = 0
        self._columns: tuple[str, ...] = tuple(self._hosts)

    async def look(self, keeper: Keeper, *, patience_s: float, begin: int = 0, count: int = 50) -> QueueView:
        """The queue now: which tasks the window has and who has ended them, and as much more as can be read
        in `patience_s`. `begin` and `count` are the window, counted from the newest task; until the whole
        queue has been seen, those of other clusters may have places in it.

        Raises what Keeper raises.
        """
        started_s = self._env.monotonic_s()
        names = await self._names(keeper)
        keeper_ms = (self._env.monotonic_s() - started_s) * 1000
        presence = await self._presence(keeper)
        own = [name for name in names if name not in self._known or not self._known[name].is_foreign]
        window = own[begin : begin + count]
        chosen = set(window)
        order = [*window, *(name for name in names if name not in chosen)]
        await self._read_entries(keeper, window, until_s=None)
        if patience_s > 0:
            until_s = self._env.monotonic_s() + patience_s
            await self._read_entries(keeper, order[len(window) :], until_s=until_s)
            await self._read_outcomes(keeper, order, until_s=until_s)
        return self._view(names, window, presence, keeper_ms)

    def detailed(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The same tasks with their statements and errors. Reads nothing."""
        return tuple(self._detailed(task) for task in tasks)

    # --- reading --------------------------------------------------------------------------------------------

    async def _names(self, keeper: Keeper) -> list[str]:
        """Of all entries, the newest first; what went away is forgotten."""
        try:
            children = await keeper.children(self._paths.root)
        except NoNode:
            self._known.clear()
            return []
        if children.stat.czxid != self._queue_czxid:  # another queue at the same place, with the same names
            self._known.clear()
            self._queue_czxid = children.stat.czxid
        names = sorted((n for n in children.names if entry_number(n) is not None), reverse=True)
        for gone in self._known.keys() - set(names):
            del self._known[gone]
        return names

    async def _presence(self, keeper: Keeper) -> dict[str, Presence]:
        found = await keeper.children_many([self._paths.replica(host) for host in self._columns])
        return {host: _presence_of(answer) for host, answer in zip(self._columns, found, strict=True)}

    async def _read_entries(self, keeper: Keeper, order: Sequence[str], *, until_s: float | None) -> None:
        """Texts, who has finished and who is executing, of all that is not settled.

        At least one batch, so that looks that are short of time get on, too; what was not read for the
        longest time comes first, so that none is left out.
        """
        todo = [n for n in order if (known := self._known.get(n)) is None or not known.is_settled]
        todo.sort(key=lambda name: self._known[name].listed_s if name in self._known else -1.0)
        for at in range(0, len(todo), _ENTRIES_A_BATCH):
            batch = todo[at : at + _ENTRIES_A_BATCH]
            if at and until_s is not None and self._env.monotonic_s() >= until_s:
                return
            await self._read_texts(keeper, [name for name in batch if name not in self._known])
            batch = [name for name in batch if name in self._known]
            finished = await keeper.children_many([self._paths.finished(name) for name in batch])
            active = await keeper.children_many([self._paths.active(name) for name in batch])
            given_up = await keeper.get_many([self._paths.abandoned(name) for name in batch])
            for name, done, running, words in zip(batch, finished, active, given_up, strict=True):
                self._note_hosts(self._known[name], done, running)
                _note_abandoned(self._known[name], words)
                self._known[name].listed_s = self._env.monotonic_s()

    async def _read_texts(self, keeper: Keeper, names: Sequence[str]) -> None:
        nodes = await keeper.get_many([self._paths.entry(name) for name in names])
        for name, node in zip(names, nodes, strict=True):
            if not isinstance(node, Node):
                continue  # removed while we were reading
            try:
                entry = DDLLogEntry.from_bytes(node.data, where=name)
                cluster = self._cluster_of(entry)
            except (MalformedEntry, SqlError):
                self._known[name] = _Known(
                    name, node.stat.ctime_ms, node.stat.czxid, None, form=TaskForm.UNREADABLE
                )
                continue
            is_foreign = cluster != self._cluster
            for host in () if is_foreign else entry.hosts:
                self._hosts.setdefault(str(host), host)
            listed = frozenset(sys.intern(str(host)) for host in entry.hosts)
            self._known[name] = _Known(
                name, node.stat.ctime_ms, node.stat.czxid, entry, cluster, is_foreign, listed
            )

    def _cluster_of(self, entry: DDLLogEntry) -> str:
        """Raises SqlError where the statement names none, or a macro that is not known here."""
        name = expand_macros(parse_statement(entry.query).on_cluster or "", self._macros)
        if not name:
            raise SqlError(Code.BAD_ARGUMENTS, "The entry names no cluster")
        return name

    @staticmethod
    def _note_hosts(known: _Known, finished: object, active: object) -> None:
        done = finished.names if isinstance(finished, Children) else ()
        for host in done:
            known.outcomes.setdefault(sys.intern(host), Cell.UNREAD.value)
        known.active = frozenset(active.names if isinstance(active, Children) else ()) - known.outcomes.keys()
        known.is_listed = True
        if known.entry is not None:
            if isinstance(active, Children):
                known.form = TaskForm.USUAL
            else:
                has_finished = isinstance(finished, Children)
                known.form = TaskForm.BEING_REMOVED if has_finished else TaskForm.WITHOUT_DIRECTORIES

    async def _read_outcomes(self, keeper: Keeper, order: Sequence[str], *, until_s: float) -> None:
        """Of the window first; at least one batch."""
        todo = [(known, host) for name in order if (known := self._known.get(name)) for host in known.unread]
        for at in range(0, len(todo), _OUTCOMES_A_BATCH):
            batch = todo[at : at + _OUTCOMES_A_BATCH]
            if at and self._env.monotonic_s() >= until_s:
                return
            nodes = await keeper.get_many([self._paths.finished(known.name, host) for known, host in batch])
            for (known, host), node in zip(batch, nodes, strict=True):
                if isinstance(node, Node):
                    _note_outcome(known, host, node)

    # --- showing --------------------------------------------------------------------------------------------

    def _view(
        self, names: Sequence[str], window: Sequence[str], presence: dict[str, Presence], keeper_ms: float
    ) -> QueueView:
        columns = tuple(self._hosts)
        if columns != self._columns:
            self._columns = columns
            for known in self._known.values():
                known.shown = None
        read = [self._known[name] for name in names if name in self._known]
        tasks = [self._task(known, presence) for known in read if not known.is_foreign]
        wanted = {*window, *[task.name for task in tasks if task.is_open][:_SHOWN_ERRORS]}
        return QueueView(
            path=self._paths.root,
            hosts=tuple(self._hosts[host].readable for host in columns),
            tasks=tuple(self._detailed(task) if task.name in wanted else task for task in tasks),
            presence={self._hosts[host].readable: state for host, state in presence.items()},
            unread=len(names) - len(read) + sum(1 for task in tasks if Cell.UNREAD.value in task.cells),
            keeper_ms=keeper_ms,
            foreign_first=self._foreign_first(read),
        )

    def _foreign_first(self, read: Sequence[_Known]) -> dict[str, str]:
        found: dict[str, str] = {}
        for known in read:  # the newest first, so that the oldest stays
            if known.is_foreign and known.is_listed and known.form is not TaskForm.BEING_REMOVED:
                for host in (known.listed & self._own) - known.outcomes.keys():
                    found[self._hosts[host].readable] = known.name
        return found

    def _task(self, known: _Known, presence: dict[str, Presence]) -> Task:
        if known.shown is not None:
            return known.shown
        task = Task(known.name, known.created_ms, known.cells(self._columns, presence), known.form)
        if known.is_settled:
            known.shown = task
        return task

    def _detailed(self, task: Task) -> Task:
        known = self._known.get(task.name)
        if task.query or known is None:
            return task
        if known.entry is None:
            return replace(task, query="(an entry that cannot be read)")
        query = " ".join(redact(without_token(known.entry.query)).split())
        detailed = replace(
            task,
            query=query[:_LONGEST_QUERY],
            cluster=known.cluster,
            initiator=_readable(known.entry.initiator or ""),
            failures={
                _readable(host): HostFailure(failure.code, redact_prose(failure.text), failure.at_ms)
                for host, failure in [*known.failures.items(), *_given_up(known)][:_SHOWN_ERRORS]
            },
        )
        if known.shown is not None:
            known.shown = detailed
        return detailed


def _note_abandoned(known: _Known, node: object) -> None:
    """A word about another entry of the same name, or one that nobody can read, is none."""
    known.abandoned = {}
    if isinstance(node, Node):
        try:
            said = AbandonedHosts.from_bytes(node.data)
        except Corrupt:
            return
        if said.czxid == known.czxid:
            known.abandoned = {str(host): word for host, word in said.hosts.items()}


def _given_up(known: _Known) -> list[tuple[str, _Failure]]:
    return [
        (host, _Failure(Code.UNFINISHED, f"Abandoned by {word.by}: {word.reason}", word.at_ms))
        for host, word in known.abandoned.items()
        if host not in known.outcomes
    ]


def _note_outcome(known: _Known, host: str, node: Node) -> None:
    status = ExecutionStatus.from_bytes(node.data)
    if status.is_success:
        known.outcomes[host] = Cell.DONE.value
        return
    known.outcomes[host] = Cell.FAILED.value
    known.failures[host] = _Failure(status.code, status.message[:_LONGEST_ERROR], node.stat.ctime_ms)


def _presence_of(answer: object) -> Presence:
    """A host whose directory never held anything may be a server that does not know of the directory."""
    if not isinstance(answer, Children):
        return Presence.UNKNOWN
    if answer.names:
        return Presence.ACTIVE
    return Presence.AWAY if answer.stat.cversion > 0 else Presence.UNKNOWN


def _readable(host: str) -> str:
    """A foreign initiator may write anything there."""
    try:
        return HostId.parse(host).readable
    except SqlError:
        return host
