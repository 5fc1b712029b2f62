"""What a table's `engine_full` says of parts that may be moved into it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.sql.tokens import TokenKind, tokenize

_CLAUSES = ("PARTITION BY", "PRIMARY KEY", "ORDER BY", "SAMPLE BY", "TTL", "SETTINGS")
_SETTING = re.compile(r"\b(\w+) = (\d+|true|false|'[^']*')")
_IS_COPIED = re.compile(
    r"(index_granularity(_bytes)?|enable_mixed_granularity_parts|storage_policy|allow_\w+)\Z"
)
_VERSIONED = re.compile(
    r"VersionedCollapsingMergeTree\(.*?([^,()']+, [^,()']+)\) (?:PARTITION|PRIMARY|ORDER)"
)


@dataclass(frozen=True, slots=True)
class Window:
    """So many of its last blocks a table knows at least, for so long; 0 where it stores all that comes."""

    blocks: int
    seconds: int


_SMALLEST = Window(100, 3600)
"""Of a Replicated table that says nothing, in any version."""


def deduplication_window(engine_full: str, *, is_replicated: bool) -> Window:
    def given(name: str, otherwise: int) -> int:
        found = re.search(rf"\b{name} = (\d+)", engine_full)
        return int(found.group(1)) if found else otherwise

    if not is_replicated:
        return Window(given("non_replicated_deduplication_window", 0), _SMALLEST.seconds)
    name = "replicated_deduplication_window"
    return Window(given(name, _SMALLEST.blocks), given(f"{name}_seconds", _SMALLEST.seconds))


def sign_and_version(engine_full: str) -> str:
    found = _VERSIONED.search(engine_full)
    return found.group(1).strip() if found else ""


def settings(engine_full: str) -> str:
    """Those that tables need to have in common with this one, as they may follow SETTINGS."""
    tail = engine_full.rpartition(" SETTINGS ")[2]
    found = {name: value for name, value in _SETTING.findall(tail) if _IS_COPIED.match(name)}
    return ", ".join(f"{name} = {value}" for name, value in ({"index_granularity": "8192"} | found).items())


def clauses(engine_full: str) -> dict[str, str]:
    """What follows ORDER BY, TTL and so on, by these words, as the server writes them: in capitals."""
    found: dict[str, str] = {}
    depth, clause, begun, before = 0, "", 0, None
    for token in (token for token in tokenize(engine_full) if token.is_significant):
        if token.text in "([":
            depth += 1
        elif token.text in ")]":
            depth -= 1
        if depth or token.kind is not TokenKind.WORD:
            before = None
            continue
        two = f"{before.text} {token.text}" if before else ""
        words, start = (two, before.start) if before and two in _CLAUSES else (token.text, token.start)
        # A column may have the name of a clause: nothing stands between that and the clause that it is in.
        if words in _CLAUSES and (not clause or engine_full[begun:start].strip()):
            if clause:
                found[clause] = engine_full[begun:start].strip()
            clause, begun = words, token.end
        before = token
    return found | {clause: engine_full[begun:].strip()} if clause else found


def descending_keys(engine_full: str) -> dict[str, str]:
    """`sorting_key` with the directions of its columns, and `primary_key`, the same if nothing else is said;
    nothing where no column is descending. Servers list the columns alone."""
    given = clauses(engine_full)
    key = given.get("ORDER BY", "")
    if not any(token.kind is TokenKind.WORD and token.text == "DESC" for token in tokenize(key)):
        return {}
    sorting_key = key.removeprefix("tuple(").removesuffix(")") if key.startswith("tuple(") else key
    return {"sorting_key": sorting_key, "primary_key": given.get("PRIMARY KEY", sorting_key)}
