"""Whether a second cluster has all that the first has: every object on every host, and every row.

Two sites, each with its own configuration, Keeper and servers; nothing is changed on either. What the standby
has beyond the primary is noted and no difference. The clusters' own names may differ: where a definition
names its cluster (Distributed), each side's name counts as the same. What on the primary's hosts only the
migrations of other clusters make belongs to those, and is compared when they are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from engine.names import TableName
from engine.operations.drift.compare import find_drift, part_differences, wanted_host
from engine.operations.drift.gather import look_at_schemas
from engine.operations.drift.model import ObjectName, PartDifference, Schemas
from engine.operations.drift.normalise import Definition
from engine.operations.drift.other_clusters import objects_of_others
from engine.operations.site import Site
from engine.operations.standby.data import data_tables, partitions_of, read_data, unread_tables
from engine.operations.standby.model import (
    DataDepth,
    DataDifference,
    SchemaDifference,
    StandbyReport,
    TableData,
)
from engine.wording import listed

_OWN_NAME = "its own cluster"
_MOST_EXTRA = 10


Tell = Callable[[str], None]
"""Told in words how far the comparison is."""


async def check_standby(
    primary: Site, standby: Site, *, depth: DataDepth = DataDepth.HASHES, tell: Tell = lambda _: None
) -> StandbyReport:
    """Compare. Raises SqlError 701 for an unknown cluster; hosts that do not answer are problems."""
    tell("schemas")
    elsewhere = objects_of_others(primary)
    looks = await asyncio.gather(look_at_schemas(primary), look_at_schemas(standby))
    ours, theirs = (_without(schemas, elsewhere) for schemas in looks)
    tables = data_tables(ours)
    there = [table for table in tables if table in data_tables(theirs)]
    done: list[TableName] = []

    def on_table(table: TableName) -> None:
        done.append(table)
        tell(f"rows of {len(done)} of {len(tables) + len(there)} tables")

    our_data, their_data = await asyncio.gather(
        read_data(primary, ours, tables, depth=depth, on_table=on_table),
        read_data(standby, theirs, there, depth=depth, on_table=on_table),
    )
    problems = [*_silent("primary", ours), *_silent("standby", theirs)]
    for side, schemas in (("primary", ours), ("standby", theirs)):
        drifts = find_drift(schemas)
        if drifts:
            problems.append(f"The hosts of the {side} differ among themselves: {drifts[0].what}")
    data, failed = _data_differences(our_data, their_data)
    notes = [*ours.notes, *theirs.notes]
    notes += [data.note for side in (our_data, their_data) for data in side.values() if data.note]
    if not_compared := sorted(_names(looks[0]) & elsewhere):
        whose = "the migrations of other clusters make it, and those of this one do not"
        notes.append(f"Not compared: {listed(map(str, not_compared), most=_MOST_EXTRA)}; {whose}.")
    if unread := unread_tables(ours):
        notes.append(f"The rows of {listed(unread, most=_MOST_EXTRA)} are not compared.")
    extra = sorted(_names(theirs) - _names(ours))
    if extra:
        notes.append(f"The standby also has {listed(map(str, extra), most=_MOST_EXTRA)}.")
    return StandbyReport(
        primary.cluster,
        standby.cluster,
        depth,
        objects=len(_names(ours)),
        tables=len(tables),
        rows=sum(data.rows for data in our_data.values()),
        schema=tuple(_schema_differences(ours, theirs)),
        data=tuple(data),
        problems=(*problems, *failed),
        notes=tuple(dict.fromkeys(notes)),
    )


def _without(schemas: Schemas, names: Collection[ObjectName]) -> Schemas:
    hosts = {
        host: replace(
            schema,
            objects={name: value for name, value in schema.objects.items() if name not in names},
            places={name: value for name, value in schema.places.items() if name not in names},
        )
        for host, schema in schemas.hosts.items()
    }
    return replace(schemas, hosts=hosts)


def _names(schemas: Schemas) -> set[ObjectName]:
    return {name for host in schemas.hosts.values() for name in host.objects}


def _silent(side: str, schemas: Schemas) -> Iterator[str]:
    for error in schemas.silent.values():
        yield f"A host of the {side} was not looked at: {error}"
    if not schemas.hosts:
        yield f"No host of the {side} answers."


def _schema_differences(ours: Schemas, theirs: Schemas) -> Iterator[SchemaDifference]:
    for name in sorted(_names(ours)):
        host = wanted_host(ours, name)
        assert host is not None
        wanted = _neutral(ours.hosts[host].objects[name], ours.cluster)
        missing: list[str] = []
        different: dict[tuple[PartDifference, ...], list[str]] = {}
        for other, schema in theirs.hosts.items():
            found = schema.objects.get(name)
            if found is None:
                missing.append(other.readable)
            elif parts := part_differences(wanted, _neutral(found, theirs.cluster)):
                different.setdefault(parts, []).append(other.readable)
        if missing:
            yield SchemaDifference(name, tuple(missing))
        for parts, hosts in different.items():
            yield SchemaDifference(name, tuple(hosts), parts)


def _neutral(definition: Definition, cluster: str) -> Definition:
    """With the cluster's own name taken out of a Distributed engine."""
    engine = definition.parts.get("engine", "")
    if not engine.startswith("Distributed"):
        return definition
    own = re.compile(rf"(?<=^Distributed \( )(?:'{re.escape(cluster)}'|{re.escape(cluster)})(?= ,)")
    return replace(definition, parts={**definition.parts, "engine": own.sub(_OWN_NAME, engine)})


def _data_differences(
    ours: dict[TableName, TableData], theirs: dict[TableName, TableData]
) -> tuple[list[DataDifference], list[str]]:
    different: list[DataDifference] = []
    problems: list[str] = []
    for table, data in ours.items():
        other = theirs.get(table)
        for side, each in (("primary", data), ("standby", other)):
            if each is not None and each.error:
                problems.append(f"The rows of {table} on the {side} are not known: {each.error}")
        if data.error or (other is not None and other.error):
            continue
        if other is None:
            if data.rows:
                different.append(DataDifference(table, "", f"{data.rows} rows", "no such table"))
            continue
        for partition, (one, two) in partitions_of(data, other).items():
            hashes = (one.row_hash, two.row_hash)
            if one.rows != two.rows or (None not in hashes and hashes[0] != hashes[1]):
                different.append(DataDifference(table, partition, str(one), str(two)))
    return different, problems
