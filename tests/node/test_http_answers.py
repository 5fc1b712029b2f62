"""Answers of a node by HTTP: encodings, streams, errors in the middle."""

import gzip
import http.client
import json
import socket
import zlib

import lz4.frame
import pytest
import zstandard

from engine.node.http.blocks import compress_block, decompress_block
from tests.node.conftest import RunningNode
from tests.python_versions import keeps_texts_of_any_bytes

pytestmark = pytest.mark.slow


FAILS_LATE = (
    "SELECT throwIf(number = 1900000), repeat('x', 10) FROM numbers(2000000) SETTINGS max_block_size = 8192"
)


@pytest.mark.parametrize(
    ("name", "unpack"),
    [
        ("gzip", gzip.decompress),
        ("deflate", zlib.decompress),
        ("zstd", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
        ("lz4", lz4.frame.decompress),
    ],
)
def test_answers_may_be_encoded(node: RunningNode, name: str, unpack: object) -> None:
    assert callable(unpack)
    for rows in ("10", "500000"):
        sql = f"SELECT number FROM numbers({rows})"
        reply = node.post(sql, {"Accept-Encoding": name})
        assert reply.headers["Content-Encoding"] == name
        assert unpack(reply.body) == node.post(sql).body
    failed = node.post("SELECT nosuch", {"Accept-Encoding": name})
    assert (failed.code, failed.headers["Content-Encoding"]) == (47, name)
    assert unpack(failed.body).startswith(b"Code: 47. DB::Exception: ")
    plain = node.post("SELECT 1", {"Accept-Encoding": name}, enable_http_compression="0")
    assert plain.headers.get("Content-Encoding") is None


def test_clickhouses_own_blocks_both_ways(node: RunningNode) -> None:
    packed = node.post("SELECT number FROM numbers(1000)", compress="1").body
    assert decompress_block(packed) == node.post("SELECT number FROM numbers(1000)").body
    blocks = b"".join(compress_block(part) for part in (b"SELECT ", b"sum(number) FROM ", b"numbers(10)"))
    assert node.post(blocks, decompress="1").text == "45\n"
    damaged = bytearray(blocks)
    damaged[30] ^= 1
    assert node.post(bytes(damaged), decompress="1").code == 40
    assert node.post(blocks[:-1], decompress="1").code == 33
    assert node.post(b"\xff" * 40, decompress="1").code == 39


NATIVE_INFO = b"\1\0\2\xff\xff\xff\xff\0"


@pytest.mark.parametrize(
    ("sql", "block"),
    [
        ("SELECT toDateTime(0, 'Europe/Berlin') AS d", b"\1\1\1d\x19DateTime('Europe/Berlin')\0\0\0\0\0"),
        ("EXISTS TABLE nosuch FORMAT Native", b"\1\1\6result\5UInt8\0\0"),
        ("SELECT macro FROM system.macros WHERE macro = 'replica'", b"\1\1\5macro\6String\0\7replica"),
    ],
)
def test_native_is_of_the_revision_that_the_client_names(node: RunningNode, sql: str, block: bytes) -> None:
    """clickhouse-go reads nothing else."""
    reply = node.post(sql, default_format="Native", client_protocol_version="54460")
    assert reply.body == NATIVE_INFO + block
    packed = node.post(sql, default_format="Native", client_protocol_version="54460", compress="1")
    assert decompress_block(packed.body) == reply.body


def test_a_revision_changes_neither_other_formats_nor_errors(node: RunningNode) -> None:
    assert node.post("SELECT 1", client_protocol_version="54460").text == "1\n"
    assert node.post("SELECT nosuch FORMAT Native", client_protocol_version="54460").code == 47
    assert node.post("SELECT 1 FORMAT Native", client_protocol_version="new").code == 27


def test_a_large_result_is_streamed_and_an_error_in_it_breaks_it_visibly(node: RunningNode) -> None:
    sql = FAILS_LATE
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sql)}\r\n\r\n{sql}".encode())
        connection.settimeout(60)
        received = bytearray()
        while chunk := connection.recv(1 << 16):
            received += chunk
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    tag = next(line for line in head.split(b"\r\n") if b"Exception-Tag" in line).split(b": ")[1]
    assert b"__exception__\r\n" + tag + b"\r\nCode: 395. DB::Exception:" in body
    assert tag + b"\r\n__exception__\r\n" in body
    assert not body.endswith(b"0\r\n\r\n")


def test_head_has_no_body_however_large_the_result_is(node: RunningNode) -> None:
    """What came behind the headers would be taken for the next answer of the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", node.http_port, timeout=60)
    for encoding in ("identity", "gzip"):
        connection.request(
            "HEAD", "/?query=SELECT+*+FROM+numbers(1000000)", headers={"Accept-Encoding": encoding}
        )
        head = connection.getresponse()
        assert (head.status, head.read(), head.headers["X-ClickHouse-Format"]) == (200, b"", "TabSeparated")
        connection.request("POST", "/", body="SELECT 2")
        assert connection.getresponse().read() == b"2\n"
    connection.close()


def test_an_error_within_the_buffer_is_a_clean_error(node: RunningNode) -> None:
    for parameters in ({"wait_end_of_query": "1"}, {"buffer_size": "100000000"}):
        reply = node.post(FAILS_LATE, **parameters)
        assert (reply.status, reply.code) == (500, 395)
        assert reply.text.startswith("Code: 395.")


def test_an_early_error_is_clean_also_for_a_client_that_does_not_wait(node: RunningNode) -> None:
    """ClickHouse's JDBC driver says so with every statement."""
    sql = "SELECT number, throwIf(number = 9) FROM numbers(20) SETTINGS max_block_size = 1"
    reply = node.post(sql, wait_end_of_query="0")
    assert (reply.status, reply.code) == (500, 395)


def test_a_slow_statement_tells_how_far_it_is(node: RunningNode) -> None:
    """Clients that wait for minutes give up where nothing comes."""
    sql = "SELECT sleepEachRow(0.05) FROM numbers(8) SETTINGS max_block_size = 1"
    reply = node.post(sql, send_progress_in_http_headers="1", http_headers_progress_interval_ms="100")
    assert reply.body == b"0\n" * 8
    assert json.loads(reply.headers["X-ClickHouse-Progress"])["total_rows_to_read"] == "8"
    failed = node.post(
        sql.replace("FROM", ", throwIf(number = 7) FROM"),
        send_progress_in_http_headers="1",
        http_headers_progress_interval_ms="100",
    )
    assert (failed.status, failed.code) == (200, 395)
    assert failed.text.startswith("Code: 395.")


def test_a_result_of_many_megabytes_with_wait_end_of_query_is_whole(node: RunningNode) -> None:
    reply = node.post("SELECT number FROM numbers(12000000) FORMAT RowBinary", wait_end_of_query="1")
    assert len(reply.body) == 96_000_000
    assert json.loads(reply.headers["X-ClickHouse-Summary"])["result_rows"] == "12000000"


def test_streaming_a_large_result_keeps_the_nodes_memory_bounded(node: RunningNode) -> None:
    import psutil

    process = psutil.Process(node.process.pid)
    node.query("SELECT 1")
    before = process.memory_info().rss
    peak = 0
    sql = "SELECT repeat('x', 1000) FROM numbers(1000000) SETTINGS max_block_size = 4096"
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sql)}\r\n\r\n{sql}".encode())
        total = 0
        while total < 990_000_000:
            received = connection.recv(1 << 20)
            assert received
            total += len(received)
            if total % 50_000_000 < len(received):
                peak = max(peak, process.memory_info().rss)
    assert peak - before < 300_000_000


def test_totals_and_extremes_arrive(node: RunningNode) -> None:
    sql = (
        "SELECT number % 2 AS k, count() FROM numbers(5) GROUP BY k WITH TOTALS ORDER BY k FORMAT JSONCompact"
    )
    answer = json.loads(node.query(sql, extremes="1"))
    assert answer["totals"] == [0, 5]
    assert answer["extremes"] == {"min": [0, 2], "max": [1, 3]}


@keeps_texts_of_any_bytes
def test_text_that_is_no_utf8_is_sent_as_it_is(node: RunningNode) -> None:
    assert node.post(b"SELECT hex('\xff')").text == "FF\n"
    assert node.get("/?query=SELECT%20hex('%ff')").text == "FF\n"
    node.query("CREATE TABLE no_utf8 (a String) ENGINE = Memory")
    for sql in (b"INSERT INTO no_utf8 VALUES ('\xfe')", b"INSERT INTO no_utf8 SELECT '\xfd'"):
        assert node.post(sql).status == 200
    assert node.query("SELECT hex(a) FROM no_utf8 ORDER BY a") == "FD\nFE\n"
    wrong = node.post(b"SELECT \xff")
    assert (wrong.status, wrong.code) == (400, 62)
    assert node.post("SELECT 1", query_id="\0\n").headers["X-ClickHouse-Query-Id"] != ""
