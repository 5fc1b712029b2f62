"""What stands in the event key: what one write changed, in order, for everybody's watches.

JSON: `{"t": Unix milliseconds, "c": [[event type, path], …]}`. A node whose ACL, or whose parent's, is not
open to the world has both behind its path: who may not read a node is told nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine.keeper.base import OPEN_ACL, Acl, EventType
from engine.keeper.tree import Change


def pack_changes(changes: Sequence[Change], now_ms: int) -> bytes:
    packed: list[list[Any]] = []
    for type_, path, acl, parent_acl in changes:
        entry: list[Any] = [type_.value, path]
        if acl is not OPEN_ACL or parent_acl is not OPEN_ACL:
            entry += [_pack_acl(acl), _pack_acl(parent_acl)]
        packed.append(entry)
    return json.dumps({"t": now_ms, "c": packed}, separators=(",", ":"), ensure_ascii=False).encode()


def unpack_changes(value: bytes) -> list[Change]:
    return [
        (
            EventType(entry[0]),
            entry[1],
            _unpack_acl(entry[2]) if len(entry) > 2 else OPEN_ACL,
            _unpack_acl(entry[3]) if len(entry) > 2 else OPEN_ACL,
        )
        for entry in json.loads(value)["c"]
    ]


def _pack_acl(acl: tuple[Acl, ...]) -> list[list[Any]]:
    return [] if acl is OPEN_ACL else [[entry.perms, entry.scheme, entry.id] for entry in acl]


def _unpack_acl(packed: Sequence[Sequence[Any]]) -> tuple[Acl, ...]:
    return tuple(Acl(*entry) for entry in packed) or OPEN_ACL
