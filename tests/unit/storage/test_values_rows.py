"""Rows in the format Values: where a semicolon ends them, and where it stands in something else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SqlError
from engine.storage.values_rows import up_to_semicolon

SINGLE = "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
DOUBLE = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
ROWS = [
    "(1, 'a;b'), (2, 'it''s `file` -- $$ /*;'), (3, 'a\\';')",
    "(1, concat('\\\\', upper('x'))), (-2, now()), (3 - 4, [1, 2], {'a': 1}, NULL)",
    "(1, /* ; ' */ 'a'), (2 -- ; '\n), (3 # ; \n), (4 #! ;\n)",
    '(`;`, "\';\\";"), ($$;\'$$, $tag$;$$;$tag$), (a$b$, 1), ($1, 2)',
    f"({SINGLE[0]};'{SINGLE[1]}, {DOUBLE[0]};{DOUBLE[1]})",
    "(1 / 2, 'é', 'ü')",
    "(1, 'not closed ;",
    "(1 /* not closed ;",
    "",
]


async def chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def passed(text: str, size: int) -> str:
    async def main() -> bytes:
        return b"".join([chunk async for chunk in up_to_semicolon(chunks(text.encode(), size))])

    try:
        main().send(None)  # nothing in it waits
    except StopIteration as end:
        return bytes(end.value).decode()
    raise AssertionError


@pytest.mark.parametrize("rows", ROWS)
def test_rows_pass_in_whatever_pieces_they_come(rows: str) -> None:
    for size in range(1, len(rows.encode()) + 2):
        assert passed(rows, size) == rows


@pytest.mark.parametrize("rows", ROWS[:6])
def test_a_semicolon_behind_them_ends_them(rows: str) -> None:
    for size in range(1, len(rows.encode()) + 4):
        assert passed(f"{rows};\n ", size) == rows
        with pytest.raises(SqlError) as refusal:
            passed(f"{rows}; (1)", size)
        assert refusal.value.code == 33


PIECES = [*"'\\`\";-# /*$a\n", SINGLE[0], SINGLE[1], "\N{EURO SIGN}"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(1, 5))
def test_pieces_say_the_same_as_the_whole(rows: str, size: int) -> None:
    def outcome(size: int) -> str:
        try:
            return passed(rows, size)
        except SqlError as error:
            return str(error.code)

    assert outcome(size) == outcome(1000)
