"""A Keeper in this process, with ZooKeeper's semantics and a knob for every fault.

    server = MemoryKeeperServer(env)
    keeper = await server.connect(session_timeout_s=10, client="node01")

For tests, for the simulation and for the comparison with real ZooKeeper in `tests/conformance`. It runs on
the running loop's time (virtual time under `engine.testing.simulation`).

Faults, as methods: `lose_next_request`, `lose_next_reply`, `expire_session`, `partition` and `heal`,
`stale_reads`, `delay_replies`, `stop`, `start` and `restart`, `lose_data`, `jump_clock`, `crash_client`; or
at random by a `FaultPlan`. A *client* is a name given at connect, usually a node's: partitions and crashes
hit all its sessions.

What a real deployment does and this does not: split brain of the ensemble, a snapshot older than the log,
throttling. Requests beyond 1 MiB are refused by both backends before they are sent (`engine.keeper.checks`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from engine.env import Env
from engine.errors import AuthFailed, KeeperAnswer, KeeperUnavailable
from engine.keeper.base import OPEN_ACL, Acl, KeeperFactory
from engine.keeper.faults import Direction, Fault, FaultPlan
from engine.keeper.link import CREATOR_ACL, LinkState, absent_root
from engine.keeper.memory_network import Network
from engine.keeper.memory_session import MemorySession, Reply, Request
from engine.keeper.session import RequestKind
from engine.keeper.tree import READ, Caller, Identity, Tree, digest_identity, is_permitted
from engine.keeper.watches import Rearm, WatchKind, WatchTable

_FIRST_SESSION_ID = 1 << 56
_NOTICE_AFTER = 2 / 3
"""Share of the session timeout after which a client takes a silent connection for broken, as ZooKeeper's
do."""


@dataclass(slots=True)
class _SessionRecord:
    """What the server knows about a session."""

    session: MemorySession
    identities: frozenset[Identity] = frozenset()
    expiry: asyncio.TimerHandle | None = None
    forced: list[tuple[Fault, RequestKind | None]] = field(default_factory=list)
    stale: Tree | None = None
    stale_watches: dict[Rearm, None] = field(default_factory=dict)


class MemoryKeeperServer:
    """One Keeper. Delays are ranges (least, most) in seconds; with (0, 0) a message takes one turn of the
    loop."""

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
        faults: FaultPlan | None = None,
    ) -> None:
        self._env = env
        self.network = Network(env, self._serve, latency_s=latency_s)
        self._reconnect_delay_s = reconnect_delay_s
        self._connect_timeout_s = connect_timeout_s
        self._session_timeout_range_s = (min_session_timeout_s, max_session_timeout_s)
        self._records: dict[int, _SessionRecord] = {}
        self._watches = WatchTable()
        self._waiting_to_reconnect: dict[MemorySession, None] = {}
        self._next_session_id = _FIRST_SESSION_ID
        self._clock_offset_s = 0.0
        self.operation_timeout_s = operation_timeout_s
        self.faults = faults
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
        if (
            not self.is_up
            or client in self.network.partitions
            or (self.faults and self.faults.draws_refusal())
        ):
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
        self._records[session_id] = _SessionRecord(session, identities)
        return session

    def factory(self, *, session_timeout_s: float = 30.0, client: str = "", root: str = "") -> KeeperFactory:
        """Opens sessions for one client."""

        async def open_session() -> MemorySession:
            return await self.connect(session_timeout_s=session_timeout_s, client=client, root=root)

        return open_session

    def session_ids(self, client: str | None = None) -> list[int]:
        """The sessions that the server holds alive, all or one client's, oldest first."""
        return [id_ for id_, record in self._records.items() if client in (None, record.session.client)]

    # --- faults -------------------------------------------------------------------------------------------

    def lose_next_request(self, session_id: int, *, kind: RequestKind | None = None) -> None:
        """The session's next request (of that kind) is not executed and its connection breaks:
        ConnectionLoss."""
        self._records[session_id].forced.append((Fault.REQUEST_LOST, kind))

    def lose_next_reply(self, session_id: int, *, kind: RequestKind | None = None) -> None:
        """The session's next request (of that kind) is executed, then its connection breaks:
        ConnectionLoss."""
        self._records[session_id].forced.append((Fault.REPLY_LOST, kind))

    def break_connection(self, session_id: int) -> None:
        """Now. What is under way is not executed, or executed and not answered."""
        self._break(self._records[session_id])

    def expire_session(self, session_id: int) -> None:
        """The server ends the session although its process lives, which hears of it when it reconnects."""
        record = self._records.get(session_id)
        if record is not None:
            self._end_session(session_id)
            self._drop_connection(record.session)

    def partition(self, client: str, *, direction: Direction = Direction.BOTH) -> None:
        """Cut a client off. Its requests hang, then fail; its sessions expire in time. It cannot connect."""
        self.network.partitions[client] = direction
        for session_id in self.session_ids(client):
            record = self._records[session_id]
            session = record.session
            session.watch_timeouts()
            if session.state is not LinkState.CONNECTED:
                continue
            if direction is not Direction.FROM_KEEPER:
                self._start_expiry(record)
            notice_s = session.session_timeout_s * _NOTICE_AFTER
            session.loop.call_later(notice_s, self._notice_partition, session)

    def heal(self, client: str) -> None:
        """End a partition. Requests that hang are delivered now; lost connections are made again."""
        if self.network.partitions.pop(client, None) is None:
            return
        for session_id in self.session_ids(client):
            record = self._records[session_id]
            if record.session.state is LinkState.CONNECTED:
                self._cancel_expiry(record)
                self.network.flush(record.session)
        self._retry_reconnections()

    def stale_reads(self, session_id: int, *, for_s: float | None = None) -> None:
        """Reads of the session see the tree as it is now, until it syncs or writes, or `for_s` seconds
        pass."""
        record = self._records[session_id]
        if record.stale is not None:
            return
        if any(isinstance(m, tuple) and m[0].watch is not None for m in record.session.to_client):
            return  # the client does not know of this watch yet, so it could not be set again below
        record.stale = self.tree.snapshot()
        record.stale_watches = dict.fromkeys(record.session.armed.keys())
        self._watches.drop_session(session_id)
        if for_s is not None:
            record.session.loop.call_later(for_s, self._catch_up_if_alive, session_id)

    def delay_replies(self, session_id: int, delay_s: float) -> None:
        """Whatever is answered from now on arrives `delay_s` seconds from now at the earliest."""
        session = self._records[session_id].session
        session.replied_until_s = max(session.replied_until_s, session.loop.time() + delay_s)
        session.watch_timeouts()

    def stop(self) -> None:
        """Keeper is down: connections break, sessions and data are kept, time does not count against them."""
        self.is_up = False
        for record in list(self._records.values()):
            self._break(record)
            self._cancel_expiry(record)

    def start(self) -> None:
        self.is_up = True
        for record in self._records.values():
            self._start_expiry(record)
        self._retry_reconnections()

    async def restart(self, *, down_s: float = 1.0) -> None:
        """`stop`, a pause, `start`."""
        self.stop()
        await self._env.sleep(down_s)
        self.start()

    def lose_data(self) -> None:
        """All nodes and sessions are forgotten, as if an empty Keeper had been put in its place."""
        for record in list(self._records.values()):
            self._cancel_expiry(record)
            self._watches.drop_session(record.session.session_id)
        sessions = [record.session for record in self._records.values()]
        self._records.clear()
        self.tree = Tree()
        for session in sessions:
            self._drop_connection(session)

    def jump_clock(self, by_s: float) -> None:
        """Move the server's wall clock, from which ctime and mtime are taken."""
        self._clock_offset_s += by_s

    def crash_client(self, client: str) -> None:
        """The client's process died: nothing more is sent, nobody is told; sessions end after their timeout.

        Requests already on their way are executed.
        """
        for session_id in self.session_ids(client):
            record = self._records[session_id]
            self._waiting_to_reconnect.pop(record.session, None)
            record.session.end(silently=True)
            self._watches.drop_session(session_id)
            self._start_expiry(record)

    # --- serving ------------------------------------------------------------------------------------------

    def _serve(self, session: MemorySession) -> None:
        """Execute the session's next request, if one has arrived."""
        if not session.to_server or self.network.is_cut_off(session.client):
            return
        request = session.to_server.popleft()
        record = self._records.get(session.session_id)
        if record is None or not self.is_up:
            return
        fault = None
        if record.forced and record.forced[0][1] in (None, request.kind):
            fault = record.forced.pop(0)[0]
        elif self.faults is not None:
            fault = self.faults.draw()
        match fault:
            case Fault.REQUEST_LOST:
                self._break(record)
                return
            case Fault.SESSION_EXPIRED:
                self.expire_session(session.session_id)
                return
            case Fault.REPLY_DELAYED if self.faults is not None:
                self.delay_replies(session.session_id, self.faults.draw_delay_s())
            case Fault.STALE_READS if self.faults is not None:
                self.stale_reads(session.session_id, for_s=self.faults.draw_stale_s())
            case _:
                pass
        reply = self._execute(record, request)
        if fault is Fault.REPLY_LOST:
            self._break(record)
        elif session.state is LinkState.CONNECTED:
            self.network.deliver(session, reply)

    def _execute(self, record: _SessionRecord, request: Request) -> Reply:
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

    def _read(self, tree: Tree, caller: Caller, record: _SessionRecord, request: Request) -> Any:
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

    def _count(self, record: _SessionRecord, request: Request) -> None:
        counts = self.operations.get(record.session.client)
        if counts is None:
            counts = self.operations[record.session.client] = Counter()
        counts[request.kind.value] += 1
        if request.kind is RequestKind.MULTI:
            counts["multi_ops"] += len(request.payload)

    def _authenticate(self, record: _SessionRecord, scheme: str, credentials: bytes) -> None:
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

    def _catch_up(self, record: _SessionRecord) -> None:
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

    def _break(self, record: _SessionRecord) -> None:
        self._watches.drop_session(record.session.session_id)
        record.stale, record.stale_watches = None, {}
        self._start_expiry(record)
        self._drop_connection(record.session)

    def _drop_connection(self, session: MemorySession) -> None:
        if session.state is LinkState.CONNECTED:
            session.lose_connection()
            session.loop.call_later(self.network.draw_s(self._reconnect_delay_s), self._reconnect, session)

    def _notice_partition(self, session: MemorySession) -> None:
        if session.client not in self.network.partitions or session.state is not LinkState.CONNECTED:
            return
        record = self._records.get(session.session_id)
        if record is not None:
            self._break(record)
        else:
            self._drop_connection(session)

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
        rearmed = self._watches.rearm(session.armed.keys(), session.session_id, self.tree, session.seen_zxid)
        session.resume(rearmed)

    def _retry_reconnections(self) -> None:
        waiting = list(self._waiting_to_reconnect)
        self._waiting_to_reconnect.clear()
        for session in waiting:
            session.loop.call_later(self.network.draw_s(self._reconnect_delay_s), self._reconnect, session)

    def _start_expiry(self, record: _SessionRecord) -> None:
        if record.expiry is None:
            session = record.session
            record.expiry = session.loop.call_later(
                session.session_timeout_s, self._expire_by_time, session.session_id
            )

    @staticmethod
    def _cancel_expiry(record: _SessionRecord) -> None:
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
