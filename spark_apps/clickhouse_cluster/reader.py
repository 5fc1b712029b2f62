"""Reading a table: one Spark partition for each shard, from one replica of it, straight into Arrow.

Columns are those of the schema: give a narrower one with `.schema(…)`, since Spark 4.2 tells a Python
source nothing about the columns that a query uses. Filters travel where ClickHouse and Spark agree on every
value, if the option `pushdown` is on. It is off by default: Spark 4.2 keeps a source's filters with the
frame, and a second query on the same frame that has none itself gets those of the first, and too few rows.
"""

from __future__ import annotations

import decimal
import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from engine.errors import Code, NodeUnavailable, SqlError
from engine.names import TableName, quote_identifier, quote_string
from spark_apps.clickhouse_cluster.expressions import select_list
from spark_apps.clickhouse_cluster.http import Answer, Server, first_rows
from spark_apps.clickhouse_cluster.options import Final, Options
from spark_apps.clickhouse_cluster.split import chdb_query
from spark_apps.clickhouse_cluster.target import Column, Target, column_list
from spark_apps.clickhouse_cluster.types import ChType, has_bytes, require_values_to_read, spark_schema

log = logging.getLogger(__name__)

_LONGEST_DELAY_S = 300
"""Of a replica; a Distributed table passes over others, too (`max_replica_delay_for_distributed_queries`)."""
_ARROW = {
    "output_format_arrow_string_as_string": "1",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "output_format_arrow_compression_method": "none",
}
_READ_UNASKED_BYTES = 256 << 10
_ROWS_OF_NONE = 1 << 16
_COMPARED = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}

_DAYS = {"Date": (date(1970, 1, 1), date(2105, 12, 31)), "Date32": (date(1900, 1, 1), date(2299, 12, 31))}
"""That servers of all versions read as they are. They take others for the nearest of these."""


@dataclass
class ShardPartition(InputPartition):
    """One shard, by its replicas."""

    number: int
    replicas: tuple[Server, ...]


class ClusterReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target = Target.find(options)
        there = {field.name: field for field in spark_schema(self._target.columns)}
        columns = {column.name: column for column in self._target.columns}
        for field in schema:
            if field.name not in there:
                raise SqlError(
                    Code.NO_SUCH_COLUMN_IN_TABLE, f"{self._target.table} has no column {field.name}."
                )
            if isinstance(field.dataType, BinaryType) and has_bytes(columns[field.name].type):
                continue
            if there[field.name].dataType != field.dataType:
                raise SqlError(
                    Code.TYPE_MISMATCH,
                    f"{field.name} is read as {there[field.name].dataType.simpleString()}, "
                    f"not as {field.dataType.simpleString()}.",
                    hint="Cast it after reading.",
                )
        self._columns = [columns[field.name] for field in schema]
        require_values_to_read(self._columns)
        self._conditions = [f"({options.filter})"] if options.filter else []
        final = " FINAL" if options.final is Final.ON else ""
        self._from = f"{self._target.table.quoted}{final}"
        self._binary = frozenset(field.name for field in schema if isinstance(field.dataType, BinaryType))

    def partitions(self) -> Sequence[InputPartition]:
        return [ShardPartition(shard.number, shard.replicas) for shard in self._target.shards]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShardPartition)
        server = _to_be_read(partition.replicas, self._target.table)
        columns = self._columns
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        where = f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        if not columns:
            yield from self._read_none(server, where)
            return
        read = self._read_old if self._target.is_old else self._read_arrow
        for batch in read(server, columns, where):
            yield _as_wanted(batch, wanted)

    def _read_none(self, server: Server, where: str) -> Iterator[pa.RecordBatch]:
        """Rows of no columns: as many as there are."""
        left = int(server.text(f"SELECT count() FROM {self._from}{where}", settings=_long(where)))
        while left > 0:
            rows = min(left, _ROWS_OF_NONE)
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
            left -= rows

    def _read_arrow(self, server: Server, columns: Sequence[Column], where: str) -> Iterator[pa.RecordBatch]:
        # A star leaves out columns that are MATERIALIZED.
        names = column_list([column.name for column in columns])
        chosen = select_list(columns, binary=self._binary)
        sql = f"SELECT {chosen} FROM (SELECT {names} FROM {self._from}{where}) FORMAT ArrowStream"
        with server.open(sql, settings=_ARROW | _long(sql)) as answer:
            yield from pa.ipc.open_stream(_Stream(answer))

    def _read_old(self, server: Server, columns: Sequence[Column], where: str) -> Iterator[pa.RecordBatch]:
        """Servers that know no Arrow send Native, and chDB makes Arrow of it."""
        names = column_list([column.name for column in columns])
        sql = f"SELECT {names} FROM {self._from}{where} FORMAT Native"
        with tempfile.TemporaryDirectory(prefix="oncluster-spark-") as directory:
            file = Path(directory) / "rows.native"
            with server.open(sql, settings=_long(sql)) as answer, file.open("wb") as out:
                while piece := answer.read(1 << 20):
                    out.write(piece)
            if not file.stat().st_size:
                return
            settings = ", ".join(f"{name} = {quote_string(value)}" for name, value in _ARROW.items())
            chosen = select_list(columns, binary=self._binary)
            found = chdb_query(
                f"SELECT {chosen} FROM file({quote_string(str(file))}, 'Native') "
                f"SETTINGS session_timezone = {quote_string(self._target.timezone)}, {settings}",
                "ArrowStream",
            )
            yield from pa.ipc.open_stream(pa.py_buffer(found))


def _to_be_read(replicas: Sequence[Server], table: TableName) -> Server:
    """The first that answers and is not far behind; where all are, the one that is least.

    Raises NodeUnavailable.
    """
    asking = (
        "SELECT toString(max(absolute_delay)) AS delay_s FROM system.replicas "
        f"WHERE database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
    )
    delays_s: dict[Server, int] = {}
    left = list(replicas)
    while left:
        try:
            server, rows = first_rows(left, asking)
        except NodeUnavailable:
            if not delays_s:
                raise
            break
        delays_s[server] = int(rows[0]["delay_s"])
        if delays_s[server] <= _LONGEST_DELAY_S:
            return server
        left = left[left.index(server) + 1 :]
    least = min(delays_s, key=lambda server: delays_s[server])
    log.warning("spark.replica_is_stale replica=%s table=%s delay_s=%s", least, table, delays_s[least])
    return least


def _long(sql: str) -> dict[str, str]:
    """A filter may be an IN of thousands of values: longer than a server reads unasked."""
    size = 4 * len(sql)
    return {"max_query_size": str(size)} if size > _READ_UNASKED_BYTES else {}


def _as_wanted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """With Spark's types. Raises SqlError 349: Spark takes what it was told has no NULL for a value."""
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = [given[field.name].cast(field.type) for field in wanted]
    for field, values in zip(wanted, arrays, strict=True):
        if values.null_count and not field.nullable:
            raise SqlError(
                Code.CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN,
                f"{field.name} has NULL in {values.null_count} rows.",
                hint="Read it with a schema in which it may be NULL.",
            )
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


class PushingReader(ClusterReader):
    """A reader whose filters travel, for a frame that one query uses."""

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:
        """Keep those that the servers evaluate as Spark would; give back the others."""
        for one in filters:
            condition = condition_of(one, self._target)
            if condition is None:
                yield one
            else:
                self._conditions.append(condition)


class _Stream:
    """An answer as pyarrow reads a file."""

    closed = False

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def read(self, size: int = -1) -> bytes:
        """All of `size`: a shorter piece would be the end."""
        if size < 0:
            return self._answer.read()
        pieces, left = [], size
        while left and (piece := self._answer.read(left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def condition_of(one: ds.Filter, target: Target) -> str | None:
    """SQL that keeps exactly the rows that this filter keeps, or None where servers might differ.

    Numbers with fractions are left to Spark (NaN equals NaN there), and types that are read as text.
    """
    if isinstance(one, ds.Not):
        inner = condition_of(one.child, target)
        if inner is None or isinstance(one.child, ds.EqualNullSafe | ds.Not):
            return None
        if isinstance(one.child, ds.IsNull | ds.IsNotNull):
            return f"NOT ({inner})"
        # NULL IN (…) is NULL to Spark and false to old servers.
        name = quote_identifier(getattr(one.child, "attribute")[0])  # noqa: B009 - Spark's types do not have it
        return f"isNotNull({name}) AND NOT ({inner})"
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    column = target.column(attribute[0]) if len(attribute) == 1 else None
    if column is None:
        return None
    kind = ChType.parse(column.type)
    name = quote_identifier(column.name)
    if isinstance(one, ds.IsNull):
        return f"isNull({name})"
    if isinstance(one, ds.IsNotNull):
        return f"isNotNull({name})"
    if isinstance(one, ds.In):
        literals = [_literal(value, kind) for value in one.value]
        if not literals or any(literal is None for literal in literals):
            return None
        return f"{name} IN ({', '.join(str(literal) for literal in literals)})"
    if isinstance(one, ds.StringStartsWith | ds.StringEndsWith) and kind.name == "String":
        function = "startsWith" if isinstance(one, ds.StringStartsWith) else "endsWith"
        return f"{function}({name}, {quote_string(one.value)})"
    if isinstance(one, ds.StringContains) and kind.name == "String" and one.value:
        return f"position({name}, {quote_string(one.value)}) > 0"
    operator = _COMPARED.get(type(one))
    literal = _literal(getattr(one, "value", None), kind)
    return f"{name} {operator} {literal}" if operator and literal is not None else None


def _literal(value: object, kind: ChType) -> str | None:
    if isinstance(value, bool):
        return str(int(value)) if kind.name == "Bool" else None
    if isinstance(value, int) and (kind.name.startswith(("Int", "UInt"))):
        return str(value)
    if isinstance(value, decimal.Decimal) and kind.name == "UInt64" and value == int(value):
        return str(int(value))
    if isinstance(value, str) and kind.name == "String":
        return quote_string(value)
    if isinstance(value, datetime) and kind.name == "DateTime" and not value.microsecond:
        at = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        return f"toDateTime({int(at.timestamp())})" if 0 <= at.timestamp() < 2**32 else None
    if isinstance(value, date) and not isinstance(value, datetime) and kind.name in ("Date", "Date32"):
        first, last = _DAYS[kind.name]
        return f"to{kind.name}({quote_string(value.isoformat())})" if first <= value <= last else None
    return None
