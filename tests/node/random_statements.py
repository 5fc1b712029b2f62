"""Random statements, by the grammar of `tests/data/random_statements.txt`."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_FILE = Path(__file__).parents[1] / "data" / "random_statements.txt"
_SYMBOL = re.compile(r"\{(\w+)\}")
_ALTERNATIVE = re.compile(r"  (?:(\d) )?(.*)")

TABLES = (
    ("MergeTree", "", "k UInt64, d Date, v String", "ORDER BY k"),
    ("MergeTree", "", "k UInt64, d Date, v String, c0 UInt8 DEFAULT 5, INDEX i1 v TYPE minmax", "ORDER BY k"),
    (
        "MergeTree",
        "",
        "k UInt64, d Date, v String CODEC(ZSTD(2)) COMMENT 'vv', c0 Nullable(String), c3 Nested(x UInt8)",
        "PRIMARY KEY k ORDER BY (k, v) SAMPLE BY k TTL d + INTERVAL 90 YEAR",
    ),
    (
        "ReplacingMergeTree",
        "c0",
        "k UInt64, d Date, v String, c0 UInt64 DEFAULT k, c1 UInt8 MATERIALIZED k + 1, c2 String ALIAS v",
        "ORDER BY k",
    ),
    ("SummingMergeTree", "", "k UInt64, d Date, v String, c0 Int64, c1 Float64", "ORDER BY (k, v)"),
    (
        "AggregatingMergeTree",
        "",
        "k UInt64, d Date, v SimpleAggregateFunction(anyLast, String), c0 AggregateFunction(sum, UInt64)",
        "ORDER BY k",
    ),
    ("CoalescingMergeTree", "", "k UInt64, d Date, v Nullable(String), c0 Nullable(UInt8)", "ORDER BY k"),
    ("CollapsingMergeTree", "c0", "k UInt64, d Date, v String, c0 Int8 DEFAULT 1", "ORDER BY k"),
)
"""Engine, its arguments, columns, keys."""

SETTINGS = (
    "",
    "min_bytes_for_wide_part = 0, min_rows_for_wide_part = 0",
    "index_granularity = 4",
    "ratio_of_defaults_for_sparse_serialization = 0.5",
)


def _read() -> Mapping[str, Sequence[str]]:
    grammar: dict[str, list[str]] = {}
    symbol = ""
    for line in _FILE.read_text().splitlines():
        if found := _ALTERNATIVE.fullmatch(line):
            text = "" if found[2] == "-" else found[2]
            grammar[symbol] += [text.replace("\\n", "\n")] * int(found[1] or 1)
        elif line and not line.startswith("#"):
            symbol = line
            grammar[symbol] = []
    return grammar


_GRAMMAR = _read()


def statement(rng: random.Random, columns: Sequence[str]) -> str:
    """One statement about a table that has `columns`."""
    names = [*columns, *columns, "nosuch"]

    def one_of(match: re.Match[str]) -> str:
        if match[1] == "column":
            name = rng.choice(names)
            return name if name.isidentifier() else f"`{name}`"
        return _SYMBOL.sub(one_of, rng.choice(_GRAMMAR[match[1]]))

    return _SYMBOL.sub(one_of, "{statement}")
