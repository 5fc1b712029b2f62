"""A statement that is read by many, and once for every table that it names, is split into tokens once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.node.distributed.reading.views import names_read
from engine.sql import cursor
from engine.sql.cursor import Cursor
from engine.sql.tokens import Token, scan


@pytest.mark.parametrize("tables", [3, 300, 3000, 6000])
def test_a_select_over_many_tables_is_split_into_tokens_once(
    tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned = []

    def noted(sql: str, *, folds_lists: bool) -> Iterator[Token]:
        scanned.append(sql)
        return scan(sql, folds_lists=folds_lists)

    monkeypatch.setattr(cursor, "scan", noted)
    sql = " UNION ALL ".join(f"SELECT 'of {tables}' AS what, id FROM d.events_{n}" for n in range(tables))
    assert [ref.name.table for ref in names_read(sql)] == [f"events_{n}" for n in range(tables)]
    assert scanned == [sql]


@given(st.text("a (\t.'`,", max_size=30), st.integers(0, 31))
def test_a_token_is_found_by_its_offset(text: str, offset: int) -> None:
    sql = text.replace("'", "'x y'").replace("`", "`q`")
    tokens = Cursor(sql).tokens
    at = Cursor(sql).at_offset(offset)
    assert all(token.start < offset for token in tokens[:at])
    assert all(token.start >= offset for token in tokens[at:])
