"""From a MergeTree table's CREATE text to what Keeper holds of a replicated table.

The text is chDB's own (`system.tables.create_table_query`): one line, every name of a column back-quoted,
every keyword in capitals, clauses in a fixed order. Nothing else is read here, and no expression is
understood: it is copied. That the result is what ClickHouse itself would have written is checked by
`tests/unit/replication/test_oracle.py`, field by field.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.config.graphite import GraphiteRollup
from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.replication.columns import Column, Columns, DefaultKind
from engine.replication.graphite import graphite_hash
from engine.replication.table_metadata import MergingMode, TableMetadata
from engine.setting_values import whole_number_of
from engine.sql.tokens import Token, TokenKind, literal_value, scan

_MODES = {
    "MergeTree": MergingMode.ORDINARY,
    "CollapsingMergeTree": MergingMode.COLLAPSING,
    "SummingMergeTree": MergingMode.SUMMING,
    "AggregatingMergeTree": MergingMode.AGGREGATING,
    "ReplacingMergeTree": MergingMode.REPLACING,
    "GraphiteMergeTree": MergingMode.GRAPHITE,
    "VersionedCollapsingMergeTree": MergingMode.VERSIONED_COLLAPSING,
    "CoalescingMergeTree": MergingMode.COALESCING,
}
_CLAUSES = (
    ("ENGINE", "="),
    ("PARTITION", "BY"),
    ("PRIMARY", "KEY"),
    ("ORDER", "BY"),
    ("SAMPLE", "BY"),
    ("TTL",),
    ("SETTINGS",),
    ("COMMENT",),
)
_COLUMN_CLAUSES = (
    ("DEFAULT",),
    ("MATERIALIZED",),
    ("ALIAS",),
    ("EPHEMERAL",),
    ("COMMENT",),
    ("CODEC",),
    ("STATISTICS",),
    ("TTL",),
    ("COLLATE",),
    ("SETTINGS",),
)
_NO_ROLLUPS: Mapping[str, GraphiteRollup] = {}
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The two texts, and the settings that the table was created with, by name, as SQL literals."""

    metadata: TableMetadata
    columns: Columns
    settings: tuple[tuple[str, str], ...]
    comment: str


def parse_definition(
    create_query: str, *, rollups: Mapping[str, GraphiteRollup] = _NO_ROLLUPS
) -> TableDefinition:
    """Read chDB's text of a table of the MergeTree family (not Replicated…).

    `rollups` are the rules of GraphiteMergeTree, which the text only names. Raises SqlError 36 for another
    engine, 62 for text that is not as chDB writes it, 139 for rules that there are none of.
    """
    piece = _Piece(create_query, tuple(token for token in scan(create_query) if token.is_significant))
    body = next((i for i, token in enumerate(piece.tokens) if token.text == "("), None)
    if body is None:
        raise _unexpected("a list of columns", piece)
    end = piece.closing(body)
    clauses = _split(piece.part(end + 1, len(piece.tokens)), _CLAUSES)
    engine = clauses.get("ENGINE")
    if engine is None or not engine.tokens:
        raise _unexpected("ENGINE", piece)
    columns: list[Column] = []
    others: dict[str, list[str]] = {"INDEX": [], "CONSTRAINT": [], "PROJECTION": []}
    for item in piece.part(body + 1, end).by_commas():
        first = item.tokens[0]
        if first.kind is TokenKind.IDENTIFIER:
            columns.append(_column(item))
        elif first.text in others:
            others[first.text].append(item.part(1, len(item.tokens)).text)
        else:
            raise _unexpected("a column, INDEX, CONSTRAINT or PROJECTION", item)
    settings = _settings(clauses.get("SETTINGS"))
    comment = clauses.get("COMMENT")
    metadata = _metadata(clauses, engine, others, dict(settings), rollups)
    return TableDefinition(
        metadata=metadata,
        columns=Columns(tuple(columns)),
        settings=settings,
        comment=literal_value(comment.tokens[0]) if comment is not None and comment.tokens else "",
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of significant tokens; `text` is the text they stand in, white space included."""

    sql: str
    tokens: tuple[Token, ...]

    @property
    def text(self) -> str:
        return self.sql[self.tokens[0].start : self.tokens[-1].end] if self.tokens else ""

    def part(self, start: int, end: int) -> _Piece:
        return _Piece(self.sql, self.tokens[start:end])

    def closing(self, opening: int) -> int:
        """The index of the bracket that closes the one at `opening`."""
        depth = 0
        for index in range(opening, len(self.tokens)):
            text = self.tokens[index].text
            depth += (text in _OPENING) - (text in _CLOSING)
            if depth == 0:
                return index
        raise _unexpected("a closing bracket", self)

    def by_commas(self) -> list[_Piece]:
        """The pieces between commas outside brackets; none for nothing."""
        cuts, depth = [-1], 0
        for index, token in enumerate(self.tokens):
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if depth == 0 and token.text == ",":
                cuts.append(index)
        cuts.append(len(self.tokens))
        pieces = [self.part(a + 1, b) for a, b in itertools.pairwise(cuts)]
        if not self.tokens:
            return []
        if not all(piece.tokens for piece in pieces):
            raise _unexpected("something between commas", self)
        return pieces

    def unwrapped(self) -> _Piece:
        """Without `(…)` or `tuple(…)` around all of it."""
        start = 1 if self.tokens and self.tokens[0].text == "tuple" else 0
        opens = start < len(self.tokens) and self.tokens[start].text == "("
        if opens and self.closing(start) == len(self.tokens) - 1:
            return self.part(start + 1, len(self.tokens) - 1)
        return self


def _split(piece: _Piece, keywords: Sequence[tuple[str, ...]]) -> dict[str, _Piece]:
    """What follows each keyword, by its first word. Keywords come in order, each at most once.

    A word counts as a keyword only where an expression may end, so that a column of that name does not end
    the clause it stands in.
    """
    found: dict[str, tuple[int, int]] = {}
    order: list[str] = []
    depth, next_keyword = 0, 0
    tokens = piece.tokens
    content_from = 0
    for index, token in enumerate(tokens):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if depth or token.kind is not TokenKind.WORD or (order and index == content_from):
            continue
        if (
            index
            and tokens[index - 1].kind is TokenKind.PUNCTUATION
            and tokens[index - 1].text not in _CLOSING
        ):
            continue
        for at in range(next_keyword, len(keywords)):
            words = keywords[at]
            if tuple(each.text for each in tokens[index : index + len(words)]) == words:
                if order:
                    found[order[-1]] = (found[order[-1]][0], index)
                content_from = index + len(words)
                order.append(words[0])
                found[words[0]] = (content_from, len(tokens))
                next_keyword = at + 1
                break
    return {word: piece.part(start, end) for word, (start, end) in found.items()}


def _column(item: _Piece) -> Column:
    name = literal_value(item.tokens[0])
    rest = item.part(1, len(item.tokens))
    size = 1
    if len(rest.tokens) > 1 and rest.tokens[1].text == "(":
        size = rest.closing(1) + 1
    type_name = rest.part(0, size)
    if not type_name.tokens:
        raise _unexpected("a type", item)
    clauses = _split(rest.part(size, len(rest.tokens)), _COLUMN_CLAUSES)
    kind = next((kind for kind in DefaultKind if kind.value in clauses), None)
    default = clauses[kind.value].text if kind is not None else ""
    if kind is DefaultKind.EPHEMERAL and not default:
        default = f"defaultValueOfTypeName({quote_string(type_name.text)})"

    def clause(word: str, *, keyword: str = "") -> str:
        piece = clauses.get(word)
        return "" if piece is None else keyword + piece.text

    return Column(
        name=name,
        type=type_name.text,
        default_kind=kind,
        default=default,
        comment=clause("COMMENT"),
        codec=clause("CODEC", keyword="CODEC"),
        ttl=clause("TTL"),
        statistics=clause("STATISTICS", keyword="STATISTICS"),
        settings=clause("SETTINGS", keyword="SETTINGS "),
    )


def _settings(piece: _Piece | None) -> tuple[tuple[str, str], ...]:
    if piece is None:
        return ()
    settings: list[tuple[str, str]] = []
    for item in piece.by_commas():
        if len(item.tokens) == 1:
            settings.append((item.text, "1"))
        elif len(item.tokens) < 3 or item.tokens[1].text != "=":
            raise _unexpected("name = value", item)
        else:
            settings.append((item.tokens[0].text, item.part(2, len(item.tokens)).text))
    return tuple(settings)


def _metadata(
    clauses: dict[str, _Piece],
    engine: _Piece,
    others: dict[str, list[str]],
    settings: dict[str, str],
    rollups: Mapping[str, GraphiteRollup],
) -> TableMetadata:
    def key(word: str) -> str:
        piece = clauses.get(word)
        return "" if piece is None else piece.unwrapped().text

    name = engine.tokens[0].text
    mode = _MODES.get(name)
    if mode is None:
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Engine {name} is none of the MergeTree family: {', '.join(sorted(_MODES))}."
        )
    arguments = engine.part(1, len(engine.tokens)).unwrapped().by_commas()
    names = [", ".join(_names(argument.unwrapped())) for argument in arguments]
    sign = version = is_deleted = to_sum = rules = ""
    match mode, names:
        case MergingMode.COLLAPSING, [sign]:
            pass
        case MergingMode.VERSIONED_COLLAPSING, [sign, version]:
            pass
        case MergingMode.REPLACING, [version]:
            pass
        case MergingMode.REPLACING, [version, is_deleted]:
            pass
        case ((MergingMode.SUMMING | MergingMode.COALESCING), [_]):
            to_sum = ",".join(_names(arguments[0].unwrapped()))
        case MergingMode.GRAPHITE, [section]:
            if section not in rollups:
                raise SqlError(
                    Code.NO_ELEMENTS_IN_CONFIG,
                    f"No '{section}' element in configuration file",
                    hint=f"Rollup rules: {', '.join(sorted(rollups)) or 'none'}. All replicas need the same.",
                )
            rules = graphite_hash(rollups[section])
    ordering, primary = key("ORDER"), key("PRIMARY")
    sampling, ttl = clauses.get("SAMPLE"), clauses.get("TTL")
    return TableMetadata(
        primary_key=primary or ordering,
        partition_key=key("PARTITION"),
        sorting_key=ordering if primary else "",
        sampling_expression="" if sampling is None else sampling.text,
        mode=mode,
        sign_column=sign,
        index_granularity=_number(settings, "index_granularity", 8192),
        index_granularity_bytes=_number(settings, "index_granularity_bytes", 10 * 1024 * 1024),
        ttl="" if ttl is None else ttl.text,
        indices=", ".join(others["INDEX"]),
        projections=", ".join(others["PROJECTION"]),
        constraints=", ".join(others["CONSTRAINT"]),
        version_column=version,
        is_deleted_column=is_deleted,
        columns_to_sum=to_sum,
        graphite_hash=rules,
    )


def _names(piece: _Piece) -> list[str]:
    return ["".join(literal_value(token) for token in name.tokens) for name in piece.by_commas()]


def _number(settings: dict[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    try:
        return whole_number_of(text)
    except ValueError:
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Setting {name} = {text} of a replicated table has to be a number."
        ) from None


def _unexpected(what: str, piece: _Piece) -> SqlError:
    return SqlError(Code.SYNTAX_ERROR, f"Expected {what} in: {piece.text[:200]}")
