"""Which ids a partition of a table can have, by the types of its key."""

from __future__ import annotations

import re

import pytest

from spark_apps.clickhouse_cluster.partition_ids import form_of

MONTH = ("toYYYYMM(toDateTime(t, 'UTC'))", "UInt32")


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ([], ["all"], ["201301", "tuple()"]),
        ([MONTH], ["201301"], ["2013-01", "201313", "20130101", "2013"]),
        ([("toYYYYMMDD(d)", "UInt32")], ["20130131"], ["201301", "20130132"]),
        ([("toMonday(d)", "Date")], ["20130107"], ["2013-01-07", "15712"]),
        ([("modulo(a, 2)", "Int8")], ["-1", "0"], ["x", "2013-01", "1-2"]),
        ([("a", "LowCardinality(UInt8)")], ["7"], ["-7"]),
        ([MONTH, ("b", "Int16")], ["201301-7", "201301--7"], ["201301", "201301-"]),
        ([("s", "String"), MONTH], ["0" * 31 + "f"], ["x-201301", "0" * 31 + "F"]),
        ([("toYYYYMM(t) + 1", "UInt64")], ["1"], ["2013-01"]),
    ],
)
def test_an_id_is_told_from_what_is_none(
    key: list[tuple[str, str]], right: list[str], wrong: list[str]
) -> None:
    form = form_of(key)
    assert form is not None
    assert [one for one in right + wrong if re.fullmatch(form.pattern, one)] == right


@pytest.mark.parametrize("kind", ["Nullable(UInt8)", "IPv4", "Int128"])
def test_any_id_is_taken_of_keys_whose_ids_are_not_known(kind: str) -> None:
    assert form_of([("a", kind)]) is None
