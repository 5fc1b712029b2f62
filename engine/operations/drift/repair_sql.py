"""The statements that make one host's object as it is on the others. Pure.

Only what loses nothing: an object that is not there is made, a column, index, constraint or projection that
is not there is added, a default, comment, codec or setting is changed. All else is `Advice`: people decide.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.errors import SqlError
from engine.names import TableName, quote_identifier
from engine.operations.drift.model import Drift, ObjectName, PartDifference, Place
from engine.operations.drift.normalise import Definition
from engine.operations.repair.create_sql import create_for
from engine.replication.columns import DefaultKind
from engine.sql import Token, TokenKind, tokenize
from engine.sql.edit import Edit, apply_edits

_CREATED = frozenset({"TABLE", "VIEW", "DICTIONARY", "DATABASE", "FUNCTION"})
_MACRO = re.compile(r"\{(\w+)\}")
_ADDED = {"index": "INDEX", "constraint": "CONSTRAINT", "projection": "PROJECTION"}
_CHANGED_SAFELY = frozenset({"COMMENT", "CODEC", *(kind.value for kind in DefaultKind)})
_FIRST_IF_NOT_EXISTS = (19, 3)
"""Older servers do not know ADD COLUMN IF NOT EXISTS."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A statement for one host. `part` is what it sets right, empty for the whole object."""

    sql: str
    part: str
    what: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What no statement here sets right, and why."""

    what: str


def creation(
    name: ObjectName,
    wanted: Definition,
    *,
    donor: Place | None,
    target: Mapping[str, str],
    is_same_shard: bool,
) -> Remedy | Advice:
    """Make the object as `wanted`. `donor` is where the reference's replicated table is in Keeper, `target`
    the macros of the host that lacks it."""
    if wanted.has_secret:
        return Advice(f"{name} has a secret, which stays out of plans: run its CREATE there by hand.")
    sql = f"CREATE DATABASE {quote_identifier(name.name)}" if wanted.kind == "database" else wanted.sql
    if wanted.kind == "database" and wanted.parts["engine"] != "plain":
        return Advice(f"{name} has engine {wanted.parts['engine']}: run its CREATE DATABASE there by hand.")
    if wanted.is_replicated:
        placed = _placed(sql, donor, target, is_same_shard=is_same_shard)
        if isinstance(placed, Advice):
            return placed
        sql = placed
    return Remedy(_if_not_exists(sql), "", f"Make {name}")


def _placed(sql: str, donor: Place | None, target: Mapping[str, str], *, is_same_shard: bool) -> str | Advice:
    """The statement with a Keeper path and a replica name that are right on the target."""
    if donor is None:
        return Advice("It is not known where the replicas are in Keeper: run the CREATE there by hand.")
    literals = _engine_strings(sql)
    if literals is not None:
        path, replica = literals
        own = {"database", "table", "uuid"}
        needed = set(_MACRO.findall(path + replica)) - own
        if needed - target.keys():
            return Advice(f"The host has no macro {', '.join(sorted(needed - target.keys()))}.")
        names_shard = bool(set(_MACRO.findall(path)) - own) or is_same_shard
        if "{uuid}" not in path and _MACRO.search(replica) and names_shard:
            return sql
    if not is_same_shard:
        return Advice("Nobody in its shard has it, and the path in Keeper is written out: CREATE it by hand.")
    replica_name = target.get("replica")
    if replica_name is None:
        return Advice("Replica names are written out and the host has no macro `replica`: CREATE it by hand.")
    try:
        return create_for(sql, path=donor.path, donor=donor.replica, replica=replica_name)
    except SqlError as error:
        return Advice(error.message)


def _engine_strings(sql: str) -> tuple[str, str] | None:
    """The path and the replica's name as the text has them."""
    tokens = [token for token in tokenize(sql) if token.is_significant]
    for at, token in enumerate(tokens):
        if token.text == "ENGINE" and len(tokens) > at + 6:
            first, comma, second = tokens[at + 4], tokens[at + 5], tokens[at + 6]
            if first.kind is second.kind is TokenKind.STRING and comma.text == ",":
                return first.text[1:-1], second.text[1:-1]
            return None
    return None


def _if_not_exists(sql: str) -> str:
    """With IF NOT EXISTS, without UUID."""
    tokens = [token for token in tokenize(sql) if token.is_significant]
    at = next(i for i, token in enumerate(tokens) if token.text.upper() in _CREATED)
    edits = [Edit(tokens[0].start, tokens[0].end, "CREATE")]
    if [token.text.upper() for token in tokens[at + 1 : at + 4]] != ["IF", "NOT", "EXISTS"]:
        edits.append(Edit(tokens[at].end, tokens[at].end, " IF NOT EXISTS"))
    for i, token in enumerate(tokens[at : at + 8], start=at):
        if token.text == "UUID" and i + 1 < len(tokens) and tokens[i + 1].kind is TokenKind.STRING:
            edits.append(Edit(tokens[i].start, tokens[i + 1].end, ""))
            break
    return apply_edits(sql, edits)


class ShardHas(enum.StrEnum):
    """What Keeper has of a replicated table, for all replicas of its shard."""

    WHAT_IS_WANTED = "what is wanted"
    WHAT_THE_HOST_HAS = "what the host has"


def alterations(
    drift: Drift, wanted: Definition, found: Definition, *, version: tuple[int, ...], shard_has: ShardHas
) -> Iterator[Remedy | Advice]:
    """One for each part that differs, in an order in which they can be carried out."""
    name = drift.object
    if found.kind != "table" or wanted.kind != "table" or "MergeTree" not in found.engine:
        parts = ", ".join(part.part for part in drift.parts)
        yield Advice(f"{name} ({found.kind}, {found.engine or 'no engine'}) differs in {parts}.")
        return
    table = TableName(name.database, name.name).quoted
    for part in drift.parts:
        remedy = _alteration(name, table, part, wanted, found, version)
        # Keeper's replicas agree on all but settings: an ALTER on one is an ALTER on all.
        if found.is_replicated and isinstance(remedy, Remedy) and not part.part.startswith("setting "):
            differs = f"{name} is replicated and differs in {part}:"
            match shard_has:
                case ShardHas.WHAT_IS_WANTED:
                    yield Advice(
                        f"{differs} its replica has yet to take over an ALTER. Look at its queue; "
                        "SYSTEM RESTART REPLICA."
                    )
                case ShardHas.WHAT_THE_HOST_HAS:
                    yield Advice(f"{differs} its shard has not had that ALTER. Once there: {remedy.sql}")
        else:
            yield remedy


def _alteration(
    name: ObjectName,
    table: str,
    part: PartDifference,
    wanted: Definition,
    found: Definition,
    version: tuple[int, ...],
) -> Remedy | Advice:
    what, _, its_name = part.part.partition(" ")
    text = wanted.fragments.get(part.part, "")
    by_hand = Advice(f"{name} differs in {part}: that cannot be changed without a risk to data.")
    if part.part in wanted.hidden or part.part in found.hidden:
        return by_hand
    unless_there = " IF NOT EXISTS" if version >= _FIRST_IF_NOT_EXISTS else ""
    match what:
        case "column" if part.found is None:
            place = _place_of(its_name, wanted, found)
            column = f"{quote_identifier(its_name)} {text}{place}"
            return Remedy(
                f"ALTER TABLE {table} ADD COLUMN{unless_there} {column}", part.part, f"Add column {its_name}"
            )
        case "column" if part.wanted is not None and _is_safe_change(part, text, found):
            return Remedy(
                f"ALTER TABLE {table} MODIFY COLUMN {quote_identifier(its_name)} {text}",
                part.part,
                f"Change column {its_name} of {name}",
            )
        case "index" | "constraint" | "projection" if part.found is None:
            return Remedy(
                f"ALTER TABLE {table} ADD {_ADDED[what]}{unless_there} {quote_identifier(its_name)} {text}",
                part.part,
                f"Add {what} {its_name}",
            )
        case "setting" if part.wanted is not None:
            return Remedy(
                f"ALTER TABLE {table} MODIFY SETTING {its_name} = {text}", part.part, f"Set {its_name}"
            )
        case "setting":
            return Remedy(
                f"ALTER TABLE {table} RESET SETTING {its_name}", part.part, f"Take back setting {its_name}"
            )
        case "comment" if part.wanted is not None:
            return Remedy(f"ALTER TABLE {table} MODIFY COMMENT {text}", part.part, f"Comment {name}")
        case _:
            return by_hand


def _place_of(column: str, wanted: Definition, found: Definition) -> str:
    """Behind the nearest column before it that is there; the others are added before it in the same order."""
    at = wanted.columns.index(column)
    there = set(found.columns) | set(wanted.columns[:at])
    before = [name for name in wanted.columns[:at] if name in there]
    return f" AFTER {quote_identifier(before[-1])}" if before else " FIRST"


def _is_safe_change(part: PartDifference, wanted_text: str, found: Definition) -> bool:
    """Whether only what stands behind the type differs, and that rewrites or deletes nothing."""
    wanted, there = _column_clauses(wanted_text), _column_clauses(found.fragments.get(part.part, ""))
    names = {name for name in {**wanted, **there} if wanted.get(name) != there.get(name)}
    is_dropped = bool(names - wanted.keys())
    return bool(names) and not is_dropped and names <= _CHANGED_SAFELY


def _column_clauses(text: str) -> dict[str, tuple[str, ...]]:
    clauses: dict[str, tuple[str, ...]] = {}
    name, depth = "type", 0
    words: list[str] = []
    for token in _significant(text):
        if not depth and token.text in _CHANGED_SAFELY | {"TTL", "STATISTICS", "SETTINGS"}:
            clauses[name] = tuple(words)
            name, words = token.text, []
        else:
            words.append(token.text)
        depth += (token.text == "(") - (token.text == ")")
    clauses[name] = tuple(words)
    return clauses


def _significant(text: str) -> list[Token]:
    return [token for token in tokenize(text) if token.is_significant]
