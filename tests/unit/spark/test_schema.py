"""Which frames fit into a table: refused before a row is sent, with everything that is wrong."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from engine.errors import Code, ConfigError, SqlError
from engine.names import TableName
from spark_apps.clickhouse_cluster.engine_text import Window
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Options, Placement
from spark_apps.clickhouse_cluster.target import Column, Shard, Target
from spark_apps.clickhouse_cluster.types import check_schema


def target(*columns: Column, key: str = "a", placement: Placement = Placement.BY_KEY) -> Target:
    server = Server("h", 1)
    return Target(
        name=TableName("d", "t_all"),
        table=TableName("d", "t"),
        shards=tuple(
            Shard(number, 1, (server,), server, version=(26, 9), engine="MergeTree") for number in (1, 2)
        ),
        sharding_key=key,
        placement=placement,
        columns=(Column("a", "UInt32"), *columns),
        engine="MergeTree",
        partition_key="",
        sorting_key="a",
        primary_key="a",
        settings="index_granularity = 8192",
        keeper_paths=("", ""),
        timezone="UTC",
        window=Window(0, 3600),
    )


def frame(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in {"a": LongType(), **columns}.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("spark", "column"),
    [
        (LongType(), "UInt8"),
        (IntegerType(), "Nullable(Float64)"),
        (LongType(), "Decimal(12, 2)"),
        (DecimalType(20, 0), "UInt64"),
        (DecimalType(9, 2), "Decimal(12, 3)"),
        (DoubleType(), "Float32"),
        (StringType(), "LowCardinality(Nullable(String))"),
        (StringType(), "Enum8('x, y' = 1)"),
        (StringType(), "UUID"),
        (BinaryType(), "FixedString(3)"),
        (BooleanType(), "UInt8"),
        (DateType(), "Date32"),
        (TimestampType(), "DateTime64(3, 'UTC')"),
        (TimestampType(), "DateTime('Asia/Tokyo')"),
        (TimestampNTZType(), "DateTime64(3)"),
        (ArrayType(TimestampNTZType()), "Array(DateTime('UTC'))"),
        (ArrayType(IntegerType()), "Array(UInt16)"),
        (MapType(StringType(), LongType()), "Map(String, UInt64)"),
    ],
    ids=str,
)
def test_types_that_fit(spark: DataType, column: str) -> None:
    check_schema(frame(x=spark), target(Column("x", column)))


@pytest.mark.parametrize(
    ("spark", "column", "message"),
    [
        (DoubleType(), "UInt8", "x: double into UInt8; cast it in Spark"),
        (LongType(), "Float32", "x: bigint into Float32; cast it in Spark"),
        (LongType(), "String", "x: bigint into String; cast it in Spark"),
        (StringType(), "UInt8", "x: string into UInt8; cast it in Spark"),
        (DateType(), "DateTime", "x: date into DateTime; cast it in Spark"),
        (DecimalType(9, 4), "Decimal(12, 2)", "4 digits after the point do not fit into 2; round in Spark"),
        (ArrayType(DoubleType()), "Array(UInt8)", "x: array<double> into Array(UInt8); cast it in Spark"),
        (ArrayType(LongType()), "UInt8", "not an array"),
        (TimestampNTZType(), "DateTime64(3, 'Asia/Tokyo')", "no zone, and the column's is Asia/Tokyo; cast"),
        (MapType(StringType(), LongType()), "String", "not a map"),
        (StructType(), "String", "cast it in Spark"),
        (
            StringType(),
            "JSON",
            "x: string into JSON: Spark has nothing that goes into it; leave the column out",
        ),
        (StructType(), "Tuple(UInt8, String)", "leave the column out"),
    ],
    ids=str,
)
def test_types_that_do_not_fit_are_refused_with_the_way_out(
    spark: DataType, column: str, message: str
) -> None:
    with pytest.raises(SqlError) as refused:
        check_schema(frame(x=spark), target(Column("x", column)))
    assert refused.value.code == Code.TYPE_MISMATCH
    assert message in refused.value.message


def test_everything_that_is_wrong_is_said_at_once() -> None:
    there = target(
        Column("x", "UInt8"), Column("m", "UInt8", "MATERIALIZED"), Column("k", "UInt8"), key="a + k"
    )
    with pytest.raises(SqlError) as refused:
        check_schema(frame(x=StringType(), m=LongType()), there)
    assert refused.value.message == (
        "The frame does not fit into d.t: x: string into UInt8; cast it in Spark; "
        "m is MATERIALIZED, nobody can write it; the sharding key a + k needs k."
    )


def test_a_column_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(SqlError) as refused:
        check_schema(frame(y=LongType(), z=LongType()), target())
    assert refused.value.code == Code.NO_SUCH_COLUMN_IN_TABLE
    assert refused.value.message == "d.t has no column y, z."
    assert refused.value.hint == "Columns: a."


def test_several_shards_need_a_key_unless_each_gets_all_rows() -> None:
    with pytest.raises(SqlError, match="no sharding key and more than one shard"):
        check_schema(frame(), target(key=""))
    check_schema(frame(), target(key="", placement=Placement.EVERY_SHARD))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "t"}, "where a server is"),
        ({"url": "h"}, "told the table"),
        ({"path": "t", "url": "h", "jobid": "x"}, "no option jobid"),
        ({"path": "t", "url": "ftp://h"}, "no address of a server"),
        ({"path": "t", "url": "h:abc"}, "no address of a server"),
        ({"path": "t", "url": "h:99999"}, "no address of a server: Port out of range"),
        ({"path": "t", "url": "h", "block_rows": "²"}, "whole number from 1"),
        ({"path": "t", "shards": "a;b*²"}, "weight of a shard is a whole number"),
        ({"path": "t", "url": "h", "block_rows": "0"}, "block_rows is a whole number from 1"),
        ({"path": "t", "url": "h", "delivery": "fast"}, "delivery is staged or direct"),
        ({"path": "t", "shards": "a;b*x"}, "weight of a shard"),
        ({"path": "t", "shards": "a;;b"}, "a shard without a server"),
        ({"path": "t", "shards": "a;*2"}, "a shard without a server"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options.parse(given)


def test_shards_are_read_with_their_replicas_and_weights() -> None:
    options = Options.parse({"path": "d.t", "shards": "a:1,https://b;c:3*2", "user": "u"})
    assert [(weight, [str(one) for one in servers]) for weight, servers in options.shards] == [
        (1, ["http://a:1", "https://b:8443"]),
        (2, ["http://c:3"]),
    ]
    assert {one.user for one in options.servers} == {"u"}


def test_what_stands_escaped_in_an_address_is_meant_as_it_is() -> None:
    (server,) = Options.parse({"path": "t", "url": "http://a%40b:p%3A%2Fw@h:1", "user": "u"}).servers
    assert (server.user, server.password, server.host, server.port) == ("a@b", "p:/w", "h", 1)
