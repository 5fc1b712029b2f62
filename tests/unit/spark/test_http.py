"""Spark's statements over HTTP: what counts as an answer."""

from __future__ import annotations

import socket
import threading

import pytest

from engine.errors import ReplyLost
from spark_apps.clickhouse_cluster.http import Server


@pytest.mark.parametrize("header", ["X-ClickHouse-Server-Display-Name: a server", "Server: a proxy"])
def test_only_a_clickhouse_server_confirms_an_insert(header: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                request = b""
                while not request.endswith(b"rows"):
                    request += connection.recv(65536)
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{header}\r\n\r\n".encode())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        server = Server("127.0.0.1", listening.getsockname()[1])
        if header.startswith("X-ClickHouse-"):
            assert server.execute("INSERT INTO t", body=b"rows") == b""
        else:
            with pytest.raises(ReplyLost, match="as no ClickHouse server does"):
                server.execute("INSERT INTO t", body=b"rows")
        thread.join()
