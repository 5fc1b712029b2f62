"""Between this project's values and kazoo's: requests, results, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import ZookeeperError
from kazoo.protocol import serialization as wire
from kazoo.security import ACL, Id

from engine.config.model import ZooKeeper
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
    OPEN_ACL,
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


def host_list(config: ZooKeeper) -> str:
    """The hosts as kazoo reads them."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in config.hosts)


def encode_op(op: Op, path: str, default_acl: tuple[Acl, ...]) -> Any:
    """A write or a check; `path` is the server's, `default_acl` stands for an ACL that was not given."""
    match op:
        case Create(_, data, mode, acl):
            return wire.Create(path, data, encode_acl(default_acl if acl is OPEN_ACL else acl), mode.value)
        case Remove(_, version):
            return wire.Delete(path, version)
        case SetData(_, data, version):
            return wire.SetData(path, data, version)
        case Check(_, version):
            return wire.CheckVersion(path, version)


def decode_multi(ops: Sequence[Op], results: Sequence[Any], outside: Callable[[str], str]) -> list[OpResult]:
    """The results of a multi. Raises MultiFailed: kazoo puts an exception in the place of every operation."""
    codes = [result.code if isinstance(result, ZookeeperError) else 0 for result in results]
    for index, code in enumerate(codes):
        if code:
            raise MultiFailed(index, answer_of_code(code, ops[index].path), codes)
    return [
        outside(result)
        if isinstance(op, Create)
        else decode_stat(result)
        if isinstance(op, SetData)
        else None
        for op, result in zip(ops, results, strict=True)
    ]


def decode_error(error: Exception, path: str, session_id: int) -> OnclusterError:
    """What kazoo raises, in this project's tree. An error without a known meaning is an unknown outcome."""
    code = getattr(error, "code", None)
    match code:
        case -112 | -116 | -9:
            return SessionExpired(f"Session {session_id:#x} is over, path: {path}")
        case -7:
            return OperationTimeout(f"Keeper reports a timeout, path: {path}")
        case int() if (code <= -100 and code != -118) or code == BadArguments.keeper_code:
            return answer_of_code(code, path)
        case _:
            return ConnectionLoss(f"Connection of session {session_id:#x} was lost, path: {path}")


def decode_nothing(value: Any) -> None:
    return None


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
