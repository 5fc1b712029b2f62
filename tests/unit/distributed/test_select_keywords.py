"""Columns, aliases and tables that are called like keywords, or as what the shards are asked is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.distributed.test_select_shapes import SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

KEYWORDS = {
    "order": "UInt64",
    "limit": "UInt8",
    "with": "UInt8",
    "union": "UInt8",
    "and": "UInt8",
    "final": "UInt8",
    "from": "String",
    "where": "String",
    "date": "Date",
    "a b": "String",
    "q`t": "UInt8",
    "dot.ted": "UInt8",
    "__g0": "UInt8",
    "__a0": "UInt8",
    "__table1": "UInt8",
}
TABLES = ("k", "group", "prewhere", "from", "join")
VALUES = (
    "number, number % 5, number % 3, number % 4, number % 2, number % 6, toString(number % 3), "
    "'w' || toString(number % 2), toDate('2024-01-01') + number % 9, toString(number % 7), number % 8, "
    "number % 4, number % 3, number % 5, number % 2"
)
QUERIES = (Path(__file__).parent / "queries" / "keywords.sql").read_text().splitlines()


@pytest.fixture(scope="module")
def keywords(bench: Bench) -> Iterator[Bench]:
    columns = ", ".join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in KEYWORDS.items())
    for table in TABLES:
        bench.tables[table] = KEYWORDS
        for database in ("one", "s1", "s2", "s3"):
            bench.ask(
                f"CREATE TABLE `{table}` ({columns}) ENGINE = ReplacingMergeTree ORDER BY `order`", database
            )
        bench.ask(f"INSERT INTO `{table}` SELECT {VALUES} FROM numbers(100)")
        for n in range(1, SHARDS + 1):
            bench.ask(
                f"INSERT INTO s{n}.`{table}` SELECT * FROM one.`{table}` WHERE `order` % {SHARDS} = {n - 1}"
            )
    yield bench
    for table in TABLES:
        del bench.tables[table]


@pytest.mark.parametrize("sql", QUERIES)
def test_names_like_keywords_are_names(keywords: Bench, sql: str) -> None:
    text, _ = keywords.distributed(sql)
    assert keywords.ask(text) == keywords.ask(sql), text
