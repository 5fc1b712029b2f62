"""The official client works against a node as against a server."""

import datetime as dt
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError
from clickhouse_connect.driver.external import ExternalData

from tests.node.conftest import RunningNode

pytestmark = pytest.mark.slow

# Values without a zone are meant and read differently on a machine whose own is not UTC.
TOKYO = ZoneInfo("Asia/Tokyo")


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    client = clickhouse_connect.get_client(host="127.0.0.1", port=node.http_port)
    yield client
    client.close()


def test_it_connects_and_reads_values_of_many_types(client: Client) -> None:
    assert client.server_version.startswith("26.")
    result = client.query(
        "SELECT toUInt8(1), 'x', NULL, [1, 2], map('a', 1), toDate('2020-01-02'), toDecimal64('1.5', 2),"
        " tuple(1, 'y'), toLowCardinality('z'), toUUID('7fd309a8-cef5-4f50-9b47-99bebcff8984')"
    )
    row = result.result_rows[0]
    assert row[:6] == (1, "x", None, [1, 2], {"a": 1}, dt.date(2020, 1, 2))
    assert (str(row[6]), row[7], row[8]) == ("1.50", (1, "y"), "z")


def test_a_column_has_its_time_zone(client: Client) -> None:
    (row,) = client.query("SELECT toDateTime(0, 'Asia/Tokyo'), toDateTime64(0, 3, 'Asia/Tokyo')").result_rows
    assert [(value.hour, str(value.tzinfo)) for value in row] == [(9, "Asia/Tokyo")] * 2


def test_query_parameters_of_many_types(client: Client) -> None:
    values = {
        "n": 5,
        "s": "it's \\ \n",
        "a": ["a'b", "c"],
        "d": dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=TOKYO),
    }
    sql = "SELECT {n:UInt8}, {s:String}, {a:Array(String)}, {d:DateTime('Asia/Tokyo')}"
    assert client.query(sql, parameters=values).result_rows == [tuple(values.values())]


@pytest.mark.parametrize("compress", ["lz4", "zstd", "gzip", False])
def test_inserts_and_reads_with_every_compression(node: RunningNode, compress: str | bool) -> None:
    client = clickhouse_connect.get_client(host="127.0.0.1", port=node.http_port, compress=compress)
    table = f"rows_{compress}".lower()
    client.command(
        f"CREATE TABLE {table} (a UInt64, b String, c Nullable(Float64), d DateTime('Asia/Tokyo'), "
        "e Array(String)) ENGINE = MergeTree ORDER BY a"
    )
    rows = [
        (i, f"s{i}", None if i % 2 else i / 2, dt.datetime(2020, 1, 1, tzinfo=TOKYO), ["x"] * (i % 3))
        for i in range(20_000)
    ]
    summary = client.insert(table, rows, column_names=["a", "b", "c", "d", "e"])
    assert summary.written_rows == 20_000
    assert client.query(f"SELECT * FROM {table} ORDER BY a").result_rows == rows
    client.close()


def test_streams_rows_and_blocks(client: Client) -> None:
    with client.query_rows_stream("SELECT number FROM numbers(300000)") as stream:
        assert sum(row[0] for row in stream) == 299_999 * 150_000
    with client.query_row_block_stream("SELECT number FROM numbers(3000000)") as stream:
        assert sum(len(block) for block in stream) == 3_000_000


def test_raw_inserts_and_queries(client: Client) -> None:
    client.command("CREATE TABLE raw (a UInt64, b String DEFAULT 'none') ENGINE = Memory")
    client.raw_insert("raw", ["a", "b"], b"1,x\n2,y\n", fmt="CSV")
    client.raw_insert("raw", ["a"], (chunk for chunk in (b"3\n", b"4\n")), fmt="CSV")
    assert (
        client.raw_query("SELECT * FROM raw ORDER BY a", fmt="CSV") == b'1,"x"\n2,"y"\n3,"none"\n4,"none"\n'
    )


@pytest.mark.parametrize(
    ("sql", "code"),
    [("SELECT * FROM nosuch", 60), ("SELCT 1", 62), ("SELECT nosuch", 47), ("SELECT throwIf(1)", 395)],
)
def test_errors_arrive_with_their_codes(client: Client, sql: str, code: int) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.query(sql)
    assert caught.value.code == code


def test_an_error_in_the_middle_of_a_stream_arrives_with_its_code(client: Client) -> None:
    sql = "SELECT throwIf(number = 2000000) FROM numbers(3000000) SETTINGS max_block_size = 65536"
    with pytest.raises(StreamFailureError) as caught, client.query_row_block_stream(sql) as stream:
        for _ in stream:
            pass
    assert caught.value.code == 395


def test_an_insert_into_nothing_fails_with_its_code(client: Client) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.raw_insert("nosuch", ["a"], b"1\n", fmt="CSV")
    assert caught.value.code == 60


def test_sessions_and_settings(client: Client) -> None:
    client.command("CREATE TEMPORARY TABLE tt (a Int32)")
    client.command("INSERT INTO tt VALUES (1), (2)")
    assert client.query("SELECT sum(a) FROM tt").result_rows == [(3,)]
    assert client.query("SELECT getSetting('max_threads')", settings={"max_threads": 3}).result_rows == [(3,)]
    with pytest.raises(DatabaseError) as caught:
        client.query("SELECT 1", settings={"nosuch_setting": 1})
    assert caught.value.code == 115


def test_external_data(client: Client) -> None:
    external = ExternalData(file_name="ext", data=b"1\n2\n", fmt="CSV", structure="a UInt64")
    assert client.query("SELECT sum(a) FROM ext", external_data=external).result_rows == [(3,)]


def test_data_frames_and_arrow(client: Client) -> None:
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    client.command("CREATE TABLE frames (a UInt64, b String) ENGINE = Memory")
    client.insert_df("frames", pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}))
    client.insert_arrow("frames", pyarrow.table({"a": pyarrow.array([3], pyarrow.uint64()), "b": ["z"]}))
    assert client.query_df("SELECT * FROM frames ORDER BY a")["b"].tolist() == ["x", "y", "z"]
    assert client.query_arrow("SELECT a FROM frames ORDER BY a").column("a").to_pylist() == [1, 2, 3]


def test_a_wrong_password_is_refused_on_connecting(node: RunningNode) -> None:
    with pytest.raises(DatabaseError) as caught:
        clickhouse_connect.get_client(host="127.0.0.1", port=node.http_port, username="alice", password="no")
    assert caught.value.code == 516
    client = clickhouse_connect.get_client(
        host="127.0.0.1", port=node.http_port, username="alice", password="secret"
    )
    assert client.ping()
    client.close()


async def test_the_asynchronous_client_works_too(node: RunningNode) -> None:
    client = await clickhouse_connect.get_async_client(host="127.0.0.1", port=node.http_port)
    assert (await client.query("SELECT 1")).result_rows == [(1,)]
    async with await client.query_rows_stream("SELECT number FROM numbers(100000)") as stream:
        assert len([row async for row in stream]) == 100_000
    await client.close()
