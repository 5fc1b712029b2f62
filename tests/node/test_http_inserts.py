"""Rows that a node takes by HTTP: bodies, their encodings, external tables."""

import gzip
import socket
import zlib

import lz4.frame
import pytest
import zstandard

from tests.node.conftest import RunningNode
from tests.node.http_client import Reply

pytestmark = pytest.mark.slow


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
