"""What the sessions of all backends do alike: the methods of `Keeper`, over one seam.

A backend says in `_send` how a request goes out and how its answer comes back. Everything it is given and
gives is as the server knows it; the chroot is put on and taken off here. Not so the answers that it raises:
those bear the caller's paths (`answer_outside`).
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

from engine.errors import AuthFailed, KeeperAnswer, MultiFailed
from engine.keeper.base import (
    ANY_VERSION,
    OPEN_ACL,
    Acl,
    Check,
    Children,
    Connection,
    Create,
    CreateMode,
    EventType,
    Node,
    Op,
    OpResult,
    Remove,
    SetData,
    Stat,
    Watch,
    WatchEvent,
)
from engine.keeper.checks import below_root, check_size, outside_root
from engine.keeper.link import LinkState
from engine.keeper.watches import ArmedWatches

_MOST_AT_ONCE = 1000
"""Requests of one call that are under way together. Each has a time to be answered in, and of a long queue
the last ones would use it up by waiting for the first."""


class RequestKind(enum.StrEnum):
    """What a request asks for, and the payload that goes with it."""

    CREATE = "create"
    """A Create; its answer is the path made."""
    REMOVE = "remove"
    """A Remove."""
    SET = "set"
    """A SetData; its answer is the new Stat."""
    EXISTS = "exists"
    GET = "get"
    CHILDREN = "children"
    SYNC = "sync"
    MULTI = "multi"
    """A tuple of operations; its answer is their results."""
    GET_ACL = "get_acl"
    SET_ACL = "set_acl"
    """The ACL and the version of the old one."""
    AUTH = "auth"
    """The scheme and the credentials."""
    CLOSE = "close"


class KeeperSession(ABC):
    """Implements `Keeper`, but for `close`."""

    def __init__(
        self,
        *,
        session_id: int,
        timeout_s: float,
        state: LinkState,
        root: str,
        default_acl: tuple[Acl, ...],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = state
        self.armed = ArmedWatches()
        self._session_id = session_id
        self._timeout_s = timeout_s
        self._root = root
        self._default_acl = default_acl
        self._callbacks: list[Callable[[], None]] = []

    # --- what a backend adds ------------------------------------------------------------------------------

    @abstractmethod
    def _send(
        self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None
    ) -> asyncio.Future[Any]:
        """Queue a request; requests are answered in their order. Raises SessionExpired at once if the session
        is over."""

    @abstractmethod
    def abandon(self) -> None:
        """End it without waiting."""

    # --- Keeper -------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    @property
    def is_expired(self) -> bool:
        return self.state is LinkState.OVER

    @property
    def connection(self) -> Connection | None:
        return None

    def on_expired(self, callback: Callable[[], None]) -> None:
        if self.state is LinkState.OVER:
            self.loop.call_soon(callback)
        else:
            self._callbacks.append(callback)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: Sequence[Acl] = OPEN_ACL,
    ) -> str:
        op = Create(self._inside(path), data, mode, self._default_acl if acl is OPEN_ACL else tuple(acl))
        check_size((op,))
        return self._outside(await self._send(RequestKind.CREATE, op.path, op))

    async def remove(self, path: str, *, version: int = ANY_VERSION) -> None:
        op = Remove(self._inside(path), version)
        await self._send(RequestKind.REMOVE, op.path, op)

    async def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> Stat:
        op = SetData(self._inside(path), data, version)
        check_size((op,))
        return cast(Stat, await self._send(RequestKind.SET, op.path, op))

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        return cast("Stat | None", await self._send(RequestKind.EXISTS, self._inside(path), watch=watch))

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        return cast(Node, await self._send(RequestKind.GET, self._inside(path), watch=watch))

    async def children(self, path: str, *, watch: Watch | None = None) -> Children:
        return cast(Children, await self._send(RequestKind.CHILDREN, self._inside(path), watch=watch))

    async def sync(self, path: str) -> None:
        await self._send(RequestKind.SYNC, self._inside(path))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if not ops:
            return []
        inside = tuple(self._op_inside(op) for op in ops)
        check_size(inside)
        results: list[OpResult] = await self._send(RequestKind.MULTI, inside[0].path, inside)
        return [self._outside(result) if isinstance(result, str) else result for result in results]

    async def get_many(self, paths: Sequence[str]) -> list[Node | KeeperAnswer]:
        return await self._send_many(RequestKind.GET, paths)

    async def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        return [_or_raise(answer) for answer in await self._send_many(RequestKind.EXISTS, paths)]

    async def children_many(self, paths: Sequence[str]) -> list[Children | KeeperAnswer]:
        return await self._send_many(RequestKind.CHILDREN, paths)

    async def get_acl(self, path: str) -> tuple[Acl, ...]:
        return cast("tuple[Acl, ...]", await self._send(RequestKind.GET_ACL, self._inside(path)))

    async def set_acl(self, path: str, acl: Sequence[Acl], *, version: int = ANY_VERSION) -> Stat:
        return cast(Stat, await self._send(RequestKind.SET_ACL, self._inside(path), (tuple(acl), version)))

    async def add_auth(self, scheme: str, credentials: bytes) -> None:
        try:
            await self._send(RequestKind.AUTH, "/", (scheme, credentials))
        except AuthFailed:
            self.abandon()  # the server has closed the connection for good
            raise

    async def _send_many(self, kind: RequestKind, paths: Sequence[str]) -> list[Any]:
        results: list[Any] = []
        for start in range(0, len(paths), _MOST_AT_ONCE):
            results += await self._send_at_once(kind, paths[start : start + _MOST_AT_ONCE])
        return results

    async def _send_at_once(self, kind: RequestKind, paths: Sequence[str]) -> list[Any]:
        """Answers come in the order of the requests: who waits for the last first is woken up once."""
        futures = [self._send(kind, self._inside(path)) for path in paths]
        results: list[Any] = []
        for future in reversed(futures):
            try:
                results.append(await future)
            except KeeperAnswer as answer:
                results.append(answer)
        results.reverse()
        return results

    # --- the chroot and the default ACL -------------------------------------------------------------------

    def _inside(self, path: str) -> str:
        return below_root(self._root, path)

    def _outside(self, path: str) -> str:
        return outside_root(self._root, path)

    def _op_inside(self, op: Op) -> Op:
        path = self._inside(op.path)
        if not self._root and self._default_acl is OPEN_ACL:
            return op
        match op:
            case Create(_, data, mode, acl):
                return Create(path, data, mode, self._default_acl if acl is OPEN_ACL else acl)
            case Remove(_, version):
                return Remove(path, version)
            case SetData(_, data, version):
                return SetData(path, data, version)
            case Check(_, version):
                return Check(path, version)

    def answer_outside(self, error: KeeperAnswer) -> KeeperAnswer:
        if not self._root:
            return error
        if isinstance(error, MultiFailed):
            return MultiFailed(error.index, self.answer_outside(error.error), error.op_codes)
        return type(error)(self._outside(error.path), error.reason)

    # --- events -------------------------------------------------------------------------------------------

    def _call_watches(self, type_: EventType, path: str) -> None:
        event = WatchEvent(type_, self._outside(path))
        for callback in self.armed.take(type_, path):
            callback(event)

    def _announce_end(self) -> None:
        """Tell every watch, then whoever asked to be told."""
        for path, watch in self.armed.take_all():
            watch(WatchEvent(EventType.SESSION, self._outside(path)))
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def _or_raise(answer: Any) -> Any:
    if isinstance(answer, KeeperAnswer):
        raise answer
    return answer
