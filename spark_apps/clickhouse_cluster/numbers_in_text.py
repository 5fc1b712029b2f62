"""Numbers that come as text, since Spark has none so wide: of 128 bits and more, or of more than 38 digits.

Of such a text ClickHouse takes the lowest bits where it is too large, cuts digits after the point, and makes
NULL of what is no number where the column is Nullable. So it is read here before it is sent.
"""

from __future__ import annotations

import re

import pyarrow as pa

from spark_apps.clickhouse_cluster.types import ChType

_WHOLE = re.compile(r"-?[0-9]{1,78}\Z")
_WITH_FRACTION = re.compile(r"-?([0-9]{1,76})(?:\.([0-9]{1,76}))?\Z")


def first_that_does_not_fit(kind: ChType, values: pa.ChunkedArray) -> str | None:
    """Of these texts, for a column whose type is a wide number; None where all fit."""
    fits = _fits_decimal if kind.decimal is not None else _fits_integer
    texts = values.unique().to_pylist()
    return next((text for text in texts if text is not None and not fits(kind, text)), None)


def _fits_integer(kind: ChType, text: str) -> bool:
    if not _WHOLE.match(text):
        return False
    is_unsigned = kind.name.startswith("U")
    bits = int(kind.name.removeprefix("U").removeprefix("Int"))
    least, behind = (0, 1 << bits) if is_unsigned else (-(1 << (bits - 1)), 1 << (bits - 1))
    return least <= int(text) < behind


def _fits_decimal(kind: ChType, text: str) -> bool:
    match = _WITH_FRACTION.match(text)
    if match is None or kind.decimal is None:
        return False
    digits, scale = kind.decimal
    whole, fraction = match.group(1), match.group(2) or ""
    return len(whole.lstrip("0")) <= digits - scale and len(fraction.rstrip("0")) <= scale
