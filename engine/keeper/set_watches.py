"""ZooKeeper's request to set watches again after a reconnection, which kazoo lacks.

The server compares each watched node with the last transaction that the client has seen, tells at once what
has changed since, and arms the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kazoo.protocol.serialization import int_struct, long_struct, write_string

_SPLIT_AT_BYTES = 128 * 1024
"""Requests are split at this size, as ZooKeeper's own client does, to stay far below what a server
accepts."""


@dataclass(frozen=True)
class SetWatches:
    """ZooKeeper's request 101: watches of an earlier connection and what zxid the client has seen."""

    type: ClassVar[int] = 101

    seen_zxid: int
    data: Sequence[str]
    absent: Sequence[str]
    child: Sequence[str]

    def serialize(self) -> bytes:
        packed = bytearray(long_struct.pack(self.seen_zxid))
        for paths in (self.data, self.absent, self.child):
            packed += int_struct.pack(len(paths))
            for path in paths:
                packed += write_string(path)
        return bytes(packed)

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> None:
        """The reply is empty."""


def split_watches(
    seen_zxid: int, data: Sequence[str], absent: Sequence[str], child: Sequence[str]
) -> list[SetWatches]:
    """Requests for data watches of nodes that were there, of nodes that were absent, and for child
    watches."""
    requests: list[SetWatches] = []
    lists: tuple[list[str], list[str], list[str]] = ([], [], [])
    size = 0
    for target, paths in zip(lists, (data, absent, child), strict=True):
        for path in paths:
            target.append(path)
            size += 4 + len(path.encode())
            if size > _SPLIT_AT_BYTES:
                requests.append(SetWatches(seen_zxid, tuple(lists[0]), tuple(lists[1]), tuple(lists[2])))
                for each in lists:
                    each.clear()
                size = 0
    if any(lists):
        requests.append(SetWatches(seen_zxid, tuple(lists[0]), tuple(lists[1]), tuple(lists[2])))
    return requests
