"""One write, carried out in memory on what was read of etcd; what it comes to is written at once afterwards.

Operations run one after the other on copies, so that later ones see what earlier ones did, and a failing one
leaves nothing behind. Semantics and the order of checks are those of `engine.keeper.tree`, which is
ZooKeeper's. Each touched node remembers what the outcome depends on, so that exactly that is compared when it
is written (`engine.keeper.etcd.plan`):

    its record           of every node that an operation looked at
    its counts, exactly  of a node that gives a sequence number, or that is removed and so must be empty;
                         of others children are counted without looking
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import (
    BadArguments,
    BadVersion,
    KeeperAnswer,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
)
from engine.keeper.base import (
    ANY_VERSION,
    OPEN_ACL,
    Acl,
    Check,
    Create,
    EventType,
    Op,
    Remove,
    SetData,
    Stat,
)
from engine.keeper.checks import path_problem
from engine.keeper.etcd.record import SELF, STALE, Family, Record, absent
from engine.keeper.tree import (
    ADMIN,
    CREATE,
    DELETE,
    READ,
    RUNTIME_INCONSISTENCY,
    WRITE,
    Caller,
    Change,
    fix_acl,
    is_permitted,
)


class NotRead(Exception):
    """The outcome depends on counts that are not known."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class SetAcl:
    """As an operation of its own; it is no part of a multi."""

    path: str
    acl: tuple[Acl, ...]
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class EndSession:
    """Remove a session's ephemeral nodes, `paths`, in one transaction."""

    session_id: int
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/"


Request = Op | SetAcl | EndSession


@dataclass(slots=True)
class Touched:
    """One node as the write leaves it. `created` and `removed` count children since it was read, or since it
    was created in this write (`is_new`)."""

    path: str
    before: Family
    record: Record | None
    czxid: int = 0
    mzxid: int = 0
    created: int = 0
    removed: int = 0
    is_written: bool = False
    is_new: bool = False
    needs_created: bool = False
    needs_removed: bool = False

    @property
    def num_created(self) -> int:
        return self.created if self.is_new else self.before.num_created + self.created

    @property
    def num_removed(self) -> int:
        return self.removed if self.is_new else self.before.num_removed + self.removed

    @property
    def num_children(self) -> int:
        return self.num_created - self.num_removed


@dataclass(frozen=True, slots=True)
class PendingStat:
    """The Stat of a node that was set; its counts and zxids are known when the write is done."""

    path: str
    record: Record
    czxid: int
    mzxid: int
    created: int
    removed: int
    is_new: bool

    def resolve(self, revision: int, before: Family) -> Stat:
        """`before` is the node's family just before the write at `revision`."""
        created, removed, pzxid = self.created, self.removed, revision
        czxid = revision if self.czxid == SELF else self.czxid
        if not self.is_new:
            if not created and not removed:
                pzxid = before.pzxid
            created += before.num_created
            removed += before.num_removed
        record = self.record
        return Stat(
            czxid,
            revision if self.mzxid == SELF else self.mzxid,
            record.ctime_ms,
            record.mtime_ms,
            record.version,
            created + removed,
            record.aversion,
            record.owner,
            len(record.data),
            created - removed,
            pzxid,
        )


PendingResult = str | PendingStat | None


@dataclass(slots=True)
class Overlay:
    """`families` is what was read, by path. A node that is missing there is assumed to be absent, which the
    write finds out when it is not so."""

    families: Mapping[str, Family]
    caller: Caller
    assumed: set[str] = field(default_factory=set)
    nodes: dict[str, Touched] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    ephemerals: dict[tuple[int, str], bool] = field(default_factory=dict)
    """Entries of the index to be written (True) or removed."""

    def run(self, requests: Sequence[Request], *, is_multi: bool) -> list[PendingResult]:
        """Raises a KeeperAnswer (MultiFailed if `is_multi`), NotRead."""
        results: list[PendingResult] = []
        try:
            for request in requests:
                results.append(self._apply(request))
        except KeeperAnswer as error:
            if not is_multi:
                raise
            failed = len(results)
            after = [RUNTIME_INCONSISTENCY] * (len(requests) - failed - 1)
            raise MultiFailed(failed, error, [0] * failed + [error.keeper_code] + after) from None
        return results

    def _touch(self, path: str) -> Touched:
        node = self.nodes.get(path)
        if node is None:
            family = self.families.get(path)
            if family is None:
                self.assumed.add(path)
                family = absent(0)
            record = family.record
            node = Touched(path, family, record)
            if record is not None:
                node.czxid, node.mzxid = family.czxid, family.mzxid
            self.nodes[path] = node
        return node

    def _existing(self, path: str) -> tuple[Touched, Record]:
        if "\0" in path:
            raise NoNode(path)
        node = self._touch(path)
        if node.record is None:
            raise NoNode(path)
        return node, node.record

    def _permit(self, record: Record, perm: int, path: str) -> None:
        if record.acl is not OPEN_ACL and not is_permitted(record.acl, perm, self.caller.identities):
            raise NoAuth(path)

    def _know(self, node: Touched, *, created: bool = False, removed: bool = False) -> None:
        """The outcome depends on the node's counts."""
        if node.is_new:
            return
        before = node.before
        for needs, count in ((created, before.created), (removed, before.removed)):
            if needs and count is not None and count.mod == STALE:
                raise NotRead(node.path)
        node.needs_created |= created
        node.needs_removed |= removed

    def _apply(self, request: Request) -> PendingResult:
        match request:
            case Create():
                return self._create(request)
            case SetData():
                return self._set(request)
            case Remove():
                self._remove(request)
            case Check():
                self._check(request)
            case SetAcl():
                return self._set_acl(request)
            case EndSession():
                self._end_session(request)
        return None

    def _create(self, op: Create) -> str:
        path = op.path
        if "\0" in path:
            raise BadArguments(path, path_problem(path))
        acl = fix_acl(op.acl, self.caller, path)
        if path == "/":
            raise NodeExists(path)
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._touch(parent_path)
        if parent.record is None:
            raise NoNode(path)
        self._permit(parent.record, CREATE, path)
        if op.mode.is_sequential:
            self._know(parent, created=True)
            path += f"{parent.num_created:010d}"
        if problem := path_problem(path):
            raise BadArguments(op.path, problem)
        node = self._touch(path)
        if node.record is not None:
            raise NodeExists(op.path)
        if parent.record.owner:
            raise NoChildrenForEphemerals(op.path)
        owner = self.caller.session_id if op.mode.is_ephemeral else 0
        now_ms = self.caller.now_ms
        node.record = Record(SELF, SELF, now_ms, now_ms, owner, 0, 0, acl, op.data)
        node.czxid = node.mzxid = SELF
        node.is_written = node.is_new = True
        node.created = node.removed = 0
        if owner:
            self.ephemerals[owner, path] = True
        parent.created += 1
        self.changes.append((EventType.CREATED, path, acl, parent.record.acl))
        return path

    def _set(self, op: SetData) -> PendingStat:
        node, record = self._existing(op.path)
        self._permit(record, WRITE, op.path)
        if op.version not in (ANY_VERSION, record.version):
            raise BadVersion(op.path)
        node.record = record._replace(
            czxid=node.czxid,
            mzxid=SELF,
            mtime_ms=self.caller.now_ms,
            version=record.version + 1,
            data=op.data,
        )
        node.mzxid = SELF
        node.is_written = True
        self.changes.append((EventType.CHANGED, op.path, record.acl, OPEN_ACL))
        return self._pending(node, node.record)

    def _set_acl(self, request: SetAcl) -> PendingStat:
        path = request.path
        fixed = fix_acl(request.acl, self.caller, path)
        node, record = self._existing(path)
        self._permit(record, ADMIN, path)
        if request.version not in (ANY_VERSION, record.aversion):
            raise BadVersion(path)
        node.record = record._replace(
            czxid=node.czxid, mzxid=node.mzxid, aversion=record.aversion + 1, acl=fixed
        )
        node.is_written = True
        return self._pending(node, node.record)

    @staticmethod
    def _pending(node: Touched, record: Record) -> PendingStat:
        return PendingStat(node.path, record, node.czxid, node.mzxid, node.created, node.removed, node.is_new)

    def _remove(self, op: Remove) -> None:
        path = op.path
        if path == "/":
            raise BadArguments(path, "The root cannot be removed")
        if "\0" in path:
            raise NoNode(path)
        parent = self._touch(path.rpartition("/")[0] or "/")
        if parent.record is None:
            raise NoNode(path)
        self._permit(parent.record, DELETE, path)
        node, record = self._existing(path)
        if op.version not in (ANY_VERSION, record.version):
            raise BadVersion(path)
        self._know(node, created=True, removed=True)
        if node.num_children:
            raise NotEmpty(path)
        self._drop(node, record, parent)

    def _drop(self, node: Touched, record: Record, parent: Touched) -> None:
        if record.owner:
            self.ephemerals[record.owner, node.path] = False
        node.record = None
        node.is_written = node.is_new = True
        node.created = node.removed = 0
        parent.removed += 1
        parent_acl = parent.record.acl if parent.record else OPEN_ACL
        self.changes.append((EventType.DELETED, node.path, record.acl, parent_acl))

    def _check(self, op: Check) -> None:
        _, record = self._existing(op.path)
        self._permit(record, READ, op.path)
        if op.version not in (ANY_VERSION, record.version):
            raise BadVersion(op.path)

    def _end_session(self, request: EndSession) -> None:
        for path in request.paths:
            self.ephemerals[request.session_id, path] = False
            node = self._touch(path)
            if node.record is None or node.record.owner != request.session_id:
                continue
            self._drop(node, node.record, self._touch(path.rpartition("/")[0] or "/"))
