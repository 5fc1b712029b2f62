"""What the sessions with a ZooKeeper and with an etcd do alike: they go on over one connection after the
other, their requests have deadlines, and they end once.

A session that has lost its connection waits for another as long as the server keeps it; after that it is over
as far as its owner is concerned, whatever the server says later.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

from engine.config.model import Etcd, ZooKeeper
from engine.env import Env
from engine.errors import ConnectionLoss, KeeperUnavailable, OperationTimeout, SessionExpired
from engine.keeper.base import OPEN_ACL, Connection, Watch
from engine.keeper.calls import Call, Deadlines
from engine.keeper.link import CREATOR_ACL, LinkState, absent_root
from engine.keeper.session import KeeperSession, RequestKind

log = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 5.0

CallT = TypeVar("CallT", bound=Call)


class RemoteSession(KeeperSession, Generic[CallT]):
    """Implements `Keeper`, but for `close`. Made by `opened`."""

    server: ClassVar[str]
    """As messages call it."""

    def __init__(self, config: ZooKeeper | Etcd, env: Env, *, connect_timeout_s: float) -> None:
        super().__init__(
            session_id=0,
            timeout_s=config.session_timeout_ms / 1000,
            state=LinkState.SUSPENDED,
            root=config.root.rstrip("/"),
            default_acl=CREATOR_ACL if config.identity else OPEN_ACL,
        )
        self._hosts = config.hosts
        self._hosts_text = config.connect_string
        self._now_s = env.now_s
        self._connected_s = 0.0
        self._operation_timeout_s = config.operation_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_s
        self._is_closing = False
        self._first_connection: asyncio.Future[None] = self.loop.create_future()
        self._patience: asyncio.TimerHandle | None = None
        self._deadlines: Deadlines[CallT] = Deadlines(self._expire)

    # --- what a backend adds ------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Begin to connect; `_connected` follows."""

    @abstractmethod
    def _why_not(self) -> str:
        """Why the last attempt to connect failed; empty if nothing is known."""

    @abstractmethod
    def _submit(
        self, kind: RequestKind, path: str, payload: Any, watch: Watch | None, deadline_s: float
    ) -> CallT:
        """Queue a request."""

    @abstractmethod
    def _server(self) -> tuple[str, int]:
        """Host and port of the connection, while there is one."""

    @abstractmethod
    def _progress(self) -> tuple[int, int]:
        """`requests` and `transaction` of the connection."""

    @abstractmethod
    def _let_go(self) -> None:
        """The session is over: connect no more. Called once or more often."""

    # --- life ---------------------------------------------------------------------------------------------

    async def opened(self) -> Self:
        """Connect and look for the chroot.

        Raises KeeperUnavailable with the reason; NoNode if the chroot does not exist.
        """
        try:
            await self._open()
        except BaseException:  # also a cancellation: the session must not live on unowned
            self.abandon()
            raise
        return self

    async def _open(self) -> None:
        self._begin()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.shield(self._first_connection)
        except TimeoutError:
            raise KeeperUnavailable(
                f"No session with {self.server} at {self._hosts_text} within {self._connect_timeout_s:g} s "
                f"({self._why_not() or 'no answer'})."
            ) from None
        try:
            if self._root and await self.exists("/") is None:
                raise absent_root(self._root)
        except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
            raise KeeperUnavailable(f"{self.server} was lost while connecting: {error}") from error

    @property
    def connection(self) -> Connection | None:
        if self.state is not LinkState.CONNECTED:
            return None
        host, port = self._server()
        requests, transaction = self._progress()
        index = self._hosts.index((host, port))
        return Connection(host, port, index, self._connected_s, requests, transaction)

    def abandon(self) -> None:
        self.over()
        self._let_go()

    def _connected(self, session_id: int, timeout_s: float) -> None:
        """There is a connection, and this is what the server granted."""
        if self.state is LinkState.OVER:
            return
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            log.info("keeper.resumed session=%#x", session_id)
        self.state = LinkState.CONNECTED
        self._connected_s = self._now_s()
        self._session_id, self._timeout_s = session_id, timeout_s
        if not self._first_connection.done():
            self._first_connection.set_result(None)

    def _suspended(self) -> None:
        """The connection broke: what is under way has an unknown outcome."""
        if self.state is not LinkState.CONNECTED:
            return
        self.state = LinkState.SUSPENDED
        self._patience = self.loop.call_later(self._timeout_s, self._assume_expired)
        log.warning("keeper.suspended session=%#x", self._session_id)
        self._deadlines.fail_all(
            lambda: ConnectionLoss(f"Connection of session {self._session_id:#x} was lost")
        )

    def _assume_expired(self) -> None:
        log.warning(
            "keeper.assumed_over session=%#x without_connection_s=%g", self._session_id, self._timeout_s
        )
        self.over()

    def over(self) -> None:
        """The session has ended: tell everybody, once."""
        if self.state is LinkState.OVER:
            return
        self.state = LinkState.OVER
        if self._patience is not None:
            self._patience.cancel()
        self._deadlines.fail_all(lambda: SessionExpired(f"Session {self._session_id:#x} is over"))
        if self._session_id:
            level = logging.DEBUG if self._is_closing else logging.INFO  # its owner's word is no news
            log.log(level, "keeper.session_over session=%#x", self._session_id)
        self._announce_end()
        self._let_go()

    # --- requests -----------------------------------------------------------------------------------------

    def _send(
        self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None
    ) -> asyncio.Future[Any]:
        if self.state is LinkState.OVER or self._is_closing:
            raise SessionExpired(f"Session {self._session_id:#x} is over")
        return self._ask(kind, path, payload, watch).future

    def _ask(self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None) -> CallT:
        call = self._submit(kind, path, payload, watch, self.loop.time() + self._operation_timeout_s)
        self._deadlines.add(call)
        return call

    def _expire(self, call: CallT) -> None:
        where, after_s = self._outside(call.path), self._operation_timeout_s
        call.fail(OperationTimeout(f"{self.server} did not answer within {after_s:g} s, path: {where}"))
