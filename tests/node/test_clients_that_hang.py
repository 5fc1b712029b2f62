"""Clients that are there and do nothing: they hold up nobody for ever."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.node.conftest import RunningNode, StartNode

pytestmark = pytest.mark.slow

ENDLESS = "SELECT repeat('x', 100) FROM system.numbers SETTINGS max_block_size = 1000, max_threads = 1"

LONG = "SELECT count() FROM numbers(600) WHERE sleepEachRow(1) = 0"


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> RunningNode:
    """With a thread for one statement."""
    replica = "<shard><replica><host>node01</host><port>9000</port></replica></shard>"
    cluster = f"<remote_servers><c>{replica}</c></remote_servers>"
    return start_node(extra=f"<max_connections>1</max_connections>{cluster}")


@pytest.fixture
def client(node: RunningNode) -> Iterator[socket.socket]:
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", node.http_port))
        client.settimeout(60)
        yield client


def ask(client: socket.socket, sql: str, parameters: str, *, length: int | None = None) -> None:
    head = f"POST /?{parameters} HTTP/1.1\r\nHost: node\r\nContent-Length: {length or len(sql)}\r\n\r\n"
    client.sendall((head + sql).encode())


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline


def test_a_result_that_nobody_takes_is_given_up_and_others_have_the_thread(
    node: RunningNode, client: socket.socket
) -> None:
    ask(client, ENDLESS, "http_send_timeout=1")
    assert client.recv(12) == b"HTTP/1.1 200"  # from now on it has the thread
    assert node.query("SELECT 1") == "1\n"


@pytest.mark.parametrize("session", [{}, {"session_id": "of somebody"}])
@pytest.mark.parametrize(
    "tables", ["", "CREATE TABLE IF NOT EXISTS d (k Int8) ENGINE = Distributed(c, '', t)"]
)
def test_with_all_threads_taken_it_is_seen_by_what_and_can_be_ended(
    node: RunningNode, client: socket.socket, tables: str, session: dict[str, str]
) -> None:
    if tables:
        node.query(tables)
    ask(client, LONG, "query_id=long&max_block_size=1")
    shown = "SELECT query FROM system.processes WHERE Settings['log_comment'] = 'long' FORMAT TSVRaw"
    wait_for(lambda: "numbers(600)" in node.query(shown, **session))  # from then on it has the thread
    assert "numbers(600)" in node.query("SHOW PROCESSLIST", **session)
    assert node.query("KILL QUERY WHERE query_id = 'long' SYNC", **session).startswith("finished")
    assert node.query("SELECT 1", **session) == "1\n"


def test_beyond_max_concurrent_queries_statements_are_refused(start_node: StartNode) -> None:
    node = start_node(extra="<max_concurrent_queries>1</max_concurrent_queries>")
    with closing(socket.create_connection(("127.0.0.1", node.http_port))) as client:
        ask(
            client,
            "SELECT count() FROM numbers(600) WHERE sleepEachRow(1) = 0",
            "query_id=long&max_block_size=1",
        )
        wait_for(lambda: "numbers(600)" in node.query("SHOW PROCESSLIST"))
        for sql in (
            "SELECT 1",
            "INSERT INTO FUNCTION null('k Int8') VALUES (1)",
            "CREATE TABLE t (k Int8) ENGINE = Log",
        ):
            reply = node.post(sql)
            assert reply.code == 202, reply.text
        assert node.query("KILL QUERY WHERE query_id = 'long' SYNC").startswith("finished")
        wait_for(lambda: node.post("SELECT 1").status == 200)
        assert [node.query("SELECT 2") for _ in range(3)] == ["2\n"] * 3


def test_a_client_that_is_slow_has_its_result_to_the_end(node: RunningNode, client: socket.socket) -> None:
    """In all it takes longer than it may take nothing."""
    rows = 40_000
    ask(client, f"SELECT repeat('x', 99) FROM numbers({rows})", "http_send_timeout=3&buffer_size=0")
    pieces: list[bytes] = []
    while not b"".join(pieces[-2:]).endswith(b"\r\n0\r\n\r\n"):
        pieces.append(client.recv(64 << 10))
        assert pieces[-1], "broken off"
        if len(pieces) < 16:
            time.sleep(0.3)
    _, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    assert body.count(b"x") == 99 * rows


def test_rows_that_stop_coming_end_an_insert_and_none_of_them_is_there(
    node: RunningNode, client: socket.socket
) -> None:
    node.query("CREATE TABLE waited_for (a Int8) ENGINE = Memory")
    insert = "INSERT INTO waited_for FORMAT TSV\n1\n2\n"
    ask(client, insert, "http_receive_timeout=0.5", length=1000)
    answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 503") and b"Code: 209." in answer
    assert node.query("SELECT count() FROM waited_for") == "0\n"
