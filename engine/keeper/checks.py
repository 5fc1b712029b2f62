"""What every backend checks about a request before it is sent: the grammar of paths and the size limit.

ZooKeeper drops the connection of a client that sends more than `jute.maxbuffer` bytes, which looks like any
other connection loss and so would be tried again for ever. Here such a request is refused before it leaves,
with the definite answer `BadArguments`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.errors import BadArguments
from engine.keeper.base import Acl, Create, Op, SetData

MAX_REQUEST_BYTES = 0xFFFFF
"""ZooKeeper's default for `jute.maxbuffer`: the longest request, its header included."""

_REQUEST_HEADER_BYTES = 8
_MULTI_HEADER_BYTES = 9
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_BAD_COMPONENT = re.compile(r"//|/\.\.?(?:/|\Z)")


def below_root(root: str, path: str) -> str:
    """The path as the server knows it, below the session's chroot. Raises BadArguments if it is not
    absolute."""
    if path[:1] != "/":
        raise BadArguments(path, "Path must start with / character")
    if not root:
        return path
    return root if path == "/" else root + path


def outside_root(root: str, path: str) -> str:
    """The inverse of `below_root`."""
    return path[len(root) :] or "/" if root else path


def path_problem(path: str) -> str:
    """Why ZooKeeper would refuse to create this path; empty if it would not (PathUtils.validatePath)."""
    if path == "/":
        return ""
    if not path:
        return "Path length must be > 0"
    if path[0] != "/":
        return "Path must start with / character"
    if path[-1] == "/":
        return "Path must not end with / character"
    if _BAD_COMPONENT.search(path):
        return "Empty or relative node name"
    if _FORBIDDEN.search(path):
        return "Invalid character"
    return ""


def _acl_bytes(acl: Sequence[Acl]) -> int:
    return 4 + sum(12 + len(entry.scheme.encode()) + len(entry.id.encode()) for entry in acl)


def request_bytes(op: Op) -> int:
    """The length of one operation's record on the wire, without any header."""
    length = 8 + len(op.path.encode())
    if isinstance(op, Create):
        length += 4 + len(op.data) + _acl_bytes(op.acl)
    elif isinstance(op, SetData):
        length += 4 + len(op.data)
    return length


def check_size(ops: Sequence[Op], *, max_request_bytes: int = MAX_REQUEST_BYTES) -> None:
    """Raises BadArguments if the operations do not fit into one request."""
    size = _REQUEST_HEADER_BYTES + sum(request_bytes(op) for op in ops)
    if len(ops) > 1:
        size += _MULTI_HEADER_BYTES * (len(ops) + 1)
    if size > max_request_bytes:
        raise BadArguments(
            ops[0].path,
            f"Request of {size} bytes is longer than the {max_request_bytes} that ZooKeeper accepts",
        )
