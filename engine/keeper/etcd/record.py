"""What stands in etcd for one node, read at one revision.

A zxid is a revision of etcd. A record cannot name the revision at which it is written, so `SELF` stands for
it: who reads the record finds the number beside it, and the next write of the record stores it.

    czxid        stored; SELF in the record that created the node
    mzxid        stored; SELF in the record of a creation or of a set, a number after a change of the ACL
    pzxid        the newer of the two counts' revisions, czxid if there is none
    cversion     created + removed
    numChildren  created - removed

Each count is the key's own version (how often etcd has seen it written) plus the number that stands in it.
So children are added and removed without reading the parent's counts, and writers on one parent do not meet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.errors import Corrupt
from engine.keeper.base import OPEN_ACL, Acl, Stat

SELF = -1
STALE = -1
_FORMAT = 1
_HEAD = struct.Struct(">BqqqqqiiH")


class Record(NamedTuple):
    """One node without its counts."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    owner: int
    version: int
    aversion: int
    acl: tuple[Acl, ...]
    data: bytes

    def to_bytes(self) -> bytes:
        acl = () if self.acl is OPEN_ACL or self.acl == OPEN_ACL else self.acl
        packed = _HEAD.pack(_FORMAT, *self[:7], len(acl))
        for entry in acl:
            scheme, id_ = entry.scheme.encode(), entry.id.encode()
            packed += struct.pack(">iHH", entry.perms, len(scheme), len(id_)) + scheme + id_
        return packed + self.data

    @classmethod
    def from_bytes(cls, value: bytes, key: bytes) -> Record:
        """Raises Corrupt."""
        try:
            format_, *numbers, entries = _HEAD.unpack_from(value)
            if format_ != _FORMAT:
                raise Corrupt(f"etcd's key {key!r} has format {format_}; this version knows {_FORMAT}.")
            at = _HEAD.size
            acl: list[Acl] = []
            for _ in range(entries):
                perms, scheme, id_ = struct.unpack_from(">iHH", value, at)
                at += 8
                acl.append(
                    Acl(
                        perms,
                        value[at : at + scheme].decode(),
                        value[at + scheme : at + scheme + id_].decode(),
                    )
                )
                at += scheme + id_
        except (struct.error, UnicodeDecodeError) as error:
            raise Corrupt(
                f"etcd's key {key!r} is no node of Keeper ({error}).",
                hint="Has somebody else written below key_prefix?",
            ) from None
        return cls._make([*numbers, tuple(acl) or OPEN_ACL, value[at:]])


@dataclass(frozen=True, slots=True)
class Count:
    """One of a node's counts. `mod` is STALE where others may have counted on."""

    base: int
    version: int
    mod: int

    @property
    def value(self) -> int:
        return self.base + self.version


@dataclass(frozen=True, slots=True)
class Family:
    """A node with its counts, or that there is none, as of `revision`."""

    record: Record | None
    mod: int
    created: Count | None
    removed: Count | None
    revision: int

    @property
    def num_created(self) -> int:
        return self.created.value if self.created else 0

    @property
    def num_removed(self) -> int:
        return self.removed.value if self.removed else 0

    @property
    def num_children(self) -> int:
        return self.num_created - self.num_removed

    @property
    def czxid(self) -> int:
        assert self.record is not None
        return self.mod if self.record.czxid == SELF else self.record.czxid

    @property
    def mzxid(self) -> int:
        assert self.record is not None
        return self.mod if self.record.mzxid == SELF else self.record.mzxid

    @property
    def pzxid(self) -> int:
        mods = [count.mod for count in (self.created, self.removed) if count]
        return max(mods, default=0) or self.czxid

    @property
    def stat(self) -> Stat:
        record = self.record
        assert record is not None
        return Stat(
            self.czxid,
            self.mzxid,
            record.ctime_ms,
            record.mtime_ms,
            record.version,
            self.num_created + self.num_removed,
            record.aversion,
            record.owner,
            len(record.data),
            self.num_children,
            self.pzxid,
        )


def read_family(kvs: Iterable[Any], node: bytes, revision: int) -> Family:
    """Of what etcd answers to a range over the family."""
    record, mod = None, 0
    created = removed = None
    for kv in kvs:
        if kv.key == node:
            record, mod = Record.from_bytes(kv.value, node), kv.mod_revision
        elif kv.key[-1:] == b"+":
            created = _count(kv)
        else:
            removed = _count(kv)
    return Family(record, mod, created, removed, revision)


def absent(revision: int) -> Family:
    """No such node."""
    return Family(None, 0, None, None, revision)


def _count(kv: Any) -> Count:
    try:
        return Count(int(kv.value or b"0"), kv.version, kv.mod_revision)
    except ValueError:
        raise Corrupt(f"etcd's key {kv.key!r} is no count: {kv.value!r}.") from None
