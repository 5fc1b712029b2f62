"""The tree of znodes as a pure state machine: no sessions' life, no watches, no time of its own.

Every write takes one transaction id, whether it succeeds or not, and appends what it changed to `changes`,
from which watches are fired. Semantics are ZooKeeper's (PrepRequestProcessor and DataTree of 3.9), including
the order in which errors are looked for:

    create    bad ACL · no parent · no permission · bad path · exists · parent is ephemeral
    remove    root · no parent · no permission (the parent's) · no node · version · children
    set       no node · no permission · version
    check     no node · no permission · version

A create with a sequence gets the number of creations that its parent has ever seen; removals do not rewind
it.

Left out: the `/zookeeper` subtree, quotas, container and TTL nodes, ACL schemes other than world, auth and
digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.errors import (
    BadArguments,
    BadVersion,
    InvalidAcl,
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
    Children,
    Create,
    EventType,
    Node,
    Op,
    OpResult,
    Remove,
    SetData,
    Stat,
)
from engine.keeper.checks import path_problem

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
RUNTIME_INCONSISTENCY = -2
_WORLD = ("world", "anyone")

Identity = tuple[str, str]
Change = tuple[EventType, str, tuple[Acl, ...], tuple[Acl, ...]]
"""What happened to which node, its ACL and its parent's: nobody is told of a node that they may not read."""


class Caller(NamedTuple):
    """Who asks: the session, its identities, and the server's clock (Unix milliseconds)."""

    session_id: int
    identities: frozenset[Identity]
    now_ms: int


class Znode:
    """One node. Mutable; only `Tree` changes it."""

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "creations",
        "ctime_ms",
        "cversion",
        "czxid",
        "data",
        "mtime_ms",
        "mzxid",
        "names",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes, acl: tuple[Acl, ...], owner: int, zxid: int, now_ms: int) -> None:
        self.data = data
        self.acl = acl
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime_ms = self.mtime_ms = now_ms
        self.version = self.cversion = self.aversion = 0
        self.creations = 0
        self.children: set[str] = set()
        self.names: tuple[str, ...] | None = ()  # the children sorted; None after a change

    def stat(self) -> Stat:
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            self.cversion,
            self.aversion,
            self.owner,
            len(self.data),
            len(self.children),
            self.pzxid,
        )

    def copy(self) -> Znode:
        twin = Znode(self.data, self.acl, self.owner, self.czxid, self.ctime_ms)
        twin.mzxid, twin.pzxid, twin.mtime_ms = self.mzxid, self.pzxid, self.mtime_ms
        twin.version, twin.cversion, twin.aversion = self.version, self.cversion, self.aversion
        twin.creations = self.creations
        twin.children, twin.names = set(self.children), self.names
        return twin


class Tree:
    """All nodes, by path. `changes` collects what writes did until somebody takes it."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Znode] = {"/": Znode(b"", OPEN_ACL, 0, 0, 0)}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.changes: list[Change] = []
        self._undo: list[Callable[[], None]] | None = None

    def snapshot(self) -> Tree:
        """A copy that later writes do not touch."""
        twin = Tree()
        twin.zxid = self.zxid
        twin.nodes = {path: node.copy() for path, node in self.nodes.items()}
        twin.ephemerals = {session: dict(paths) for session, paths in self.ephemerals.items()}
        return twin

    # --- reads --------------------------------------------------------------------------------------------

    def exists(self, path: str, caller: Caller) -> Stat | None:
        """Asks for READ permission, as ZooKeeper does since 3.9.2; before, and in ClickHouse Keeper, for
        none."""
        node = self.nodes.get(path)
        if node is None:
            return None
        self._permit(node, READ, caller, path)
        return node.stat()

    def get(self, path: str, caller: Caller) -> Node:
        node = self._node(path)
        self._permit(node, READ, caller, path)
        return Node(node.data, node.stat())

    def children(self, path: str, caller: Caller) -> Children:
        node = self._node(path)
        self._permit(node, READ, caller, path)
        if node.names is None:
            node.names = tuple(sorted(node.children))
        return Children(node.names, node.stat())

    def get_acl(self, path: str, caller: Caller) -> tuple[Acl, ...]:
        """Digests are blotted out for whoever has no ADMIN permission."""
        node = self._node(path)
        if is_permitted(node.acl, ADMIN, caller.identities):
            return node.acl
        self._permit(node, READ, caller, path)
        return blotted(node.acl)

    # --- writes -------------------------------------------------------------------------------------------

    def write(self, op: Op, caller: Caller) -> OpResult:
        """One operation as its own transaction. Raises a KeeperAnswer and then changes nothing but zxid."""
        self.zxid += 1
        return self._apply(op, caller)

    def multi(self, ops: Sequence[Op], caller: Caller) -> list[OpResult]:
        """All or nothing under one zxid; later operations see what earlier ones did. Raises MultiFailed."""
        self.zxid += 1
        undo: list[Callable[[], None]] = []
        self._undo = undo
        done_changes = len(self.changes)
        results: list[OpResult] = []
        try:
            for op in ops:
                results.append(self._apply(op, caller))
        except KeeperAnswer as error:
            for revert in reversed(undo):
                revert()
            del self.changes[done_changes:]
            failed = len(results)
            after = [RUNTIME_INCONSISTENCY] * (len(ops) - failed - 1)
            raise MultiFailed(failed, error, [0] * failed + [error.keeper_code] + after) from None
        finally:
            self._undo = None
        return results

    def set_acl(self, path: str, acl: Sequence[Acl], caller: Caller, *, version: int) -> Stat:
        self.zxid += 1
        fixed = fix_acl(acl, caller, path)
        node = self._node(path)
        self._permit(node, ADMIN, caller, path)
        if version not in (ANY_VERSION, node.aversion):
            raise BadVersion(path)
        node.acl = fixed
        node.aversion += 1
        return node.stat()

    def end_session(self, session_id: int) -> None:
        """Remove the session's ephemeral nodes, in one transaction."""
        self.zxid += 1
        for path in self.ephemerals.pop(session_id, {}):
            self._remove_node(path, self.nodes[path])

    # --- inside -------------------------------------------------------------------------------------------

    def _node(self, path: str) -> Znode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    @staticmethod
    def _permit(node: Znode, perm: int, caller: Caller, path: str) -> None:
        if node.acl is not OPEN_ACL and not is_permitted(node.acl, perm, caller.identities):
            raise NoAuth(path)

    def _apply(self, op: Op, caller: Caller) -> OpResult:
        if isinstance(op, Create):
            return self._create(op, caller)
        if isinstance(op, SetData):
            return self._set(op, caller)
        if isinstance(op, Remove):
            self._remove(op, caller)
        else:
            self._check(op, caller)
        return None

    def _create(self, op: Create, caller: Caller) -> str:
        path, mode = op.path, op.mode
        if "\0" in path:
            raise BadArguments(path, path_problem(path))
        acl = fix_acl(op.acl, caller, path)
        if path == "/":
            raise NodeExists(path)
        parent_path, _, name = path.rpartition("/")
        parent_path = parent_path or "/"
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise NoNode(path)
        self._permit(parent, CREATE, caller, path)
        if mode.is_sequential:
            suffix = f"{parent.creations:010d}"
            path += suffix
            name += suffix
        if problem := path_problem(path):
            raise BadArguments(op.path, problem)
        if path in self.nodes:
            raise NodeExists(op.path)
        if parent.owner:
            raise NoChildrenForEphemerals(op.path)
        owner = caller.session_id if mode.is_ephemeral else 0
        if self._undo is not None:
            self._undo.append(self._create_undo(path, name, parent, owner))
        self.nodes[path] = Znode(op.data, acl, owner, self.zxid, caller.now_ms)
        if owner:
            self.ephemerals.setdefault(owner, {})[path] = None
        parent.children.add(name)
        parent.names = None
        parent.creations += 1
        parent.cversion += 1
        parent.pzxid = self.zxid
        self.changes.append((EventType.CREATED, path, acl, parent.acl))
        return path

    def _create_undo(self, path: str, name: str, parent: Znode, owner: int) -> Callable[[], None]:
        before = parent.creations, parent.cversion, parent.pzxid

        def revert() -> None:
            del self.nodes[path]
            if owner:
                del self.ephemerals[owner][path]
            parent.children.discard(name)
            parent.names = None
            parent.creations, parent.cversion, parent.pzxid = before

        return revert

    def _set(self, op: SetData, caller: Caller) -> Stat:
        node = self._node(op.path)
        self._permit(node, WRITE, caller, op.path)
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion(op.path)
        if self._undo is not None:
            before = node.data, node.version, node.mzxid, node.mtime_ms

            def revert() -> None:
                node.data, node.version, node.mzxid, node.mtime_ms = before

            self._undo.append(revert)
        node.data = op.data
        node.version += 1
        node.mzxid = self.zxid
        node.mtime_ms = caller.now_ms
        self.changes.append((EventType.CHANGED, op.path, node.acl, OPEN_ACL))
        return node.stat()

    def _remove(self, op: Remove, caller: Caller) -> None:
        path = op.path
        if path == "/":
            raise BadArguments(path, "The root cannot be removed")
        parent = self.nodes.get(path.rpartition("/")[0] or "/")
        if parent is None:
            raise NoNode(path)
        self._permit(parent, DELETE, caller, path)
        node = self._node(path)
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        if node.children:
            raise NotEmpty(path)
        if node.owner:
            del self.ephemerals[node.owner][path]
        self._remove_node(path, node)

    def _remove_node(self, path: str, node: Znode) -> None:
        parent_path, _, name = path.rpartition("/")
        parent = self.nodes[parent_path or "/"]
        if self._undo is not None:
            before = parent.cversion, parent.pzxid

            def revert() -> None:
                self.nodes[path] = node
                if node.owner:
                    self.ephemerals.setdefault(node.owner, {})[path] = None
                parent.children.add(name)
                parent.names = None
                parent.cversion, parent.pzxid = before

            self._undo.append(revert)
        del self.nodes[path]
        parent.children.discard(name)
        parent.names = None
        parent.cversion += 1
        parent.pzxid = self.zxid
        self.changes.append((EventType.DELETED, path, node.acl, parent.acl))

    def _check(self, op: Check, caller: Caller) -> None:
        node = self._node(op.path)
        self._permit(node, READ, caller, op.path)
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion(op.path)


def is_permitted(acl: tuple[Acl, ...], perm: int, identities: frozenset[Identity]) -> bool:
    """Whether any entry of the ACL gives one of the identities, or the world, this permission."""
    return acl is OPEN_ACL or any(
        entry.perms & perm and ((entry.scheme, entry.id) == _WORLD or (entry.scheme, entry.id) in identities)
        for entry in acl
    )


def blotted(acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
    """The ACL as it is shown to whoever has no ADMIN permission: without digests."""
    return tuple(
        Acl(entry.perms, entry.scheme, entry.id.partition(":")[0] + ":x")
        if entry.scheme == "digest"
        else entry
        for entry in acl
    )


def digest_identity(credentials: bytes) -> Identity:
    """The identity that `user:password` gives a session, as it stands in ACLs."""
    digest = base64.b64encode(hashlib.sha1(credentials).digest()).decode()
    return "digest", f"{credentials.partition(b':')[0].decode()}:{digest}"


def fix_acl(acl: Sequence[Acl], caller: Caller, path: str) -> tuple[Acl, ...]:
    """Replace `auth` by the caller's identities, drop repetitions. Raises InvalidAcl."""
    if acl is OPEN_ACL or acl == OPEN_ACL:
        return OPEN_ACL
    fixed: dict[Acl, None] = {}
    for entry in acl:
        match entry.scheme:
            case "world" if entry.id == "anyone":
                fixed[entry] = None
            case "auth" if caller.identities:
                fixed |= {Acl(entry.perms, *identity): None for identity in sorted(caller.identities)}
            case "digest" if entry.id.count(":") == 1:
                fixed[entry] = None
            case _:
                raise InvalidAcl(path)
    if not fixed:
        raise InvalidAcl(path)
    return tuple(fixed)
