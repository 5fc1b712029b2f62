"""The options of the data source, checked once."""

from __future__ import annotations

import enum
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from engine.errors import ConfigError
from engine.names import TableName
from spark_apps.clickhouse_cluster.http import Server

FORMAT = "clickhouse_cluster"


class Pushdown(enum.Enum):
    """Whether the filters of a query travel to the servers."""

    OFF = "off"
    ON = "on"


class Final(enum.Enum):
    """Whether rows are read as merges would leave them."""

    OFF = "off"
    ON = "on"


class Placement(enum.Enum):
    """Which shards get a row."""

    BY_KEY = "by key"
    EVERY_SHARD = "every shard"


class Views(enum.Enum):
    """What becomes of a load where materialized views would not see its rows."""

    REFUSED = "refused"
    LEFT_OUT = "left out"


class Delivery(enum.Enum):
    """How rows get into the table; see `commit` and `direct`."""

    STAGED = "staged"
    DIRECT = "direct"


class RepeatedBatch(enum.Enum):
    """What of a stream's batch that comes again has to be as it was."""

    COMPARED = "compared"
    """All rows."""
    COUNTED = "counted"
    """Their number: of a query that makes other values each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asks for.

    `shards` (servers and weight of each shard) stands in for a Distributed table, together with
    `sharding_key`: `table` is then the local table of each shard. `job_id` is the identity under which a
    load takes place once; empty for one that cannot be repeated. `filter` is SQL that every row read fulfils,
    and with `final` rows are read as merges would leave them. `partitions` are ids that an overwriting load
    replaces also where it has no rows for them. `placement` is for small tables that every shard holds in
    full. `repeated_batch` is for streams, and None where it was left out.
    """

    table: TableName
    servers: tuple[Server, ...]
    job_id: str = ""
    filter: str = ""
    partitions: tuple[str, ...] = ()
    pushdown: Pushdown = Pushdown.OFF
    final: Final = Final.OFF
    placement: Placement = Placement.BY_KEY
    delivery: Delivery = Delivery.STAGED
    materialized_views: Views = Views.REFUSED
    repeated_batch: RepeatedBatch | None = None
    shards: tuple[tuple[int, tuple[Server, ...]], ...] = ()
    sharding_key: str = ""
    cluster_file: str = ""
    http_port: int = 8123
    block_rows: int = 262_144
    replicas_wait_s: int = 10
    user: str = "default"
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises ConfigError, naming what is there to choose from."""
        values = {key.lower(): value for key, value in given.items()}
        name = values.pop("table", "") or values.pop("path", "")
        values.pop("path", None)
        unknown = sorted(set(values) - _KNOWN)
        if unknown:
            raise ConfigError(
                f"{FORMAT} has no option {', '.join(unknown)}.", hint=f"Options: {', '.join(sorted(_KNOWN))}."
            )
        if not name:
            raise ConfigError(
                f"{FORMAT} has to be told the table.", hint="For example save('flights.flights')."
            )
        database, dot, table = name.partition(".")
        user, password = values.get("user", "default"), values.get("password", "")

        def server(text: str) -> Server:
            return _server(text, user=user, password=password)

        listed = values.get("shards", "").strip().removesuffix(";")
        shards = tuple(_shard(text, server) for text in listed.split(";")) if listed else ()
        urls = tuple(server(text) for text in values.get("url", "").split(",") if text.strip())
        if not urls and not shards:
            raise ConfigError(
                f"{FORMAT} has to be told where a server is.",
                hint="Give the option url, such as http://node01:8123; or shards.",
            )
        return cls(
            table=TableName(database, table) if dot else TableName("default", database),
            servers=urls or tuple(one for _, servers in shards for one in servers),
            job_id=values.get("job_id", ""),
            filter=values.get("filter", ""),
            partitions=_partitions(values.get("partitions", "")),
            pushdown=_one_of(Pushdown, values, "pushdown", Pushdown.OFF),
            final=_one_of(Final, values, "final", Final.OFF),
            delivery=_one_of(Delivery, values, "delivery", Delivery.STAGED),
            materialized_views=_one_of(Views, values, "materialized_views", Views.REFUSED),
            repeated_batch=(
                _one_of(RepeatedBatch, values, "repeated_batch", RepeatedBatch.COMPARED)
                if "repeated_batch" in values
                else None
            ),
            placement=_one_of(Placement, values, "placement", Placement.BY_KEY),
            shards=shards,
            sharding_key=values.get("sharding_key", ""),
            cluster_file=values.get("cluster_file", ""),
            http_port=_number(values, "http_port", 8123),
            block_rows=_number(values, "block_rows", 262_144),
            replicas_wait_s=_number(values, "replicas_wait_s", 10, least=0),
            user=user,
            password=password,
        )


_PARTITION_ID = re.compile(r"[A-Za-z0-9_-]+\Z")
_KNOWN = {
    "url", "user", "password", "job_id", "shards", "sharding_key", "cluster_file", "http_port",
    "block_rows", "filter", "pushdown", "placement", "delivery", "partitions", "table", "path",
    "replicas_wait_s", "materialized_views", "final", "repeated_batch",
    "checkpointlocation",
}  # fmt: skip


_Choice = TypeVar("_Choice", bound=enum.Enum)


def _one_of(kind: type[_Choice], values: Mapping[str, str], name: str, default: _Choice) -> _Choice:
    try:
        return kind(values.get(name, default.value))
    except ValueError:
        known = " or ".join(str(choice.value) for choice in kind)
        raise ConfigError(f"{name} is {known}, not {values[name]!r}.") from None


def _number(values: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = values.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} is a whole number from {least}, not {text!r}.")
    return int(text)


def _partitions(text: str) -> tuple[str, ...]:
    """Raises ConfigError: a server would refuse another id when the load is decided."""
    ids = tuple(one.strip() for one in text.split(",") if one.strip())
    wrong = [one for one in ids if not _PARTITION_ID.match(one)]
    if wrong:
        raise ConfigError(
            f"partitions has ids that no partition has: {', '.join(map(repr, wrong))}.",
            hint="Take the column partition_id of system.parts, such as 201301.",
        )
    return ids


def _server(text: str, *, user: str, password: str) -> Server:
    url = urllib.parse.urlsplit(text.strip() if "//" in text else f"http://{text.strip()}")
    try:
        port = url.port
    except ValueError as error:
        raise ConfigError(f"{text!r} is no address of a server: {error}.") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"{text!r} is no address of a server.", hint="For example http://node01:8123.")
    return Server(
        url.hostname, port or (8443 if url.scheme == "https" else 8123), url.scheme,
        urllib.parse.unquote(url.username or "") or user,
        urllib.parse.unquote(url.password or "") or password,
    )  # fmt: skip


def _shard(text: str, server: Callable[[str], Server]) -> tuple[int, tuple[Server, ...]]:
    """`host:port,host:port*2`: the replicas of a shard and, after a star, its weight."""
    replicas, _, weight = text.partition("*")
    if weight and not weight.strip().isdecimal():
        raise ConfigError(f"The weight of a shard is a whole number, not {weight!r}.")
    servers = tuple(server(one) for one in replicas.split(",") if one.strip())
    if not servers:
        raise ConfigError(
            "The option shards names a shard without a server.",
            hint="A semicolon stands between two shards, such as node01:8123,node02:8123;node03:8123*2.",
        )
    return int(weight or 1), servers
