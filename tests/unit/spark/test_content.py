"""Batches that are told apart by their rows, and those that are not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_apps.clickhouse_cluster.content import Content, Counted
from spark_apps.clickhouse_cluster.options import RepeatedBatch
from spark_apps.clickhouse_cluster.split import close_chdb

NOON = dt.datetime(1969, 7, 20, 12, tzinfo=dt.UTC)
ROWS = {
    "a": pa.array([1, None, 3], pa.int64()),
    "s": pa.array(["", None, "it's"]),
    "x": pa.array([b"\xff", b"", None]),
    "f": pa.array([float("nan"), -0.0, None]),
    "t": pa.array([NOON, None, NOON], pa.timestamp("us", "UTC")),
    "d": pa.array([None, dt.date(1969, 1, 1), dt.date(2024, 1, 1)]),
    "m": pa.array([Decimal("1.50"), None, Decimal("-1.50")], pa.decimal128(38, 2)),
    "r": pa.array([[1, None], [], [1]], pa.list_(pa.int32())),
    "k": pa.array([[("a", 1)], [], [("a", None)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.fixture(scope="module", autouse=True)
def chdb_of_its_own() -> Iterator[None]:
    yield
    close_chdb()


def content(*tables: pa.Table, names: Sequence[str] = ()) -> Content:
    batches = [batch for table in tables for batch in table.to_batches(max_chunksize=2)]
    counted = Counted(iter(batches), names or tables[0].column_names, RepeatedBatch.COMPARED)
    assert [batch.num_rows for batch in counted] == [batch.num_rows for batch in batches]
    return counted.content


def test_order_tasks_and_places_of_columns_change_nothing() -> None:
    rows = pa.table(ROWS)
    whole = content(rows)
    assert whole.rows == 3
    assert content(rows.take([2, 0, 1])) == whole
    assert content(rows.slice(0, 1)) + content(rows.slice(1)) == whole
    assert content(rows.select(list(reversed(rows.column_names)))) == whole


@pytest.mark.parametrize("name", ROWS)
def test_one_value_tells_rows_apart(name: str) -> None:
    rows = pa.table(ROWS)
    turned = rows.set_column(rows.column_names.index(name), name, rows[name].take([1, 2, 0]))
    assert not content(rows).may_be(content(turned))


def test_rows_that_are_there_twice_and_columns_that_are_called_otherwise_are_others() -> None:
    rows = pa.table({"a": [1, 1, 2, 2], "b": [5, 6, 7, 8]})
    assert not content(rows.take([0, 0, 1])).may_be(content(rows.take([0, 1, 1])))
    assert not content(rows).may_be(content(rows, names=["b", "a"]))
    assert content(rows.slice(0, 0)) == Content(0, 0)


def test_what_nobody_has_looked_at_is_told_apart_by_its_number_alone() -> None:
    rows = pa.table({"a": [1, 2]})
    counted = Counted(iter(rows.to_batches()), ["a"], RepeatedBatch.COUNTED)
    assert len(list(counted)) == 1
    assert counted.content == Content(2, None)
    assert content(rows).may_be(counted.content)
    assert counted.content.may_be(content(rows))
    assert not counted.content.may_be(Content(3, 5))
    assert counted.content + content(rows) == Content(4, None)
