"""The rows of a cluster's tables, as counts and sums of hashes per partition. Only reads.

Each row is counted once: of a replicated table one replica of each path in Keeper is asked, of other tables
one host of each shard. So two clusters may be compared that have different numbers of shards and replicas,
and whose parts were merged differently; a table that merges rows away (Replacing, …) is read with FINAL.

Rows are hashed by the servers, column by column in the order of their names, NULL told apart from any value.
Columns of aggregate states are not hashed, and tables whose rows are not read are not compared; notes say so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from engine.client import NodeClient
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId, TableName, quote_identifier, quote_string
from engine.operations.drift.model import ObjectName, Schemas, Space
from engine.operations.drift.normalise import Definition
from engine.operations.site import Site
from engine.operations.standby.model import (
    WHOLE_TABLE,
    DataDepth,
    PartitionSum,
    PartitionSums,
    TableData,
)

_IS_READ_WITH_FINAL = re.compile(r"\w*?(?:Replacing|Summing|Aggregating|Coalescing|Collapsing)MergeTree")
_NO_PARTITION_ID = frozenset({Code.UNKNOWN_IDENTIFIER, Code.NO_SUCH_COLUMN_IN_TABLE, 8, 10})
_UNHASHED = re.compile(r"(?<!Simple)AggregateFunction\(|Object\(")
_OF_SEVERAL_TYPES = re.compile("Variant|Dynamic|JSON")
_OTHER_ROWS = ("Log", "TinyLog", "StripeLog", "Memory", "EmbeddedRocksDB", "Join")
_UNREAD_ROWS = ("Buffer", "File", "KeeperMap", "Set")
_TABLES_AT_ONCE = 4


def data_tables(schemas: Schemas) -> dict[TableName, Definition]:
    """The tables that hold rows of their own, and whose rows are read here."""
    tables = _tables(schemas).items()
    return {
        name: definition
        for name, definition in tables
        if definition.engine.endswith("MergeTree") or definition.engine in _OTHER_ROWS
    }


def unread_tables(schemas: Schemas) -> list[str]:
    """Those that hold rows which cannot be compared, with their engines."""
    return [f"{name} ({one.engine})" for name, one in _tables(schemas).items() if one.engine in _UNREAD_ROWS]


def _tables(schemas: Schemas) -> dict[TableName, Definition]:
    found: dict[TableName, Definition] = {}
    for host in schemas.hosts.values():
        for name, definition in host.objects.items():
            if name.space is Space.TABLE and definition.kind == "table":
                found.setdefault(TableName(name.database, name.name), definition)
    return dict(sorted(found.items()))


async def read_data(
    site: Site,
    schemas: Schemas,
    tables: Iterable[TableName],
    *,
    depth: DataDepth,
    on_table: Callable[[TableName], None] = lambda _: None,
) -> dict[TableName, TableData]:
    """The rows of these tables, a few tables at a time; `on_table` is told of each when it is read.

    Raises nothing for a host: that is in `error`.
    """
    free = asyncio.Semaphore(_TABLES_AT_ONCE)

    async def one(table: TableName) -> TableData:
        async with free:
            data = await _table_data(site, schemas, table, depth)
            on_table(table)
            return data

    found = await asyncio.gather(*(one(table) for table in tables))
    return {data.table: data for data in found}


async def _table_data(site: Site, schemas: Schemas, table: TableName, depth: DataDepth) -> TableData:
    name = ObjectName(Space.TABLE, table.database, table.table)
    total: dict[str, PartitionSum] = {}
    notes: dict[str, None] = {}
    for hosts in _groups(schemas, name):
        answer = await _first_answer(site, schemas, hosts, table, depth)
        if isinstance(answer, OnclusterError):
            return TableData(table, {}, error=str(answer))
        sums, note = answer
        if note:
            notes[note] = None
        for partition, part in sums.items():
            total[partition] = total[partition].plus(part) if partition in total else part
    return TableData(table, total, note="; ".join(notes))


def _groups(schemas: Schemas, name: ObjectName) -> list[list[HostId]]:
    """Hosts that have the same rows, in groups; who is replicated by Keeper's word, others by shard."""
    groups: dict[str, list[HostId]] = {}
    for number, shard in enumerate(schemas.shards):
        for host in shard:
            schema = schemas.hosts.get(host)
            if schema is None or name not in schema.objects:
                continue
            place = schema.places.get(name)
            groups.setdefault(f"shard {number}" if place is None else place.path, []).append(host)
    return list(groups.values())


async def _first_answer(
    site: Site, schemas: Schemas, hosts: Sequence[HostId], table: TableName, depth: DataDepth
) -> tuple[PartitionSums, str] | OnclusterError:
    """Of the first host of a group that answers."""
    error: OnclusterError | None = None
    for host in hosts:
        definition = schemas.hosts[host].objects[ObjectName(Space.TABLE, table.database, table.table)]
        try:
            return await _sums(site.client(host), table, definition, depth)
        except OnclusterError as refusal:
            error = refusal
    assert error is not None
    return error


async def _sums(
    client: NodeClient, table: TableName, definition: Definition, depth: DataDepth
) -> tuple[PartitionSums, str]:
    final = " FINAL" if _IS_READ_WITH_FINAL.fullmatch(definition.engine) else ""
    if depth is DataDepth.COUNTS and not final and definition.engine.endswith("MergeTree"):
        return await _counts(client, table), ""
    row_hash, note = "", ""
    if depth is DataDepth.HASHES:
        columns, note = await _hashed_columns(client, table)
        row_hash = f", sum(cityHash64({columns}))" if columns else ""
    try:
        found = await client.query_rows(
            f"SELECT _partition_id, count(){row_hash} FROM {table.quoted}{final} GROUP BY _partition_id"
        )
    except SqlError as error:
        if error.code not in _NO_PARTITION_ID:
            raise
        found = await client.query_rows(f"SELECT '', count(){row_hash} FROM {table.quoted}{final}")
    return {
        str(row[0]) or WHOLE_TABLE: PartitionSum(int(row[1]), int(row[2]) if row_hash else None)
        for row in found.rows
        if int(row[1])
    }, note


async def _counts(client: NodeClient, table: TableName) -> PartitionSums:
    """As the server knows them without reading, unless a lightweight DELETE has masked rows of a part."""
    parts = (
        f"FROM system.parts WHERE active AND database = {quote_string(table.database)} "
        f"AND table = {quote_string(table.table)}"
    )
    try:
        is_masked = (await client.query_rows(f"SELECT max(has_lightweight_delete) {parts}")).scalar
    except SqlError as error:
        if error.code != Code.UNKNOWN_IDENTIFIER:
            raise
        is_masked = 0  # the server is too old for such a DELETE
    if int(is_masked or 0):
        rows = (await client.query_rows(f"SELECT count() FROM {table.quoted}")).scalar
        return {WHOLE_TABLE: PartitionSum(int(rows))}
    found = await client.query_rows(f"SELECT partition, sum(rows) {parts} GROUP BY partition")
    return {str(partition): PartitionSum(int(rows)) for partition, rows in found.rows}


async def _hashed_columns(client: NodeClient, table: TableName) -> tuple[str, str]:
    """The arguments of the hash, and a note on what is left out."""
    described = await client.query_rows(
        "SELECT name, type, default_kind FROM system.columns WHERE database = "
        f"{quote_string(table.database)} AND table = {quote_string(table.table)} ORDER BY name"
    )
    hashed: list[str] = []
    left_out: list[str] = []
    for name, type_, kind in described.rows:
        if kind in ("ALIAS", "EPHEMERAL"):
            continue
        if _UNHASHED.search(type_):
            left_out.append(name)
            continue
        column = quote_identifier(name)
        # NULL makes a hash NULL, and a sum passes over it. JSON tells 5 from '5'.
        if _OF_SEVERAL_TYPES.search(type_):
            hashed += [f"isNull({column})", f"ifNull(toJSONString({column}), '')"]
        elif "Nullable" in type_:
            hashed += [f"isNull({column})", f"ifNull(toString({column}), '')"]
        else:
            hashed.append(column)
    note = f"{table}: {', '.join(left_out)} was counted and not hashed" if left_out else ""
    return ", ".join(hashed), note


def partitions_of(one: TableData, other: TableData) -> Mapping[str, tuple[PartitionSum, PartitionSum]]:
    """Both sides, partition by partition; as whole tables where either cannot tell partitions apart."""
    nothing = PartitionSum(0, 0)
    sides = [one.partitions, other.partitions]
    if any(WHOLE_TABLE in side for side in sides):
        sides = [_as_whole(side) for side in sides]
    names = sorted({name for side in sides for name in side})
    return {name: (sides[0].get(name, nothing), sides[1].get(name, nothing)) for name in names}


def _as_whole(side: PartitionSums) -> PartitionSums:
    total = PartitionSum(0, 0)
    for part in side.values():
        total = total.plus(part)
    return {WHOLE_TABLE: total}
