"""ClickHouse's HTTP interface, byte by byte, against a real node process."""

import contextlib
import gzip
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator

import lz4.frame
import pytest
import zstandard

from engine.node.http.blocks import compress_block, decompress_block
from tests.node.conftest import RunningNode
from tests.node.http_client import Reply
from tests.python_versions import keeps_texts_of_any_bytes

pytestmark = pytest.mark.slow

FAILS_LATE = (
    "SELECT throwIf(number = 1900000), repeat('x', 10) FROM numbers(2000000) SETTINGS max_block_size = 8192"
)


def test_ping_and_root_say_ok_and_an_unknown_path_says_what_there_is(node: RunningNode) -> None:
    assert node.get("/ping").body == b"Ok.\n"
    assert node.get("/").body == b"Ok.\n"
    assert node.get("/replicas_status").body == b"Ok.\n"
    missing = node.get("/nosuch")
    assert missing.status == 404
    assert missing.text.startswith("There is no handle /nosuch")


def test_a_query_may_stand_in_the_parameter_the_body_or_both(node: RunningNode) -> None:
    assert node.get("/?query=SELECT%201").text == "1\n"
    assert node.post("SELECT 1").text == "1\n"
    assert node.post(" FORMAT JSONEachRow", query="SELECT 1 AS x").text == '{"x":1}\n'


def test_answers_carry_clickhouses_headers(node: RunningNode) -> None:
    reply = node.post("SELECT number FROM numbers(10) FORMAT JSON", query_id="my-query")
    assert reply.headers["X-ClickHouse-Query-Id"] == "my-query"
    assert reply.headers["X-ClickHouse-Format"] == "JSON"
    assert reply.headers["Content-Type"] == "application/json; charset=UTF-8"
    assert reply.headers["X-ClickHouse-Server-Display-Name"] == "node01"
    assert reply.headers["X-ClickHouse-Timezone"]
    assert reply.headers["X-ClickHouse-Exception-Tag"]  # without it clients take rows for exceptions
    summary = json.loads(reply.headers["X-ClickHouse-Summary"])
    assert (summary["read_rows"], summary["result_rows"]) == ("10", "10")


def test_only_a_statement_with_a_result_names_its_format(node: RunningNode) -> None:
    """clickhouse-connect tells commands from queries without rows by it."""
    without = (
        "CREATE TABLE told (a Int8) ENGINE = Memory",
        "INSERT INTO told VALUES (1)",
        "INSERT INTO told SELECT 2",
        "SET max_threads = 1",
        "DROP TABLE IF EXISTS nosuch",
    )
    for sql in without:
        headers = node.post(sql).headers
        assert (headers["X-ClickHouse-Format"], headers["Content-Type"]) == (
            None,
            "text/plain; charset=UTF-8",
        ), sql
        assert "read_rows" in headers["X-ClickHouse-Summary"]
    for sql in ("SELECT a FROM told WHERE a > 2", "EXISTS TABLE told"):
        assert node.post(sql).headers["X-ClickHouse-Format"] == "TabSeparated", sql


def test_nothing_is_put_into_system_or_taken_from_it(node: RunningNode) -> None:
    for insert in (
        "INSERT INTO system.clusters (cluster) VALUES ('x')",
        "INSERT INTO system.macros SELECT 'x', 'y'",
        "INSERT INTO system.distributed_ddl_queue (entry) FORMAT CSV\nx",
    ):
        assert node.post(insert).code == 48, insert
    for ddl in (
        "CREATE TABLE system.x (a Int8) ENGINE = Log",  # would be gone after a restart
        "DROP TABLE system.parts",
        "DROP DATABASE system",
        "CREATE DATABASE _local",
    ):
        assert node.post(ddl).code == 497, ddl


def test_tables_of_system_are_shown(node: RunningNode) -> None:
    shown = node.post("SHOW CREATE TABLE system.one FORMAT TSVRaw").text
    begin = (
        "CREATE TABLE system.one\n(\n    `dummy` UInt8\n)\nENGINE = SystemOne\nCOMMENT 'This table contains"
    )
    assert shown.startswith(begin)
    assert node.post("SHOW CREATE one", database="system").text == node.post("SHOW CREATE system.one").text
    assert "COMMENT" in node.post("SHOW CREATE TABLE system.clusters").text
    assert node.post("SHOW CREATE TABLE system.nosuch").code == 60
    metric = "FROM system.asynchronous_metrics WHERE name = 'Uptime'"
    assert node.query(f"SELECT name, metric {metric}") == "Uptime\tUptime\n"
    assert node.query(f"SELECT * {metric}").count("\t") == 2  # `name` is an alias


@pytest.mark.parametrize(
    ("sql", "status", "code", "name"),
    [
        ("SELCT 1", 400, 62, "SYNTAX_ERROR"),
        ("SELECT nosuch", 404, 47, "UNKNOWN_IDENTIFIER"),
        ("SELECT * FROM nosuch", 404, 60, "UNKNOWN_TABLE"),
        ("SELECT * FROM nosuch.t", 404, 81, "UNKNOWN_DATABASE"),
        ("SELECT 1 FORMAT Nosuch", 404, 73, "UNKNOWN_FORMAT"),
        ("SELECT 1 SETTINGS nosuch = 1", 404, 115, "UNKNOWN_SETTING"),
        ("CREATE TABLE t (a UInt8) ENGINE = Nosuch", 404, 56, "UNKNOWN_STORAGE"),
        ("SELECT throwIf(1)", 500, 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        ("SELECT * FROM file('/etc/passwd', LineAsString)", 403, 497, "ACCESS_DENIED"),
        ("CREATE TABLE t (a String) ENGINE = File(CSV, '/etc/passwd')", 403, 497, "ACCESS_DENIED"),
        ("SELECT file('/etc/passwd')", 403, 497, "ACCESS_DENIED"),
        ("INSERT INTO FUNCTION null('a String') VALUES (file('/etc/passwd'))", 403, 497, "ACCESS_DENIED"),
        (
            "CREATE DICTIONARY d (a UInt8) SOURCE(EXECUTABLE(COMMAND 'id'))",
            500,
            482,
            "DICTIONARY_ACCESS_DENIED",
        ),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", 500, 358, "INTO_OUTFILE_NOT_ALLOWED"),
        ("SHOW TABLES INTO OUTFILE '/tmp/x'", 500, 358, "INTO_OUTFILE_NOT_ALLOWED"),
        ("INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV", 404, 78, "UNKNOWN_TYPE_OF_QUERY"),
        ("SYSTEM SHUTDOWN", 500, 1, "UNSUPPORTED_METHOD"),
        ("SELECT 1; SELECT 2", 400, 62, "SYNTAX_ERROR"),
        ("DROP TABLE IF EXISTS a; DROP TABLE IF EXISTS b", 400, 62, "SYNTAX_ERROR"),
        ("", 400, 62, "SYNTAX_ERROR"),
        ("SELECT * FROM system.zookeeper", 400, 36, "BAD_ARGUMENTS"),
        ("DROP TABLE t ON CLUSTER nosuch", 500, 139, "NO_ELEMENTS_IN_CONFIG"),
    ],
)
def test_errors_have_clickhouses_code_status_and_form(
    node: RunningNode, sql: str, status: int, code: int, name: str
) -> None:
    reply = node.post(sql)
    assert (reply.status, reply.code) == (status, code), reply.text
    assert reply.text.startswith(f"Code: {code}. DB::Exception: ")
    assert f"({name}) (version " in reply.text
    assert reply.text.endswith(")\n")


def test_get_is_readonly_and_says_so(node: RunningNode) -> None:
    reply = node.get("/?query=CREATE%20TABLE%20t%20(a%20UInt8)%20ENGINE%3DMemory")
    assert reply.code == 164
    assert "method GET implies readonly" in reply.text
    for wrong in ("SELEC%201", "DROP%20TABEL%20t", "CREATE%20TABLE%20t%20(a"):
        reply = node.get(f"/?query={wrong}")
        assert (reply.code, "Syntax error" in reply.text) == (62, True)
    assert node.get("/?query=INSERT%20INTO%20t%20VALUES%20(1)").code == 164
    assert node.get("/?query=SELECT%201%20SETTINGS%20readonly=0").code == 164
    assert node.get("/?query=SELECT%20getSetting('max_threads')&max_threads=1").text == "1\n"


def test_settings_database_format_and_query_parameters(node: RunningNode) -> None:
    node.query("CREATE DATABASE IF NOT EXISTS other")
    assert node.query("SELECT currentDatabase()", database="other") == "other\n"
    assert node.post("SELECT currentDatabase()", {"X-ClickHouse-Database": "other"}).text == "other\n"
    assert node.post("SELECT 1", database="nosuch").code == 81
    assert node.query("SELECT getSetting('max_threads')", max_threads="3") == "3\n"
    assert node.post("SELECT 1", nosuch="1").code == 115
    assert node.query("SELECT 1 AS a", default_format="JSONEachRow") == '{"a":1}\n'
    assert node.post("SELECT 1 AS a", {"X-ClickHouse-Format": "CSV"}).text == "1\n"
    sent = node.query(
        "SELECT {n:UInt8} + 1, {s:String}, {t:Identifier}.a FROM (SELECT 7 AS a) AS x",
        param_n="5",
        param_s="it's",
        param_t="x",
    )
    assert sent == "6\tit\\'s\t7\n"


def test_inserts_in_every_shape(node: RunningNode) -> None:
    node.query("CREATE TABLE shapes (a UInt64, b String DEFAULT concat('d', toString(a))) ENGINE = Memory")
    node.query("INSERT INTO shapes VALUES (1, 'one'), (2, concat('t', 'wo'))")
    node.query("INSERT INTO shapes (a) FORMAT CSV\n3\n4\n")
    node.query('{"a": 5}\n{"a": 6, "b": "six"}', query="INSERT INTO shapes FORMAT JSONEachRow")
    node.query("(7, 'seven')", query="INSERT INTO shapes VALUES")
    node.query("INSERT INTO shapes SELECT 8, 'eight'")
    node.query(
        "b,a\nnine,9\n", query="INSERT INTO shapes (a, b) SETTINGS max_insert_threads = 1 FORMAT CSVWithNames"
    )
    node.query(b"\x0a" + b"\0" * 7 + b"\x03\xff\x00\xfe", query="INSERT INTO shapes FORMAT RowBinary")
    node.query("INSERT INTO shapes VALUES ({x:UInt64}, {y:String})", param_x="11", param_y="el'even")
    node.query("/* c */ insert into shapes format TSV\n12\ttab\n")
    rows = node.query("SELECT a, hex(b) FROM shapes ORDER BY a")
    expected = {
        1: b"one", 2: b"two", 3: b"d3", 4: b"d4", 5: b"d5", 6: b"six", 7: b"seven", 8: b"eight", 9: b"nine",
        10: b"\xff\x00\xfe", 11: b"el'even", 12: b"tab",
    }  # fmt: skip
    assert rows == "".join(f"{a}\t{b.hex().upper()}\n" for a, b in expected.items())


def test_rows_of_values_hold_comments_and_quotes_of_any_kind(node: RunningNode) -> None:
    """Also where they come behind the statement, and are not a part of it."""
    node.query("CREATE TABLE remarked (k UInt64, v String) ENGINE = Memory")
    rows = "(1, /* ; ' */ 'a'),\n(2, -- it's\n $$b;$$), (3, \u2018;'\u2019) ;\n"
    node.query(rows, query="INSERT INTO remarked VALUES")
    node.query(f"INSERT INTO remarked VALUES {rows}")
    assert node.query("SELECT k, v, count() FROM remarked GROUP BY ALL ORDER BY k FORMAT TSVRaw") == (
        "1\ta\t2\n2\tb;\t2\n3\t;'\t2\n"
    )
    assert node.post(f"{rows} (4, 'x')", query="INSERT INTO remarked VALUES").code == 33


def test_an_insert_may_select_from_its_own_rows(node: RunningNode) -> None:
    node.query("CREATE TABLE from_input (a UInt64, b String) ENGINE = Memory")
    sql = (
        "INSERT INTO from_input SELECT a * 2, upper(b) FROM input('a UInt64, b String') "
        "WHERE a > 1 FORMAT CSV"
    )
    node.query(sql + "\n1,x\n2,y\n")
    node.query("3,z\n", query=sql)
    assert node.query("SELECT * FROM from_input ORDER BY a") == "4\tY\n6\tZ\n"
    assert node.post(sql + "\nx\n").status == 400


ENDLESS = "SELECT count() FROM system.numbers WHERE NOT ignore(number)"


@contextlib.contextmanager
def running(node: RunningNode, query_id: str, **parameters: str) -> Iterator[list[Reply]]:
    """A statement that does not end by itself; at the end its answer is in the list."""
    replies: list[Reply] = []
    endless = threading.Thread(
        target=lambda: replies.append(node.post(ENDLESS, query_id=query_id, **parameters))
    )
    endless.start()
    while query_id not in node.query("SELECT Settings['log_comment'] FROM system.processes"):
        pass
    yield replies
    endless.join()


@pytest.mark.parametrize("parameters", [{}, {"log_comment": "the client's own"}])
def test_kill_query_knows_the_ids_that_clients_gave(node: RunningNode, parameters: dict[str, str]) -> None:
    with running(node, "to be killed", **parameters) as replies:
        node.query("KILL QUERY WHERE query_id = 'nobody' SYNC")
        node.query("KILL QUERY WHERE query_id = 'to be killed' ASYNC")
    assert replies[0].code == 394


def test_a_statement_is_replaced_by_the_next_under_its_id_if_that_is_asked_for(node: RunningNode) -> None:
    with running(node, "twice") as replies:
        assert node.post("SELECT 1", query_id="twice").code == 216
        alice = {"user": "alice", "password": "secret", "replace_running_query": "1"}
        assert node.post("SELECT 1", query_id="twice", **alice).code == 216
        assert node.query("SELECT 2", query_id="twice", replace_running_query="1") == "2\n"
    assert replies[0].code == 394


def test_a_table_may_be_called_like_a_keyword(node: RunningNode) -> None:
    node.query("CREATE TABLE `format` (values UInt8) ENGINE = Memory")
    node.query("INSERT INTO format VALUES (1)")
    node.query("INSERT INTO `format` (values) FORMAT TSV\n2\n")
    assert node.query("SELECT sum(values) FROM format") == "3\n"


def test_a_wrong_row_is_an_error_and_inserts_nothing(node: RunningNode) -> None:
    node.query("CREATE TABLE wrong (a UInt64) ENGINE = MergeTree ORDER BY a")
    reply = node.post("INSERT INTO wrong FORMAT CSV\n1\nabc\n")
    assert reply.status == 400
    assert reply.code in (27, 117)
    assert node.query("SELECT count() FROM wrong") == "0\n"


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("lz4", lz4.frame.compress),
    ],
)
def test_request_bodies_may_be_encoded(node: RunningNode, name: str, pack: object) -> None:
    assert callable(pack)
    sql = b"SELECT sum(number) FROM numbers(10)"
    assert node.post(pack(sql), {"Content-Encoding": name}).text == "45\n"
    broken = node.post(pack(sql)[:-9], {"Content-Encoding": name})
    assert broken.code == 354, broken.text
    assert node.post(b"no such thing", {"Content-Encoding": name}).code == 354


def test_a_request_encoding_that_nobody_knows_is_refused(node: RunningNode) -> None:
    assert node.post(b"SELECT 1", {"Content-Encoding": "snappy9"}).code == 48


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


def test_a_client_that_goes_away_takes_its_query_with_it(node: RunningNode) -> None:
    sql = "SELECT sleepEachRow(0.1) FROM numbers(100000) SETTINGS max_block_size = 1"
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sql)}\r\n\r\n{sql}".encode())
        running = (
            "SELECT count() FROM system.processes "
            "WHERE query LIKE '%sleepEachRow(0.1)%' AND query NOT LIKE '%processes%'"
        )
        while node.query(running) != "1\n":
            pass
    while node.query(running) != "0\n":
        pass


@pytest.mark.parametrize("where", ["/", "/?session_id=goes_on"])
def test_a_change_goes_on_when_its_client_goes_away(node: RunningNode, where: str) -> None:
    node.query("CREATE OR REPLACE TABLE goes_on (a UInt64) ENGINE = MergeTree ORDER BY a")
    sql = "INSERT INTO goes_on SELECT number + sleepEachRow(0.1) FROM numbers(10) SETTINGS max_block_size = 1"
    running = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO goes_on%'"
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        head = f"POST {where} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sql)}\r\n\r\n"
        connection.sendall((head + sql).encode())
        while node.query(running) != "1\n":
            pass
    while node.query(running) != "0\n":
        pass
    assert node.query("SELECT count() FROM goes_on") == "10\n"


def test_an_insert_whose_body_breaks_off_inserts_nothing(node: RunningNode) -> None:
    node.query("CREATE TABLE broken_off (a UInt64) ENGINE = MergeTree ORDER BY a")
    body = b"INSERT INTO broken_off FORMAT CSV\n1\n2\n"
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        while node.query("SELECT count() FROM system.tables WHERE name = 'broken_off'") != "1\n":
            pass
    node.query("INSERT INTO broken_off VALUES (100)")
    assert node.query("SELECT * FROM broken_off") == "100\n"


def test_streamed_rows_of_values_hold_expressions_and_none_over_files(node: RunningNode) -> None:
    node.query("CREATE TABLE streamed_values (a UInt32, b String) ENGINE = Memory")
    many = ",".join(f"({n}, 'it''s file({n}) {'x' * 3000}')" for n in range(200)) + ", (1 + 1, lower('Y'))"
    assert len(many) > 2 * 262_144  # more than is read as text of the statement
    node.query(f"INSERT INTO streamed_values VALUES {many}")
    assert node.query("SELECT count(), max(b) FROM streamed_values") == "201\ty\n"
    reply = node.post(f"{many}, (1, file('/etc/passwd'))", query="INSERT INTO streamed_values VALUES")
    assert reply.code == 497
    assert node.query("SELECT count() FROM streamed_values WHERE b LIKE 'root:%'") == "0\n"


def test_a_streamed_insert_is_not_buffered_whole(node: RunningNode) -> None:
    node.query("CREATE TABLE streamed (a UInt64) ENGINE = Null")
    row = b"1234567890\n" * 95_000
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        connection.sendall(
            b"POST /?query=INSERT%20INTO%20streamed%20FORMAT%20TSV HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        import psutil

        process = psutil.Process(node.process.pid)
        before = process.memory_info().rss
        for _ in range(300):
            connection.sendall(f"{len(row):x}\r\n".encode() + row + b"\r\n")
        peak = process.memory_info().rss
        connection.sendall(b"0\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"written_rows":"28500000"' in answer
    assert peak - before < 250_000_000


def test_too_long_a_query_is_refused_and_the_limit_can_be_raised(node: RunningNode) -> None:
    sql = "SELECT 1 /* " + "x" * 300_000 + " */"
    refused = node.post(sql)
    assert refused.code == 62
    assert "max_query_size" in refused.text
    assert node.query(sql, max_query_size="1000000") == node.query(sql, max_query_size="0") == "1\n"
    node.query("SET max_query_size = 1000000", session_id="long")
    assert node.query(sql, session_id="long") == "1\n"
    assert node.post(sql, session_id="long", max_query_size="1000").code == 62
    node.query("SET max_query_size = 27", session_id="short")
    assert node.query("SELECT 1", session_id="short") == "1\n"
    assert node.post("SELECT 1, 2, 3, 4, 5, 6, 7, 8", session_id="short").code == 62
    node.query("SET max_query_size = 262144", session_id="short")
    assert len(node.query(f"SELECT '{'a' * 262_130}'", session_id="short")) == 262_131


def test_external_tables_come_as_form_parts(node: RunningNode) -> None:
    boundary = "xyz"
    parts = [
        ('name="query"', "SELECT sum(a), max(b) FROM ext, other WHERE {p:UInt8} = 1"),
        ('name="param_p"', "1"),
        ('name="ext"; filename="ext"', "1\n2\n3\n"),
        ('name="other"; filename="other"', "7,x\n"),
    ]
    body = "".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{data}\r\n" for head, data in parts
    )
    reply = node.post(
        body + f"--{boundary}--\r\n",
        {"Content-Type": f"multipart/form-data; boundary={boundary}"},
        ext_structure="a UInt64",
        other_types="UInt8,String",
        other_format="CSV",
        param_p="1",
    )
    assert reply.status == 404  # b is called _2
    reply = node.post(
        body.replace("max(b)", "max(_2)") + f"--{boundary}--\r\n",
        {"Content-Type": f"multipart/form-data; boundary={boundary}"},
        ext_structure="a UInt64",
        other_types="UInt8,String",
        other_format="CSV",
    )
    assert reply.text == "6\tx\n"


def as_form(node: RunningNode, sql: str, rows: str, **parameters: str) -> Reply:
    """A query with the external table `ext`."""
    parts = [('name="query"', sql), ('name="ext"; filename="ext"', rows)]
    body = "".join(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{data}\r\n" for head, data in parts)
    return node.post(f"{body}--b--\r\n", {"Content-Type": "multipart/form-data; boundary=b"}, **parameters)


def test_the_types_of_an_external_table_may_have_commas(node: RunningNode) -> None:
    types = "Decimal(9, 2), Map(String, UInt8)"
    assert as_form(node, "SELECT * FROM ext", "1.5\t{'a':1}\n", ext_types=types).text == "1.5\t{'a':1}\n"


def test_rows_of_an_external_table_are_read_by_the_settings_of_the_query(node: RunningNode) -> None:
    sql, rows, external = "SELECT sum(_1) FROM ext", "1,x\nbad\n2,y\n", {"ext_types": "UInt8,String"}
    assert as_form(node, sql, rows, ext_format="CSV", **external).code == 27
    allowed = {"input_format_allow_errors_num": "1"}
    assert as_form(node, sql, rows, ext_format="CSV", **external, **allowed).text == "3\n"


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=b"])
def test_a_form_that_is_none_is_an_error_of_the_client(node: RunningNode, kind: str) -> None:
    reply = node.post("SELECT 1", {"Content-Type": kind}, query="SELECT 1")
    assert (reply.code, "The form cannot be read" in reply.text) == (36, True)


STATEMENT_BEHIND = "a UInt8) ENGINE = Memory; DROP TABLE default.stays; --"
FILE_BEHIND = "a String) ENGINE = File(LineAsString, '/etc/passwd') --"
ONLY_READS = {"user": "reader", "password": "read"}


def test_what_a_client_sends_beside_its_statement_cannot_be_another_one(node: RunningNode) -> None:
    """Structures and names of formats become parts of SQL text."""
    node.query("CREATE TABLE stays (a UInt8) ENGINE = Memory")
    other = "TSV; DROP TABLE default.stays"
    replies = [
        as_form(node, "SELECT * FROM ext", "1\n", ext_structure=structure, **user)
        for structure in (STATEMENT_BEHIND, FILE_BEHIND)
        for user in ({}, ONLY_READS)
    ]
    replies.append(as_form(node, "SELECT * FROM ext", "1\n", ext_structure="a UInt8", ext_format=other))
    for structure in (STATEMENT_BEHIND, FILE_BEHIND.replace("'", "''")):
        replies.append(node.post(f"INSERT INTO stays SELECT 1 FROM input('{structure}') FORMAT TSV\n1\n"))
    replies += [
        node.post("SELECT 1", default_format=other),
        node.post("SELECT 1", {"X-ClickHouse-Format": other}),
    ]
    assert {reply.code for reply in replies} == {62, 73}
    assert not any("root:" in reply.text for reply in replies)
    assert node.query("SELECT count() FROM stays") == "0\n"


def test_totals_and_extremes_arrive(node: RunningNode) -> None:
    sql = (
        "SELECT number % 2 AS k, count() FROM numbers(5) GROUP BY k WITH TOTALS ORDER BY k FORMAT JSONCompact"
    )
    answer = json.loads(node.query(sql, extremes="1"))
    assert answer["totals"] == [0, 5]
    assert answer["extremes"] == {"min": [0, 2], "max": [1, 3]}


def test_two_statements_with_one_query_id_do_not_run_at_once(node: RunningNode) -> None:
    slow = threading.Thread(
        target=node.post,
        args=("SELECT sleepEachRow(0.2) FROM numbers(20) SETTINGS max_block_size = 1",),
        kwargs={"query_id": "twice"},
    )
    slow.start()
    while node.query("SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'twice'") == "0\n":
        pass
    assert node.post("SELECT 1", query_id="twice").code == 216
    slow.join()
    assert node.post("SELECT 1", query_id="twice").text == "1\n"


def test_a_header_cannot_be_smuggled_in_through_the_query_id(node: RunningNode) -> None:
    reply = node.post("SELECT 1", query_id="a\r\nX-Evil: 1")
    assert "X-Evil" not in reply.headers
    assert reply.headers["X-ClickHouse-Query-Id"] == "aX-Evil: 1"


def test_names_settings_and_databases_may_be_any_bytes(node: RunningNode) -> None:
    assert node.post(b"CREATE DATABASE `d\xff`").status == 200
    assert node.post(b"CREATE TABLE `d\xff`.`t\xfe` (`c\xfd` String) ENGINE = Memory").status == 200
    assert node.post(b"INSERT INTO `d\xff`.`t\xfe` (`c\xfd`) FORMAT CSV\n\xfc\n").status == 200
    assert node.get("/?query=SELECT%20hex(*)%20FROM%20%60t%FE%60&database=d%FF").text == "FC\n"
    setting = "SELECT%20hex(getSetting('insert_deduplication_token'))&insert_deduplication_token=%FF"
    assert node.get(f"/?query={setting}").text == node.get(f"/?session_id=b&query={setting}").text == "FF\n"
    assert node.get("/?query=SELECT%20%7Bx:String%7D&param_x=%FF").code == 457


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


def test_parameters_name_tables_and_stand_for_values_in_ddl(node: RunningNode) -> None:
    name, value = {"param_t": "by parameter"}, {"param_v": "7"}
    node.query("CREATE TABLE {t:Identifier} (a UInt8 DEFAULT {v:UInt8}) ENGINE = Memory", **name, **value)
    node.query("INSERT INTO {t:Identifier} VALUES ({v:UInt8})", **name, **value)
    node.query("INSERT INTO {t:Identifier} FORMAT CSV\n1", **name)
    assert node.query("SELECT count(), sum(a) FROM {t:Identifier}", **name) == "2\t8\n"
    node.query("DROP TABLE {t:Identifier}", **name)
    assert node.post("DROP TABLE {t:Identifier}").code == 456
    assert node.query("EXISTS TABLE {t:Identifier}", **name) == "0\n"


def test_a_views_parameters_stay_its_own_whatever_the_request_has(node: RunningNode) -> None:
    node.query("CREATE VIEW with_parameter AS SELECT {v:UInt8} AS a", param_v="7")
    assert node.query("SELECT a FROM with_parameter(v = 9)") == "9\n"


@pytest.mark.parametrize("sql", ["-- nothing", ";", "/* nothing */ ;"])
def test_a_statement_without_words_is_an_empty_query(node: RunningNode, sql: str) -> None:
    assert node.post(sql).code == 62


@pytest.mark.parametrize("word", ["exit", "quit;", ":q", "\\d", "\\l", "??"])
def test_words_to_a_client_are_no_statements(node: RunningNode, word: str) -> None:
    assert node.post(word).code == 62


def test_a_role_that_nobody_has_is_refused(node: RunningNode) -> None:
    reply = node.post("SELECT 1", role="admin")
    assert (reply.status, reply.code) == (403, 512)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/?query=SELECT+1", "/nowhere"])
def test_methods_that_servers_do_not_know_are_not_implemented(
    node: RunningNode, method: str, path: str
) -> None:
    request = urllib.request.Request(node.url + path, data=b"", method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 501


def test_pages_of_other_hosts_may_read_an_answer_where_that_is_asked_for(node: RunningNode) -> None:
    allowed, origin = "Access-Control-Allow-Origin", {"Origin": "http://elsewhere"}
    assert node.post("SELECT 1", origin, add_http_cors_header="1").headers[allowed] == "*"
    assert node.post("SELEC 1", origin, add_http_cors_header="1").headers[allowed] == "*"
    assert allowed not in node.post("SELECT 1", origin).headers
    assert allowed not in node.post("SELECT 1", add_http_cors_header="1").headers
    preflight = urllib.request.Request(node.url, headers=origin, method="OPTIONS")
    with urllib.request.urlopen(preflight) as answer:
        assert answer.status == 204
        assert "x-clickhouse-user" in answer.headers["Access-Control-Allow-Headers"]
