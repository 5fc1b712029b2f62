"""Asks all hosts for their schema, and Keeper for what replicated tables agreed on. Changes nothing.

A few statements for each host and three batches to Keeper, whatever the number of tables. Servers since 18.16
are understood: what their system tables lack is said in `gaps` and is not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.client import NodeClient
from engine.errors import KeeperAnswer, KeeperUnavailable, OnclusterError, SqlError, UnknownOutcome
from engine.keeper.base import Children, Keeper, Node
from engine.names import HostId, quote_string
from engine.operations.drift.model import (
    HostSchema,
    KeeperTable,
    ObjectName,
    Place,
    ReplicaTexts,
    Schemas,
    Space,
)
from engine.operations.drift.normalise import Definition, database_definition, normalise
from engine.operations.site import Site

_OWN_DATABASES = (
    *("system", "INFORMATION_SCHEMA", "information_schema", "_temporary_and_external_tables"),
    "_oncluster",  # where a node works on parts; see `engine.part_storage`
    "oncluster_spark",  # where loads are staged and recorded, on the replica that each of them has used
)
_INNER = ".inner_id."
"""Tables of materialized views that are named by a UUID: they come and go with their view."""

_BATCH = 1000
_WANTED = {
    "tables": ("database", "name", "engine", "create_table_query"),
    "databases": ("name", "engine"),
    "functions": ("name", "create_query", "origin"),
    "replicas": ("database", "table", "zookeeper_path", "replica_name"),
    "macros": ("macro", "substitution"),
}


async def look_at_schemas(site: Site) -> Schemas:
    """All hosts at once. Raises SqlError 701 for an unknown cluster; other trouble stands in the result."""
    answers = await site.ask_all(_ask)
    said = {host: answer for host, answer in answers.items() if isinstance(answer, _Said)}
    hosts = await asyncio.to_thread(_read, said)  # a millisecond for each text
    silent = {host: str(answer) for host, answer in answers.items() if isinstance(answer, OnclusterError)}
    keeper: Mapping[str, KeeperTable] = {}
    keeper_error = ""
    try:
        keeper = await _keeper_tables(site.keeper, hosts.values())
    except (KeeperUnavailable, UnknownOutcome) as error:
        keeper_error = str(error)
    shards = tuple(tuple(r.host_id for r in shard.replicas) for shard in site.topology_cluster.shards)
    return Schemas(site.cluster, hosts, silent, shards, keeper, keeper_error)


@dataclass(frozen=True, slots=True)
class _Said:
    """A host's answer before anything is read: of each object the text, and the engine beside it."""

    version: tuple[int, ...]
    databases: Mapping[ObjectName, str]
    texts: Mapping[ObjectName, tuple[str, str]]
    places: Mapping[ObjectName, Place]
    macros: Mapping[str, str]
    gaps: tuple[str, ...]


def _read(said: Mapping[HostId, _Said]) -> dict[HostId, HostSchema]:
    """Most hosts show the same texts, which are read once."""
    read: dict[tuple[str, str], Definition] = {}
    found: dict[HostId, HostSchema] = {}
    for host, its in said.items():
        objects = {name: database_definition(engine, "") for name, engine in its.databases.items()}
        for name, text in its.texts.items():
            if text not in read:
                read[text] = normalise(text[0], engine=text[1])
            objects[name] = read[text]
        found[host] = HostSchema(host, its.version, objects, its.places, its.macros, its.gaps)
    return found


async def _ask(host: HostId, client: NodeClient) -> _Said:
    version = await client.version()
    columns = await _columns(client)
    gaps: list[str] = []

    async def rows(
        table: str, *, where: str = "", optional: Sequence[str] = ()
    ) -> Sequence[Mapping[str, Any]]:
        known = columns.get(table, set())
        missing = [name for name in _WANTED[table] if name not in known]
        if missing:
            gaps.append(f"system.{table} has no {', '.join(missing)}")
            return []
        names = [*_WANTED[table], *(name for name in optional if name in known)]
        try:
            return (await client.query_rows(f"SELECT {', '.join(names)} FROM system.{table} {where}")).dicts()
        except SqlError as error:
            gaps.append(f"system.{table}: {error.display_text}")
            return []

    own = ", ".join(map(quote_string, _OWN_DATABASES))
    temporary = " AND NOT is_temporary" if "is_temporary" in columns.get("tables", set()) else ""
    databases = {
        ObjectName(Space.DATABASE, "", row["name"]): str(row["engine"])
        for row in await rows("databases", where=f"WHERE name NOT IN ({own}, 'default')")
    }
    texts = {
        ObjectName(Space.TABLE, row["database"], row["name"]): (
            str(row["create_table_query"]),
            str(row["engine"]),
        )
        for row in await rows("tables", where=f"WHERE database NOT IN ({own}){temporary}")
        if not row["name"].startswith(_INNER)
    }
    if version >= (21, 10):
        for row in await rows("functions", where="WHERE origin = 'SQLUserDefined'"):
            texts[ObjectName(Space.FUNCTION, "", row["name"])] = (str(row["create_query"]), "")
    places = {
        ObjectName(Space.TABLE, row["database"], row["table"]): Place(
            row["zookeeper_path"].rstrip("/"), row["replica_name"], row.get("zookeeper_name", "")
        )
        for row in await rows("replicas", optional=("zookeeper_name",))
    }
    macros: dict[str, str] = {}
    if "macros" in columns:
        macros = {row["macro"]: row["substitution"] for row in await rows("macros")}
    return _Said(version, databases, texts, places, macros, tuple(gaps))


async def look_at_object(client: NodeClient, name: ObjectName) -> Definition | None:
    """One object as it is on one host now; None if it is not there. Raises as `NodeClient.query_rows`."""
    match name.space:
        case Space.DATABASE:
            found = await client.query_rows(
                f"SELECT name, engine FROM system.databases WHERE name = {quote_string(name.name)}"
            )
            return database_definition(found.rows[0][1], "") if found.rows else None
        case Space.FUNCTION:
            found = await client.query_rows(
                "SELECT create_query, '' FROM system.functions WHERE origin = 'SQLUserDefined' AND name = "
                + quote_string(name.name)
            )
        case Space.TABLE:
            found = await client.query_rows(
                "SELECT create_table_query, engine FROM system.tables WHERE database = "
                f"{quote_string(name.database)} AND name = {quote_string(name.name)}"
            )
    return normalise(found.rows[0][0], engine=found.rows[0][1]) if found.rows else None


async def _columns(client: NodeClient) -> dict[str, set[str]]:
    names = ", ".join(map(quote_string, _WANTED))
    found = await client.query_rows(
        f"SELECT table, name FROM system.columns WHERE database = 'system' AND table IN ({names})"
    )
    columns: dict[str, set[str]] = {}
    for table, name in found.rows:
        columns.setdefault(str(table), set()).add(str(name))
    return columns


# --- Keeper -----------------------------------------------------------------------------------------------


async def _keeper_tables(keeper: Keeper, hosts: Iterable[HostSchema]) -> dict[str, KeeperTable]:
    await keeper.sync("/")  # no older than what the hosts have said
    replicas: dict[str, dict[str, None]] = {}
    for host in hosts:
        for place in host.places.values():
            if place.path.startswith("/") and place.keeper in ("", "default"):
                replicas.setdefault(place.path, {})[place.replica] = None
    paths = list(replicas)
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        listed = await keeper.children_many([f"{path}/replicas" for path in batch])
        for path, answer in zip(batch, listed, strict=True):
            if isinstance(answer, Children):
                replicas[path] |= dict.fromkeys(answer.names)
    places = [place for path, names in replicas.items() for place in (path, *_replica_paths(path, names))]
    texts = await _texts(keeper, places)
    return {
        path: KeeperTable(path, texts[path], {name: texts[f"{path}/replicas/{name}"] for name in names})
        for path, names in replicas.items()
    }


def _replica_paths(path: str, names: Iterable[str]) -> Iterable[str]:
    return (f"{path}/replicas/{name}" for name in names)


async def _texts(keeper: Keeper, places: Sequence[str]) -> dict[str, ReplicaTexts]:
    paths = [f"{place}/{leaf}" for place in places for leaf in ("columns", "metadata")]
    found: dict[str, bytes | None] = {}
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        found |= {
            path: _value(answer) for path, answer in zip(batch, await keeper.get_many(batch), strict=True)
        }
    return {place: ReplicaTexts(found[f"{place}/columns"], found[f"{place}/metadata"]) for place in places}


def _value(answer: Node | KeeperAnswer) -> bytes | None:
    return answer.data if isinstance(answer, Node) else None
