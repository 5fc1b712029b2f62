"""Definitions that come from elsewhere: nobody has looked at them as statements.

A backup holds the definitions of its objects, and chDB takes them as they are. One in somebody's bucket may
define a dictionary whose source is a command, or a table over a file of the machine: whoever may RESTORE
could run programs as the node. The same goes for the database engine Backup, and for a database that keeps
its metadata on a disk of its own. So the configuration names the places whose backups are trusted; Memory
holds what this node has put there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.sql import Token, TokenKind
from engine.sql.tokens import literal_value

SUSPICIOUS = re.compile(r"restore|backup|disk|\\x", re.IGNORECASE)
"""Without any of it a text is fine."""
_OBJECTS = frozenset({"TABLE", "TEMPORARY", "DICTIONARY", "VIEW", "DATABASE", "ALL"})
_MAKE = frozenset({"CREATE", "ATTACH", "ALTER"})
_OF_THE_NODE = "Memory"


def check_definitions(tokens: Sequence[Token], trusted: Sequence[str]) -> None:
    """Of one statement; `trusted` are beginnings of addresses. Raises SqlError 497."""
    names = [literal_value(token) if token.is_name else token.text for token in tokens]
    words = [name.upper() for name in names]
    for at, word in enumerate(words):
        before, behind = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        if word == "RESTORE" and before != "SYSTEM" and behind in _OBJECTS:
            for place in range(at, len(words)):
                if words[place] in ("FROM", "BASE_BACKUP"):
                    _check_place("RESTORE", tokens[place + 1 :], trusted)
        elif word == "ENGINE" and names[at + 1 + (behind == "=") :][:1] == ["Backup"]:
            comma = next((i for i in range(at, len(words)) if words[i] == ","), len(words))
            _check_place("Engine Backup", tokens[comma + 1 :], trusted)
        elif word == "DATABASE" and before in _MAKE and _has_disk(names[at:]):
            raise _denied(
                "A database with a disk of its own",
                "Give its tables the disk; its metadata stays on the node.",
            )


def _check_place(what: str, tokens: Sequence[Token], trusted: Sequence[str]) -> None:
    """`tokens` begin with the place: `S3('https://…', …)`, perhaps behind `=`."""
    if tokens and tokens[0].text == "=":
        tokens = tokens[1:]
    if tokens and literal_value(tokens[0]) == _OF_THE_NODE:
        return
    if len(tokens) > 3 and tokens[1].text == "(" and tokens[3].text in (",", ")"):
        address = literal_value(tokens[2]) if tokens[2].kind in (TokenKind.STRING, TokenKind.HEREDOC) else ""
        if ".." not in address and any(map(address.startswith, trusted)):
            return
    raise _denied(
        f"{what} from this place",
        "Name a place that is trusted in the node's configuration: "
        "<backups><restore_from>https://bucket.example.com/backups/</restore_from></backups>.",
    )


def _has_disk(names: Sequence[str]) -> bool:
    return any(name == "disk" and names[at + 1 : at + 2] == ["="] for at, name in enumerate(names))


def _denied(what: str, hint: str) -> SqlError:
    return SqlError(
        Code.ACCESS_DENIED,
        f"{what} would take definitions that nobody has looked at: they may read files of the machine and "
        "run its programs",
        hint=hint,
    )
