"""What a rehearsal says of two definitions that differ."""

from __future__ import annotations

from engine.migrations.rehearse_compare import changes

TABLE = (
    "CREATE TABLE d.t (`a` Decimal(9, 2) CODEC(Delta(1), ZSTD(3)), `b, c` Enum8('x, y' = 1), `e` Int8) "
    "ENGINE = MergeTree PARTITION BY (a, e) ORDER BY tuple()"
)


def test_a_piece_is_a_whole_column_or_clause() -> None:
    found = TABLE.replace("ZSTD(3)", "ZSTD(1)").replace("'x, y'", "'x, z'").replace("(a, e)", "(e, a)")
    assert changes(TABLE, found) == [
        "  - `a` Decimal(9, 2) CODEC(Delta(1), ZSTD(3))",
        "  - `b, c` Enum8('x, y' = 1)",
        "  + `a` Decimal(9, 2) CODEC(Delta(1), ZSTD(1))",
        "  + `b, c` Enum8('x, z' = 1)",
        "  - PARTITION BY (a, e)",
        "  + PARTITION BY (e, a)",
    ]


def test_an_index_that_came_back_elsewhere_is_not_shown_beside_what_differs() -> None:
    """Its place means nothing; both lines of it read `behind INDEX`."""
    expected = "CREATE TABLE d.t (`a` Int8, INDEX i a TYPE minmax, INDEX j a TYPE set(5)) ENGINE = Memory"
    found = "CREATE TABLE d.t (`a` Int16, INDEX j a TYPE set(5), INDEX i a TYPE minmax) ENGINE = Memory"
    assert changes(expected, found) == ["  - `a` Int8", "  + `a` Int16"]


def test_a_column_that_came_back_elsewhere_is_shown_with_the_one_before_it() -> None:
    expected = "CREATE TABLE d.t (`a` Int8, `b` Int8, `c` Int8, `e` Int8) ENGINE = Memory"
    found = "CREATE TABLE d.t (`a` Int8, `c` Int8, `e` Int8, `b` Int8) ENGINE = Memory"
    assert changes(expected, found) == ["  - `b` Int8   (behind `a`)", "  + `b` Int8   (behind `e`)"]
