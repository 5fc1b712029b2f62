"""`WITH x AS (SELECT …)` put where x is read, for `on_shards`: in ClickHouse's resolved text a common table
expression is only a name, whose body is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.distributed.select.references import alias_behind
from engine.names import quote_identifier
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import Cte, ctes, is_behind_in


def with_inlined_ctes(sql: str, *, materializes: bool = False) -> str:
    """The statement without common table expressions; unchanged if one is recursive, or is MATERIALIZED where
    the setting `enable_materialized_cte` is 1: `materializes`."""
    cursor = Cursor(sql)
    if "WITH" not in cursor.words:
        return sql
    defined, read = ctes(cursor)
    if not defined or any(
        cte.is_recursive or (materializes and _is_materialized(cursor, cte)) for cte in defined
    ):
        return sql
    return _Inlining(cursor, defined, read).text(0, len(cursor.tokens))


@dataclass(frozen=True, slots=True)
class _Inlining:
    cursor: Cursor
    defined: list[Cte]
    read: list[tuple[NameRef, Cte]]

    def text(self, begin: int, end: int) -> str:
        """Of the tokens from `begin` on, with nothing in it that only WITH explains."""
        tokens = self.cursor.tokens
        start = tokens[begin].start
        edits = [*self._without_definitions(begin, end)]
        for ref, cte in self.read:
            is_here = start <= ref.start < tokens[end - 1].end
            if is_here and not any(edit.start <= ref.start < edit.end for edit in edits):
                edits.append(Edit(ref.start, ref.end, self._body(ref, cte)))
        return apply_edits(
            self.cursor.sql[start : tokens[end - 1].end],
            [Edit(edit.start - start, edit.end - start, edit.text) for edit in edits],
        )

    def _body(self, ref: NameRef, cte: Cte) -> str:
        body = f"({self.text(cte.body + 1, self._behind(cte) - 1)})"
        if self.cursor.words[cte.begin + 1] == "(":  # names of its columns
            self.cursor.at = cte.begin + 1
            self.cursor.skip_brackets()
            columns = self.cursor.sql[self.cursor.tokens[cte.begin + 1].start : self.cursor.last_end]
            body = f"(SELECT * FROM {body} AS {quote_identifier(cte.name)} {columns})"
        is_in = is_behind_in(self.cursor, self.cursor.at_offset(ref.start))
        has_alias = is_in or alias_behind(self.cursor.sql, ref.end)
        return body if has_alias else f"{body} AS {quote_identifier(cte.name)}"

    def _without_definitions(self, begin: int, end: int) -> list[Edit]:
        """Each WITH keeps what is no table; one that keeps nothing goes. Only the outermost ones count: those
        within a body are met when that is put somewhere."""
        tokens, words = self.cursor.tokens, self.cursor.words
        edits: list[Edit] = []
        for cte in self.defined:
            if not begin <= cte.begin < end:
                continue
            behind = self._behind(cte)
            at = tokens[cte.begin].start
            if any(edit.start <= at < edit.end for edit in edits):
                continue
            of_same = [one for one in self.defined if one.with_at == cte.with_at]
            is_last = behind >= len(words) or words[behind] != ","
            if not is_last:
                edits.append(Edit(at, tokens[behind].end, ""))
                continue
            first = cte.begin
            by_end = {self._behind(one): one for one in of_same}
            while words[first - 1] == "," and (before := by_end.get(first - 1)) is not None:
                first = before.begin
            # With all that stand before it gone, the last comma goes too, or WITH itself.
            edits = [edit for edit in edits if edit.start < tokens[first].start]
            edits.append(Edit(tokens[first - 1].start, tokens[behind - 1].end, ""))
        return edits

    def _behind(self, cte: Cte) -> int:
        self.cursor.at = cte.body
        self.cursor.skip_brackets()
        return self.cursor.at


def _is_materialized(cursor: Cursor, cte: Cte) -> bool:
    before = cursor.words[cte.begin : cte.body]
    return before[-1] == "MATERIALIZED" and before[-2] != "NOT"
