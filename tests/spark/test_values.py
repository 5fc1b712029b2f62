"""Values of all types into tables: each arrives as it is, or fails the load, and nothing is written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from engine.distributed.sharding import owner_of
from engine.errors import SqlError
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.proof import count_strangers
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.split import Splitter
from spark_apps.clickhouse_cluster.target import Target
from spark_apps.clickhouse_cluster.writer import Attempt, Job, TaskStaged, finish, give_up
from tests.few import few_first
from tests.spark.conftest import Servers
from tests.unit.spark.test_schema import target

pytestmark = pytest.mark.slow


def load(
    servers: Servers, table: str, rows: Mapping[str, pa.Array], *, key: str = "a", shards: str = ""
) -> None:
    """What the planner, one task and the commit do with these rows."""
    batch = pa.record_batch(dict(rows))
    given = {"table": table, "shards": shards or servers.option, "sharding_key": key}
    job = Job.begin(Options.parse(given), from_arrow_schema(batch.schema), Mode.APPEND)
    try:
        with Attempt(job, batch.schema.names, 0, 0) as posting:
            posting.add(batch)
            posting.flush()
    except SqlError:
        give_up(job)
        raise
    finish(job, [TaskStaged(0, 0, posting.staged)])


def rows_of(v: pa.Array) -> dict[str, pa.Array]:
    return {"a": pa.array(range(len(v)), pa.int64()), "v": v}


VALUES: Sequence[tuple[str, pa.DataType, list[Any], list[str]]] = (
    ("SimpleAggregateFunction(sum, UInt64)", pa.int64(), [7], ["7"]),
    ("SimpleAggregateFunction(groupUniqArrayArray(5), Array(String))",
     pa.list_(pa.string()), [["x"]], ["['x']"]),
    ("Array(UInt8)", pa.list_(pa.int32()), [[0, 255], []], ["[0,255]", "[]"]),
    ("Array(Nullable(Int16))", pa.list_(pa.int32()), [[1, None]], ["[1,NULL]"]),
    ("Array(Array(UInt16))", pa.list_(pa.list_(pa.int64())), [[[1], []]], ["[[1],[]]"]),
    ("Map(String, UInt8)", pa.map_(pa.string(), pa.int64()), [[("ä", 255)], []], ["{'ä':255}", "{}"]),
    ("Array(Decimal(9, 2))", pa.list_(pa.decimal128(10, 2)), [[Decimal("-9999999.9")]], ["[-9999999.9]"]),
    ("Int128", pa.string(), [str(-(2**127)), "0", str(2**127 - 1)],
     [str(-(2**127)), "0", str(2**127 - 1)]),
    ("Nullable(UInt256)", pa.string(), [None, str(2**256 - 1)], [str(2**256 - 1), "\\N"]),
    ("Decimal(76, 38)", pa.string(), [f"-{'9' * 38}.{'9' * 38}", "1.50"], [f"-{'9' * 38}.{'9' * 38}", "1.5"]),
    ("Array(Nullable(Int256))", pa.list_(pa.string()), [["-7", None]], ["[-7,NULL]"]),
    ("Map(UInt128, Decimal(40, 1))", pa.map_(pa.string(), pa.string()), [[("7", "0.5")]], ["{7:0.5}"]),
    ("Decimal(38, 10)", pa.decimal128(38, 10), [Decimal("9999999999999999999999999999.5")],
     ["9999999999999999999999999999.5"]),
    ("Decimal(5, 2)", pa.int32(), [999, -999], ["-999", "999"]),
    ("Float64", pa.int64(), [2**53, -(2**53)], ["-9007199254740992", "9007199254740992"]),
    ("Float32", pa.float64(), [float("inf"), 0.5, float("nan")], ["0.5", "inf", "nan"]),
    ("Date32", pa.date32(), [dt.date.min, dt.date.max], ["0001-01-01", "9999-12-31"]),
    ("DateTime64(3, 'UTC')", pa.timestamp("us", "UTC"),
     [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999000, dt.UTC)],
     ["0001-01-01 00:00:00.000", "9999-12-31 23:59:59.999"]),
    ("LowCardinality(UInt8)", pa.int32(), [7], ["7"]),
    ("LowCardinality(Nullable(String))", pa.string(), ["x", None], ["\\N", "x"]),
    ("Nullable(FixedString(2))", pa.binary(), [b"xy", None], ["\\N", "xy"]),
    ("LowCardinality(Nullable(FixedString(2)))", pa.large_string(), ["xy", None], ["\\N", "xy"]),
    ("String", pa.binary(), [b"\xc3\xa4\t"], ["ä\\t"]),
    ("Array(Date)", pa.list_(pa.date32()), [[dt.date(2149, 6, 6)]], ["['2149-06-06']"]),
    ("Map(Int32, Float32)", pa.map_(pa.int64(), pa.float64()), [[(1, 0.1)]], ["{1:0.1}"]),
    ("Array(Nullable(IPv6))", pa.list_(pa.string()), [["::1", None]], ["['::1',NULL]"]),
    ("Map(String, DateTime64(0, 'UTC'))", pa.map_(pa.string(), pa.timestamp("us", "UTC")),
     [[("k", dt.datetime(1969, 12, 31, 23, 59, 58, 500000, dt.UTC))]], ["{'k':'1969-12-31 23:59:58'}"]),
    ("DateTime('Europe/Berlin')", pa.timestamp("us", "America/New_York"),
     [dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC), dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC)],
     ["2024-10-27 02:30:00"] * 2),
)  # fmt: skip
"""The type of a column, that of the rows, values, and what the column has of them, sorted."""


def test_values_arrive_as_they_are(nodes: Servers) -> None:
    """One table has a column of each type; where others have more values, it has its last one again."""
    longest = max(len(values) for _, _, values, _ in VALUES)
    columns = [f"v{number} {column}" for number, (column, *_) in enumerate(VALUES)]
    suspicious = {"allow_suspicious_low_cardinality_types": "1"}
    table = nodes.table(f"a UInt32, {', '.join(columns)}", rest="ORDER BY a", settings=suspicious)
    rows = {"a": pa.array(range(longest), pa.int64())}
    for number, (_, kind, values, _) in enumerate(VALUES):
        rows[f"v{number}"] = pa.array(values + values[-1:] * (longest - len(values)), kind)
    load(nodes, table, rows)
    cells = [line.split("\t") for line in nodes.ask(f"SELECT * FROM {table}")]
    found = {
        column: sorted(row[1 + number] for row in cells if int(row[0]) < len(values))
        for number, (column, _, values, _) in enumerate(VALUES)
    }
    assert found == {column: stored for column, _, _, stored in VALUES}
    assert [int(row[0]) for row in cells] == list(range(longest))


@pytest.mark.extended
def test_the_first_and_the_last_times_are_kept_whatever_the_zone_of_the_column_is(nodes: Servers) -> None:
    """A column shows the nearest time that its zone has within the years, and keeps the value."""
    first = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999000, dt.UTC)
    zones = ("Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "UTC")
    columns = [f"v{number} DateTime64(3, '{zone}')" for number, zone in enumerate(zones)]
    seconds = [f"s{number} DateTime('{zone}')" for number, zone in enumerate(zones)]
    table = nodes.table(f"a UInt32, {', '.join(columns + seconds)}", rest="ORDER BY a")
    rows = {"a": pa.array([0, 1], pa.int64())}
    for number in range(len(zones)):
        rows[f"v{number}"] = pa.array([first, last], pa.timestamp("us", "UTC"))
        ends = [dt.datetime.fromtimestamp(end, dt.UTC) for end in (0, 2**32 - 1)]
        rows[f"s{number}"] = pa.array(ends, pa.timestamp("us", "UTC"))
    load(nodes, table, rows)
    read = [f"toUnixTimestamp64Milli(v{number}), toUnixTimestamp(s{number})" for number in range(len(zones))]
    assert nodes.ask(f"SELECT a, {', '.join(read)} FROM {table}") == [
        "\t".join(["0", *["-62135596800000", "0"] * len(zones)]),
        "\t".join(["1", *["253402300799999", str(2**32 - 1)] * len(zones)]),
    ]


REFUSED: Sequence[tuple[str, pa.DataType, Any, int]] = (
    ("Array(UInt8)", pa.list_(pa.int32()), [1, 300], 70),
    ("Array(UInt8)", pa.list_(pa.int32()), [1, None], 349),
    ("Array(Array(Int8))", pa.list_(pa.list_(pa.int64())), [[128]], 70),
    ("Map(String, UInt8)", pa.map_(pa.string(), pa.int64()), [("x", 300)], 70),
    ("Map(String, Date)", pa.map_(pa.string(), pa.date32()), [("x", dt.date(1969, 12, 31))], 321),
    ("Decimal(5, 2)", pa.decimal128(10, 2), Decimal("1000.00"), 321),
    ("Decimal(38, 10)", pa.decimal128(38, 0), Decimal("9" * 38), 321),
    ("Array(Decimal(5, 2))", pa.list_(pa.decimal128(10, 2)), [Decimal("-1000.00")], 321),
    ("Decimal(5, 2)", pa.int64(), 1000, 321),
    ("Float64", pa.int64(), 2**53 + 1, 321),
    ("Float32", pa.float64(), -1e300, 321),
    ("Array(Float32)", pa.list_(pa.float64()), [1e39], 321),
    ("Enum8('x' = 1)", pa.string(), "y", 691),
    ("Enum8('x' = 1)", pa.string(), "1", 691),
    ("Array(Array(UInt8))", pa.list_(pa.list_(pa.int64())), [[1], None], 349),
    ("UInt64", pa.decimal128(38, 0), Decimal(10**30), 407),
    ("Nullable(UUID)", pa.string(), "", 376),
    (
        "Map(String, Array(Nullable(IPv4)))",
        pa.map_(pa.string(), pa.list_(pa.string())),
        [("k", ["x"])],
        675,
    ),
    ("FixedString(2)", pa.string(), "xyz", 131),
    ("Nullable(FixedString(2))", pa.string(), "xyz", 131),
    (
        "Map(String, Array(Nullable(FixedString(2))))",
        pa.map_(pa.string(), pa.list_(pa.string())),
        [("k", ["x", "xyz"])],
        131,
    ),
    ("Int128", pa.string(), str(2**127), 321),
    ("UInt256", pa.string(), str(2**256), 321),
    ("Nullable(Int256)", pa.string(), "x", 321),
    ("Array(UInt128)", pa.list_(pa.string()), ["7", "-1"], 321),
    ("Decimal(76, 1)", pa.string(), "1.55", 321),
    ("Nullable(Decimal(76, 0))", pa.string(), "", 321),
    ("Nullable(Int256)", pa.large_string(), "x", 321),
)
"""The type of a column, that of the rows, a value that does not fit, and the code of the error."""


def test_a_value_that_does_not_fit_is_not_changed_but_fails_the_load(nodes: Servers) -> None:
    """One table has a column of each type; each is loaded by itself."""
    columns = [f"v{number} {column}" for number, (column, *_) in enumerate(REFUSED)]
    table = nodes.table(f"a UInt32, {', '.join(columns)}", rest="ORDER BY a")
    codes = []
    for number, (_, kind, value, _) in enumerate(REFUSED):
        with pytest.raises(SqlError) as refused:
            load(nodes, table, {"a": pa.array([0], pa.int64()), f"v{number}": pa.array([value], kind)})
        codes.append(refused.value.code)
    assert codes == [code for *_, code in REFUSED]
    assert (sum(nodes.counts(table)), nodes.staging()) == (0, [])


def test_rows_are_on_the_shard_that_the_server_computes(nodes: Servers) -> None:
    """Loads with different keys into one table; `k` is the number of the load."""
    columns = "a UInt32, k UInt8, s LowCardinality(String), t DateTime('Asia/Tokyo')"
    table = nodes.table(columns, rest="ORDER BY a")
    months = [dt.datetime(2024, 1 + month, 1, tzinfo=dt.UTC) - dt.timedelta(hours=1) for month in range(12)]
    keys = (
        "cityHash64(a, s)",
        "intHash32(a)",
        "toYYYYMM(t)",
        "a + length(s)",
        "-toInt64(a)",
        "xxHash64(s)",
    )
    for number, key in enumerate(keys):
        load(
            nodes, table,
            {"t": pa.array(months, pa.timestamp("us", "UTC")),
             "s": pa.array([f"ä{at % 5}" for at in range(12)]),
             "k": pa.array([number] * 12, pa.int16()), "a": pa.array(range(12), pa.int64())},
            key=key,
        )  # fmt: skip
    of_all = [str(number) for number in range(len(keys)) for _ in range(12)]
    assert nodes.ask(f"SELECT k FROM {table}") == of_all
    for here, shard in enumerate(nodes.shards):
        wrong = (
            f"countIf(k = {number} AND toUInt64({key}) % 2 != {here})" for number, key in enumerate(keys)
        )
        assert shard[0].text(f"SELECT {', '.join(wrong)} FROM {table}") == "\t".join("0" * len(keys))


@pytest.mark.parametrize(
    "weights",
    [(3_000_000_000, 1_000_000_000), (0, 4_000_000_000), (1_000_000_000, 9_000_000_000), (1 << 31, 1 << 31)],
)
@pytest.mark.extended
def test_weights_may_be_billions(nodes: Servers, weights: tuple[int, int]) -> None:
    """A list of all slots would not fit into memory."""
    table = nodes.table("a UInt64, v UInt32", rest="ORDER BY a")
    keys = [edge + at for edge in (0, *weights, sum(weights)) for at in range(5)]
    shards = ";".join(f"{one}*{weight}" for one, weight in zip(nodes.option.split(";"), weights, strict=True))
    rows = {"a": pa.array(keys, pa.int64()), "v": pa.array(range(len(keys)), pa.int64())}
    load(nodes, table, rows, shards=shards)
    assert [shard[0].text(f"SELECT v FROM {table} ORDER BY v").split() for shard in nodes.shards] == [
        [str(v) for v, key in enumerate(keys) if owner_of(key % sum(weights), weights) == number]
        for number in (0, 1)
    ]
    given = {"table": table, "shards": shards, "sharding_key": "a"}
    found = Target.find(Options.parse(given))
    for number, shard in enumerate(nodes.shards):
        for owner in (0, 1):
            strangers = count_strangers(shard[0], found, owner, [found.table])
            here = nodes.counts(table)[number]
            assert strangers == (here if owner != number and all(weights) else 0)


@pytest.mark.extended
def test_a_key_that_is_random_spreads_the_rows_and_loses_none(nodes: Servers) -> None:
    table = nodes.table("a UInt32, v UInt32", rest="ORDER BY a")
    load(nodes, table, rows_of(pa.array(range(2000), pa.int64())), key="rand()")
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, range(2000)))
    assert all(nodes.counts(table))


def test_columns_that_are_absent_get_their_defaults_and_computed_ones_are_computed(nodes: Servers) -> None:
    columns = (
        "a UInt32, d String DEFAULT concat('d', toString(a)), m UInt64 MATERIALIZED a * 2, "
        'l UInt64 ALIAS a * 3, n Nullable(String), `a "ü\\`` UInt8 DEFAULT 9'
    )
    table = nodes.table(columns, rest="PARTITION BY m % 4 ORDER BY (d, a)")
    load(nodes, table, {"a": pa.array([1, 2], pa.int64())}, key="cityHash64(a)")
    load(nodes, table, {'a "ü`': pa.array([5], pa.int16()), "a": pa.array([3], pa.int64())}, key="a")
    assert nodes.ask(f"SELECT a, d, m, l, n, `a \"ü\\`` FROM {table}") == [
        "1\td1\t2\t3\t\\N\t9", "2\td2\t4\t6\t\\N\t9", "3\td3\t6\t9\t\\N\t5",
    ]  # fmt: skip


def test_a_frame_that_does_not_fit_is_refused_with_the_reason(nodes: Servers) -> None:
    table = nodes.table("a UInt32, d String, m UInt64 MATERIALIZED a * 2", rest="ORDER BY a")
    refused: list[tuple[dict[str, list[Any]], str]] = [
        ({"a": [1], "x": [1], "y": [1]}, "no column x, y"),
        ({"a": [1], "m": [1]}, "m is MATERIALIZED"),
        ({"d": ["x"]}, "the sharding key a needs a"),
        ({"a": [1.5]}, "a: double into UInt32"),
        ({"a": [1], "d": [{"x": 1}]}, "d: struct<x:bigint> into String"),
    ]
    for rows, says in refused:
        with pytest.raises(SqlError, match=says):
            load(nodes, table, {name: pa.array(values) for name, values in rows.items()})
    assert (sum(nodes.counts(table)), nodes.staging()) == (0, [])


def test_a_column_that_is_there_twice_is_refused(nodes: Servers) -> None:
    table = nodes.table("a UInt32", rest="ORDER BY a")
    schema = from_arrow_schema(pa.schema([("a", pa.int64()), ("a", pa.int64())]))
    options = Options.parse({"table": table, "shards": nodes.option, "sharding_key": "a"})
    with pytest.raises(SqlError, match="more than one column is called a"):
        Job.begin(options, schema, Mode.APPEND)


@pytest.mark.parametrize(
    "rest",
    few_first(
        [
            "ORDER BY n SETTINGS allow_nullable_key = 1",
            "ORDER BY (a, cityHash64(s)) SAMPLE BY cityHash64(s)",
            "PARTITION BY (a % 2, s) PRIMARY KEY a ORDER BY (a, s) SETTINGS index_granularity = 1024",
            "ORDER BY tuple() SETTINGS min_bytes_for_wide_part = 0",
            "PARTITION BY a % 2 ORDER BY (a DESC) SETTINGS allow_experimental_reverse_key = 1",
            "PRIMARY KEY a ORDER BY (a, s DESC) SETTINGS allow_experimental_reverse_key = 1",
        ],
        few=2,
    ),
)
def test_tables_of_many_kinds_are_written(nodes: Servers, rest: str) -> None:
    columns = (
        "a UInt32, s String, n Nullable(Int32), INDEX i s TYPE bloom_filter GRANULARITY 2, "
        "PROJECTION p (SELECT s, count() GROUP BY s), CONSTRAINT c CHECK a < 100"
    )
    table = nodes.table(columns, rest=rest)
    rows = {"a": pa.array(range(20), pa.int64()), "s": pa.array(["x", "y"] * 10)}
    load(nodes, table, {**rows, "n": pa.array([None, 1] * 10, pa.int32())})
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, range(20)))


@pytest.mark.extended
def test_rows_of_tables_with_a_ttl_say_until_when_they_are_kept(nodes: Servers) -> None:
    """A part that does not say it is kept for ever."""
    table = nodes.table(
        "a UInt32, t DateTime('UTC'), v UInt32 TTL t + INTERVAL 1 MONTH",
        rest="PARTITION BY a % 2 ORDER BY a TTL t + INTERVAL 1 YEAR",
    )
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    for _ in range(2):
        times = pa.array([now] * 8, pa.timestamp("us", "UTC"))
        load(nodes, table, {"a": pa.array(range(8), pa.int64()), "t": times})
    a_year_later = f"toDateTime('{now:%F %T}', 'UTC') + toIntervalYear(1)"
    until = nodes.shards[0][0].text(f"SELECT toUnixTimestamp({a_year_later})")
    where = f"active AND database = 'd' AND table = '{table[2:]}'"
    column = "toUnixTimestamp(delete_ttl_info_min)"
    kept = nodes.ask(f"SELECT DISTINCT {column} FROM system.parts WHERE {where}")
    assert set(kept) == {until}


def test_no_rows_are_written_as_none(nodes: Servers) -> None:
    table = nodes.table("a UInt32, v UInt32", rest="ORDER BY a")
    load(nodes, table, rows_of(pa.array([], pa.int64())))
    assert (sum(nodes.counts(table)), nodes.staging()) == (0, [])


def test_threads_of_one_process_cut_each_their_own_rows() -> None:
    """chDB looks for the rows by a name, in every thread."""
    splitter = Splitter(target(key="a % 2"), ("a",))

    def rows_by_shard(first: int) -> dict[int, int]:
        rows = pa.table({"a": pa.array(range(first, 3 * first, 2), pa.int64())})
        return {piece.shard: piece.rows for piece in splitter.split(rows)}

    firsts = list(range(1, 41))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rows_by_shard, firsts)) == [{first % 2: first} for first in firsts]
