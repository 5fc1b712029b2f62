"""Names as they stand in SQL, in host ids and in znode paths; the only place where they are quoted or joined.

Sources: ClickHouse's escapeForFileName, backQuote and Cluster::Address::toString / readableString, as
observed on real servers.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import Code, SqlError

ENTRY_PREFIX = "query-"
_ENTRY_NAME = re.compile(r"query-(\d{10})\Z")
_SPECIAL_BYTE = re.compile(rb"[^A-Za-z0-9_]")
STRING_ESCAPES = {
    "\\": "\\\\",
    "'": "\\'",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\0": "\\0",
}
_ESCAPING = str.maketrans(STRING_ESCAPES)


def escape_for_file_name(name: str) -> str:
    """Keep `[A-Za-z0-9_]`; every other byte of the UTF-8 form becomes `%` and two upper-case hex digits."""
    raw = name.encode("utf-8", "surrogateescape")
    return _SPECIAL_BYTE.sub(lambda match: b"%%%02X" % ord(match.group()), raw).decode("ascii")


def unescape_for_file_name(text: str) -> str:
    """The inverse; `%` is decoded only when two more characters follow, otherwise kept as it is."""
    if "%" not in text and text.isascii():
        return text
    raw = text.encode("utf-8", "surrogateescape")
    out = bytearray()
    at = 0
    while at < len(raw):
        if raw[at] == 0x25 and len(raw) - at > 2:
            try:
                out.append(int(raw[at + 1 : at + 3], 16))
                at += 3
                continue
            except ValueError:
                pass
        out.append(raw[at])
        at += 1
    return out.decode("utf-8", "surrogateescape")


def quote_identifier(name: str) -> str:
    """A back-quoted SQL identifier."""
    body = "".join(STRING_ESCAPES[c] if c in STRING_ESCAPES and c != "'" else c for c in name)
    return "`" + body.replace("`", "\\`") + "`"


def quote_string(value: str) -> str:
    """A single-quoted SQL string literal."""
    return "'" + value.translate(_ESCAPING) + "'"


def quote_for_url(value: str) -> str:
    """The value of a parameter in a URL. Bytes that are no UTF-8 are sent as they are."""
    return urllib.parse.quote(value, safe="", errors="surrogateescape")


@dataclass(frozen=True, slots=True, order=True)
class HostId:
    """One replica's address as its cluster's configuration writes it: name (never resolved) and port.

    `str()` gives the form of `finished/` and `active/` (name escaped); `readable` the form of `shards/`.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"{escape_for_file_name(self.host)}:{self.port}"

    @property
    def readable(self) -> str:
        """`host:port` unescaped; a host with `:` that does not end in `]` gets brackets."""
        host = f"[{self.host}]" if ":" in self.host and not self.host.endswith("]") else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> HostId:
        """Parse the escaped form, splitting at the last colon. Raises SqlError 62 as ClickHouse does."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SqlError(Code.SYNTAX_ERROR, f"Incorrect <host>:<port> format {text}")
        return cls(unescape_for_file_name(host), int(port))


def shard_node_name(replicas: Iterable[HostId]) -> str:
    """The child of `shards/` for a shard: readable names of all its replicas, sorted, comma-joined."""
    return ",".join(sorted(replica.readable for replica in replicas))


def http_url(scheme: str, host: str, port: int) -> str:
    """`http://[::1]:8123` for an address of IPv6."""
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{name}:{port}"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A database and a table. An empty database means the session's current one."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}" if self.database else self.table

    def within(self, database: str) -> TableName:
        """The same table, told from a session whose current database is `database`."""
        return self if self.database else TableName(database, self.table)

    @property
    def quoted(self) -> str:
        """The form that may stand in SQL."""
        table = quote_identifier(self.table)
        return f"{quote_identifier(self.database)}.{table}" if self.database else table


def entry_name(number: int) -> str:
    """The node name of the queue entry with this number (7 → `query-0000000007`)."""
    return f"{ENTRY_PREFIX}{number:010d}"


def entry_number(name: str) -> int | None:
    """The number of a queue entry's node name (`query-0000000007` → 7); None for any other name."""
    match = _ENTRY_NAME.match(name)
    return int(match.group(1)) if match else None


@dataclass(frozen=True, slots=True)
class QueuePaths:
    """The znodes of one DDL queue. `root` and `replicas_root` carry no trailing slash.

    `tokens_root` is this project's own: it stands outside the queue's directory because children of that
    directory use up entry numbers and are listed by every server's worker.
    """

    root: str = "/clickhouse/task_queue/ddl"
    replicas_root: str = "/clickhouse/task_queue/replicas"

    def __post_init__(self) -> None:
        for field in ("root", "replicas_root"):
            path = getattr(self, field)
            object.__setattr__(self, field, path[:-1] if path.endswith("/") and len(path) > 1 else path)

    @property
    def entry_prefix(self) -> str:
        return f"{self.root}/{ENTRY_PREFIX}"

    @property
    def tokens_root(self) -> str:
        parent, _, name = self.root.rpartition("/")
        return f"{parent}/oncluster/{name}/tokens"

    @property
    def outcomes_root(self) -> str:
        """Where the cleaner writes down what became of an entry before it removes it."""
        parent, _, name = self.root.rpartition("/")
        return f"{parent}/oncluster/{name}/outcomes"

    def outcome(self, name: str) -> str:
        return f"{self.outcomes_root}/{name}"

    @property
    def abandoned_root(self) -> str:
        """Where persons say which hosts will never do their part of an entry."""
        parent, _, name = self.root.rpartition("/")
        return f"{parent}/oncluster/{name}/abandoned"

    def abandoned(self, name: str) -> str:
        return f"{self.abandoned_root}/{name}"

    def token(self, token: str) -> str:
        return f"{self.tokens_root}/{escape_for_file_name(token)}"

    def migrations(self, cluster: str) -> str:
        """Where a cluster's migration runs keep their lock; outside the queue, like `tokens_root`."""
        parent, _, name = self.root.rpartition("/")
        return f"{parent}/oncluster/{name}/migrations/{escape_for_file_name(cluster)}"

    def operations(self, cluster: str) -> str:
        """Where a cluster's operations keep their lock; outside the queue, like `tokens_root`."""
        parent, _, name = self.root.rpartition("/")
        return f"{parent}/oncluster/{name}/operations/{escape_for_file_name(cluster)}"

    def entry(self, name: str) -> str:
        return f"{self.root}/{name}"

    def active(self, name: str, host: HostId | str | None = None) -> str:
        return f"{self.root}/{name}/active" + ("" if host is None else f"/{host}")

    def finished(self, name: str, host: HostId | str | None = None) -> str:
        return f"{self.root}/{name}/finished" + ("" if host is None else f"/{host}")

    def shards(self, name: str) -> str:
        return f"{self.root}/{name}/shards"

    def shard(self, name: str, shard_node: str, leaf: str = "") -> str:
        return f"{self.root}/{name}/shards/{shard_node}" + (f"/{leaf}" if leaf else "")

    def replica(self, host: HostId | str) -> str:
        return f"{self.replicas_root}/{host}"

    def replica_active(self, host: HostId | str) -> str:
        return f"{self.replicas_root}/{host}/active"
