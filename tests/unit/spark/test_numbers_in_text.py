"""Texts that are numbers of a column, and those that ClickHouse would make other numbers of."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_apps.clickhouse_cluster.numbers_in_text import first_that_does_not_fit
from spark_apps.clickhouse_cluster.types import ChType


@pytest.mark.parametrize(
    ("kind", "fits", "does_not_fit"),
    [
        ("Int128", [str(-(2**127)), str(2**127 - 1), "007"], [str(2**127), str(-(2**127) - 1)]),
        ("UInt128", ["0", str(2**128 - 1)], ["-1", str(2**128)]),
        ("Int256", [str(-(2**255)), str(2**255 - 1)], [str(2**255), "9" * 5000]),
        ("UInt256", [str(2**256 - 1)], [str(2**256), "", "-", " 5", "5 ", "1e3", "1.0", "1_0", "٣", "5\n"]),
        (
            "Decimal(76, 0)",
            ["9" * 76, "-" + "9" * 76, "5.0"],
            ["9" * 77, "0.5", "1e3", "nan", "", ".5", "5."],
        ),
        ("Decimal256(38)", ["9" * 38 + "." + "9" * 38, "0.50"], ["1" + "0" * 38, "0." + "0" * 38 + "1"]),
        ("Decimal(39, 39)", ["0." + "9" * 39, "0"], ["1"]),
    ],
)
def test_a_text_fits_where_it_is_a_number_that_the_column_holds(
    kind: str, fits: list[str], does_not_fit: list[str]
) -> None:
    parsed = ChType.parse(kind)
    assert parsed.is_wide_number
    assert first_that_does_not_fit(parsed, pa.chunked_array([[*fits, None]], pa.string())) is None
    for text in does_not_fit:
        found = first_that_does_not_fit(parsed, pa.chunked_array([[*fits, text]], pa.string()))
        assert found == text
