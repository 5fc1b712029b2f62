"""A session in etcd (see `engine.keeper.etcd`): requests in their order, over one connection after the
other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from engine.config.model import Etcd
from engine.env import Env
from engine.errors import (
    AuthFailed,
    ConnectionLoss,
    KeeperAnswer,
    KeeperUnavailable,
    NoAuth,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper.attempts import Attempt, Attempts
from engine.keeper.base import (
    OPEN_ACL,
    Acl,
    Children,
    EventType,
    Keeper,
    KeeperFactory,
    Node,
    Watch,
    WatchEvent,
)
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses, LinkLost
from engine.keeper.etcd.clock import Clock
from engine.keeper.etcd.feed import Feed
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.link import Link
from engine.keeper.etcd.overlay import EndSession, Request, SetAcl
from engine.keeper.etcd.record import Family, read_family
from engine.keeper.etcd.store import Remembered, SessionOver, Store, as_answer
from engine.keeper.link import CREATOR_ACL, LinkState, absent_root
from engine.keeper.session import KeeperSession, RequestKind
from engine.keeper.tree import ADMIN, READ, Caller, Change, Identity, blotted, digest_identity, is_permitted
from engine.keeper.watches import Rearm, WatchKind

log = logging.getLogger(__name__)

_READS = frozenset(
    {
        RequestKind.EXISTS,
        RequestKind.GET,
        RequestKind.CHILDREN,
        RequestKind.GET_ACL,
        RequestKind.SYNC,
    }
)
_CLOSE_PATIENCE_S = 5.0


class _Call:
    """One request under way."""

    __slots__ = ("deadline_s", "future", "kind", "path", "payload", "watch")

    def __init__(
        self, kind: RequestKind, path: str, payload: Any, watch: Watch | None, deadline_s: float
    ) -> None:
        self.kind = kind
        self.path = path
        self.payload = payload
        self.watch = watch
        self.deadline_s = deadline_s
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Also if nobody waits any more, and then without asyncio's complaint."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class EtcdSession(KeeperSession):
    """Made by `connect`."""

    def __init__(self, config: Etcd, env: Env, *, connect_timeout_s: float) -> None:
        super().__init__(
            session_id=0,
            timeout_s=config.session_timeout_ms / 1000,
            state=LinkState.SUSPENDED,
            root=config.root.rstrip("/"),
            default_acl=CREATOR_ACL if config.identity else OPEN_ACL,
        )
        self._config = config
        self._env = env
        self._layout = Layout(config.key_prefix)
        self._operation_timeout_s = config.operation_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_s
        self._identities: frozenset[Identity] = frozenset(
            {digest_identity(config.identity.encode())} if config.identity else ()
        )
        self._attempts = Attempts(config.hosts, env, patience_s=connect_timeout_s)
        self._queue: deque[_Call] = deque()
        self._under_way: list[_Call] = []
        self._deadlines: deque[_Call] = deque()
        self._work_there = asyncio.Event()
        self._is_closing = False
        self._first_connection: asyncio.Future[None] = self.loop.create_future()
        self._life: asyncio.Task[None] | None = None
        self._last_error = ""
        self.clock = Clock(env, self._layout)
        self.remembered = Remembered()
        self.born = 0
        """The revision at which the session's key was created; 0 before."""
        self.seen = 0
        """The revision up to which watches were told of changes."""

    async def open(self) -> None:
        """Connect and look for the chroot."""
        self._life = self.loop.create_task(self._live(), name="keeper etcd session")
        self._life.add_done_callback(self._on_life_end)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.shield(self._first_connection)
        except TimeoutError:
            raise KeeperUnavailable(
                f"No session with etcd at {self._config.connect_string} within {self._connect_timeout_s:g} s "
                f"({self._last_error or 'no answer'})."
            ) from None
        try:
            if self._root and await self.exists("/") is None:
                raise absent_root(self._root)
        except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
            raise KeeperUnavailable(f"etcd was lost while connecting: {error}") from error

    def abandon(self) -> None:
        self.over()
        if self._life is not None:
            self._life.cancel()

    async def close(self) -> None:
        if self._life is not None and self.state is LinkState.CONNECTED and not self._is_closing:
            call = self._enqueue(RequestKind.CLOSE, "/", None, None)
            self._is_closing = True
            try:
                async with asyncio.timeout(_CLOSE_PATIENCE_S):
                    await asyncio.shield(call.future)
            except TimeoutError:
                log.warning("keeper.close_unanswered session=%#x", self._session_id)
            except OnclusterError:
                pass  # the session ends by itself
        self._is_closing = True
        self.over()
        if self._life is not None and self._life is not asyncio.current_task():
            self._life.cancel()
            await asyncio.wait([self._life])

    # --- requests -----------------------------------------------------------------------------------------

    def _send(
        self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None
    ) -> asyncio.Future[Any]:
        if self.state is LinkState.OVER or self._is_closing:
            raise SessionExpired(f"Session {self._session_id:#x} is over")
        return self._enqueue(kind, path, payload, watch).future

    def _enqueue(self, kind: RequestKind, path: str, payload: Any, watch: Watch | None) -> _Call:
        call = _Call(kind, path, payload, watch, self.loop.time() + self._operation_timeout_s)
        self._queue.append(call)
        self._work_there.set()
        self._deadlines.append(call)
        if self._watchdog is None:
            self._watchdog = self.loop.call_at(call.deadline_s, self._check_timeouts)
        while self._deadlines[0].future.done():
            self._deadlines.popleft()
        return call

    def _check_timeouts(self) -> None:
        """One timer for all: deadlines come in the order of the requests."""
        self._watchdog = None
        now_s = self.loop.time()
        calls = self._deadlines
        while calls and (calls[0].future.done() or calls[0].deadline_s <= now_s):
            call = calls.popleft()
            where, after_s = self._outside(call.path), self._operation_timeout_s
            call.fail(OperationTimeout(f"etcd did not answer within {after_s:g} s, path: {where}"))
        if calls:
            self._watchdog = self.loop.call_at(calls[0].deadline_s, self._check_timeouts)

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
                    where = f"{attempt.host}:{attempt.port}"
                    self._first_connection.set_exception(
                        KeeperUnavailable(f"etcd at {where} refuses a session: {refused.text}.")
                    )
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
            self._on_connected()
            try:
                await link.serve()
            except LinkLost as error:
                log.warning("keeper.connection_dropped session=%#x why=%s", self._session_id, error)
            except SessionOver:
                self.over()
            finally:
                self._on_suspended()
        finally:
            await channel.close()

    def granted(self, session_id: int, timeout_s: float) -> None:
        """etcd has begun a session."""
        self._session_id, self._timeout_s = session_id, timeout_s

    def _on_connected(self) -> None:
        if self.state is LinkState.OVER:
            return
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            log.info("keeper.resumed session=%#x", self._session_id)
        self.state = LinkState.CONNECTED
        if not self._first_connection.done():
            self._first_connection.set_result(None)

    def _on_suspended(self) -> None:
        if self.state is not LinkState.CONNECTED:
            return
        self.state = LinkState.SUSPENDED
        self._patience = self.loop.call_later(self._timeout_s, self._assume_expired)
        log.warning("keeper.suspended session=%#x", self._session_id)
        self._fail_all(lambda: ConnectionLoss(f"Connection of session {self._session_id:#x} was lost"))

    def _assume_expired(self) -> None:
        log.warning(
            "keeper.assumed_over session=%#x without_connection_s=%g", self._session_id, self._timeout_s
        )
        self.over()
        if self._life is not None:
            self._life.cancel()

    def _fail_all(self, error: Any) -> None:
        calls = [*self._under_way, *self._queue]
        self._under_way.clear()
        self._queue.clear()
        for call in calls:
            call.fail(error())

    def over(self) -> None:
        """The session has ended: tell everybody, once."""
        if self.state is LinkState.OVER:
            return
        self.state = LinkState.OVER
        self._stop_timers()
        self._fail_all(lambda: SessionExpired(f"Session {self._session_id:#x} is over"))
        if self.born:
            log.info("keeper.session_over session=%#x", self._session_id)
        self._work_there.set()
        self._announce_end()

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
            if not self._may_read(acl):
                self.armed.take(type_, path)
            else:
                yield type_, path
            if type_ is not EventType.CHANGED:
                parent = path.rpartition("/")[0] or "/"
                if not self._may_read(parent_acl):
                    self.armed.take(EventType.CHILD, parent)
                else:
                    yield EventType.CHILD, parent

    def _may_read(self, acl: tuple[Acl, ...]) -> bool:
        return is_permitted(acl, READ, self._identities)

    def _arm(self, call: _Call, value: Any, overtaking: Sequence[Change]) -> None:
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

    # --- work ---------------------------------------------------------------------------------------------

    async def work(self, link: Link) -> None:
        """Carry out requests in their order until the session is closed. Raises LinkLost, SessionOver."""
        store, feed = link.store, link.feed
        while self.state is not LinkState.OVER:
            while self._queue:
                first = self._queue.popleft()
                if first.kind is RequestKind.CLOSE:
                    self._under_way = [first]
                    await self._end_session(link)
                    first.answer(None)
                    return
                if first.future.done():
                    continue  # nobody waits for it any more
                if first.kind in _READS:
                    self._under_way = self._reads_from(first, store.reads_at_once)
                    await self._read(store, feed, self._under_way)
                else:
                    self._under_way = [first]
                    await self._write(store, feed, first)
                self._under_way = []
            self._work_there.clear()
            await self._work_there.wait()

    def _reads_from(self, first: _Call, room: int) -> list[_Call]:
        """The reads that stand at the head of the queue, as many as fit."""
        reads = [first]
        room -= 2
        while self._queue and self._queue[0].kind in _READS and room >= 2:
            call = self._queue.popleft()
            if not call.future.done():
                reads.append(call)
                room -= 2 if call.kind is RequestKind.CHILDREN else 1
        return reads

    async def _read(self, store: Store, feed: Feed, calls: Sequence[_Call]) -> None:
        layout = self._layout
        ranges: list[Any] = []
        for call in calls:
            if call.kind is RequestKind.SYNC or "\0" in call.path:
                continue
            ranges.append(layout.family_op(call.path))
            if call.kind is RequestKind.CHILDREN:
                ranges.append(messages.range_op(*layout.children(call.path), keys_only=True))
        feed.read_begins()
        try:
            answers = await store.read(ranges)
        except EtcdRefuses as refused:
            for call in calls:
                call.fail(self._answer_outside(as_answer(refused, call.path)))
            return
        revision = answers.revision
        if any(call.watch is not None for call in calls):
            await feed.follow(revision)
        if feed.is_following:
            await feed.reached(min(answers.event_revision, revision))
        self.saw(revision)
        found = iter(answers.ranges)
        overtaking = feed.read_ends(revision)
        for call in calls:
            self._answer_read(call, found, revision, overtaking)

    def _answer_read(self, call: _Call, found: Any, revision: int, overtaking: Sequence[Change]) -> None:
        if call.kind is RequestKind.SYNC:
            call.answer(None)
            return
        family: Family | None = None
        names: tuple[str, ...] = ()
        if "\0" not in call.path:
            family = read_family(next(found), self._layout.node(call.path), revision)
            self.remembered.keep([(call.path, family)])
            if call.kind is RequestKind.CHILDREN:
                skipped = len(self._layout.children(call.path)[0])
                names = tuple(sorted(kv.key[skipped:].decode() for kv in next(found) if b"\0" not in kv.key))
        try:
            value = self._value_of(call, family, names)
        except KeeperAnswer as answer:
            call.fail(self._answer_outside(answer))
            return
        call.answer(value)
        if call.watch is not None:
            self._arm(call, value, overtaking)

    def _value_of(self, call: _Call, family: Family | None, names: tuple[str, ...]) -> Any:
        if family is None or family.record is None:
            if call.kind is RequestKind.EXISTS:
                return None
            raise NoNode(call.path)
        record = family.record
        if call.kind is RequestKind.GET_ACL and is_permitted(record.acl, ADMIN, self._identities):
            return record.acl
        if not self._may_read(record.acl):
            raise NoAuth(call.path)
        match call.kind:
            case RequestKind.GET:
                return Node(record.data, family.stat)
            case RequestKind.CHILDREN:
                return Children(names, family.stat)
            case RequestKind.GET_ACL:
                return blotted(record.acl)
            case _:
                return family.stat

    async def _write(self, store: Store, feed: Feed, call: _Call) -> None:
        requests: tuple[Request, ...]
        match call.kind:
            case RequestKind.MULTI:
                requests = tuple(call.payload)
            case RequestKind.SET_ACL:
                acl, version = call.payload
                requests = (SetAcl(call.path, acl, version),)
            case RequestKind.AUTH:
                self._authenticate(call)
                return
            case _:
                requests = (call.payload,)
        try:
            written = await store.write(requests, self._caller, is_multi=call.kind is RequestKind.MULTI)
        except EtcdRefuses as refused:
            call.fail(self._answer_outside(as_answer(refused, call.path)))
            return
        if feed.is_following:
            await feed.reached(written.event_revision)
        self.saw(written.event_revision)
        if written.error is not None:
            call.fail(self._answer_outside(written.error))
        elif call.kind is RequestKind.MULTI:
            call.answer(written.results)
        else:
            call.answer(written.results[0])

    def _caller(self) -> Caller:
        return Caller(self._session_id, self._identities, self.clock.now_ms())

    def _authenticate(self, call: _Call) -> None:
        scheme, credentials = call.payload
        if scheme != "digest":
            call.fail(AuthFailed("/"))
            return
        self._identities |= {digest_identity(credentials)}
        call.answer(None)

    async def _end_session(self, link: Link) -> None:
        """Remove what is the session's, and its key, in one transaction; then give the lease back."""
        paths = await link.reaper.paths_of(self._session_id)
        try:
            written = await link.store.write([EndSession(self._session_id, paths)], self._caller)
            if written.error is not None:
                log.warning("keeper.close_refused session=%#x why=%s", self._session_id, written.error)
        finally:
            await link.revoke()


async def connect(config: Etcd, env: Env, *, connect_timeout_s: float = 10.0) -> Keeper:
    """Open a session. Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist."""
    session = EtcdSession(config, env, connect_timeout_s=connect_timeout_s)
    try:
        await session.open()
    except BaseException:  # also a cancellation: the session must not live on unowned
        session.abandon()
        raise
    return session


def factory(config: Etcd, env: Env, *, connect_timeout_s: float = 10.0) -> KeeperFactory:
    """Opens sessions, as `connect`."""

    async def open_session() -> Keeper:
        return await connect(config, env, connect_timeout_s=connect_timeout_s)

    return open_session
