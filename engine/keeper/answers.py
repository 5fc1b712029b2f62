"""ZooKeeper's error codes for definite answers."""

from __future__ import annotations

from engine.errors import (
    AuthFailed,
    BadArguments,
    BadVersion,
    InvalidAcl,
    KeeperAnswer,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
)

_ANSWERS: dict[int, type[KeeperAnswer]] = {
    answer.keeper_code: answer
    for answer in (
        NoNode,
        NoAuth,
        BadVersion,
        NoChildrenForEphemerals,
        NodeExists,
        NotEmpty,
        InvalidAcl,
        AuthFailed,
        BadArguments,
    )
}


def answer_of_code(code: int, path: str) -> KeeperAnswer:
    """The answer for a code; a code without a class of its own (a quota, a read-only server) is
    BadArguments."""
    known = _ANSWERS.get(code)
    return BadArguments(path, f"Keeper refuses with code {code}") if known is None else known(path)
