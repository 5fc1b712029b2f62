"""The table that is read or written: its shards, replicas, columns, and the rule that spreads its rows.

All of it is asked of the servers: the Distributed table says cluster, local table and sharding key, the
cluster's shards come from `system.clusters` (or a cluster file, which also knows HTTP ports), the local
table's columns and engine from one replica of each shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from engine.distributed.definition import DistributedDefinition
from engine.distributed.sharding import slot_count
from engine.errors import Code, ConfigError, NodeUnavailable, ReplyLost, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.sql.tokens import tokenize
from spark_apps.clickhouse_cluster.addresses import default_database, shards_of
from spark_apps.clickhouse_cluster.engine_text import (
    Window,
    clauses,
    deduplication_window,
    descending_keys,
    settings,
    sign_and_version,
)
from spark_apps.clickhouse_cluster.http import Server, first_rows, first_to_answer
from spark_apps.clickhouse_cluster.options import Delivery, Options, Placement, Views
from spark_apps.clickhouse_cluster.years import FEW_YEARS, MANY_YEARS, Years, years_of

log = logging.getLogger(__name__)

_ONE_STRUCTURE = "Bring the table to one structure on all shards first."
_ASKED_FOR_ADDRESSES = (
    "These addresses are what system.clusters of the server says. Where HTTP is at others, the options "
    "cluster_file (of the local stack: cluster.xml in its directory) or http_port say so."
)
_KEYS = ("partition_key", "sorting_key", "primary_key")


@dataclass(frozen=True, slots=True)
class Column:
    """`default` is empty, DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL, with what follows."""

    name: str
    type: str
    default: str = ""

    @property
    def is_stored_as_given(self) -> bool:
        return self.default in ("", "DEFAULT")

    @property
    def is_taken(self) -> bool:
        """An INSERT may give it. EPHEMERAL is what others are made of."""
        return self.is_stored_as_given or self.default == "EPHEMERAL"


@dataclass(frozen=True, slots=True)
class Shard:
    """`replica` is the one that was chosen for this job, from `replicas`; `version` is its server's, and
    `engine` that of the local table there."""

    number: int
    weight: int
    replicas: tuple[Server, ...]
    replica: Server
    version: tuple[int, ...]
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`table` is the local one. `keeper_paths` are those of its shards, empty where it is not replicated.
    `sorting_key` has the directions where one is DESC. `settings` are those of its own that decide what it
    may look like, `ttl` is what removes its rows when they are old. `window` is of blocks that it knows.

    `sign_and_version` are the columns of a VersionedCollapsingMergeTree, whose parts only its like takes.
    `views` are the materialized views that read what is inserted into the local tables, and
    `views_over_distributed` those of the Distributed one, whose columns are `columns_of_distributed` if it
    has a sharding key. `years` are those that Date32 and DateTime64 hold on every shard, where there are any.
    """

    name: TableName
    table: TableName
    shards: tuple[Shard, ...]
    sharding_key: str
    placement: Placement
    columns: tuple[Column, ...]
    engine: str
    partition_key: str
    sorting_key: str
    primary_key: str
    settings: str
    keeper_paths: tuple[str, ...]
    timezone: str
    window: Window
    ttl: str = ""
    sign_and_version: str = ""
    views: str = ""
    views_over_distributed: str = ""
    columns_of_distributed: tuple[Column, ...] = ()
    years: Years = FEW_YEARS

    @property
    def is_replicated(self) -> bool:
        return self.engine.startswith("Replicated")

    @property
    def keeps_every_row(self) -> bool:
        """Merges remove none, as those of the table's relatives do, and of tables whose rows get too old."""
        return self.engine in ("MergeTree", "ReplicatedMergeTree") and not self.ttl

    @property
    def version(self) -> tuple[int, ...]:
        """The oldest of all shards'."""
        return min(shard.version for shard in self.shards)

    @property
    def is_old(self) -> bool:
        """Servers before codecs, hashes in system.parts and deduplication tokens (before 20.3)."""
        return self.version < (20, 3)

    @property
    def ends_of_slots(self) -> tuple[int, ...]:
        """By shard, the slot behind its last one; the last of them is how many there are, maybe billions."""
        weights = [shard.weight for shard in self.shards]
        slot_count(weights)
        return tuple(accumulate(weights))

    @property
    def owners(self) -> tuple[int, ...]:
        """The shards (from 0) that get rows. Raises SqlError 36 when there is none."""
        slot_count([shard.weight for shard in self.shards])
        return tuple(number for number, shard in enumerate(self.shards) if shard.weight)

    def require_replication(self) -> None:
        """Raises ConfigError where a shard has several replicas and rows would stay on the one written."""
        for shard in self.shards:
            if len(shard.replicas) > 1 and not shard.engine.startswith(("Replicated", "Shared")):
                raise ConfigError(
                    f"{self.table} on {shard.replica} is a {shard.engine} table, which is not replicated, "
                    f"and shard {shard.number} has {len(shard.replicas)} replicas "
                    f"({', '.join(map(str, shard.replicas))}): rows would be on one of them only.",
                    hint="Make the table replicated (ReplicatedMergeTree), or name one replica of each shard "
                    "with the option shards.",
                )

    def require_parts(self) -> None:
        """Raises ConfigError where the local table does not consist of parts: nothing could be moved in."""
        for shard in self.shards:
            if not shard.engine.endswith("MergeTree"):
                raise ConfigError(
                    f"{self.table} on {shard.replica} is a {shard.engine} table, which has no parts.",
                    hint="Write to a table of the MergeTree family.",
                )

    def require_no_views(self, options: Options) -> None:
        """Raises ConfigError where a materialized view would miss the rows."""
        passed_by = [self.views_over_distributed] if self.views_over_distributed else []
        if self.views and options.delivery is Delivery.STAGED:
            passed_by.append(self.views)
        if passed_by and options.materialized_views is Views.REFUSED:
            raise ConfigError(
                f"Materialized views of {self.name} would miss the rows, which are no INSERT into it: "
                f"{', '.join(passed_by)}.",
                hint="Views of the local tables see what delivery=direct appends. With "
                'materialized_views="left out" the rows are written, and the views stay as they are.',
            )

    def with_coordinator(self, server: Server) -> Target:
        """With this replica of the first shard chosen."""
        return replace(self, shards=(replace(self.shards[0], replica=server), *self.shards[1:]))

    def of_plan(self, servers: Sequence[Server]) -> Target:
        """With the shards on whose replicas `servers` a job has staged, in their order: the cluster may have
        got others since. Raises NodeUnavailable when one that is no longer of the cluster does not answer."""
        if all(one in shard.replicas for one, shard in zip(servers, self.shards, strict=False)) and (
            len(servers) == len(self.shards)
        ):
            return self
        shards, paths = list[Shard](), list[str]()
        for number, server in enumerate(servers, start=1):
            at = next((at for at, shard in enumerate(self.shards) if server in shard.replicas), None)
            if at is None:
                alone = Shard(number, 1, (server,), server, self.version, self.engine)
                shards.append(alone)
                paths.append(_in_keeper(server, self.table)[0] if self.is_replicated else "")
            else:
                shards.append(replace(self.shards[at], number=number))
                paths.append(self.keeper_paths[at])
        return replace(self, shards=tuple(shards), keeper_paths=tuple(paths))

    def altered_on(self, server: Server) -> Target:
        """With the columns and keys that the table has there now."""
        seen = _look((server,), self.table, None)
        return replace(self, columns=seen.columns, **_structure(seen.facts))

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @classmethod
    def find(cls, options: Options, *, beside: Callable[[Server], None] | None = None) -> Target:
        """Ask the servers; `beside` is called with each replica that is chosen, while it is asked.

        Raises SqlError 60, ConfigError, NodeUnavailable, and as `beside` does.
        """
        if options.shards:
            shards = options.shards
            local, key, over, declared = options.table, options.sharding_key, "", tuple[Column, ...]()
        else:
            asked = first_to_answer(options.servers)
            definition, over = _definition(asked, options.table)
            key = options.sharding_key or definition.sharding_key
            declared = columns_of(asked, options.table) if key else ()
            shards, databases = shards_of(asked, definition.cluster, options)
            local = TableName(
                definition.database or default_database(databases, options.table), definition.table
            )
        try:
            with ThreadPoolExecutor(len(shards)) as pool:
                seen = list(pool.map(lambda shard: _look(shard[1], local, beside), shards))
        except NodeUnavailable as error:
            if not options.shards and not options.cluster_file:
                error.hint = _ASKED_FOR_ADDRESSES
            raise
        chosen = tuple(
            Shard(number, weight, replicas, one.replica, _version(one.facts["version"]), one.facts["engine"])
            for number, ((weight, replicas), one) in enumerate(zip(shards, seen, strict=True), start=1)
        )
        facts, columns = seen[0].facts, seen[0].columns
        for one in seen[1:]:
            if one.columns != columns:
                raise SqlError(
                    Code.INCOMPATIBLE_COLUMNS,
                    f"{local} has other columns on {one.replica} than on {chosen[0].replica}: "
                    f"{_differences(columns, one.columns)}",
                    hint=_ONE_STRUCTURE,
                )
            if differing := _other_keys(facts, one.facts):
                raise SqlError(
                    Code.INCOMPATIBLE_COLUMNS,
                    f"{local} is made in another way on {one.replica} than on {chosen[0].replica}: "
                    f"{differing}.",
                    hint=_ONE_STRUCTURE,
                )
        return cls(
            name=options.table,
            table=local,
            shards=chosen,
            sharding_key=key if options.placement is Placement.BY_KEY else "",
            placement=options.placement,
            columns=columns,
            **_structure(facts),
            keeper_paths=tuple(one.keeper_path for one in seen),
            timezone=facts["timezone"],
            window=deduplication_window(facts["engine_full"], is_replicated=bool(seen[0].keeper_path)),
            views=", ".join(dict.fromkeys(one.facts["views"] for one in seen if one.facts["views"])),
            views_over_distributed=over,
            columns_of_distributed=declared,
            years=FEW_YEARS if FEW_YEARS in (one.years for one in seen) else MANY_YEARS,
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """The local table, as one replica of a shard has it."""

    replica: Server
    facts: dict[str, str]
    columns: tuple[Column, ...]
    keeper_path: str
    years: Years


def _look(replicas: Sequence[Server], local: TableName, beside: Callable[[Server], None] | None) -> _Seen:
    """On the first replica that answers; on a later one if the table of the first takes no rows now."""
    replica, facts = _facts(replicas, local)
    with ThreadPoolExecutor(2) as pool:
        description = pool.submit(columns_of, replica, local)
        other = pool.submit(beside, replica) if beside is not None else None
        is_replicated = facts["engine"].startswith("Replicated")
        keeper_path, is_readonly = _in_keeper(replica, local) if is_replicated else ("", False)
        columns = description.result()
        if other is not None:
            other.result()
    has_years = any(name in column.type for column in columns for name in ("Date32", "DateTime64"))
    years = years_of(replica) if has_years else FEW_YEARS
    seen = _Seen(replica, facts, columns, keeper_path, years)
    if is_readonly:
        later = replicas[replicas.index(replica) + 1 :]
        writable = next((one for one in later if _is_writable(one, local)), None)
        log.warning("spark.replica_is_readonly replica=%s table=%s instead=%s", replica, local, writable)
        if writable is not None:
            return _look([writable], local, beside)
    return seen


def _is_writable(server: Server, local: TableName) -> bool:
    try:
        keeper_path, is_readonly = _in_keeper(server, local)
    except (NodeUnavailable, ReplyLost, SqlError):
        return False
    return bool(keeper_path) and not is_readonly


def columns_of(server: Server, table: TableName) -> tuple[Column, ...]:
    """Raises SqlError 60."""
    rows = server.rows(f"DESCRIBE TABLE {table.quoted}")
    return tuple(Column(row["name"], row["type"], row["default_type"]) for row in rows)


def _structure(facts: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a target: what parts of the table look like."""
    full = facts["engine_full"]
    return {key: facts[key] for key in ("engine", *_KEYS)} | {
        "settings": settings(full),
        "ttl": clauses(full).get("TTL", ""),
        "sign_and_version": sign_and_version(full),
    }


def _definition(server: Server, name: TableName) -> tuple[DistributedDefinition, str]:
    """And the materialized views over it."""
    _, facts = _facts([server], name)
    if facts["engine"] != "Distributed":
        raise ConfigError(
            f"{name} on {server} is a {facts['engine']} table, not a Distributed one.",
            hint="Name the Distributed table, or list the shards with the options shards and sharding_key.",
        )
    parsed = DistributedDefinition.parse(facts["engine_full"], current_database=name.database)
    return parsed, facts["views"]


def _facts(servers: Sequence[Server], name: TableName) -> tuple[Server, dict[str, str]]:
    """Of the table and its server, the first that answers. Raises SqlError 60 or 81, NodeUnavailable."""
    server, rows = first_rows(
        servers,
        "SELECT version() AS version, timezone() AS timezone, "
        "engine, engine_full, partition_key, sorting_key, primary_key, arrayStringConcat(arrayMap("
        "(d, t) -> concat(d, '.', t), dependencies_database, dependencies_table), ', ') AS views "
        "FROM system.tables "
        f"WHERE database = {quote_string(name.database)} AND name = {quote_string(name.table)}",
    )
    if not rows:
        databases = [str(row["name"]) for row in server.rows("SELECT name FROM system.databases")]
        if name.database not in databases:
            raise SqlError(
                Code.UNKNOWN_DATABASE, f"There is no database {name.database} on {server}.",
                hint=f"Databases: {', '.join(sorted(databases))}.",
            )  # fmt: skip
        raise SqlError(Code.UNKNOWN_TABLE, f"There is no table {name} on {server}.")
    facts = {key: str(value) for key, value in rows[0].items()}
    return server, facts | descending_keys(facts["engine_full"])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _differences(ours: Sequence[Column], theirs: Sequence[Column]) -> str:
    differing = sorted({f"{column.name} {column.type}" for column in set(ours) ^ set(theirs)})
    return ", ".join(differing) or "their order"


def _other_keys(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What keeps parts of one table out of the other: they would be refused when a job is half committed."""
    found = [
        f"{name} is {theirs[name] or 'none'}, not {ours[name] or 'none'}"
        for name in _KEYS
        if _words(ours[name]) != _words(theirs[name])
    ]
    engines = ours["engine"], theirs["engine"]
    if len({engine.startswith("Replicated") for engine in engines}) > 1:
        found.append(f"engine is {engines[1]}, not {engines[0]}")
    return "; ".join(found)


def _words(key: str) -> list[str]:
    """Servers put brackets around a key, or not."""
    words = (token.text for token in tokenize(key))
    return [word for word in words if word.strip(" \n()")]


def _in_keeper(server: Server, name: TableName) -> tuple[str, bool]:
    """A Replicated table's path, and whether it takes no rows: its session has ended, or its metadata is
    gone."""
    rows = server.rows(
        "SELECT zookeeper_path, toUInt8(is_readonly OR is_session_expired) AS no FROM system.replicas "
        f"WHERE database = {quote_string(name.database)} AND table = {quote_string(name.table)}"
    )
    return (rows[0]["zookeeper_path"], bool(rows[0]["no"])) if rows else ("", False)


def column_list(names: Sequence[str]) -> str:
    return ", ".join(quote_identifier(name) for name in names)
