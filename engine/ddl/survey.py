"""Everything that stands below an entry, read before it is removed: steps 1 and 2 of `engine.ddl.cleaner`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.ddl.abandonment import AbandonedHosts
from engine.ddl.entry import DDLLogEntry
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import OutcomeRecord
from engine.ddl.status import ExecutionStatus
from engine.errors import KeeperAnswer, MalformedEntry, SqlError
from engine.keeper.base import Check, Create, Keeper, Node, Op, Remove, SetData, Stat
from engine.names import HostId, QueuePaths


class Hindrance(enum.Enum):
    """Why an entry must not be removed now."""

    ACTIVE = "somebody is executing"
    LOCKED = "another cleaner, of 18.16, is at work"


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry with everything below it, and what is to be recorded of it. `below` are paths, parents before
    children; `unowned` are those below `active` that no session owns, as a copy of Keeper's tree has them."""

    name: str
    path: str
    below: tuple[str, ...]
    unowned: tuple[str, ...]
    record: OutcomeRecord
    write_record: tuple[Op, ...]

    def removal_ops(self) -> list[Op]:
        """ClickHouse's order: `active` first, `finished` and the entry last; then the record."""
        active, finished = f"{self.path}/active", f"{self.path}/finished"
        deepest_first = list(reversed(self.below))
        ops: list[Op] = [Check(self.path)]
        ops += [Remove(path) for path in deepest_first if path == active]
        ops += [Remove(path) for path in deepest_first if path not in (active, finished)]
        ops += [Remove(path) for path in deepest_first if path == finished]
        return [*ops, Remove(self.path), *self.write_record]


async def survey(keeper: Keeper, paths: QueuePaths, name: str) -> FoundEntry | Hindrance:
    """Everything below the entry, as it is now. Raises NoNode when the entry is gone."""
    path, finished = paths.entry(name), paths.finished(name) + "/"
    node = await keeper.get(path)
    tree = await _descendants(keeper, path)
    claims = [below for below in tree if below.startswith(paths.active(name) + "/")]
    if any(stat is None or stat.ephemeral_owner for stat in await keeper.exists_many(claims)):
        return Hindrance.ACTIVE
    if f"{path}/lock" in tree:
        lock = await keeper.exists(f"{path}/lock")
        if lock is not None and lock.ephemeral_owner:
            return Hindrance.LOCKED
    reported = [below for below in tree if below.startswith(finished) and "/" not in below[len(finished) :]]
    *statuses, said, earlier = await keeper.get_many([*reported, paths.abandoned(name), paths.outcome(name)])
    outcomes = {}
    for below, status_node in zip(reported, statuses, strict=True):
        host = _parse_host(below[len(finished) :])
        if host is not None and isinstance(status_node, Node):
            outcomes[host] = _outcome(host, status_node, node.stat)
    word: tuple[Op, ...] = ()
    if isinstance(said, Node):
        word = (Remove(paths.abandoned(name), said.stat.version),)
        abandoned = AbandonedHosts.from_bytes(said.data)
        if abandoned.czxid == node.stat.czxid:
            outcomes = {host: by.outcome(host) for host, by in abandoned.hosts.items()} | outcomes
    try:
        entry = DDLLogEntry.from_bytes(node.data, where=name)
    except MalformedEntry:
        entry = None
    record = OutcomeRecord.of(name, node.stat, entry, outcomes)
    if isinstance(earlier, Node):
        record = record.merged(OutcomeRecord.from_bytes(earlier.data))
        write: Op = SetData(paths.outcome(name), record.to_bytes(), earlier.stat.version)
    else:
        write = Create(paths.outcome(name), record.to_bytes())
    return FoundEntry(name, path, tuple(tree), tuple(claims), record, (*word, write))


async def _descendants(keeper: Keeper, path: str) -> list[str]:
    """All nodes below `path`, parents before their children.

    Nodes below `active` and `finished` are not looked into: nobody makes any there, and if somebody does, the
    entry cannot be removed and stays.
    """
    found: list[str] = []
    level = [path]
    while level:
        below = []
        for parent, children in zip(level, await keeper.children_many(level), strict=True):
            if not isinstance(children, KeeperAnswer):
                below += [f"{parent}/{name}" for name in children.names]
        found += below
        level = [p for p in below if not p.startswith((f"{path}/active/", f"{path}/finished/"))]
    return found


def _outcome(host: HostId, node: Node, entry: Stat) -> HostOutcome:
    status = ExecutionStatus.from_bytes(node.data)
    return HostOutcome(
        host,
        HostState.DONE if status.is_success else HostState.FAILED,
        code=status.code,
        error=status.message,
        finished_ms=node.stat.ctime_ms,
        duration_ms=max(0, node.stat.ctime_ms - entry.ctime_ms),
    )


def _parse_host(name: str) -> HostId | None:
    try:
        return HostId.parse(name)
    except SqlError:
        return None
