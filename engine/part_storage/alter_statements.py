"""From one definition of a table to another: the ALTER commands that lead there. Pure.

Commands are made of what differs, so that an ALTER that was cut in the middle is gone on with by asking
again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.names import quote_identifier
from engine.replication.columns import Column, Columns
from engine.replication.table_metadata import TableMetadata
from engine.sql.tokens import Token, literal_value, scan

_OF_STATISTICS = re.compile(r"\w+\s+STATISTICS?\b", re.IGNORECASE)


class Effect(enum.Enum):
    """What chDB does to parts that are there."""

    NOTHING = "the metadata is all"
    REWRITES = "it would rewrite parts, and reads them well as they are"
    RENAMES = "it has to rewrite parts: a column is found by its name"


@dataclass(frozen=True, slots=True)
class AlterStep:
    """`commands` of one ALTER TABLE; `added` are names of new columns."""

    commands: str
    effect: Effect
    added: tuple[str, ...] = ()


def next_step(
    columns: Columns,
    metadata: TableMetadata,
    wanted_columns: Columns,
    wanted: TableMetadata,
    renames: Mapping[str, str],
) -> AlterStep | None:
    """The next ALTER from the first definition towards the wanted one; None when they agree.

    `renames` are columns, old name to new; what is renamed already is passed over.
    """
    here = columns.by_name
    pending = [
        f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}"
        for old, new in renames.items()
        if old in here and new not in here and new in wanted_columns.by_name
    ]
    if pending:
        return AlterStep(", ".join(pending), Effect.RENAMES)
    dropped, added = _lists(metadata, wanted)
    drop_columns, change_columns, is_rewritten = _columns(columns, wanted_columns)
    commands = [*dropped, *change_columns, *added, *_keys(metadata, wanted)]
    if not commands:
        # Columns go last: what needs them may be changed by the same ALTER so that it does not any more.
        return AlterStep(joined(drop_columns), Effect.REWRITES) if drop_columns else None
    rewrites = is_rewritten or bool(dropped)
    new_names = tuple(name for name in wanted_columns.by_name if name not in here)
    return AlterStep(joined(commands), Effect.REWRITES if rewrites else Effect.NOTHING, new_names)


def joined(commands: Sequence[str]) -> str:
    """Several commands of one ALTER. `STATISTICS a, MODIFY …` would be a list of columns to the parser, so
    such commands stand in parentheses, which servers that know statistics understand."""
    if len(commands) > 1 and any(_OF_STATISTICS.match(command) for command in commands):
        commands = [f"({command})" for command in commands]
    return ", ".join(commands)


def _columns(columns: Columns, wanted: Columns) -> tuple[list[str], list[str], bool]:
    target = wanted.by_name
    gone = [column for column in columns.columns if column.name not in target]
    drops = [f"DROP COLUMN {quote_identifier(name)}" for name in _dependent_first(gone)]
    order = [column.name for column in columns.columns if column.name in target]
    here = columns.by_name
    changes: list[str] = []
    is_rewritten = False
    for index, column in enumerate(wanted.columns):
        place = "FIRST" if index == 0 else f"AFTER {quote_identifier(wanted.columns[index - 1].name)}"
        is_in_place = index < len(order) and order[index] == column.name
        old = here.get(column.name)
        if old is None:
            changes.append(f"ADD COLUMN {_declaration(column)} {place}")
            order.insert(index, column.name)
            continue
        removed = _removed(old, column)
        changes += [f"MODIFY COLUMN {quote_identifier(column.name)} REMOVE {word}" for word in removed]
        if old.statistics and old.statistics != column.statistics:
            changes.append(f"DROP STATISTICS {quote_identifier(column.name)}")
            is_rewritten = True
        if not is_in_place:
            order.remove(column.name)
            order.insert(index, column.name)
        without = _without_removed(old, removed)
        if is_in_place and _is_typed_alike(without, column):
            changes += _properties(without, column)
        elif not is_in_place or without != column:
            changes.append(f"MODIFY COLUMN {_declaration(column)}" + ("" if is_in_place else f" {place}"))
        is_rewritten = is_rewritten or old.type != column.type
    return drops, changes, is_rewritten


def _is_typed_alike(old: Column, new: Column) -> bool:
    return (old.type, old.statistics, old.settings) == (new.type, new.statistics, new.settings)


def _properties(old: Column, new: Column) -> list[str]:
    """What differs, without the type: chDB lets nobody say that of a sign or a version again."""
    modify = f"MODIFY COLUMN {quote_identifier(new.name)}"
    changes = []
    if new.default_kind is not None and (old.default_kind, old.default) != (new.default_kind, new.default):
        changes.append(f"{modify} {new.default_kind.value} {new.default}")
    if old.comment != new.comment:
        changes.append(f"COMMENT COLUMN {quote_identifier(new.name)} {new.comment}")
    if old.codec != new.codec:
        changes.append(f"{modify} {new.codec}")
    if old.ttl != new.ttl:
        changes.append(f"{modify} TTL {new.ttl}")
    return changes


def _dependent_first(columns: Sequence[Column]) -> list[str]:
    """Names, each column before those that its default value is made of."""
    left = {column.name: _names_in(column.default) for column in columns}
    ordered: list[str] = []
    while left:
        needed = {other for name, names in left.items() for other in names if other != name}
        free = [name for name in left if name not in needed] or list(left)
        ordered += free
        for name in free:
            del left[name]
    return ordered


def _names_in(expression: str) -> frozenset[str]:
    """Words of an expression that may be names of columns, of Nested ones also joined by dots."""
    words = [literal_value(token) for token in scan(expression) if token.is_significant]
    joined_by_dots = ("".join(words[at : at + 3]) for at in range(len(words) - 2) if words[at + 1] == ".")
    return frozenset((*words, *joined_by_dots))


def _removed(old: Column, new: Column) -> list[str]:
    removed = []
    if old.default_kind is not None and new.default_kind is None:
        removed.append(old.default_kind.value)
    removed += [
        word
        for word, before, after in (
            ("COMMENT", old.comment, new.comment),
            ("CODEC", old.codec, new.codec),
            ("TTL", old.ttl, new.ttl),
            ("SETTINGS", old.settings, new.settings),
        )
        if before and not after
    ]
    return removed


def _without_removed(column: Column, removed: Sequence[str]) -> Column:
    if column.default_kind is not None and column.default_kind.value in removed:
        column = replace(column, default_kind=None, default="")
    for word, field in (("COMMENT", "comment"), ("CODEC", "codec"), ("TTL", "ttl"), ("SETTINGS", "settings")):
        if word in removed:
            column = replace(column, **{field: ""})  # type: ignore[arg-type]  # all four are text
    return column


def _declaration(column: Column) -> str:
    text = f"{quote_identifier(column.name)} {column.type}"
    if column.default_kind is not None:
        text += f" {column.default_kind.value} {column.default}"
    if column.comment:
        text += f" COMMENT {column.comment}"
    for clause in (column.codec, column.statistics):
        if clause:
            text += f" {clause}"
    if column.ttl:
        text += f" TTL {column.ttl}"
    if column.settings:
        text += f" {column.settings}"
    return text


def _lists(metadata: TableMetadata, wanted: TableMetadata) -> tuple[list[str], list[str]]:
    dropped: list[str] = []
    added: list[str] = []
    for word, before, after, has_order in (
        ("CONSTRAINT", metadata.constraints, wanted.constraints, False),
        ("PROJECTION", metadata.projections, wanted.projections, True),
        ("INDEX", metadata.indices, wanted.indices, True),
    ):
        old, new = _items(before), _items(after)
        if old == new:
            continue
        # Those in front that agree stay; the others are made anew in their order.
        stay = 0
        kept = [item for item in old if item in new]
        while stay < min(len(kept), len(new)) and kept[stay] == new[stay]:
            stay += 1
        staying = new[:stay]
        dropped += [f"DROP {word} {name}" for name, text in old if (name, text) not in staying]
        previous = staying[-1][0] if staying else ""
        for name, text in new[stay:]:
            place = ""
            if has_order:
                place = f" AFTER {previous}" if previous else " FIRST"
            added.append(f"ADD {word} {text}{place}")
            previous = name
    return dropped, added


def _keys(metadata: TableMetadata, wanted: TableMetadata) -> list[str]:
    commands = []
    ordering = metadata.sorting_key or metadata.primary_key
    wanted_ordering = wanted.sorting_key or wanted.primary_key
    if ordering != wanted_ordering:
        is_list = len(split_by_commas(wanted_ordering)) != 1  # brackets around one would stay there
        commands.append(f"MODIFY ORDER BY {f'({wanted_ordering})' if is_list else wanted_ordering}")
    if metadata.sampling_expression != wanted.sampling_expression:
        sampling = wanted.sampling_expression
        commands.append(f"MODIFY SAMPLE BY {sampling}" if sampling else "REMOVE SAMPLE BY")
    if metadata.ttl != wanted.ttl:
        commands.append(f"MODIFY TTL {wanted.ttl}" if wanted.ttl else "REMOVE TTL")
    return commands


def _items(text: str) -> list[tuple[str, str]]:
    """Name and text of each item of a list such as `i a TYPE minmax GRANULARITY 1, j …`."""
    items: list[tuple[str, str]] = []
    for tokens in split_by_commas(text):
        items.append((tokens[0].text, text[tokens[0].start : tokens[-1].end]))
    return items


def split_by_commas(text: str) -> list[list[Token]]:
    """Significant tokens between commas outside brackets; empty pieces are left out."""
    pieces: list[list[Token]] = [[]]
    depth = 0
    for token in scan(text):
        if not token.is_significant:
            continue
        if len(token.text) == 1:
            depth += (token.text in "([{") - (token.text in ")]}")
        if depth == 0 and token.text == ",":
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece for piece in pieces if piece]
