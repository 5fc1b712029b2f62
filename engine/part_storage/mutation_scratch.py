"""What a scratch table needs before a mutation can be run in it.

A mutation that belongs to an ALTER of columns reaches a part when the table is changed already: `DROP COLUMN
x` of a column that is no longer there. So the scratch table, while it is empty, is first given back what the
part still has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path

from engine.errors import SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.part_storage.alter_statements import joined, split_by_commas
from engine.part_storage.part_files import COLUMNS_FILE
from engine.part_storage.scratch_tables import Scratch
from engine.part_storage.workers import Connection
from engine.replication.columns import Columns
from engine.sql.tokens import Token, TokenKind, literal_value, tokenize

_VERBS = {
    "DROP": ("COLUMN", "INDEX", "PROJECTION", "CONSTRAINT", "STATISTICS"),
    "CLEAR": ("COLUMN", "INDEX", "PROJECTION", "STATISTICS"),
    "MODIFY": ("COLUMN", "TTL"),
    "RENAME": ("COLUMN",),
    "MATERIALIZE": ("COLUMN", "INDEX", "PROJECTION", "STATISTICS", "TTL"),
    "REWRITE": ("PARTS",),
    "APPLY": ("DELETED", "PATCHES"),
}
_ALONE = ("UPDATE", "DELETE")
_ALIKE = ("ADD COLUMN", "CLEAR COLUMN", "DROP COLUMN", "MODIFY COLUMN")
_IF_EXISTS = re.compile(r"IF\s+EXISTS\s+", re.IGNORECASE)
_RENAME = re.compile(r"RENAME\s+COLUMN\s+(IF\s+EXISTS\s+)?", re.IGNORECASE)


def split_commands(commands: str) -> list[str]:
    """The commands of a mutation, one by one, without the parentheses that newer servers put around each."""
    pieces: list[str] = []
    for tokens in split_by_commas(commands):
        start, end = tokens[0].start, tokens[-1].end
        if _starts_command(tokens):
            pieces.append(commands[start:end])
        elif tokens[0].text == "(" and tokens[-1].text == ")" and _starts_command(tokens[1:]):
            pieces.append(commands[tokens[1].start : tokens[-2].end])
        elif pieces:  # a further assignment of an UPDATE
            pieces[-1] += f", {commands[start:end]}"
        else:
            pieces.append(commands[start:end])
    return pieces


def _starts_command(tokens: list[Token]) -> bool:
    words = [token.text.upper() if token.kind is TokenKind.WORD else "" for token in tokens[:2]]
    if len(words) < 2:
        return False
    if words[0] in _ALONE:
        return tokens[1].text not in ("=", ".")
    return words[1] in _VERBS.get(words[0], ())


@dataclass(slots=True)
class _Preparation:
    """`before` are commands for the empty table, `run` those for the part in it."""

    scratch: Scratch
    part: dict[str, str]
    table: dict[str, str]
    defaults: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Kind of default and its expression by column, of columns that have one."""
    before: list[str] = field(default_factory=list)
    instead: dict[str, tuple[list[str], ...]] = field(default_factory=dict)
    """What runs in the place of a command of `before` that is refused: the first that is not."""
    run: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    """Columns that `run` gives the table."""
    away: dict[str, str] = field(default_factory=dict)
    """Where columns are whose names were needed for others (`_make_room`)."""

    def give_back(self, name: str, *, renamed_to: str = "") -> None:
        """Let the table have a column as the part has it."""
        if name in self.made:
            return
        column_type = self.part[name]
        now = self.away.get(renamed_to, renamed_to)
        if name in self.table and now in self.table and renamed_to not in self.part:
            self._make_room(name)  # another column has got that name since
        if name not in self.table and now in self.table:
            self.before.append(f"RENAME COLUMN {quote_identifier(now)} TO {quote_identifier(name)}")
            self.table[name] = self.table.pop(now)
            if now in self.defaults:
                self.defaults[name] = self.defaults.pop(now)
        if name not in self.table:
            self.before.append(f"ADD COLUMN {quote_identifier(name)} {column_type}")
            self.table[name] = column_type
        elif self.table[name] != column_type:
            kind, value = self.defaults.pop(name, ("", ""))
            if kind:  # its value need not be one of the part's type
                self.before.append(f"MODIFY COLUMN {quote_identifier(name)} REMOVE {kind}")
            # chDB wants to know what becomes of NULL; the scratch table is empty.
            loses_null = "Nullable(" in self.table[name] and "Nullable(" not in column_type
            default = f" DEFAULT defaultValueOfTypeName({quote_string(column_type)})" if loses_null else ""
            modify = f"MODIFY COLUMN {quote_identifier(name)} {column_type}{default}"
            self.before.append(modify)
            # The part's type may be none for the statistics that the column has now.
            without_statistics = [f"DROP STATISTICS IF EXISTS {quote_identifier(name)}", modify]
            self.instead[modify] = (without_statistics, self._made_anew(name, column_type))
            if value and "Nullable(" in column_type and "Nullable(" not in self.table[name]:
                becomes = f"MODIFY COLUMN {quote_identifier(name)} DEFAULT {value}"  # NULL does
                self.before.append(becomes)
                self.instead[becomes] = ([],)
            self.table[name] = column_type

    def _made_anew(self, name: str, column_type: str) -> list[str]:
        """Where chDB does not convert to the type that the part has: a Variant to one of fewer types."""
        names = list(self.table)
        at = names.index(name)
        place = "FIRST" if at == 0 else f"AFTER {quote_identifier(names[at - 1])}"
        return [
            f"DROP COLUMN {quote_identifier(name)}",
            f"ADD COLUMN {quote_identifier(name)} {column_type} {place}",
        ]

    def _make_room(self, name: str) -> None:
        self.away[name] = away = f"{name} as it is now"
        self.before.append(f"RENAME COLUMN {quote_identifier(name)} TO {quote_identifier(away)}")
        self.table[away] = self.table.pop(name)
        if name in self.defaults:
            self.defaults[away] = self.defaults.pop(name)


def prepare_for(
    connection: Connection, scratch: Scratch, part: Path, commands: str, renames: Mapping[str, str]
) -> list[str]:
    """Change the empty `scratch` so that `commands` can run on `part` there; returns what is to be run then,
    each an ALTER of its own.

    Nothing: the part stays as it is. `renames` are of ALTERs that parts may be behind of.
    """
    prepared = _Preparation(
        scratch,
        columns_in(part),
        columns_of(connection, scratch.name),
        _defaults_of(connection, scratch.name),
    )
    pieces = split_commands(commands)
    for old, new in renames.items():
        if old in prepared.part and new not in prepared.part:
            meant = _name_meant(pieces, old, {each for each, now in renames.items() if now == new} | {new})
            prepared.give_back(old, renamed_to=new)
            if meant != old:
                rename = f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(meant)}"
                _rename_column(prepared, rename)
    together: list[str] = []

    def close() -> None:
        """Commands that only change data run as one mutation."""
        if together:
            prepared.run.append(joined(together))
            together.clear()

    for command in pieces:
        words = command.split(None, 2)
        verb = " ".join(words[:2]).upper()
        rest = _IF_EXISTS.sub("", words[2], count=1) if len(words) > 2 else ""
        if verb.split()[0] in ("DROP", "MODIFY", "RENAME"):
            close()
        match verb:
            case "DROP COLUMN":
                _drop_column(prepared, rest)
            case "MODIFY COLUMN":
                _modify_column(prepared, command, rest)
            case "RENAME COLUMN":
                _rename_column(prepared, command)
            case "DROP INDEX" | "DROP PROJECTION" | "DROP STATISTICS":
                prepared.run.append(f"{verb} IF EXISTS {rest}")
            case "DROP CONSTRAINT":
                pass
            case _:
                together.append(command)
    close()
    _prepare(connection, prepared)
    return [joined(group) for group in _alike(prepared.run)]


def _alike(commands: Sequence[str]) -> list[list[str]]:
    """What concerns many columns alike is one ALTER: each links or writes all files of the part, and with
    very many columns takes its time on an empty table, too. Commands about one column keep their order."""
    groups: list[list[str]] = []
    for verb, same in groupby(commands, lambda command: " ".join(command.split(None, 2)[:2]).upper()):
        if verb not in _ALIKE:
            groups += [[command] for command in same]
            continue
        of_column: dict[str, list[str]] = {}
        for command in same:
            name = _name(_IF_EXISTS.sub("", command.split(None, 2)[2], count=1))
            of_column.setdefault(name, []).append(command)
        rounds = zip_longest(*of_column.values())
        groups += [[command for command in each if command is not None] for each in rounds]
    return groups


def _prepare(connection: Connection, prepared: _Preparation) -> None:
    table = prepared.scratch.name
    for group in _alike(prepared.before):
        if len(group) > 1:
            try:
                connection.execute(f"ALTER TABLE {table.quoted} {joined(group)}")
                continue
            except SqlError:
                pass
        for command in group:
            _execute_first(connection, table, ([command], *prepared.instead.get(command, ())))


def _execute_first(connection: Connection, table: TableName, ways: Sequence[Sequence[str]]) -> None:
    """The first of several ways to do the same that is not refused; raises what is said against the last."""
    for way in ways[:-1]:
        try:
            for command in way:
                connection.execute(f"ALTER TABLE {table.quoted} {command}")
            return
        except SqlError:
            pass
    for command in ways[-1]:
        connection.execute(f"ALTER TABLE {table.quoted} {command}")


def _drop_column(prepared: _Preparation, rest: str) -> None:
    name = _name(rest)
    for column in [each for each in prepared.part if each == name or each.startswith(f"{name}.")]:
        if column in prepared.table:  # another one of that name was added since
            prepared.run.append(f"CLEAR COLUMN {quote_identifier(column)}")
        else:
            prepared.give_back(column)
            prepared.run.append(f"DROP COLUMN {quote_identifier(column)}")
        prepared.part.pop(column)


def _modify_column(prepared: _Preparation, command: str, rest: str) -> None:
    name = _name(rest)
    if name in prepared.part and (name in prepared.table or name in prepared.made):
        prepared.give_back(name)
        prepared.run.append(command)


def _rename_column(prepared: _Preparation, command: str) -> None:
    old, new = _renaming(command)
    if old in prepared.part:
        prepared.give_back(old, renamed_to=new)
        prepared.run.append(command)
        prepared.part[new] = prepared.part.pop(old)
        prepared.made.add(new)


def _name_meant(pieces: Sequence[str], old: str, called: Collection[str]) -> str:
    """What a column that the part calls `old` is called when the first of the commands about it is run, of
    all that it was `called`. Usually the rename is among the commands, or comes later; but a part may have
    come with the old name when the column had another one already: it was attached, say."""
    renamed = {_renaming(piece)[0] for piece in pieces if _RENAME.match(piece)}
    if old in renamed:
        return old
    mentioned = [
        name
        for piece in pieces
        for token in tokenize(piece)
        if token.is_name and (name := literal_value(token)) in called
    ]
    newer = [name for name in mentioned if name != old]
    # Another column may have the old name by now.
    return newer[0] if newer else old


def _renaming(command: str) -> tuple[str, str]:
    """The old name and the new one."""
    tokens = split_by_commas(_RENAME.sub("", command))[0]
    return literal_value(tokens[0]), literal_value(tokens[-1])


def _name(rest: str) -> str:
    tokens = split_by_commas(rest)[0]
    name = literal_value(tokens[0])
    if len(tokens) > 2 and tokens[1].text == ".":  # a column of a Nested one
        name += f".{literal_value(tokens[2])}"
    return name


def columns_in(part: Path) -> dict[str, str]:
    """Types by name of what a part's directory has. Raises MalformedEntry, OSError."""
    columns = Columns.from_bytes((part / COLUMNS_FILE).read_bytes(), where=str(part.name))
    return {column.name: column.type for column in columns.columns}


def columns_of(connection: Connection, table: TableName) -> dict[str, str]:
    """Types by name of a table's columns."""
    rows = connection.rows(
        "SELECT name, type FROM system.columns"
        f" WHERE database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
        " ORDER BY position"
    )
    return {str(name): str(column_type) for name, column_type in rows}


def _defaults_of(connection: Connection, table: TableName) -> dict[str, tuple[str, str]]:
    rows = connection.rows(
        "SELECT name, default_kind, default_expression FROM system.columns"
        f" WHERE database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
        " AND default_kind != ''"
    )
    return {str(name): (str(kind), str(value)) for name, kind, value in rows}
