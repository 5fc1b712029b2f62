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
    names, and `default_macros` those that a replicated engine without arguments needs."""

    shards: Shards
    macros: frozenset[str]
    default_macros: frozenset[str] = frozenset()


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
    needed = _macros_of_engine(statement.sql)
    missing: dict[str, list[HostId]] = defaultdict(list)
    for host, its in configurations.items():
        for name in (its.default_macros if needed is None else needed) - _ALWAYS_THERE - its.macros:
            missing[name].append(host)
    return dict(sorted(missing.items()))


def _macros_of_engine(sql: str) -> frozenset[str] | None:
    """Those in the strings that open the arguments of a replicated or a Distributed engine; None of a
    replicated one without a path, which is the server's default."""
    engine = parse_statement(sql).engine or ""
    if not (engine.startswith("Replicated") or engine == "Distributed"):
        return frozenset()
    strings = _leading_strings(sql, engine)
    if engine.endswith("MergeTree") and len(strings) < 2:
        return None
    return frozenset(macro for text in strings for macro in macros_in(text))


def _leading_strings(sql: str, engine: str) -> list[str]:
    words = [token for token in tokenize(sql) if token.is_significant]
    found: list[str] = []
    for at, (word, opening) in enumerate(pairwise(words)):
        if word.text != engine or opening.text != "(":
            continue
        for token in words[at + 2 :]:
            if token.kind is TokenKind.STRING:
                found.append(literal_value(token))
            elif token.text != ",":
                return found
    return found
