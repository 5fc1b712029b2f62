"""A replica's address for its peers (`host`). Source: ClickHouse's ReplicatedMergeTree."""

from __future__ import annotations

from dataclasses import dataclass

from engine.replication.text import FormatReader, encode_bytes, escape

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class ReplicaHost:
    """Where parts are fetched from (`host`, `port`, `scheme`) and where queries go (`tcp_port`).

    `scheme` is `http` or `https`, empty where the line is absent, which means http.
    """

    host: str
    port: int
    tcp_port: int
    database: str
    table: str
    scheme: str = "http"

    def to_bytes(self) -> bytes:
        text = (
            f"host: {escape(self.host)}\nport: {self.port}\ntcp_port: {self.tcp_port}\n"
            f"database: {escape(self.database)}\ntable: {escape(self.table)}\n"
        )
        return encode_bytes(text + (f"scheme: {self.scheme}\n" if self.scheme else ""))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> ReplicaHost:
        """Raises MalformedEntry."""
        reader = FormatReader.of(data, where=where)
        host = reader.line("host: ", reader.escaped)
        port = _port(reader, "port: ")
        tcp_port = _port(reader, "tcp_port: ")
        database = reader.line("database: ", reader.escaped)
        table = reader.line("table: ", reader.escaped)
        scheme = "" if reader.at_end else reader.line("scheme: ", reader.word)
        if scheme not in ("", "http", "https"):
            raise reader.error(f"unknown scheme {escape(scheme[:20])}; known are http and https")
        reader.end()
        return cls(host, port, tcp_port, database, table, scheme)


def _port(reader: FormatReader, prefix: str) -> int:
    number = reader.line(prefix, reader.unsigned)
    if number > _MAX_PORT:
        raise reader.error(f"{number} is no port")
    return number
