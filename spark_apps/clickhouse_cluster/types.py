"""ClickHouse's types and Spark's: which goes into which.

Reading keeps every value: unsigned numbers become the next wider signed type, UInt64 a decimal(20, 0); what
Spark has no type for (UUID, addresses, enums, numbers of 128 bits and more) comes as text. Spark's timestamps
end at microseconds: DateTime64 beyond six digits is cut there.

Writing never changes a value in silence: a number that does not fit fails the job, and pairs of types
where values could be cut (a double into an integer, more decimal digits than there are) are refused at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from engine.errors import Code, SqlError
from engine.sql.tokens import TokenKind, tokenize
from spark_apps.clickhouse_cluster.options import Placement
from spark_apps.clickhouse_cluster.target import Column, Target

SIMPLE: dict[str, DataType] = {
    "Int8": ByteType(),
    "Int16": ShortType(),
    "Int32": IntegerType(),
    "Int64": LongType(),
    "UInt8": ShortType(),
    "UInt16": IntegerType(),
    "UInt32": LongType(),
    "UInt64": DecimalType(20, 0),
    "Float32": FloatType(),
    "Float64": DoubleType(),
    "Bool": BooleanType(),
    "String": StringType(),
    "Date": DateType(),
    "Date32": DateType(),
    "DateTime": TimestampType(),
    "DateTime64": TimestampType(),
}
_PARAMETERS = re.compile(r"(\w+)(?:\((.*)\))?\Z", re.DOTALL)
INTEGERS = ("Int8", "Int16", "Int32", "Int64", "Int128", "Int256", "UInt8", "UInt16", "UInt32", "UInt64",
             "UInt128", "UInt256")  # fmt: skip
_WIDE_INTEGERS = frozenset({"Int128", "Int256", "UInt128", "UInt256"})
_SPARKS_DIGITS = 38
_UTC = (
    "UTC",
    "Etc/UTC",
    "Etc/UCT",
    "UCT",
    "Zulu",
    "Etc/Zulu",
    "Universal",
    "Etc/Universal",
    "GMT",
    "Etc/GMT",
)
_STATES = re.compile(r"\bAggregateFunction\(")
_DECIMAL_DIGITS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}


@dataclass(frozen=True, slots=True)
class ChType:
    """A type without its wrappers. `arguments` are the texts between the brackets."""

    name: str
    arguments: tuple[str, ...]
    is_nullable: bool

    @classmethod
    def parse(cls, text: str) -> ChType:
        match = _PARAMETERS.match(stored_type(text.strip()))
        if match is None:
            return cls(text, (), False)
        name, inside = match.group(1), match.group(2)
        if name == "Nullable":
            inner = cls.parse(inside)
            return cls(inner.name, inner.arguments, True)
        if name == "LowCardinality":
            return cls.parse(inside)
        return cls(name, _split(inside) if inside else (), False)

    @property
    def may_be_null(self) -> bool:
        return self.is_nullable or self.is_variant

    @property
    def is_variant(self) -> bool:
        """Of several types, and NULL among them."""
        return self.name in ("Variant", "Dynamic", "Geometry")

    @property
    def is_wide_number(self) -> bool:
        """A number that comes as text, and that text may be written to."""
        return self.name in _WIDE_INTEGERS or (self.decimal is not None and self.decimal[0] > _SPARKS_DIGITS)

    @property
    def zone(self) -> str:
        """Of a time; empty for that of the server."""
        quoted = [argument for argument in self.arguments if argument.startswith("'")]
        return quoted[0].strip("'") if quoted else ""

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Digits and scale."""
        if self.name == "Decimal":
            return int(self.arguments[0]), int(self.arguments[1])
        if self.name in _DECIMAL_DIGITS:
            return _DECIMAL_DIGITS[self.name], int(self.arguments[0])
        return None


def stored_type(text: str) -> str:
    """The type of which the values are: a SimpleAggregateFunction only says how merges join them."""
    match = _PARAMETERS.match(text)
    if match is None or match.group(1) != "SimpleAggregateFunction":
        return text
    return _split(match.group(2))[-1]


def spark_type(text: str) -> DataType:
    """What a column of this ClickHouse type is read as."""
    kind = ChType.parse(text)
    if kind.name in SIMPLE:
        return SIMPLE[kind.name]
    if kind.decimal is not None and not kind.is_wide_number:
        return DecimalType(*kind.decimal)
    if kind.name == "Array":
        return ArrayType(spark_type(kind.arguments[0]), ChType.parse(kind.arguments[0]).may_be_null)
    if kind.name == "Map":
        key, value = kind.arguments
        return MapType(spark_type(key), spark_type(value), ChType.parse(value).may_be_null)
    return StringType()


def spark_schema(columns: Sequence[Column]) -> StructType:
    """Columns as they are read: all that the table stores."""
    return StructType(
        [
            StructField(column.name, spark_type(column.type), ChType.parse(column.type).may_be_null)
            for column in columns
            if column.default not in ("ALIAS", "EPHEMERAL")
        ]
    )


def require_values_to_read(columns: Iterable[Column]) -> None:
    """Raises SqlError 53 where a column holds states of aggregations: only ClickHouse knows what they are."""
    names = [column.name for column in columns if _STATES.search(column.type)]
    if names:
        raise SqlError(
            Code.TYPE_MISMATCH,
            f"{', '.join(names)}: states of an AggregateFunction cannot be read.",
            hint="Name the other columns with .schema(…), or read a view that finalizes the states.",
        )


def has_bytes(text: str) -> bool:
    """Whether a column may be read as binary."""
    return ChType.parse(text).name in ("String", "FixedString")


def check_schema(schema: StructType, target: Target) -> None:
    """Refuse a frame that does not fit into the table, with everything that is wrong at once.

    Raises SqlError 16 NO_SUCH_COLUMN_IN_TABLE or 53 TYPE_MISMATCH.
    """
    columns = {column.name: column for column in target.columns}
    unknown = [field.name for field in schema if field.name not in columns]
    if unknown:
        raise SqlError(
            Code.NO_SUCH_COLUMN_IN_TABLE,
            f"{target.table} has no column {', '.join(unknown)}.",
            hint=f"Columns: {', '.join(column.name for column in target.columns)}.",
        )
    wrong = []
    for field in schema:
        column = columns[field.name]
        if not column.is_taken:
            wrong.append(f"{field.name} is {column.default}, nobody can write it")
        else:
            reason = _misfit(field.dataType, column.type, target.timezone)
            if reason:
                wrong.append(f"{field.name}: {field.dataType.simpleString()} into {column.type}{reason}")
    names = {field.name for field in schema}
    words = [token for token in tokenize(target.sharding_key) if token.kind is not TokenKind.STRING]
    in_key = {token.text.strip('`"') for token in words}
    absent = [column.name for column in target.columns if column.name in in_key and column.name not in names]
    if absent:
        wrong.append(f"the sharding key {target.sharding_key} needs {', '.join(absent)}")
    is_by_key = target.placement is Placement.BY_KEY
    if is_by_key and not target.sharding_key and len(target.owners) > 1:
        wrong.append(
            f"{target.name} has no sharding key and more than one shard; give the option sharding_key"
        )
    twice = sorted(name for name, times in Counter(schema.fieldNames()).items() if times > 1)
    if twice:
        wrong.append(f"more than one column is called {', '.join(twice)}")
    if wrong:
        raise SqlError(Code.TYPE_MISMATCH, f"The frame does not fit into {target.table}: {'; '.join(wrong)}.")


def _misfit(spark: DataType, text: str, zone: str) -> str:
    """Empty when it fits, else what is in the way. `zone` is the server's."""
    kind = ChType.parse(text)
    if isinstance(spark, ByteType | ShortType | IntegerType | LongType):
        fits = kind.name in INTEGERS or kind.name == "Float64" or kind.decimal is not None
    elif isinstance(spark, FloatType | DoubleType):
        fits = kind.name in ("Float32", "Float64")
    elif isinstance(spark, DecimalType):
        fits = kind.decimal is not None or (spark.scale == 0 and kind.name in INTEGERS)
        if kind.decimal is not None and spark.scale > kind.decimal[1]:
            return f": {spark.scale} digits after the point do not fit into {kind.decimal[1]}; round in Spark"
    elif isinstance(spark, StringType):
        fits = kind.name in ("String", "FixedString", "Enum8", "Enum16", "UUID", "IPv4", "IPv6")
        fits = fits or kind.is_wide_number
    elif isinstance(spark, BinaryType):
        fits = kind.name in ("String", "FixedString")
    elif isinstance(spark, BooleanType):
        fits = kind.name in ("Bool", "UInt8")
    elif isinstance(spark, DateType):
        fits = kind.name in ("Date", "Date32")
    elif isinstance(spark, TimestampType | TimestampNTZType):
        fits = kind.name in ("DateTime", "DateTime64")
        if fits and isinstance(spark, TimestampNTZType) and (kind.zone or zone) not in _UTC:
            return (
                f": a time of no zone, and the column's is {kind.zone or zone}; cast it to timestamp in Spark"
            )
    elif isinstance(spark, ArrayType):
        if kind.name != "Array":
            return ": not an array"
        return _misfit(spark.elementType, kind.arguments[0], zone)
    elif isinstance(spark, MapType):
        if kind.name != "Map":
            return ": not a map"
        key, value = kind.arguments
        return _misfit(spark.keyType, key, zone) or _misfit(spark.valueType, value, zone)
    else:
        fits = False
    if not fits and not _is_writable(kind):
        return ": Spark has nothing that goes into it; leave the column out, or make it a String"
    return "" if fits else "; cast it in Spark"


def _is_writable(kind: ChType) -> bool:
    """Something of Spark's goes into it."""
    return (
        kind.name in SIMPLE
        or kind.name in INTEGERS
        or kind.name in ("Array", "Map", "FixedString", "Enum8", "Enum16", "UUID", "IPv4", "IPv6")
        or kind.decimal is not None
    )


def _split(text: str) -> tuple[str, ...]:
    """At commas outside of brackets and strings."""
    found, depth, begun = [], 0, 0
    for token in tokenize(text):
        if token.text in "([":
            depth += 1
        elif token.text in ")]":
            depth -= 1
        elif token.text == "," and depth == 0:
            found.append(text[begun : token.start].strip())
            begun = token.end
    return (*found, text[begun:].strip())
