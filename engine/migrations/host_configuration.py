"""What hosts were configured with, as far as statements depend on it: notes of a plan. Pure.

A host goes by its own file: it refuses what is sent to a cluster that it does not know (371), and a table
whose engine has a macro that it lacks (139). A rehearsal has neither its clusters nor its macros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from engine.config.membership import Shards, differing_shards, is_same_cluster
from engine.migrations.files import ScriptStatement
from engine.names import HostId
from engine.sql import TokenKind, literal_value, macros_in, parse_statement, tokenize
from engine.wording import enumerated, listed

_ALWAYS_THERE = frozenset({"database", "table", "uuid", "server_uuid"})
"""What stands for something of the table or of the server."""


@dataclass(frozen=True, slots=True)
class HostConfiguration:
    """One host's. `shards` are those of the folder's cluster, none if the host does not know it; `macros` are
    names."""

    shards: Shards
    macros: frozenset[str]


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
    missing: dict[str, list[HostId]] = {}
    for name in sorted(_macros_of_engine(statement.sql) - _ALWAYS_THERE):
        hosts = [host for host, its in configurations.items() if name not in its.macros]
        if hosts:
            missing[name] = hosts
    return missing


def _macros_of_engine(sql: str) -> set[str]:
    """Those in the strings that open the arguments of a replicated or a Distributed engine."""
    engine = parse_statement(sql).engine or ""
    if not (engine.startswith("Replicated") or engine == "Distributed"):
        return set()
    words = [token for token in tokenize(sql) if token.is_significant]
    found: set[str] = set()
    for at, (word, opening) in enumerate(pairwise(words)):
        if word.text != engine or opening.text != "(":
            continue
        for token in words[at + 2 :]:
            if token.kind is TokenKind.STRING:
                found |= set(macros_in(literal_value(token)))
            elif token.text != ",":
                return found
    return found
