"""Between this project's values and kazoo's: requests, results, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import ZookeeperError
from kazoo.protocol import serialization as wire
from kazoo.security import ACL, Id

from engine.errors import (
    BadArguments,
    ConnectionLoss,
    MultiFailed,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper.answers import answer_of_code
from engine.keeper.base import (
    Acl,
    Check,
    Children,
    Create,
    Node,
    Op,
    OpResult,
    Remove,
    SetData,
    Stat,
)
from engine.keeper.children_request import ChildrenRequest
from engine.keeper.session import RequestKind

Decode = Callable[[Any], Any]
"""Of a result: from what kazoo makes of it to this project's value."""


def encode(kind: RequestKind, path: str, payload: Any) -> tuple[Any, Decode]:
    """The request, and what makes its result out of kazoo's. Paths are the server's."""
    match kind:
        case RequestKind.GET:
            return wire.GetData(path, None), decode_node
        case RequestKind.EXISTS:
            return wire.Exists(path, None), decode_optional_stat
        case RequestKind.CHILDREN:
            return ChildrenRequest(path, None), decode_children
        case RequestKind.CREATE:
            return encode_op(payload), decode_path
        case RequestKind.REMOVE:
            return encode_op(payload), decode_nothing
        case RequestKind.SET:
            return encode_op(payload), decode_stat
        case RequestKind.MULTI:
            return wire.Transaction([encode_op(op) for op in payload]), partial(decode_multi, payload)
        case RequestKind.SYNC:
            return wire.Sync(path), decode_nothing
        case RequestKind.GET_ACL:
            return wire.GetACL(path), decode_acl
        case RequestKind.SET_ACL:
            acl, version = payload
            return wire.SetACL(path, encode_acl(acl), version), decode_stat
        case RequestKind.AUTH:
            scheme, credentials = payload
            return wire.Auth(0, scheme, credentials.decode()), decode_nothing
        case RequestKind.CLOSE:
            return wire.CloseInstance, decode_nothing


def encode_op(op: Op) -> Any:
    """A write or a check."""
    match op:
        case Create(path, data, mode, acl):
            return wire.Create(path, data, encode_acl(acl), mode.value)
        case Remove(path, version):
            return wire.Delete(path, version)
        case SetData(path, data, version):
            return wire.SetData(path, data, version)
        case Check(path, version):
            return wire.CheckVersion(path, version)


def decode_multi(ops: Sequence[Op], results: Sequence[Any]) -> list[OpResult]:
    """The results of a multi. Raises MultiFailed: kazoo puts an exception in the place of every operation."""
    codes = [result.code if isinstance(result, ZookeeperError) else 0 for result in results]
    for index, code in enumerate(codes):
        if code:
            raise MultiFailed(index, answer_of_code(code, ops[index].path), codes)
    return [
        decode_path(result)
        if isinstance(op, Create)
        else decode_stat(result)
        if isinstance(op, SetData)
        else None
        for op, result in zip(ops, results, strict=True)
    ]


_FOR_NOW = (-118, -122, -127)
"""The session has moved to another server, the request took too long, or there are too many requests."""


def decode_error(error: Exception, path: str, session_id: int) -> OnclusterError:
    """What kazoo raises, in this project's tree. An error without a known meaning is an unknown outcome."""
    code = getattr(error, "code", None)
    match code:
        case -112 | -116 | -9:
            return SessionExpired(f"Session {session_id:#x} is over, path: {path}")
        case -7:
            return OperationTimeout(f"Keeper reports a timeout, path: {path}")
        case int() if (code <= -100 and code not in _FOR_NOW) or code == BadArguments.keeper_code:
            return answer_of_code(code, path)
        case None:
            return ConnectionLoss(f"Keeper answers with an error that is not known here, path: {path}")
        case _:
            return ConnectionLoss(f"Connection of session {session_id:#x} was lost, path: {path}")


def decode_nothing(value: Any) -> None:
    return None


def decode_path(value: Any) -> str:
    return str(value)


def decode_stat(value: Any) -> Stat:
    return Stat(*value)


def decode_optional_stat(value: Any) -> Stat | None:
    return None if value is None else Stat(*value)


def decode_node(value: Any) -> Node:
    return Node(value[0] or b"", Stat(*value[1]))


def decode_children(value: Any) -> Children:
    return Children(tuple(sorted(value[0])), Stat(*value[1]))


def decode_acl(value: Any) -> tuple[Acl, ...]:
    return tuple(Acl(entry.perms, entry.id.scheme, entry.id.id) for entry in value[0])


def encode_acl(acl: Sequence[Acl]) -> list[Any]:
    return [ACL(entry.perms, Id(entry.scheme, entry.id)) for entry in acl]
