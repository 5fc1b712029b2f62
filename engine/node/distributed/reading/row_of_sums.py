"""Statements whose whole answer is one row of sums over shards, in a format of plain text.

chDB need not be asked to add up two numbers: that costs as much as counting a table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TEXT_FORMATS = frozenset({"TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw"})
_SELECT = re.compile(r"\s*SELECT\b((?:\s*sum\(\w+\) AS `(?:[^`\\]|\\.)*`,?)+)\s*FROM\s*\Z", re.DOTALL)
_SUM = re.compile(r"sum\((\w+)\) AS `(?:[^`\\]|\\.)*`", re.DOTALL)
_OUTPUT = re.compile(r"\s*(?:FORMAT\s+(\w+)\s*)?;?\s*\Z", re.IGNORECASE)
_BITS = 64


def summed_columns(before: str, behind: str, format: str) -> tuple[str, ...]:
    """The columns of a subquery whose sums, in this order, are the answer; empty where it is another one.

    `before` and `behind` stand around the subquery. `format` is that of a statement which names none.
    """
    select, output = _SELECT.match(before), _OUTPUT.match(behind)
    if select is None or output is None or (output[1] or format) not in _TEXT_FORMATS:
        return ()
    return tuple(_SUM.findall(select[1]))


def sum_of(values: Sequence[int], type_: str) -> int:
    """As ClickHouse adds UInt64 or Int64: over the end it begins anew."""
    lowest = -(1 << (_BITS - 1)) if type_ == "Int64" else 0
    return (sum(values) - lowest) % (1 << _BITS) + lowest


def text_row(values: Sequence[int]) -> bytes:
    return ("\t".join(map(str, values)) + "\n").encode()
