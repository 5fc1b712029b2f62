"""A session in etcd (see `engine.keeper.etcd`), over one connection after the other, and its watches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from engine.config.model import Etcd
from engine.env import Env
from engine.errors import KeeperFull, KeeperUnavailable, OnclusterError
from engine.keeper.attempts import Attempt, Attempts
from engine.keeper.base import Acl, EventType, Keeper, Watch, WatchEvent
from engine.keeper.etcd.call import EtcdCall
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses, LinkLost
from engine.keeper.etcd.clock import Clock
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.link import Link
from engine.keeper.etcd.store import MAKE_ROOM, Remembered, SessionOver
from engine.keeper.link import LinkState
from engine.keeper.remote_session import CLOSE_PATIENCE_S, RemoteSession
from engine.keeper.session import RequestKind
from engine.keeper.tree import READ, Change, Identity, digest_identity, is_permitted
from engine.keeper.watches import Rearm, WatchKind

log = logging.getLogger(__name__)


async def connect(config: Etcd, env: Env, *, connect_timeout_s: float = 10.0) -> Keeper:
    """Open a session. Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist."""
    return await EtcdSession(config, env, connect_timeout_s=connect_timeout_s).opened()


class EtcdSession(RemoteSession[EtcdCall]):
    """Made by `connect`."""

    server = "etcd"

    def __init__(self, config: Etcd, env: Env, *, connect_timeout_s: float) -> None:
        super().__init__(config, env, connect_timeout_s=connect_timeout_s)
        self._config = config
        self._env = env
        self._layout = Layout(config.key_prefix)
        self._attempts = Attempts(config.hosts, env, patience_s=connect_timeout_s)
        self._life: asyncio.Task[None] | None = None
        self._last_error = ""
        self.identities: frozenset[Identity] = frozenset(
            {digest_identity(config.identity.encode())} if config.identity else ()
        )
        self.queue: deque[EtcdCall] = deque()
        """Requests that nobody has begun with."""
        self.has_work = asyncio.Event()
        self.clock = Clock(env, self._layout)
        self.remembered = Remembered()
        self.born = 0
        """The revision at which the session's key was created; 0 before."""
        self.seen = 0
        """The revision up to which watches were told of changes."""

    async def close(self) -> None:
        if self._life is not None and self.state is LinkState.CONNECTED and not self._is_closing:
            call = self._ask(RequestKind.CLOSE, "/")
            self._is_closing = True
            try:
                async with asyncio.timeout(CLOSE_PATIENCE_S):
                    await asyncio.shield(call.future)
            except TimeoutError:
                log.warning("keeper.close_unanswered session=%#x", self._session_id)
            except OnclusterError:
                pass  # the session ends by itself
        self._is_closing = True
        self.over()
        self._let_go()
        if self._life is not None and self._life is not asyncio.current_task():
            await asyncio.wait([self._life])

    # --- RemoteSession ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._life = self.loop.create_task(self._live(), name="keeper etcd session")
        self._life.add_done_callback(self._on_life_end)

    def _why_not(self) -> str:
        return self._last_error

    def _server(self) -> tuple[str, int]:
        return self._attempts.last

    def _progress(self) -> tuple[int, int]:
        return 0, self.seen  # its requests have no numbers

    def _submit(
        self, kind: RequestKind, path: str, payload: Any, watch: Watch | None, deadline_s: float
    ) -> EtcdCall:
        call = EtcdCall(kind, path, payload, watch, deadline_s)
        self.queue.append(call)
        self.has_work.set()
        return call

    def _let_go(self) -> None:
        self.has_work.set()
        if self._life is not None and self._life is not asyncio.current_task():
            self._life.cancel()

    # --- life ---------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """One connection after the other, until the session is over."""
        while self.state is not LinkState.OVER:
            attempt = await self._attempts.next()
            try:
                await self._live_at(attempt)
            except SessionOver:
                if self.born:
                    self.over()
                    return
                self._last_error = f"{attempt.host}: the session ended before it began"
            except EtcdRefuses as refused:
                self._last_error = f"{attempt.host}: {refused.text}"
                log.warning("keeper.etcd_refuses host=%s why=%s", attempt.host, refused.text)
                if not self._first_connection.done():
                    self._first_connection.set_exception(_no_session(attempt, refused))
                    return

    def _on_life_end(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled() and (error := life.exception()) is not None:
            log.error("keeper.etcd_failed session=%#x", self._session_id, exc_info=error)
            if not self._first_connection.done():
                self._first_connection.set_exception(error)
        self.over()

    async def _live_at(self, attempt: Attempt) -> None:
        """Raises SessionOver, EtcdRefuses."""
        channel = EtcdChannel(self._config, attempt.host, attempt.port)
        try:
            link = Link(self, self._config, self._layout, self._env, channel)
            try:
                async with asyncio.timeout(attempt.patience_s):
                    await link.begin()
            except (LinkLost, TimeoutError) as error:
                self._last_error = f"{attempt.host}: {error or 'no answer'}"
                return
            self._attempts.succeeded()
            self._connected(self._session_id, self._timeout_s)
            try:
                await link.serve()
            except LinkLost as error:
                log.warning("keeper.connection_dropped session=%#x why=%s", self._session_id, error)
            except SessionOver:
                self.over()
            finally:
                self._suspended()
        finally:
            await channel.close()

    def granted(self, session_id: int, timeout_s: float) -> None:
        """etcd has begun a session."""
        self._session_id, self._timeout_s = session_id, timeout_s

    # --- watches ------------------------------------------------------------------------------------------

    def tell(self, revision: int, changes: Sequence[Change]) -> None:
        """What others, or this session, have changed."""
        self.saw(revision)
        for type_, path in self._events_of(changes):
            self._call_watches(type_, path)

    def fire(self, type_: EventType, path: str) -> None:
        self._call_watches(type_, path)

    def saw(self, revision: int) -> None:
        self.seen = max(self.seen, revision)

    def _events_of(self, changes: Iterable[Change]) -> Iterable[tuple[EventType, str]]:
        for type_, path, acl, parent_acl in changes:
            if not self.may_read(acl):
                self.armed.take(type_, path)
            else:
                yield type_, path
            if type_ is not EventType.CHANGED:
                parent = path.rpartition("/")[0] or "/"
                if not self.may_read(parent_acl):
                    self.armed.take(EventType.CHILD, parent)
                else:
                    yield EventType.CHILD, parent

    def may_read(self, acl: tuple[Acl, ...]) -> bool:
        return is_permitted(acl, READ, self.identities)

    def arm(self, call: EtcdCall, value: Any, overtaking: Sequence[Change]) -> None:
        """Arm a read's watch; what has overtaken the read fires it at once."""
        assert call.watch is not None
        is_child = call.kind is RequestKind.CHILDREN
        key = Rearm(
            WatchKind.CHILD if is_child else WatchKind.DATA,
            call.path,
            was_absent=not is_child and value is None,
        )
        for type_, path in self._events_of(overtaking):
            fires = (
                type_ in (EventType.CHILD, EventType.DELETED) if is_child else type_ is not EventType.CHILD
            )
            if path == call.path and fires:
                call.watch(WatchEvent(type_, self._outside(path)))
                return
        self.armed.add(key, call.watch)


def _no_session(attempt: Attempt, refused: EtcdRefuses) -> KeeperUnavailable:
    said = f"etcd at {attempt.host}:{attempt.port} refuses a session: {refused.text}."
    if refused.is_full:
        return KeeperFull(said, hint=f"It is full: {MAKE_ROOM}.")
    return KeeperUnavailable(said)
