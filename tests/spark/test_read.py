"""Tables of two shards into frames: exact types, filters and columns."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import http.client
import io
import threading
import time
from collections.abc import Iterable, Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from engine.errors import ReplyLost
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import reader
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.reader import ClusterReader, _Stream
from spark_apps.clickhouse_cluster.target import Target
from spark_apps.clickhouse_cluster.types import spark_schema
from tests.spark.conftest import MADE, Servers

pytestmark = pytest.mark.slow

COLUMNS = (
    "a UInt64, b Int8, c Nullable(UInt16), f Float64, s String, n Nullable(String), fs FixedString(3), "
    "u UUID, e Enum8('x' = 1, 'y' = -1), d Date, t DateTime('UTC'), m Decimal(12, 3), r Array(UInt32)"
)
ROW = (
    "18446744073709551615, -7, NULL, 1.5, 'ä', NULL, 'abc', '61f0c404-5cb3-11e7-907b-a6006ad3dba0', 'y', "
    "'2013-01-31', '2013-01-31 05:00:01', 12.345, [1, 4294967295]"
)


def read(spark: SparkSession, servers: Servers, table: str, **options: str) -> DataFrame:
    return spark.read.format("clickhouse_cluster").options(shards=servers.option, **options).load(table)


@pytest.fixture(scope="module")
def table(servers: Servers) -> str:
    name = servers.table(COLUMNS, rest="ORDER BY a")
    for shard in servers.shards:
        shard[0].execute(f"INSERT INTO {name} VALUES ({ROW})")
    return name


def test_every_value_comes_as_it_is(spark: SparkSession, servers: Servers, table: str) -> None:
    frame = read(spark, servers, table)
    assert dict(frame.dtypes) == {
        "a": "decimal(20,0)", "b": "tinyint", "c": "int", "f": "double", "s": "string", "n": "string",
        "fs": "string", "u": "string", "e": "string", "d": "date", "t": "timestamp", "m": "decimal(12,3)",
        "r": "array<bigint>",
    }  # fmt: skip
    first, second = frame.collect()
    assert first == second
    at = dt.datetime(2013, 1, 31, 5, 0, 1, tzinfo=dt.UTC).astimezone().replace(tzinfo=None)
    assert first.asDict() == {
        "a": Decimal(18446744073709551615), "b": -7, "c": None, "f": 1.5, "s": "ä", "n": None, "fs": "abc",
        "u": "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "e": "y", "d": dt.date(2013, 1, 31), "t": at,
        "m": Decimal("12.345"), "r": [1, 4294967295],
    }  # fmt: skip


def test_a_narrower_schema_reads_only_its_columns(spark: SparkSession, servers: Servers, table: str) -> None:
    reader = spark.read.format("clickhouse_cluster").options(shards=servers.option)
    assert [tuple(row) for row in reader.schema("s string, b tinyint").load(table).collect()] == [
        ("ä", -7)
    ] * 2


def test_a_schema_of_no_columns_counts_the_rows(spark: SparkSession, servers: Servers, table: str) -> None:
    reader = spark.read.format("clickhouse_cluster").options(shards=servers.option).schema(StructType([]))
    rows = reader.load(table).collect() + reader.option("filter", "b > 0").load(table).collect()
    assert [len(row) for row in rows] == [0, 0]


@pytest.mark.extended
def test_filters_find_the_same_rows_on_the_servers(spark: SparkSession, servers: Servers) -> None:
    columns = "a Int32, s String, n Nullable(Int32), d Date, t DateTime('UTC'), f Float64, u UInt64"
    name = servers.table(columns, rest="ORDER BY a")
    servers.shards[0][0].execute(
        f"INSERT INTO {name} SELECT toInt32(number) - 20, concat(toString(number), '%_'), "
        "if(number % 3 = 0, NULL, toInt32(number)), toDate(number), toDateTime(number * 3600), "
        "if(number = 7, nan, number / 2), 18446744073709551615 - number FROM numbers(60)"
    )
    quoted, escaped = quote_string('it\'s "ä"'), quote_string("ä\\\n`")
    # The two times are half past two in Berlin, before and after clocks are set back.
    servers.shards[0][0].execute(
        f"INSERT INTO {name} VALUES (100, {quoted}, NULL, '2105-12-31', 1729989000, inf, 0), "
        f"(101, {escaped}, 5, '1970-01-01', 1729992600, -0., 1), (102, '', 0, '2024-10-27', 4294967295, 0, 2)"
    )
    one_shard = Servers(servers.kind, servers.shards[:1])
    # Spark passes over what it has cached where a column has NaN, and looks for NaN.
    spark.conf.set("spark.sql.inMemoryColumnarStorage.partitionPruning", "false")
    everything = read(spark, one_shard, name).cache()
    conditions = (
        "a = 3", "a > -5 AND a <= 7", "a IN (1, 2, 99)", "NOT (n > 20)", "n IS NULL",
        "n IS NOT NULL AND n < 9",
        "s LIKE '1%'",
        "s LIKE '%7\\\\%_'", "s = '5%_'", "d >= DATE '1970-01-20'", "n <=> 4",
        "NOT (n <=> 4)",
        "t > TIMESTAMP '1970-01-02 00:00:00' AND t != TIMESTAMP '1970-01-02 03:00:00'", "a = 1 OR n = 2",
        "n NOT IN (1, 2)", "n IN (1, NULL)", "n NOT IN (1, NULL)", "NOT (s LIKE 'ä%')", "s LIKE 'ä%'",
        f"s = {quoted}", f"s IN ('', {escaped}, '1%_')", "s < 'a'", f"contains(s, {escaped})", "s = ''",
        "f = double('NaN')", "f > 2", "f IN (0, 1.5)", "f <=> double('NaN')", "f = -0.0",
        "u = 18446744073709551615", "u IN (0, 18446744073709551614)", "u > -1", "u < 2.5", "a > 2147483648",
        "d IN (DATE '2105-12-31', DATE '1969-12-31')", "d > DATE '2106-06-06'", "d < DATE '1960-01-01'",
        "t = TIMESTAMP '2024-10-27 02:30:00 Europe/Berlin'", "t >= TIMESTAMP '2024-10-27 01:30:00'",
        "t < TIMESTAMP '1970-01-01 01:00:00.5'", "t > TIMESTAMP '1960-01-01 00:00:00'",
        "t <= TIMESTAMP '2200-01-01 00:00:00'",
    )  # fmt: skip

    def found(frames: Iterable[DataFrame]) -> list[str]:
        """The rows of all conditions, each with its condition, in one job."""
        parts = [
            frame.where(condition).withColumn("condition", F.lit(condition))
            for frame, condition in zip(frames, conditions, strict=True)
        ]
        return sorted(map(str, functools.reduce(DataFrame.unionAll, parts).collect()))

    # With a schema, the servers are not asked for it once for each condition.
    reader = spark.read.format("clickhouse_cluster").schema(everything.schema)
    reader = reader.options(shards=one_shard.option, pushdown="on")
    pushed = [reader.load(name) for _ in conditions]
    assert found(pushed) == found([everything] * len(conditions))
    everything.unpersist()
    spark.conf.unset("spark.sql.inMemoryColumnarStorage.partitionPruning")


def test_a_frame_may_be_used_again_with_another_filter_or_none(
    spark: SparkSession, servers: Servers, table: str
) -> None:
    frame = read(spark, servers, table)
    assert [frame.where("b = 1").count(), frame.count(), frame.where("b = -7").count()] == [0, 2, 2]


def test_a_filter_in_sql_is_evaluated_by_the_servers(spark: SparkSession, servers: Servers) -> None:
    name = servers.table("a Int32", rest="ORDER BY a")
    for shard in servers.shards:
        shard[0].execute(f"INSERT INTO {name} SELECT toInt32(number) FROM numbers(10)")
    frame = read(spark, servers, name, filter="bitAnd(a, 1) = 1 OR a = 2")
    assert [frame.count(), frame.where("a = 2").count(), frame.count()] == [12, 2, 12]


def test_an_answer_that_ends_behind_one_of_its_batches_is_no_answer() -> None:
    """1. A server says how long its answer is. 2. The connection ends behind the first of two batches."""
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int32())})
    whole = io.BytesIO()
    with pa.ipc.new_stream(whole, batch.schema) as stream:
        stream.write_batch(batch)
        cut = whole.tell()
        stream.write_batch(batch)

    class Cutting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("X-ClickHouse-Format", "ArrowStream")
            self.send_header("Content-Length", str(len(whole.getvalue())))
            self.end_headers()
            self.wfile.write(whole.getvalue()[:cut])

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with serving(Cutting) as server, server.open("SELECT a FROM t") as answer:
        rows = pa.ipc.open_stream(_Stream(answer))
        assert rows.read_next_batch() == batch
        with pytest.raises(ReplyLost, match="bytes before its end"):
            rows.read_next_batch()


def test_rows_are_read_as_merges_would_leave_them_where_that_is_asked_for(servers: Servers) -> None:
    server = servers.shards[0][0]
    name = f"d.{servers.kind}_replacing"
    unmerged = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
    engine = f"ReplacingMergeTree ORDER BY a SETTINGS index_granularity = 8192, {unmerged}"
    server.execute(f"CREATE TABLE {name} (a UInt8, n UInt8) ENGINE = {engine}")
    MADE.append((server, f"DROP TABLE {name}"))
    for number in range(2):
        server.execute(f"INSERT INTO {name} VALUES (1, {number}), (2, {number})")
    given = {"table": name, "shards": f"{server.host}:{server.port}", "filter": "n < 2 AND a = 1"}
    for final, rows in (("off", [0, 1]), ("on", [1])):
        options = Options.parse({**given, "final": final})
        for columns in (Target.find(options).columns, ()):
            reader = ClusterReader(options, spark_schema(columns))
            batches = [batch for part in reader.partitions() for batch in reader.read(part)]
            assert sum(batch.num_rows for batch in batches) == len(rows)
            assert not columns or sorted(n for batch in batches for n in batch["n"].to_pylist()) == rows


def test_a_replica_that_is_far_behind_is_passed_over(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a Distributed table. Where all are far behind, the one that is least is read."""
    name = nodes.table("a UInt8", rest="ORDER BY a")
    behind, whole = nodes.shards[0]
    behind.execute(f"SYSTEM STOP FETCHES {name}")
    whole.execute(f"INSERT INTO {name} VALUES (1)")
    where = f"WHERE database = 'd' AND table = '{name.removeprefix('d.')}'"
    while behind.text(f"SELECT absolute_delay > 0 FROM system.replicas {where}") == "0":
        time.sleep(0.02)

    def rows(replicas: list[Server], longest_delay_s: int) -> int:
        monkeypatch.setattr(reader, "_LONGEST_DELAY_S", longest_delay_s)
        shard = ",".join(f"{one.host}:{one.port}" for one in replicas)
        options = Options.parse({"table": name, "shards": shard})
        reading = ClusterReader(options, spark_schema(Target.find(options).columns))
        return sum(batch.num_rows for part in reading.partitions() for batch in reading.read(part))

    assert [rows([behind, whole], 300), rows([behind, whole], 0)] == [0, 1]
    assert [rows([behind, whole], -1), rows([behind], -1)] == [1, 0]
    behind.execute(f"SYSTEM START FETCHES {name}")


def test_columns_that_are_materialized_are_read_and_those_that_are_an_alias_filter(
    spark: SparkSession, servers: Servers
) -> None:
    columns = "a Int32, m Int64 MATERIALIZED a * 2, l Int64 ALIAS a * 3, r Array(String), k Int8 DEFAULT 4"
    name = servers.table(columns, rest="ORDER BY a")
    servers.shards[1][0].execute(f"INSERT INTO {name} (a, r) VALUES (1, ['ä', '']), (2, [])")
    frame = read(spark, servers, name, filter="l > 3")
    assert [row.asDict() for row in frame.collect()] == [{"a": 2, "m": 4, "r": [], "k": 4}]


def test_maps_bytes_and_variants_come_as_they_are(spark: SparkSession, nodes: Servers) -> None:
    columns = (
        "e Map(Enum8('x' = 1), Array(Nullable(IPv4))), t Map(String, DateTime('Asia/Tokyo')), "
        "n Map(UInt64, Map(String, Int128)), u Array(Map(UUID, Date)), v Variant(String, UInt8), g Geometry, "
        "b String, f FixedString(3), x UUID, k Array(UUID)"
    )
    name = nodes.table(columns)
    key = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    nodes.shards[0][0].execute(
        f"INSERT INTO {name} SELECT map('x', ['1.2.3.4', NULL]), map('k', toDateTime(5)), "
        f"map(18446744073709551615, map('', -5)), [map('{key}', toDate(7))], NULL, NULL, unhex('ff00'), "
        f"unhex('ff0000'), '{key}', ['{key}']"
    )
    schema = read(spark, nodes, name).schema
    for of in ("b", "f"):
        schema[of].dataType = BinaryType()
    reader = spark.read.format("clickhouse_cluster").options(shards=nodes.option).schema(schema)
    at = dt.datetime.fromtimestamp(5)
    assert [row.asDict() for row in reader.load(name).collect()] == [{
        "e": {"x": ["1.2.3.4", None]}, "t": {"k": at}, "n": {Decimal(2**64 - 1): {"": "-5"}},
        "u": [{key: dt.date(1970, 1, 8)}], "v": None, "g": None, "b": b"\xff\0", "f": b"\xff\0\0",
        "x": key, "k": [key],
    }]  # fmt: skip


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[Server]:
    """What answers so, on a port of its own."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Server("127.0.0.1", listening.server_port)
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@contextlib.contextmanager
def recording(server: Server) -> Iterator[tuple[Server, list[str]]]:
    """A server that hands everything on to this one, and the statements that it was given."""
    statements: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            statements.append(body.decode())
            connection = http.client.HTTPConnection(server.host, server.port)
            connection.request("POST", self.path, body, {"X-ClickHouse-User": server.user})
            reply = connection.getresponse()
            answer = reply.read()
            connection.close()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.startswith("X-ClickHouse-"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with serving(Proxy) as proxy:
        yield proxy, statements


def test_servers_are_asked_for_the_columns_of_the_schema_and_the_rows_of_the_filter_alone(
    spark: SparkSession, servers: Servers, table: str
) -> None:
    with recording(servers.shards[0][0]) as (proxy, statements):
        one = Servers(servers.kind, [[proxy]])
        reader = spark.read.format("clickhouse_cluster").schema("s string, d date")
        frame = reader.options(shards=one.option, pushdown="on", filter="b < 0").load(table)
        condition = "s = 'ä' AND d >= DATE '2013-01-01' AND d != DATE '2014-01-01'"
        assert [row.s for row in frame.where(condition).select("s").collect()] == ["ä"]
    quoted = TableName(*table.split(".")).quoted
    [reading] = [sql for sql in statements if f" FROM {quoted}" in sql and "DESCRIBE" not in sql]
    assert "SELECT `s`, `d` FROM" in reading
    where = reading[reading.index(" WHERE ") :]
    for part in ("(b < 0)", "`s` = 'ä'", "`d` >= toDate('2013-01-01')", "NOT (`d` = toDate('2014-01-01'))"):
        assert part in where
