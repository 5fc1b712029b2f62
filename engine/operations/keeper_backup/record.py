"""One node as a backup keeps it: value, ACL, bookkeeping, and where it stands in the order of a tree.

The order is that of a walk: a node before what is below it, siblings by name. Two trees in this order are
compared, and one is restored, while only a few nodes of each are held.

Sequence numbers. The next sequential child of a node bears the number of creations that its parent has ever
seen. Keeper does not tell that number, but `cversion` counts creations and removals and `num_children` is
their difference, so creations = (cversion + num_children) / 2. ClickHouse Keeper up to 22.x counts sets of
children in `cversion` too: then the result is too great, which is the safe side.

Source: ZooKeeper's programmer's guide and DataNode (cversion of the third version of its bookkeeping).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import Corrupt
from engine.keeper.base import Acl, Stat

OWN_SUBTREES = ("/zookeeper", "/keeper")
"""What belongs to the server itself (quotas, its configuration, its feature flags): never read or written."""

_CONTAINER_OWNER = -(1 << 63)
"""ZooKeeper marks container nodes with this owner; they live as long as they have children."""

_SERVER_BITS = 56
"""Above them a session's id has its server's number, at most 254; 255 marks nodes with a time to live."""

_HIDDEN_DIGEST = ":x"
_OPEN = Acl(31, "world", "anyone")


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node. `path` is below the backed-up root: `/` is the root itself.

    `data` is None for a node that may not be read (NoAuth): then nothing is known but that it is there.
    """

    path: str
    data: bytes | None
    stat: Stat
    acl: tuple[Acl, ...]

    @property
    def order(self) -> str:
        return order_of(self.path)

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.stat)

    @property
    def creations(self) -> int:
        """The number that its next sequential child gets."""
        return creations(self.stat)

    @property
    def has_hidden_acl(self) -> bool:
        """Whether a digest was kept from whoever read it: such an ACL cannot be given to another node."""
        return any(entry.scheme == "digest" and entry.id.endswith(_HIDDEN_DIGEST) for entry in self.acl)

    @property
    def is_open(self) -> bool:
        return self.acl == (_OPEN,)

    def to_json(self) -> dict[str, Any]:
        """`text` where the value is UTF-8, else `base64`; `acl` is left out where anybody may do anything."""
        raw: dict[str, Any] = {"path": self.path}
        if self.data is None:
            return raw | {"unreadable": True}
        s = self.stat
        raw["stat"] = [
            s.czxid,
            s.mzxid,
            s.ctime_ms,
            s.mtime_ms,
            s.version,
            s.cversion,
            s.aversion,
            s.ephemeral_owner,
            s.data_length,
            s.num_children,
            s.pzxid,
        ]
        if not self.is_open:
            raw["acl"] = [[entry.perms, entry.scheme, entry.id] for entry in self.acl]
        try:
            raw["text"] = self.data.decode()
        except UnicodeDecodeError:
            raw["base64"] = base64.b64encode(self.data).decode()
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> NodeRecord:
        """Raises Corrupt."""
        try:
            path = raw["path"]
            if raw.get("unreadable"):
                return cls(path, None, _NO_STAT, ())
            data = raw["text"].encode() if "text" in raw else base64.b64decode(raw["base64"], validate=True)
            acl = tuple(Acl(int(p), str(s), str(i)) for p, s, i in raw["acl"]) if "acl" in raw else (_OPEN,)
            stat = Stat(*(int(number) for number in raw["stat"]))
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise Corrupt(f"A node of the backup does not parse: {error}") from error
        if not isinstance(path, str) or not path.startswith("/"):
            raise Corrupt(f"A node of the backup has no path: {path!r}")
        return cls(path, data, stat, acl)


_NO_STAT = Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def unreadable(path: str) -> NodeRecord:
    """A node that is there and may not be read."""
    return NodeRecord(path, None, _NO_STAT, ())


def order_of(path: str) -> str:
    """Sorts as a walk meets the nodes. A name may contain characters below `/`, but never a zero."""
    return "" if path == "/" else path.replace("/", "\0")


def creations(stat: Stat) -> int:
    """Children ever made; rounded up where `cversion` counts more than creations and removals."""
    return (stat.cversion + stat.num_children + 1) // 2


def is_ephemeral(stat: Stat) -> bool:
    """Whether it goes with a session. Containers and nodes with a time to live count as staying."""
    owner = stat.ephemeral_owner
    has_time_to_live = owner >> _SERVER_BITS & 0xFF == 0xFF
    return owner != 0 and owner != _CONTAINER_OWNER and not has_time_to_live


def join(root: str, path: str) -> str:
    """Where a node stands below `root`; both absolute."""
    if root == "/":
        return path
    return root if path == "/" else root + path


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_own_subtree(path: str) -> bool:
    """Of an absolute path: whether it is the server's own."""
    return any(path == own or path.startswith(own + "/") for own in OWN_SUBTREES)


def highest_zxid(stats: Iterable[Stat]) -> int:
    """The last transaction that the tree shows."""
    return max((max(s.czxid, s.mzxid, s.pzxid) for s in stats), default=0)
