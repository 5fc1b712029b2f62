"""What a session was asked, carried out over one connection in its order; reads that stand next to each other
are one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import AuthFailed, ConnectionLoss, KeeperAnswer, NoAuth, NoNode
from engine.keeper.base import Children, Node
from engine.keeper.etcd import messages
from engine.keeper.etcd.call import EtcdCall
from engine.keeper.etcd.channel import EtcdRefuses
from engine.keeper.etcd.feed import Feed
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.overlay import EndSession, Request, SetAcl
from engine.keeper.etcd.reaper import Reaper
from engine.keeper.etcd.record import Family, read_family
from engine.keeper.etcd.store import Store, as_answer
from engine.keeper.link import LinkState
from engine.keeper.session import RequestKind
from engine.keeper.tree import ADMIN, Caller, Change, blotted, digest_identity, is_permitted

if TYPE_CHECKING:
    from engine.keeper.etcd.session import EtcdSession

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


class Requests:
    """Of one connection. Methods raise LinkLost, SessionOver."""

    def __init__(
        self,
        session: EtcdSession,
        layout: Layout,
        store: Store,
        feed: Feed,
        reaper: Reaper,
        revoke: Callable[[], Awaitable[None]],
    ) -> None:
        self._session = session
        self._layout = layout
        self._store = store
        self._feed = feed
        self._reaper = reaper
        self._revoke = revoke

    async def carry_out(self) -> None:
        """Until the session is over; it is closed here, too."""
        session = self._session
        while session.state is not LinkState.OVER:
            while session.queue:
                first = session.queue.popleft()
                if first.future.done():
                    continue  # nobody waits for it any more
                if first.kind is RequestKind.CLOSE:
                    await self._end_session()
                    first.answer(None)
                    return
                if first.kind in _READS:
                    await self._read(self._reads_from(first))
                else:
                    await self._write(first)
            session.has_work.clear()
            await session.has_work.wait()

    # --- reads --------------------------------------------------------------------------------------------

    def _reads_from(self, first: EtcdCall) -> list[EtcdCall]:
        """The reads that stand at the head of the queue, as many as fit."""
        queue, reads = self._session.queue, [first]
        room = self._store.reads_at_once - 2
        while queue and queue[0].kind in _READS and room >= 2:
            call = queue.popleft()
            if not call.future.done():
                reads.append(call)
                room -= 2 if call.kind is RequestKind.CHILDREN else 1
        return reads

    async def _read(self, calls: Sequence[EtcdCall]) -> None:
        layout, feed = self._layout, self._feed
        ranges: list[Any] = []
        for call in calls:
            if call.kind is RequestKind.SYNC or "\0" in call.path:
                continue
            ranges.append(layout.family_op(call.path))
            if call.kind is RequestKind.CHILDREN:
                ranges.append(messages.range_op(*layout.children(call.path), keys_only=True))
        feed.read_begins()
        try:
            answers = await self._store.read(ranges)
        except EtcdRefuses as refused:
            for call in calls:
                self._refuse(call, as_answer(refused, call.path))
            return
        revision = answers.revision
        if any(call.watch is not None for call in calls):
            await feed.follow(revision)
        if feed.is_following:
            await feed.reached(min(answers.event_revision, revision))
        self._session.saw(revision)
        found = iter(answers.ranges)
        overtaking = feed.read_ends(revision)
        for call in calls:
            self._answer_read(call, found, revision, overtaking)

    def _answer_read(self, call: EtcdCall, found: Any, revision: int, overtaking: Sequence[Change]) -> None:
        if call.kind is RequestKind.SYNC:
            call.answer(None)
            return
        family: Family | None = None
        names: tuple[str, ...] = ()
        if "\0" not in call.path:
            family = read_family(next(found), self._layout.node(call.path), revision)
            self._session.remembered.keep([(call.path, family)])
            if call.kind is RequestKind.CHILDREN:
                skipped = len(self._layout.children(call.path)[0])
                names = tuple(sorted(kv.key[skipped:].decode() for kv in next(found) if b"\0" not in kv.key))
        try:
            value = self._value_of(call, family, names)
        except KeeperAnswer as answer:
            self._refuse(call, answer)
            return
        call.answer(value)
        if call.watch is not None:
            self._session.arm(call, value, overtaking)

    def _value_of(self, call: EtcdCall, family: Family | None, names: tuple[str, ...]) -> Any:
        if family is None or family.record is None:
            if call.kind is RequestKind.EXISTS:
                return None
            raise NoNode(call.path)
        record = family.record
        if call.kind is RequestKind.GET_ACL and is_permitted(record.acl, ADMIN, self._session.identities):
            return record.acl
        if not self._session.may_read(record.acl):
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

    # --- writes -------------------------------------------------------------------------------------------

    async def _write(self, call: EtcdCall) -> None:
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
        is_multi = call.kind is RequestKind.MULTI
        try:
            written = await self._store.write(requests, self._caller, is_multi=is_multi)
        except EtcdRefuses as refused:
            self._refuse(call, as_answer(refused, call.path))
            return
        if self._feed.is_following:
            await self._feed.reached(written.event_revision)
        self._session.saw(written.event_revision)
        if isinstance(written.error, ConnectionLoss):
            call.fail(written.error)
        elif written.error is not None:
            self._refuse(call, written.error)
        else:
            call.answer(written.results if is_multi else written.results[0])

    def _refuse(self, call: EtcdCall, answer: KeeperAnswer) -> None:
        call.fail(self._session.answer_outside(answer))

    def _caller(self) -> Caller:
        session = self._session
        return Caller(session.session_id, session.identities, session.clock.now_ms())

    def _authenticate(self, call: EtcdCall) -> None:
        scheme, credentials = call.payload
        if scheme != "digest":
            call.fail(AuthFailed("/"))
            return
        self._session.identities |= {digest_identity(credentials)}
        call.answer(None)

    async def _end_session(self) -> None:
        """Remove what is the session's, and its key, in one transaction; then give the lease back."""
        session_id = self._session.session_id
        paths = await self._reaper.paths_of(session_id)
        try:
            written = await self._store.write([EndSession(session_id, paths)], self._caller)
            if written.error is not None:
                log.warning("keeper.close_refused session=%#x why=%s", session_id, written.error)
        finally:
            await self._revoke()
