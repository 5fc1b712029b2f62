"""A server that is ClickHouse 26.9 itself: chDB with what `server_around_chdb` tells it, behind our own HTTP.

    python -m tests.interop.server_of_26_9 DIRECTORY CONFIGURATION HTTP_PORT INTERSERVER_PORT QUEUE

Every request has a session of its own. What is not here is a server's authentication, and system.zookeeper.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from engine.names import QueuePaths, quote_identifier, quote_string
from tests.interop import ddl_worker_around_chdb, server_around_chdb
from tests.interop.parts_of_chdb import sending

HOST = "127.0.0.1"
_OF_THE_REQUEST = frozenset({"query", "query_id", "default_format", "database", "wait_end_of_query"})
_CODE = re.compile(r"Code: (\d+)")
_BEGINS = "CREATE DATABASE begun ON CLUSTER all"
_VERSION = "SET distributed_ddl_entry_format_version = 1000"
"""With it the statement above asks for the worker, and then is refused."""


class Server(ThreadingHTTPServer):
    """`connect` opens a session."""

    daemon_threads = True

    def __init__(self, port: int, connect: Any) -> None:
        self.connect = connect
        super().__init__((HOST, port), _Request)


class _Request(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n") if self.path == "/ping" else self._statement()

    def do_POST(self) -> None:
        self._statement()

    def _statement(self) -> None:
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        sql = "\n".join(filter(None, (given.get("query", ""), self._body().decode())))
        connection = self.server.connect()
        try:
            if database := given.get("database"):
                connection.query(f"USE {quote_identifier(database)}")
            for name in given.keys() - _OF_THE_REQUEST:
                connection.query(f"SET {name} = {quote_string(given[name])}")
            answer = connection.query(sql, given.get("default_format", "TabSeparated")).bytes()
        except RuntimeError as error:
            code = _CODE.search(str(error))
            self._answer(500, str(error).encode(), 1002 if code is None else int(code[1]))
        else:
            self._answer(200, answer)
        finally:
            connection.close()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        return found

    def _answer(self, status: int, body: bytes, code: int = 0) -> None:
        self.send_response(status)
        self.send_header("X-ClickHouse-Server-Display-Name", "26.9")
        if code:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(directory: str, configuration: str, http_port: str, interserver_port: str, queue: str) -> None:
    from chdb import _chdb

    server_around_chdb.put_around(_chdb.__file__, host=HOST, port=int(interserver_port))
    replicas = QueuePaths().replicas_root
    ddl_worker_around_chdb.put_around(_chdb.__file__, queue=queue, replicas=replicas)

    def connect() -> Any:
        return _chdb.connect(f"{directory}?config-file={configuration}")

    first = connect()
    first.query("CREATE TABLE default.first (a Int8) ENGINE = MergeTree ORDER BY a")  # has threads made
    first.query("DROP TABLE default.first SYNC")
    first.query(_VERSION)
    try:
        first.query(_BEGINS)
    except RuntimeError as error:
        assert "287" in str(error), error
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    macros = json.loads(
        first.query(
            "SELECT CAST(groupArray((macro, substitution)), 'Map(String, String)') AS m "
            "FROM system.macros FORMAT JSONEachRow",
            "JSONEachRow",
        ).bytes()
    )["m"]
    with sending(Path(directory), int(interserver_port), macros):
        server = Server(int(http_port), connect)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ended.wait()
    os._exit(0)  # the program's own end waits for a worker that it does not know


if __name__ == "__main__":
    main(*sys.argv[1:])
