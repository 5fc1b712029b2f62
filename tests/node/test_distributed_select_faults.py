"""A peer that fails in the middle of an answer, and peers with passwords."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.node.conftest import USERS, RunningNode, StartNode

pytestmark = pytest.mark.slow

BLOCK = b"\x01\x02" + b"\x01k" + b"\x05UInt8" + b"\x07\x08"
"""A Native block: one column `k UInt8` with two rows."""
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
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


@contextmanager
def peer(end: bytes) -> Iterator[int]:
    """A server that knows a table of one column and ends its rows as told; its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(65536)
                if request.startswith(b"GET"):
                    connection.sendall(HEAD + end)
                    continue
                while b"SELECT" not in request and b"DESCRIBE" not in request:
                    request += connection.recv(65536)
                body = DESCRIBED if b"DESCRIBE" in request else b""
                length = str(len(body)).encode()
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + length + b"\r\n\r\n" + body
                )

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.close()


@pytest.mark.parametrize("how", ENDS)
def test_an_answer_that_breaks_off_is_an_error_and_never_fewer_rows(node: RunningNode, how: str) -> None:
    with peer(ENDS[how]) as port:
        reply = node.post(f"SELECT sum(k) FROM remote('127.0.0.1:{port}', default, t) WHERE k > rand() % 1")
        if how == "whole":
            assert (reply.status, reply.text) == (200, "15\n")
        else:
            assert reply.status == 500, reply.text
            assert "DB::Exception" in reply.text


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
