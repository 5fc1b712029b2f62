"""Where hosts differ from one another and from Keeper. Pure.

What is right? Not this module decides but the hosts: the definition that most of them have is wanted; where
two have equally many, that of Keeper, and then that of the host that comes first in the configuration. An
object that at least half of the hosts have is missing on the others; one that fewer have is extra there. Only
hosts that answer are counted; whether the others could turn it round stands in each drift (`is_settled`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from engine.errors import MalformedEntry
from engine.names import HostId
from engine.operations.drift.model import (
    Drift,
    DriftKind,
    HostSchema,
    KeeperTable,
    ObjectName,
    PartDifference,
    Schemas,
)
from engine.operations.drift.normalise import Definition, canonical_text
from engine.replication.columns import Columns
from engine.replication.table_metadata import TableMetadata, differences


def find_drift(schemas: Schemas) -> tuple[Drift, ...]:
    """Every difference, by object and then by host."""
    found: list[Drift] = []
    for name in sorted({name for host in schemas.hosts.values() for name in host.objects}):
        found += _of_object(schemas, name)
    for host in schemas.hosts.values():
        found += _of_keeper(schemas, host)
    found += _of_paths(schemas)
    return tuple(sorted(found, key=lambda drift: (drift.object, drift.host)))


def part_differences(wanted: Definition, found: Definition) -> tuple[PartDifference, ...]:
    """In the order of the wanted definition, then what is too much."""
    names = [*wanted.parts, *(name for name in found.parts if name not in wanted.parts)]
    different = [
        PartDifference(name, wanted.parts.get(name), found.parts.get(name))
        for name in names
        if not wanted.is_same(name, found)
    ]
    columns = {part.part for part in different if part.part.startswith("column ")}
    if columns and set(wanted.columns) != set(found.columns):
        # The order follows from the columns that are missing; it is told only when it is all there is.
        different = [part for part in different if part.part != "order of columns"]
    return tuple(different)


def wanted_host(schemas: Schemas, name: ObjectName) -> HostId | None:
    """A host that has the object as it should be; None where nobody has it."""
    groups: dict[str, list[HostId]] = {}
    for host, schema in schemas.hosts.items():
        if name in schema.objects:
            groups.setdefault(schema.objects[name].digest, []).append(host)
    if not groups:
        return None
    most = max(map(len, groups.values()))
    candidates = [hosts[0] for hosts in groups.values() if len(hosts) == most]
    for host in candidates:
        if len(candidates) > 1 and agrees_with_keeper(schemas, schemas.hosts[host], name):
            return host
    return candidates[0]


def _of_object(schemas: Schemas, name: ObjectName) -> Iterator[Drift]:
    reference = wanted_host(schemas, name)
    assert reference is not None
    wanted = schemas.hosts[reference].objects[name]
    having = [host for host, schema in schemas.hosts.items() if name in schema.objects]
    total = len(schemas.hosts)
    is_expected = len(having) * 2 >= total
    agree = sum(schemas.hosts[host].objects[name].digest == wanted.digest for host in having)
    others = Counter(schemas.hosts[host].objects[name].digest for host in having)
    del others[wanted.digest]
    rival, silent = max(others.values(), default=0), len(schemas.silent)
    for host, schema in schemas.hosts.items():
        found = schema.objects.get(name)
        if found is None:
            if is_expected and not _could_not_say(schema, name):
                yield Drift(
                    DriftKind.MISSING,
                    host,
                    name,
                    reference=reference,
                    agree=len(having),
                    of=total,
                    rival=total - len(having),
                    silent=silent,
                )
        elif not is_expected:
            lacking = total - len(having)
            yield Drift(
                DriftKind.EXTRA, host, name, agree=lacking, of=total, rival=len(having), silent=silent
            )
        elif found.digest != wanted.digest:
            parts = part_differences(wanted, found)
            yield Drift(
                DriftKind.DIFFERS, host, name, parts, reference, agree, total, rival=rival, silent=silent
            )


def _could_not_say(schema: HostSchema, name: ObjectName) -> bool:
    """Whether the host was not able to tell of such objects at all."""
    table = f"system.{name.space.value}s"
    if name.space.value == "function" and schema.version < (21, 10):
        return True
    return any(gap.startswith(table) for gap in schema.gaps)


# --- Keeper -----------------------------------------------------------------------------------------------


def _of_keeper(schemas: Schemas, host: HostSchema) -> Iterator[Drift]:
    for name, place in host.places.items():
        table = schemas.keeper.get(place.path)
        definition = host.objects.get(name)
        if table is None or definition is None:
            continue
        behind = _behind(table, place.replica)
        if behind:
            yield Drift(DriftKind.BEHIND, host.host, name, behind)
        parts = _column_differences(table, definition)
        # A replica that is behind says so; that its own definition is, too, is no second trouble.
        if parts and not behind:
            yield Drift(DriftKind.KEEPER, host.host, name, parts)


def _behind(table: KeeperTable, replica: str) -> tuple[PartDifference, ...]:
    own = table.replicas.get(replica)
    if own is None:
        return ()
    return tuple(
        PartDifference(f"Keeper's {leaf}", _text(shared), _text(its))
        for leaf, shared, its, is_same in (
            ("columns", table.shared.columns, own.columns, operator.eq),
            ("metadata", table.shared.metadata, own.metadata, _is_same_metadata),
        )
        if shared is not None and its is not None and not is_same(shared, its)
    )


def _is_same_metadata(shared: bytes, its: bytes) -> bool:
    """Servers of several releases in one table write fields that the others do not have."""
    if shared == its:
        return True
    try:
        return not differences(TableMetadata.from_bytes(its), TableMetadata.from_bytes(shared))
    except MalformedEntry:
        return False


def _column_differences(table: KeeperTable, definition: Definition) -> tuple[PartDifference, ...]:
    """Names and types. Servers write expressions in their own ways; these two they do not."""
    if table.shared.columns is None:
        return ()
    try:
        stored = Columns.from_bytes(table.shared.columns, where=f"{table.path}/columns")
    except MalformedEntry as error:
        return (PartDifference("Keeper's columns", str(error), None),)
    wanted = {column.name: canonical_text(column.type) for column in stored.columns}
    found = {name: definition.parts.get(f"column {name}", "") for name in definition.columns}
    different = []
    for name in {**wanted, **found}:
        its_type, text = wanted.get(name), found.get(name)
        if its_type is None or text is None or not f"{text} ".startswith(f"{its_type} "):
            different.append(PartDifference(f"column {name}", its_type, text))
    return tuple(different)


def agrees_with_keeper(schemas: Schemas, host: HostSchema, name: ObjectName) -> bool:
    """Whether the host's table has the columns that Keeper has for its shard."""
    place, definition = host.places.get(name), host.objects.get(name)
    table = schemas.keeper.get(place.path) if place else None
    return table is not None and definition is not None and not _column_differences(table, definition)


def _of_paths(schemas: Schemas) -> Iterator[Drift]:
    """Replicas of one shard have one path."""
    for shard in schemas.shards:
        hosts = [schemas.hosts[host] for host in shard if host in schemas.hosts]
        for name in sorted({name for host in hosts for name in host.places}):
            paths = {host.host: host.places[name].path for host in hosts if name in host.places}
            usual = _most_common(list(paths.values()))
            for host, path in paths.items():
                if path != usual:
                    yield Drift(DriftKind.PATH, host, name, (PartDifference("path in Keeper", usual, path),))


def _most_common(values: Sequence[str]) -> str:
    counts: Mapping[str, int] = {value: values.count(value) for value in values}
    return max(counts, key=lambda value: counts[value])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").strip().replace("\n", " | ")
