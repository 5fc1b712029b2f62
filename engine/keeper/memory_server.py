"""The server's part of a Keeper in this process: sessions, requests in order, watches, expiry in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from engine.env import Env
from engine.errors import AuthFailed, KeeperAnswer, KeeperUnavailable
from engine.keeper.base import OPEN_ACL, Acl, KeeperFactory
from engine.keeper.faults import Fault
from engine.keeper.link import CREATOR_ACL, LinkState, absent_root
from engine.keeper.memory_network import Network
from engine.keeper.memory_session import MemorySession, Reply, Request
from engine.keeper.session import RequestKind
from engine.keeper.tree import READ, Caller, Identity, Tree, digest_identity, is_permitted
from engine.keeper.watches import Rearm, WatchKind, WatchTable

_FIRST_SESSION_ID = 1 << 56
_LAG_S = 1.0


@dataclass(slots=True)
class SessionRecord:
    """What the server knows about a session."""

    session: MemorySession
    identities: frozenset[Identity] = frozenset()
    expiry: asyncio.TimerHandle | None = None
    forced: list[tuple[Fault, RequestKind | None]] = field(default_factory=list)
    stale: Tree | None = None
    stale_watches: dict[Rearm, None] = field(default_factory=dict)
    lagging: Tree | None = None
    """What the server of the next connection knows, if it lags."""


class MemoryServer:
    """One Keeper that does what it should. Delays are ranges (least, most) in seconds; with (0, 0) a message
    takes one turn of the loop."""

    def __init__(
        self,
        env: Env,
        *,
        latency_s: tuple[float, float] = (0.0, 0.0),
        reconnect_delay_s: tuple[float, float] = (0.01, 0.2),
        operation_timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        min_session_timeout_s: float = 4.0,
        max_session_timeout_s: float = 40.0,
    ) -> None:
        self._env = env
        self.network = Network(env, self._serve, latency_s=latency_s)
        self._reconnect_delay_s = reconnect_delay_s
        self._connect_timeout_s = connect_timeout_s
        self._session_timeout_range_s = (min_session_timeout_s, max_session_timeout_s)
        self._records: dict[int, SessionRecord] = {}
        self._watches = WatchTable()
        self._waiting_to_reconnect: dict[MemorySession, None] = {}
        self._next_session_id = _FIRST_SESSION_ID
        self._clock_offset_s = 0.0
        self.operation_timeout_s = operation_timeout_s
        self.tree = Tree()
        self.is_up = True
        self.operations: dict[str, Counter[str]] = {}
        """Requests executed, by client and kind; the parts of multis count as `multi_ops`."""

    # --- connecting ---------------------------------------------------------------------------------------

    async def connect(
        self, *, session_timeout_s: float = 30.0, client: str = "", root: str = "", identity: str = ""
    ) -> MemorySession:
        """Open a session. Raises KeeperUnavailable; NoNode if `root`, the chroot, does not exist.

        With `identity` (`user:password`) nodes that are created with the default ACL belong to it.
        """
        await self._env.sleep(self.network.draw_latency_s())
        if not self.is_up or client in self.network.partitions or self._refuses():
            await self._env.sleep(self._connect_timeout_s)
            raise KeeperUnavailable(f"No answer from Keeper within {self._connect_timeout_s:g} s")
        if root and root not in self.tree.nodes:
            raise absent_root(root)
        least, most = self._session_timeout_range_s
        session_id, self._next_session_id = self._next_session_id, self._next_session_id + 1
        session = MemorySession(
            self,
            session_id,
            timeout_s=min(max(session_timeout_s, least), most),
            client=client,
            root=root,
            default_acl=CREATOR_ACL if identity else OPEN_ACL,
        )
        session.seen_zxid = self.tree.zxid
        identities = frozenset({digest_identity(identity.encode())} if identity else ())
        self._records[session_id] = SessionRecord(session, identities)
        return session

    def factory(self, *, session_timeout_s: float = 30.0, client: str = "", root: str = "") -> KeeperFactory:
        """Opens sessions for one client."""

        async def open_session() -> MemorySession:
            return await self.connect(session_timeout_s=session_timeout_s, client=client, root=root)

        return open_session

    def session_ids(self, client: str | None = None) -> list[int]:
        """The sessions that the server holds alive, all or one client's, oldest first."""
        return [id_ for id_, record in self._records.items() if client in (None, record.session.client)]

    def _refuses(self) -> bool:
        """Whether the session that is asked for now is not opened."""
        return False

    # --- serving ------------------------------------------------------------------------------------------

    def _serve(self, session: MemorySession) -> None:
        """Execute the session's next request, if one has arrived."""
        arrived = self._arrived(session)
        if arrived is not None:
            self._answer(*arrived)

    def _arrived(self, session: MemorySession) -> tuple[SessionRecord, Request] | None:
        if not session.to_server or self.network.is_cut_off(session.client):
            return None
        request = session.to_server.popleft()
        record = self._records.get(session.session_id)
        return None if record is None or not self.is_up else (record, request)

    def _answer(self, record: SessionRecord, request: Request) -> None:
        session = record.session
        reply = self._execute(record, request)
        if session.state is LinkState.CONNECTED:
            self.network.deliver(session, reply)

    def _execute(self, record: SessionRecord, request: Request) -> Reply:
        kind = request.kind
        self._count(record, request)
        session_id = record.session.session_id
        now_ms = int((self._env.now_s() + self._clock_offset_s) * 1000)
        caller = Caller(session_id, record.identities, now_ms)
        result: Any = None
        error: KeeperAnswer | None = None
        tree = self.tree
        try:
            match kind:
                case RequestKind.EXISTS | RequestKind.GET | RequestKind.CHILDREN | RequestKind.GET_ACL:
                    tree = record.stale or tree
                    result = self._read(tree, caller, record, request)
                case RequestKind.CREATE | RequestKind.REMOVE | RequestKind.SET:
                    result = tree.write(request.payload, caller)
                case RequestKind.MULTI:
                    result = tree.multi(request.payload, caller)
                case RequestKind.SET_ACL:
                    acl, version = request.payload
                    result = tree.set_acl(request.path, acl, caller, version=version)
                case RequestKind.SYNC:
                    self._catch_up(record)
                case RequestKind.AUTH:
                    self._authenticate(record, *request.payload)
                case RequestKind.CLOSE:
                    self._end_session(session_id)
        except KeeperAnswer as answer:
            error = answer
        if tree.changes:
            self._fire()
        if record.stale is not None and tree is self.tree:
            self._catch_up(record)  # a server has applied what it answers
        return request, result, error, tree.zxid

    def _read(self, tree: Tree, caller: Caller, record: SessionRecord, request: Request) -> Any:
        path = request.path
        result: Any
        watch_kind = WatchKind.DATA
        was_absent = False
        match request.kind:
            case RequestKind.GET:
                result = tree.get(path, caller)
            case RequestKind.EXISTS:
                result = tree.exists(path, caller)
                was_absent = result is None
            case RequestKind.CHILDREN:
                result = tree.children(path, caller)
                watch_kind = WatchKind.CHILD
            case _:
                return tree.get_acl(path, caller)
        if request.watch is not None:
            if record.stale is not None:
                record.stale_watches[Rearm(watch_kind, path, was_absent)] = None
            else:
                self._watches.add(watch_kind, path, record.session.session_id)
        return result

    def _count(self, record: SessionRecord, request: Request) -> None:
        counts = self.operations.get(record.session.client)
        if counts is None:
            counts = self.operations[record.session.client] = Counter()
        counts[request.kind] += 1
        if request.kind is RequestKind.MULTI:
            counts["multi_ops"] += len(request.payload)

    def _authenticate(self, record: SessionRecord, scheme: str, credentials: bytes) -> None:
        if scheme != "digest":
            self._start_expiry(record)
            raise AuthFailed("/")
        record.identities |= {digest_identity(credentials)}

    def _fire(self) -> None:
        changes, self.tree.changes = self.tree.changes, []
        for session_id, event in self._watches.fire(changes, self._may_read):
            record = self._records.get(session_id)
            if record is not None and record.session.state is LinkState.CONNECTED:
                self.network.deliver(record.session, event)

    def _may_read(self, session_id: int, acl: tuple[Acl, ...]) -> bool:
        record = self._records.get(session_id)
        return record is not None and is_permitted(acl, READ, record.identities)

    def _catch_up(self, record: SessionRecord) -> None:
        if record.stale is None:
            return
        seen_zxid, watches = record.stale.zxid, record.stale_watches
        record.stale, record.stale_watches = None, {}
        session = record.session
        session.armed_again(self._watches.rearm(watches, session.session_id, self.tree, seen_zxid))

    def _catch_up_if_alive(self, session_id: int) -> None:
        record = self._records.get(session_id)
        if record is not None:
            self._catch_up(record)

    # --- connections and sessions -------------------------------------------------------------------------

    def _break(self, record: SessionRecord) -> None:
        self._watches.drop_session(record.session.session_id)
        record.stale, record.stale_watches = None, {}
        self._start_expiry(record)
        self._drop_connection(record.session)

    def _drop_connection(self, session: MemorySession) -> None:
        if session.state is LinkState.CONNECTED:
            session.lose_connection()
            session.loop.call_later(self.network.draw_s(self._reconnect_delay_s), self._reconnect, session)

    def _reconnect(self, session: MemorySession) -> None:
        if session.state is not LinkState.SUSPENDED:
            return
        if not self.is_up or session.client in self.network.partitions:
            self._waiting_to_reconnect[session] = None
            return
        record = self._records.get(session.session_id)
        if record is None:
            session.end()
            return
        self._cancel_expiry(record)
        tree, record.lagging = record.lagging or self.tree, None
        rearmed = self._watches.rearm(session.armed.keys(), session.session_id, tree, session.seen_zxid)
        if tree is not self.tree:
            record.stale, record.stale_watches = tree, dict.fromkeys(session.armed.keys())
            self._watches.drop_session(session.session_id)
            session.loop.call_later(_LAG_S, self._catch_up_if_alive, session.session_id)
        session.resume(rearmed)

    def _retry_reconnections(self) -> None:
        waiting = list(self._waiting_to_reconnect)
        self._waiting_to_reconnect.clear()
        for session in waiting:
            session.loop.call_later(self.network.draw_s(self._reconnect_delay_s), self._reconnect, session)

    def _start_expiry(self, record: SessionRecord) -> None:
        if record.expiry is None:
            session = record.session
            record.expiry = session.loop.call_later(
                session.session_timeout_s, self._expire_by_time, session.session_id
            )

    @staticmethod
    def _cancel_expiry(record: SessionRecord) -> None:
        if record.expiry is not None:
            record.expiry.cancel()
            record.expiry = None

    def _expire_by_time(self, session_id: int) -> None:
        record = self._records.get(session_id)
        if record is not None:
            self._end_session(session_id)

    def _end_session(self, session_id: int) -> None:
        record = self._records.pop(session_id)
        self._cancel_expiry(record)
        self._watches.drop_session(session_id)
        self.tree.end_session(session_id)
        self._fire()
