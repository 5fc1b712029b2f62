"""One-shot watches: who is told what, once.

The server's half (`WatchTable`) knows sessions, the client's half (`ArmedWatches`) knows callbacks. Both go
by ZooKeeper's two kinds, the data watch (set by get and exists) and the child watch (set by a listing):

    change            data watches of the node   child watches of the node   child watches of its parent
    node created      CREATED                    –                           CHILD
    data set          CHANGED                    –                           –
    node removed      DELETED                    DELETED                     CHILD

A session that watches both the data and the children of a node that is removed gets one DELETED event, and
the client calls the callbacks of both kinds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.keeper.base import OPEN_ACL, Acl, EventType, Watch, WatchEvent
from engine.keeper.tree import Change, Tree


class WatchKind(enum.Enum):
    DATA = "data"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class Rearm:
    """A watch as a client asks for it again after a reconnection. `was_absent`: it waits for a creation."""

    kind: WatchKind
    path: str
    was_absent: bool = False


class WatchTable:
    """Which sessions watch which paths; kept by the server."""

    def __init__(self) -> None:
        self._data: dict[str, dict[int, None]] = {}
        self._child: dict[str, dict[int, None]] = {}

    def add(self, kind: WatchKind, path: str, session_id: int) -> None:
        table = self._data if kind is WatchKind.DATA else self._child
        table.setdefault(path, {})[session_id] = None

    def drop_session(self, session_id: int) -> None:
        for table in (self._data, self._child):
            for path in [path for path, sessions in table.items() if session_id in sessions]:
                del table[path][session_id]
                if not table[path]:
                    del table[path]

    def fire(
        self, changes: Iterable[Change], may_read: Callable[[int, tuple[Acl, ...]], bool]
    ) -> list[tuple[int, WatchEvent]]:
        """Take the watches that these changes fire; (session, event) in the order of the changes.

        `may_read(session, acl)`: the watch of a session that may not read the node is taken without a word,
        as ZooKeeper does since 3.9.2.
        """
        if not self._data and not self._child:
            return []
        fired: list[tuple[int, WatchEvent]] = []

        def tell(sessions: dict[int, None], type_: EventType, path: str, acl: tuple[Acl, ...]) -> None:
            event = WatchEvent(type_, path)
            fired.extend((each, event) for each in sessions if acl is OPEN_ACL or may_read(each, acl))

        for type_, path, acl, parent_acl in changes:
            sessions = self._data.pop(path, {})
            if type_ is EventType.DELETED:
                sessions |= self._child.pop(path, {})
            if sessions:
                tell(sessions, type_, path, acl)
            if type_ is not EventType.CHANGED:
                parent = path.rpartition("/")[0] or "/"
                if sessions := self._child.pop(parent, {}):
                    tell(sessions, EventType.CHILD, parent, parent_acl)
        return fired

    def rearm(
        self, watches: Iterable[Rearm], session_id: int, tree: Tree, seen_zxid: int
    ) -> list[WatchEvent]:
        """Set the watches again for a client that has seen everything up to `seen_zxid`.

        Those whose node has changed since are returned as events instead (ZooKeeper's SetWatches). A node
        that was created and removed meanwhile goes unnoticed by who waited for its creation.
        """
        events = []
        for watch in watches:
            node = tree.nodes.get(watch.path)
            if watch.was_absent:
                type_ = EventType.CREATED if node is not None else None
            elif node is None:
                type_ = EventType.DELETED
            elif watch.kind is WatchKind.DATA:
                type_ = EventType.CHANGED if node.mzxid > seen_zxid else None
            else:
                type_ = EventType.CHILD if node.pzxid > seen_zxid else None
            if type_ is None:
                self.add(watch.kind, watch.path, session_id)
            else:
                events.append(WatchEvent(type_, watch.path))
        return events


class ArmedWatches:
    """The callbacks of one client, by what they wait for. The same callback is kept once per path and
    kind."""

    def __init__(self) -> None:
        self._callbacks: dict[Rearm, dict[Watch, None]] = {}

    def add(self, key: Rearm, callback: Watch) -> None:
        self._callbacks.setdefault(key, {})[callback] = None

    def keys(self) -> list[Rearm]:
        return list(self._callbacks)

    def take(self, type_: EventType, path: str) -> list[Watch]:
        """The callbacks that an event of the server calls; they are armed no longer."""
        callbacks: dict[Watch, None] = {}
        if type_ is not EventType.CHILD:
            callbacks |= self._callbacks.pop(Rearm(WatchKind.DATA, path), {})
            callbacks |= self._callbacks.pop(Rearm(WatchKind.DATA, path, was_absent=True), {})
        if type_ in (EventType.CHILD, EventType.DELETED):
            callbacks |= self._callbacks.pop(Rearm(WatchKind.CHILD, path), {})
        return list(callbacks)

    def take_all(self) -> list[tuple[str, Watch]]:
        """Every callback with its path; for the end of the session."""
        everything = {
            (key.path, watch): None for key, watches in self._callbacks.items() for watch in watches
        }
        self._callbacks.clear()
        return list(everything)
