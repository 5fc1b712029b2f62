"""Statements to one server over HTTP. Blocking, for Spark's own processes.

An answer is an answer only when it is complete: a server that fails while it sends rows has said 200 already,
and then the connection ends too early or the text of an exception stands at the end. And only when a
ClickHouse server gave it, which its headers say: a proxy's page proves nothing, whatever its status.

Source: ClickHouse's HTTP interface, 18.16 to 26.9 alike.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from engine.errors import Code, NodeUnavailable, ReplyLost, SqlError
from engine.names import http_url

_ERROR_CODE = re.compile(r"Code: (\d+)")
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """Where a server's HTTP interface is, and who asks."""

    host: str
    port: int
    scheme: str = "http"
    user: str = "default"
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return http_url(self.scheme, self.host, self.port)

    def execute(
        self,
        sql: str,
        *,
        body: bytes | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> bytes:
        """The whole answer. `body` are rows of an INSERT.

        Raises SqlError with ClickHouse's code, NodeUnavailable when nothing was sent, ReplyLost when no whole
        answer came.
        """
        with self.open(sql, body=body, settings=settings, timeout_s=timeout_s) as answer:
            return answer.read()

    def open(
        self,
        sql: str,
        *,
        body: bytes | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Answer:
        """As `execute`, to be read piece by piece."""
        parameters = dict(settings or {})
        if body is not None:
            parameters["query"] = sql
        headers = {"X-ClickHouse-User": self.user, "X-ClickHouse-Key": self.password, "Connection": "close"}
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=timeout_s)
        try:
            connection.connect()
        except OSError as error:
            raise NodeUnavailable(f"{self}: {error}") from error
        try:
            payload = sql.encode("utf-8", "surrogateescape") if body is None else body
            connection.request("POST", "/?" + urllib.parse.urlencode(parameters), payload, headers)
            reply = connection.getresponse()
            if reply.status != 200:
                text = reply.read().decode("utf-8", "replace").strip()
                raise sql_error(text, at=self)
            if not any(name.lower().startswith("x-clickhouse-") for name in reply.headers):
                raise ReplyLost(
                    f"{self} answered as no ClickHouse server does.",
                    hint="Look at what listens there, and at a proxy before it.",
                )
        except (SqlError, ReplyLost):
            connection.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ReplyLost(f"{self}: {type(error).__name__} {error}") from error
        return Answer(self, connection, reply)

    def text(self, sql: str, *, settings: Mapping[str, str] | None = None) -> str:
        """The answer as text, without the last line break."""
        return self.execute(sql, settings=settings).decode("utf-8", "surrogateescape").rstrip("\n")

    def rows(
        self, sql: str, *, settings: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """The rows of a SELECT. 64-bit numbers are quoted by servers: they come as text."""
        answer = self.execute(f"{sql} FORMAT JSONEachRow", settings=settings, timeout_s=timeout_s)
        return [cast(dict[str, Any], json.loads(line)) for line in answer.splitlines() if line]


class Answer:
    """An answer under way; close it."""

    def __init__(
        self, server: Server, connection: http.client.HTTPConnection, reply: http.client.HTTPResponse
    ) -> None:
        self._server = server
        self._connection = connection
        self._reply = reply

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(self, size_bytes: int | None = None) -> bytes:
        """Some bytes, or all. Raises ReplyLost when the answer was cut off."""
        try:
            piece = self._reply.read(size_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise ReplyLost(f"{self._server}: {type(error).__name__} {error}") from error
        # Python says it only where all is read at once, and an Arrow stream may end behind any batch.
        if size_bytes and len(piece) < size_bytes and self._reply.length:
            raise ReplyLost(f"{self._server}: the answer ends {self._reply.length} bytes before its end.")
        return piece

    def readable(self) -> bool:
        return True


def sql_error(text: str, *, at: Server) -> SqlError:
    """What a server's text of an exception says."""
    found = _ERROR_CODE.search(text)
    return SqlError(int(found.group(1)) if found else Code.UNKNOWN_EXCEPTION, f"{at}: {text[:2000]}")


def first_to_answer(servers: Iterable[Server]) -> Server:
    """The first of them that answers. Raises NodeUnavailable naming all when none does."""
    return first_rows(servers, "SELECT 1")[0]


def first_rows(servers: Iterable[Server], sql: str) -> tuple[Server, list[dict[str, Any]]]:
    """The first of them that answers, and what it says. Raises NodeUnavailable naming all when none does."""
    said: list[str] = []
    for server in servers:
        try:
            return server, server.rows(sql, timeout_s=10.0)
        except (NodeUnavailable, ReplyLost) as error:
            said.append(str(error))
    raise NodeUnavailable("No replica answers: " + "; ".join(said))
