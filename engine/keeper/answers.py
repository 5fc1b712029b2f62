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

_MEANINGS = {
    -119: "this server is read-only: it has lost the others of its ensemble",
    -120: "the session is one of this server only",
    -125: "a quota of ZooKeeper's (setquota) for this path or one above is used up",
}


def answer_of_code(code: int, path: str) -> KeeperAnswer:
    """The answer for a code; a code without a class of its own (a quota, a read-only server) is
    BadArguments."""
    known = _ANSWERS.get(code)
    if known is not None:
        return known(path)
    meaning = _MEANINGS.get(code)
    return BadArguments(path, f"Keeper refuses with code {code}" + (f": {meaning}" if meaning else ""))
