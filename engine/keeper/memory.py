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

from engine.env import Env
from engine.keeper.faults import Direction, Fault, FaultPlan
from engine.keeper.link import LinkState
from engine.keeper.memory_server import MemoryServer
from engine.keeper.memory_session import MemorySession
from engine.keeper.session import RequestKind
from engine.keeper.tree import Tree

_NOTICE_AFTER = 2 / 3
"""Share of the session timeout after which a client takes a silent connection for broken, as ZooKeeper's
do."""


class MemoryKeeperServer(MemoryServer):
    """One Keeper, and what may go wrong with it."""

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
        """As `MemoryServer`; `faults` happen at random."""
        self.faults = faults
        super().__init__(
            env,
            latency_s=latency_s,
            reconnect_delay_s=reconnect_delay_s,
            operation_timeout_s=operation_timeout_s,
            connect_timeout_s=connect_timeout_s,
            min_session_timeout_s=min_session_timeout_s,
            max_session_timeout_s=max_session_timeout_s,
        )

    # --- faults -------------------------------------------------------------------------------------------

    def lose_next_request(self, session_id: int, *, kind: RequestKind | None = None) -> None:
        """The session's next request (of that kind) is not executed and its connection breaks:
        ConnectionLoss."""
        self._records[session_id].forced.append((Fault.REQUEST_LOST, kind))

    def lose_next_reply(self, session_id: int, *, kind: RequestKind | None = None) -> None:
        """The session's next request (of that kind) is executed, then its connection breaks:
        ConnectionLoss."""
        self._records[session_id].forced.append((Fault.REPLY_LOST, kind))

    def lose_next_reply_and_lag(self, session_id: int, *, kind: RequestKind | None = None) -> None:
        """The same, and reads on the next connection do not see the request's effect for a second, or until
        the session syncs or writes."""
        self._records[session_id].forced.append((Fault.REPLY_LOST_AND_LAG, kind))

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

    # --- what of it happens when ----------------------------------------------------------------------------

    def _refuses(self) -> bool:
        return self.faults is not None and self.faults.draws_refusal()

    def _serve(self, session: MemorySession) -> None:
        """As it should be, unless a fault is due."""
        arrived = self._arrived(session)
        if arrived is None:
            return
        record, request = arrived
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
        before = self.tree.snapshot() if fault is Fault.REPLY_LOST_AND_LAG else None
        reply = self._execute(record, request)
        if fault in (Fault.REPLY_LOST, Fault.REPLY_LOST_AND_LAG):
            self._break(record)
            record.lagging = before
        elif session.state is LinkState.CONNECTED:
            self.network.deliver(session, reply)

    def _notice_partition(self, session: MemorySession) -> None:
        if session.client not in self.network.partitions or session.state is not LinkState.CONNECTED:
            return
        record = self._records.get(session.session_id)
        if record is not None:
            self._break(record)
        else:
            self._drop_connection(session)
