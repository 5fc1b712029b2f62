"""Which keys of etcd hold the tree. All of them begin with the configuration's `key_prefix`.

    n/<depth><path>        a node: its record (`engine.keeper.etcd.record`)
    n/<depth><path>\\0+     how many children were ever created below it: this key's version, plus its value
    n/<depth><path>\\0-     how many were removed, likewise
    e/<session>/<path>     the node is an ephemeral of that session
    w/event                the last write: what it changed; written by every write
    w/clock                the time by which nodes are stamped
    w/s/<session>          the session lives: bound to its lease

Children of a node are the keys `n/<depth+1><path>/…`, one range. A node with both its counts is one range,
too: no path holds a zero byte.
"""

from __future__ import annotations

from engine.keeper.etcd.messages import range_op

_BEYOND_COUNTS = b"\0."


class Layout:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        start = prefix.encode()
        self._nodes = start + b"n/"
        self._ephemerals = start + b"e/"
        self.event = start + b"w/event"
        self.clock = start + b"w/clock"
        self.sessions = start + b"w/s/"
        self.sessions_end = start + b"w/s0"
        self.ephemerals_end = start + b"e0"

    @property
    def ephemerals(self) -> bytes:
        return self._ephemerals

    def node(self, path: str) -> bytes:
        depth = 0 if path == "/" else path.count("/")
        return self._nodes + b"%03d" % depth + path.encode()

    @staticmethod
    def created(node: bytes) -> bytes:
        return node + b"\0+"

    @staticmethod
    def removed(node: bytes) -> bytes:
        return node + b"\0-"

    @staticmethod
    def counts(node: bytes) -> tuple[bytes, bytes]:
        """The range of both counts."""
        return node + b"\0", node + _BEYOND_COUNTS

    @staticmethod
    def family(node: bytes) -> tuple[bytes, bytes]:
        """The range of the record and both counts."""
        return node, node + _BEYOND_COUNTS

    def children(self, path: str) -> tuple[bytes, bytes]:
        """The range of the children's records and counts."""
        below = self.node("/x" if path == "/" else path + "/x")[:-1]
        return below, below[:-1] + b"0"

    def session(self, session_id: int) -> bytes:
        return self.sessions + b"%016x" % session_id

    def session_of(self, key: bytes) -> int | None:
        """The session whose key this is; None if it is none."""
        return int(key[len(self.sessions) :], 16) if key.startswith(self.sessions) else None

    def ephemerals_of(self, session_id: int) -> tuple[bytes, bytes]:
        start = self._ephemerals + b"%016x" % session_id
        return start + b"/", start + b"0"

    def ephemeral(self, session_id: int, path: str) -> bytes:
        return self._ephemerals + b"%016x" % session_id + path.encode()

    def ephemeral_of(self, key: bytes) -> tuple[int, str]:
        """The session and the path that such a key names."""
        rest = key[len(self._ephemerals) :]
        return int(rest[:16], 16), rest[16:].decode()

    def family_op(self, path: str, *, revision: int = 0) -> object:
        """Read a node with its counts."""
        return range_op(*self.family(self.node(path)), revision=revision)
