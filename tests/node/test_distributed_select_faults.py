"""A peer that fails before or in the middle of an answer, and peers with passwords."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
import pytest

from tests.node.conftest import USERS, RunningNode, StartNode

pytestmark = pytest.mark.slow

BLOCK = b"\x01\x02" + b"\x01k" + b"\x05UInt8" + b"\x07\x08"
"""A Native block: one column `k UInt8` with two rows."""
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nConnection: close\r\nX-ClickHouse-Format: JSON\r\nContent-Length: "
META = b", ".join(b'{"name": "' + name + b'", "type": "String"}' for name in (b"name", b"type", b"kind"))
DESCRIBED = b'{"meta": [' + META + b'], "data": [["k", "UInt8", ""]]}'


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


ENDS = {
    "whole": _chunk(BLOCK) + b"0\r\n\r\n",
    "ends between blocks": _chunk(BLOCK),
    "ends inside a block": _chunk(BLOCK)[:-5],
    "an error among the rows": _chunk(BLOCK) + _chunk(b"Code: 395. DB::Exception: broken") + b"0\r\n\r\n",
    "ends before the first block": b"",
}


BASIC_OF_ALICE = base64.b64encode(b"alice:secret").decode()

RESET = b"reset"
"""In the place of an answer: the connection is reset before its first byte."""


@dataclass
class Peer:
    """`may_end`: the end of its rows waits for it."""

    port: int
    may_end: threading.Event = field(default_factory=threading.Event)
    asked_for_rows: int = 0


@contextmanager
def peer(end: bytes, *, waits: bool = False) -> Iterator[Peer]:
    """A server that knows a table of one column, answers probes, and ends its rows as told."""
    listening = socket.create_server(("127.0.0.1", 0))
    peer = Peer(int(listening.getsockname()[1]))
    if not waits:
        peer.may_end.set()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(65536)
                if request.startswith(b"GET"):
                    peer.asked_for_rows += 1
                    if end == RESET:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        connection.sendall(HEAD + end)
                    peer.may_end.wait(60)
                    continue
                while b"SELECT" not in request and b"DESCRIBE" not in request:
                    request += connection.recv(65536)
                body = DESCRIBED if b"DESCRIBE" in request else b""
                length = str(len(body)).encode()
                connection.sendall(ANSWER + length + b"\r\n\r\n" + body)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield peer
    finally:
        listening.close()


@pytest.mark.parametrize("how", ENDS)
def test_an_answer_that_breaks_off_is_an_error_and_never_fewer_rows(node: RunningNode, how: str) -> None:
    with peer(ENDS[how]) as broken:
        table = f"remote('127.0.0.1:{broken.port}', default, t)"
        reply = node.post(f"SELECT sum(k) FROM {table} WHERE k > rand() % 1")
        if how == "whole":
            assert (reply.status, reply.text) == (200, "15\n")
        else:
            assert reply.status == 500, reply.text
            assert "DB::Exception" in reply.text


BREAKS = {
    "reset before the first byte": RESET,
    "ends before the first block": b"",
    "ends inside a block": _chunk(BLOCK)[:-5],
    "ends between blocks": _chunk(BLOCK),
}


@pytest.fixture(scope="module")
def three_rows(node: RunningNode) -> RunningNode:
    node.query("CREATE TABLE three (k UInt8) ENGINE = MergeTree ORDER BY k")
    node.query("INSERT INTO three VALUES (1), (2), (3)")
    return node


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("sql", ["SELECT sum(k), count() FROM {}", "SELECT k FROM {} ORDER BY k"])
def test_a_replica_that_breaks_off_before_a_row_is_out_is_replaced_by_another(
    three_rows: RunningNode, how: str, sql: str
) -> None:
    node = three_rows
    with peer(BREAKS[how]) as broken:
        table = f"remote('127.0.0.1:{broken.port}|127.0.0.1:{node.http_port}', default, three)"
        answer = node.query(sql.format(table), load_balancing="in_order")
        assert answer == node.query(sql.format("three"))
        # Where rows are added up early, on a connection that is reset twice: nobody can tell it from one that
        # was too old. Then by the statement, and by itself, to know that it was this one.
        early = 0 if "ORDER" in sql else 2 if BREAKS[how] is RESET else 1
        assert broken.asked_for_rows == early + 2


def test_every_shard_finds_its_own_other_replica(three_rows: RunningNode) -> None:
    good = f"127.0.0.1:{three_rows.http_port}"
    with peer(RESET) as one, peer(_chunk(BLOCK)) as other:
        shards = f"127.0.0.1:{one.port}|{good},{good}|127.0.0.1:1,127.0.0.1:{other.port}|{good}"
        sql = f"SELECT count(), sum(k) FROM remote('{shards}', default, three)"
        assert three_rows.query(sql, load_balancing="in_order") == "9\t18\n"


def test_when_no_replica_is_left_the_error_is_that_of_the_connection(three_rows: RunningNode) -> None:
    with peer(RESET) as one, peer(RESET) as other:
        table = f"remote('127.0.0.1:{one.port}|127.0.0.1:{other.port}', default, three)"
        reply = three_rows.post(f"SELECT k FROM {table}")
        assert reply.code == 210, reply.text
        assert "127.0.0.1" in reply.text
        assert (one.asked_for_rows, other.asked_for_rows) == (2, 2)


def test_rows_that_are_out_are_never_sent_again(three_rows: RunningNode) -> None:
    rows = 2_000_000  # four bytes of text each, in each of three blocks: far more than is held back
    block = b"\x01\x80\x89\x7a" + b"\x01k" + b"\x05UInt8" + b"\xc8" * rows
    with peer(_chunk(block * 3), waits=True) as broken:
        table = f"remote('127.0.0.1:{broken.port}|127.0.0.1:{three_rows.http_port}', default, three)"
        connection = http.client.HTTPConnection("127.0.0.1", three_rows.http_port)
        connection.request("POST", "/?load_balancing=in_order", f"SELECT k FROM {table} WHERE k != rand64()")
        reply = connection.getresponse()
        assert reply.status == 200
        broken.may_end.set()  # the beginning of the answer is out
        try:
            body = reply.read()
        except http.client.IncompleteRead as error:
            body = error.partial
        connection.close()
    answer, mark, message = body.partition(b"__exception__")
    assert mark, body[-300:]
    assert b"Code: 210" in message
    assert answer.count(b"200\n") <= 3 * rows
    assert b"\n1\n" not in answer


def test_many_rows_pass_through_a_node_in_little_memory(three_rows: RunningNode) -> None:
    rows = 20_000_000  # 188 MB of text, and as much between the nodes
    process = psutil.Process(three_rows.process.pid)
    table = f"remote('127.0.0.1:{three_rows.http_port}', system, numbers)"
    connection = http.client.HTTPConnection("127.0.0.1", three_rows.http_port)
    before = peak = process.memory_info().rss
    connection.request("POST", "/", f"SELECT number FROM {table} LIMIT {rows}")
    reply = connection.getresponse()
    lines = 0
    while data := reply.read(1 << 20):
        lines += data.count(b"\n")
        peak = max(peak, process.memory_info().rss)
    connection.close()
    assert lines == rows
    assert peak - before < 120 << 20


def test_a_statement_that_stores_rows_does_not_begin_anew(three_rows: RunningNode) -> None:
    three_rows.query("CREATE TABLE stored (k UInt8) ENGINE = MergeTree ORDER BY k")
    with peer(RESET) as broken:
        table = f"remote('127.0.0.1:{broken.port}|127.0.0.1:{three_rows.http_port}', default, three)"
        reply = three_rows.post(f"INSERT INTO stored SELECT k FROM {table}", load_balancing="in_order")
        assert reply.code == 210, reply.text
    assert three_rows.query("SELECT count() FROM stored") == "0\n"


def test_passwords_of_peers_are_sent_and_never_shown(node: RunningNode) -> None:
    port = node.http_port
    node.query("CREATE TABLE guarded (k UInt64) ENGINE = MergeTree ORDER BY k")
    node.query("INSERT INTO guarded SELECT number FROM numbers(10)")
    as_alice = f"remote('127.0.0.1:{port}', default, guarded, 'alice', 'secret')"
    assert node.query(f"SELECT sum(k) FROM {as_alice}") == "45\n"
    texts = [
        node.query(f"SELECT query FROM system.processes, {as_alice} AS r LIMIT 1"),
        node.query(f"EXPLAIN SYNTAX SELECT k FROM {as_alice}"),
        node.post(f"SELECT throwIf(k = 3) FROM {as_alice}").text,
        node.query("SELECT toString(collection) FROM system.named_collections"),
        node.post(f"SELECT k FROM remote('127.0.0.1:{port}', default, guarded, 'alice', 'wrong-one')").text,
    ]
    for text in texts:
        assert "secret" not in text
        assert "wrong-one" not in text
        assert "YWxpY2U6" not in text


EXPLAINED = (
    "EXPLAIN SYNTAX",
    "EXPLAIN SYNTAX run_query_tree_passes = 1",
    "EXPLAIN QUERY TREE run_passes = 0",
    "EXPLAIN QUERY TREE dump_ast = 1",
    "EXPLAIN PLAN json = 1, actions = 1, header = 1",
    "EXPLAIN PIPELINE",
)


@pytest.mark.parametrize("takes_signatures", [True, False])
def test_what_lets_chdb_in_on_another_node_is_shown_nowhere(
    node: RunningNode, *, takes_signatures: bool
) -> None:
    """A node takes signatures; a server that gives no keys, as ClickHouse's, is sent the password."""
    node.query("CREATE TABLE IF NOT EXISTS read_by_alice (k UInt8) ENGINE = Memory AS SELECT 7")
    with peer(ENDS["whole"]) as server:
        port, table = (node.http_port, "read_by_alice") if takes_signatures else (server.port, "t")
        remote = f"remote('127.0.0.1:{port}', default, {table}, 'alice', 'secret')"
        read = f"SELECT k FROM {remote} WHERE k > rand() % 1"
        processes = "SELECT query FROM system.processes AS p LEFT JOIN (%s) AS r ON 1 FORMAT TSVRaw"
        texts = [node.query(f"{each} {read}") for each in EXPLAINED]
        texts += [
            node.query(processes % read),
            node.query(f"SELECT * FROM system.query_cache, ({read}) AS r SETTINGS use_query_cache = 1"),
            *(
                node.post(f"{read} {bad}").text
                for bad in ("AND nope", "GROUP BY 1 2", ") OVER, ", "AND throwIf(k = 7)")
            ),
            node.query("SELECT arrayStringConcat(groupArray(last_error_message)) FROM system.errors"),
        ]
    assert "url(" in texts[0] and "[HIDDEN]" in texts[0]
    for text in texts:
        assert "Oncluster " not in text and "Basic " not in text and BASIC_OF_ALICE not in text
    assert node.query("SELECT count() FROM system.named_collections") == "0\n"


def test_a_node_with_another_secret_or_of_another_start_is_read_on(start_node: StartNode) -> None:
    node = start_node(extra=USERS.format(alice=hashlib.sha256(b"secret").hexdigest()))
    reader = start_node()
    table = f"remote('127.0.0.1:{node.http_port}', system, one, 'alice', 'secret')"
    secret = node.directory / "data" / "oncluster" / "reads"
    made = set()
    for loses_secret in (False, False, True):
        node.stop()
        if loses_secret:
            secret.unlink()
        node.start()
        assert reader.query(f"SELECT dummy FROM {table}") == "0\n"
        assert reader.query(f"SELECT count() FROM {table}") == "1\n"
        stored = reader.post(
            f"INSERT INTO FUNCTION null('d UInt8') SELECT dummy FROM {table} WHERE dummy < 1"
        )
        assert stored.status == 200, stored.text
        assert secret.stat().st_mode & 0o777 == 0o600
        made.add(secret.read_text())
    assert len(made) == 2


@pytest.mark.parametrize("session", [{}, {"session_id": "kept"}])
def test_readers_read_distributed_tables_and_nothing_else(
    start_node: StartNode, session: dict[str, str]
) -> None:
    users = USERS.format(alice=hashlib.sha256(b"secret").hexdigest())
    node = start_node(extra=users, run=False)
    peer_xml = "<replica><host>elsewhere</host><port>9000</port><http_host>127.0.0.1</http_host>"
    shards = f"<shard>{peer_xml}<http_port>{node.http_port}</http_port></replica></shard>"
    config = node.config.read_text()
    remote_servers = f"<remote_servers><c>{shards}</c></remote_servers>"
    node.config.write_text(config.replace("</clickhouse>", remote_servers + "</clickhouse>"))
    node.start()
    node.query("CREATE TABLE t (k UInt64) ENGINE = MergeTree ORDER BY k")
    node.query("INSERT INTO t SELECT number FROM numbers(7)")
    node.query("CREATE TABLE d (k UInt64) ENGINE = Distributed(c, default, t)")
    reader = {"user": "reader", "password": "read", **session}
    assert node.query("SELECT sum(k) FROM d", **session) == "21\n"
    assert node.query("SELECT sum(k) FROM d", **reader) == "21\n"
    assert node.get("/?query=SELECT%20sum(k)%20FROM%20d").text == "21\n"
    for sql in (
        "SELECT count() FROM cluster(c, default, t)",
        "SELECT count() FROM d, url('http://127.0.0.1:1/', Native, 'x UInt8') AS u",
        "SELECT count() FROM d SETTINGS max_threads = 1",
    ):
        assert node.post(sql, **reader).code == 164
