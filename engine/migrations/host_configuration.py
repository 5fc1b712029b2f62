"""What hosts were configured with, as far as statements depend on it: notes of a plan. Pure.

A host goes by its own file: it refuses what is sent to a cluster that it does not know (371), and a table
whose engine has a macro that it lacks (139), and its macros say where a replica is (`replica_places`). A
rehearsal has neither its clusters nor its macros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.config.membership import Shards, differing_shards, is_same_cluster
from engine.migrations.files import ScriptStatement
from engine.migrations.replica_places import Cause, Place, misplaced
from engine.names import HostId, TableName
from engine.sql import macros_in, parse_statement, tokenize
from engine.sql.engine_clause import behind_engine, string_arguments
from engine.wording import enumerated, listed

_ALWAYS_THERE = frozenset({"database", "table", "uuid", "server_uuid"})
"""What stands for something of the table or of the server."""


@dataclass(frozen=True, slots=True)
class HostConfiguration:
    """One host's. `shards` are those of the folder's cluster, none if the host does not know it. Of the
    default place of a replicated engine without arguments servers before ClickHouse 24 say nothing."""

    shards: Shards
    macros: Mapping[str, str]
    default_place: Place | None = None


def other_clusters(
    cluster: str, ours: Shards, configurations: Mapping[HostId, HostConfiguration]
) -> Iterator[str]:
    """Notes on hosts that mean other hosts by the cluster's name than we do; those that agree share one."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, theirs in configurations.items():
        if theirs.shards and not is_same_cluster(ours, theirs.shards):
            alike[tuple(differing_shards(ours, theirs.shards))].append(host.readable)
        elif not theirs.shards:
            yield f"{host.readable} does not know the cluster {cluster}: it will refuse the statements (371)."
    for differences, hosts in alike.items():
        yield (
            f"By {cluster} {enumerated(hosts)} {'mean' if len(hosts) > 1 else 'means'} other hosts than this "
            f"configuration: {listed(differences)}."
        )


def missing_macros(
    statement: ScriptStatement, configurations: Mapping[HostId, HostConfiguration]
) -> dict[str, list[HostId]]:
    """By each macro of the statement's engine that is not everywhere, the hosts without it."""
    missing: dict[str, list[HostId]] = defaultdict(list)
    for host, its in configurations.items():
        needed = {name for text in _texts(statement.sql, its) for name in macros_in(text)}
        for name in needed - _ALWAYS_THERE - its.macros.keys():
            missing[name].append(host)
    return dict(sorted(missing.items()))


def misplaced_replicas(
    statement: ScriptStatement,
    table: TableName,
    shards: Shards,
    configurations: Mapping[HostId, HostConfiguration],
) -> Iterator[tuple[Cause, str]]:
    """What is wrong with where the statement's replicas would be, with a clause about it."""
    if not (parse_statement(statement.sql).engine or "").startswith("Replicated"):
        return
    texts = {host: _texts(statement.sql, its) for host, its in configurations.items()}
    places = {host: (found[0], found[1]) for host, found in texts.items() if len(found) > 1}
    yield from misplaced(table, places, {host: its.macros for host, its in configurations.items()}, shards)


def _texts(sql: str, configuration: HostConfiguration) -> Sequence[str]:
    """The strings that open the arguments of a replicated or a Distributed engine, or the defaults of a
    replicated one without a path."""
    engine = parse_statement(sql).engine or ""
    if not (engine.startswith("Replicated") or engine == "Distributed"):
        return ()
    strings = string_arguments(behind_engine(tokenize(sql), engine))
    if engine.endswith("MergeTree") and len(strings) < 2:
        return configuration.default_place or ()
    return strings
