"""The coordination interface: ZooKeeper's semantics, one object per session.

A `Keeper` is one session. When the session is over the object is dead: every call raises `SessionExpired`,
every pending watch has been told (`EventType.SESSION`), and its owner opens a new one through the factory
that made it. Nothing re-arms or re-creates anything behind the owner's back.

    ConnectionLoss    the connection broke; for a write the outcome is unknown. The session may still live:
                      the same object may be used again, and the backend reconnects by itself until the
                      server declares the session over, or until there was no connection for the session
                      timeout: then the server has done so most likely, and if it has not (it was down
                      itself, or has lost its data), ending too early is the safe mistake. Its ephemeral
                      nodes may outlive it a little.
                      Whoever looks what became of a write calls `sync` first: the server of the new
                      connection knows all that this session has seen, but a write without an answer it may
                      not know yet.
    SessionExpired    the end, as above.

Source: ZooKeeper's programmer's guide; ClickHouse Keeper. What every backend must do stands in
`tests/conformance`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.errors import KeeperAnswer

ANY_VERSION = -1
NO_SESSION = 0
"""The `ephemeral_owner` of a node that stays."""


class CreateMode(enum.Enum):
    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3

    @property
    def is_ephemeral(self) -> bool:
        return self in (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)

    @property
    def is_sequential(self) -> bool:
        return self in (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


class EventType(enum.Enum):
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4
    SESSION = -1


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """What fired and where. SESSION says that the session is over; `path` is the watched path then."""

    type: EventType
    path: str


Watch = Callable[[WatchEvent], None]
"""One-shot, called on the event loop's thread. It must not block; usually it sets an `asyncio.Event`."""


class Stat(NamedTuple):
    """A node's bookkeeping, in the order of the wire. Times are Unix milliseconds of the server's clock.

    A named tuple, as are `Node` and `Children`: one is made for every answer, and a frozen dataclass takes
    four times as long.
    """

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    """The session's id, or `NO_SESSION`."""
    data_length: int
    num_children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Acl:
    """`perms` is a bit set: READ 1, WRITE 2, CREATE 4, DELETE 8, ADMIN 16."""

    perms: int
    scheme: str
    id: str


OPEN_ACL = (Acl(31, "world", "anyone"),)


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    mode: CreateMode = CreateMode.PERSISTENT
    acl: tuple[Acl, ...] = OPEN_ACL


@dataclass(frozen=True, slots=True)
class Remove:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Asserts that the node exists and, unless `version` is -1, has that version."""

    path: str
    version: int = ANY_VERSION


Op = Create | Remove | SetData | Check
OpResult = str | Stat | None
"""Of a Create the path made (with its sequence number), of a SetData the new Stat, otherwise None."""


class Node(NamedTuple):
    """A node's value and bookkeeping at one moment."""

    data: bytes
    stat: Stat


class Children(NamedTuple):
    """Names (not paths) of a node's children, sorted, and the bookkeeping of the node itself."""

    names: tuple[str, ...]
    stat: Stat


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a session is connected to. `index` is the server's place in the configuration, `since_s` is Unix
    time; `requests` counts those of the session, and `transaction` is the last one that it has seen."""

    host: str
    port: int
    index: int
    since_s: float
    requests: int
    transaction: int


class Keeper(Protocol):
    """One session. Every method may raise `ConnectionLoss`, `SessionExpired` or `OperationTimeout`."""

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_s(self) -> float:
        """As negotiated with the server."""
        ...

    @property
    def is_expired(self) -> bool: ...

    @property
    def connection(self) -> Connection | None:
        """The present one; None while there is none, and where no server is far away."""
        ...

    def on_expired(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once, on the loop's thread, when the session is over (at once if it
        already is)."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: Sequence[Acl] = OPEN_ACL,
    ) -> str:
        """Returns the path made. Raises NoNode (parent), NodeExists, NoChildrenForEphemerals, BadArguments,
        InvalidAcl."""
        ...

    async def remove(self, path: str, *, version: int = ANY_VERSION) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""
        ...

    async def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> Stat:
        """Raises NoNode, BadVersion."""
        ...

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        """None when there is no such node; the watch is set in either case."""
        ...

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        """Raises NoNode, and then sets no watch."""
        ...

    async def children(self, path: str, *, watch: Watch | None = None) -> Children:
        """Raises NoNode, and then sets no watch."""
        ...

    async def sync(self, path: str) -> None:
        """After it, reads of this session see everything that was committed before."""
        ...

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All or nothing, at one instant. Raises MultiFailed; BadArguments for a request that is refused as a
        whole, as by an etcd that is full. An empty list returns at once."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | KeeperAnswer]:
        """Pipelined, not atomic; an answer such as NoNode stands in the place of its node."""
        ...

    async def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        """Pipelined, not atomic."""
        ...

    async def children_many(self, paths: Sequence[str]) -> list[Children | KeeperAnswer]:
        """Pipelined, not atomic."""
        ...

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        """Raises NoNode."""
        ...

    async def set_acl(self, path: str, acl: Sequence[Acl], *, version: int = ANY_VERSION) -> Stat:
        """Raises NoNode, BadVersion, InvalidAcl."""
        ...

    async def add_auth(self, scheme: str, credentials: bytes) -> None:
        """Add an identity to the session. Raises AuthFailed."""
        ...

    async def close(self) -> None:
        """End the session now; its ephemeral nodes go at once. May be called twice."""
        ...


KeeperFactory = Callable[[], Awaitable[Keeper]]
"""Opens a new session. Raises KeeperUnavailable."""
