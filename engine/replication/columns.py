"""The columns of a table or of a part, as text (`columns`). Source: ClickHouse's ReplicatedMergeTree."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.ddl.text import unescape
from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.replication.text import FormatReader, encode_bytes, escape

_NAMED = re.compile(r"(`(?:[^`\\]|\\.)+`) (.+)\Z", re.DOTALL)


class DefaultKind(enum.Enum):
    """How a column gets a value that no insert gave; the value is the keyword."""

    DEFAULT = "DEFAULT"
    MATERIALIZED = "MATERIALIZED"
    ALIAS = "ALIAS"
    EPHEMERAL = "EPHEMERAL"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. All but `name` are SQL, formatted as ClickHouse does; empty is absent.

    `comment` is a string literal with its quotes, `codec`, `statistics` and `settings` are with their keyword
    and parentheses: `CODEC(ZSTD(1))`.
    """

    name: str
    type: str
    default_kind: DefaultKind | None = None
    default: str = ""
    comment: str = ""
    codec: str = ""
    ttl: str = ""
    statistics: str = ""
    settings: str = ""

    def text(self) -> str:
        """The line, without its line break."""
        fields = [f"{quote_identifier(self.name)} {escape(self.type)}"]
        if self.default_kind is not None:
            fields += [self.default_kind.value, escape(self.default)]
        if self.comment:
            fields.append(f"COMMENT {escape(self.comment)}")
        if self.codec:
            fields.append(escape(self.codec))
        if self.ttl:
            fields.append(f"TTL {escape(self.ttl)}")
        if self.statistics:
            fields.append(escape(self.statistics))
        if self.settings:
            fields.append(escape(self.settings))
        return "\t".join(fields)


@dataclass(frozen=True, slots=True)
class Columns:
    """All columns, in order; names are unique."""

    columns: tuple[Column, ...]

    @property
    def by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def to_bytes(self) -> bytes:
        lines = "".join(f"{column.text()}\n" for column in self.columns)
        return encode_bytes(f"columns format version: 1\n{len(self.columns)} columns:\n{lines}")

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> Columns:
        """Raises MalformedEntry: 287 for an unknown version, 27 otherwise."""
        reader = FormatReader.of(data, where=where)
        reader.version("columns format version: ", known=range(1, 2))
        count = reader.count()
        reader.expect(" columns:\n")
        columns = tuple(_read_column(reader, reader.line("", reader.to_line_end)) for _ in range(count))
        if len({column.name for column in columns}) != count:
            raise reader.error("a column is listed twice")
        reader.end()
        return cls(columns)

    def check_same(self, stored: Columns, *, where: str) -> None:
        """Compare a table's own columns with those in Keeper, whose path is `where`.

        Raises SqlError 122 INCOMPATIBLE_COLUMNS that names what differs.
        """
        if self == stored:
            return
        ours, theirs = self.by_name, stored.by_name
        details = [f"only in the table: {name}" for name in ours if name not in theirs]
        details += [f"only in Keeper: {name}" for name in theirs if name not in ours]
        details += [
            f"{name} is {_shown(ours[name])} in the table and {_shown(theirs[name])} in Keeper"
            for name in ours
            if name in theirs and ours[name] != theirs[name]
        ]
        raise SqlError(
            Code.INCOMPATIBLE_COLUMNS,
            f"Table columns structure in ZooKeeper ({where}) is different from local table structure: "
            + ("; ".join(details) or "the columns are in another order"),
        )


def _shown(column: Column) -> str:
    return column.text().replace("\t", " ")


def _read_column(reader: FormatReader, line: str) -> Column:
    fields = line.split("\t")
    match = _NAMED.match(fields[0])
    if not match:
        raise reader.error(f"expected a column, not {escape(line[:60])}")
    values = {"name": unescape(match.group(1)[1:-1]), "type": unescape(match.group(2))}
    kind: DefaultKind | None = None
    at = 1
    if at < len(fields) and fields[at] in DefaultKind._value2member_map_:
        kind = DefaultKind(fields[at])
        if at + 1 == len(fields):
            raise reader.error(f"{fields[at]} without an expression")
        values["default"] = unescape(fields[at + 1])
        at += 2
    for name, keyword, strip in _MODIFIERS:
        if at < len(fields) and fields[at].startswith(keyword):
            values[name] = strip(unescape(fields[at]))
            at += 1
    if at < len(fields):
        raise reader.error(f"unexpected property of column: {escape(fields[at][:60])}")
    return Column(default_kind=kind, **values)


def _without(prefix: str) -> Callable[[str], str]:
    return lambda text: text.removeprefix(prefix)


_MODIFIERS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("comment", "COMMENT ", _without("COMMENT ")),
    ("codec", "CODEC(", str),
    ("ttl", "TTL ", _without("TTL ")),
    ("statistics", "STATISTICS(", str),
    ("settings", "SETTINGS (", str),
)
