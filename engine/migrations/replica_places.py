"""Where the macros of the hosts put the replicas of one table, if that is not what the cluster says. Pure.

A path such as `/tables/{shard}/t` is made by each host of its own macros, and nothing compares these with the
cluster's shards: hosts of one shard may make tables that know nothing of each other, and hosts of two shards
one table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from engine.config.membership import Shards
from engine.errors import SqlError
from engine.names import HostId, TableName
from engine.sql import expand_macros
from engine.wording import enumerated, listed

TELLS_SHARDS_APART = re.compile(r"\{(?:\w*shard\w*|uuid)\}")
"""A server that belongs to several clusters has a macro for each, such as `{order_shard}`."""

Place = tuple[str, str]
"""Path and replica's name of a replicated engine."""
Cause = tuple[str, ...]
"""What other tables may share: the kind of mistake, and the hosts or shards."""


def misplaced(
    table: TableName,
    texts: Mapping[HostId, Place],
    macros: Mapping[HostId, Mapping[str, str]],
    shards: Shards,
) -> Iterator[tuple[Cause, str]]:
    """What is wrong, with a clause about it. `texts` are with their macros; a host that lacks one of them is
    passed over."""
    places = {host: place for host in texts if (place := _expanded(table, texts[host], macros[host]))}
    paths = {number: _by_path(hosts, places) for number, hosts in shards.items()}
    for place, hosts in _by_place(places).items():
        if len(hosts) > 1:
            told = f"{enumerated(hosts)} are all the replica {place[1]} of {table} at {place[0]}"
            yield ("same replica", *hosts), f"{told}, which one of them makes and the others refuse (253)"
    for number, its in paths.items():
        if len(its) > 1:
            differing = listed([f"{path} on {enumerated(hosts)}" for path, hosts in its.items()])
            told = f"the replicas of shard {number} put {table} at different paths, {differing}"
            effect = "they do not replicate each other, and what runs once for the shard reaches one of them"
            yield ("apart", str(number)), f"{told}: {effect}"
    sharing: dict[str, list[str]] = defaultdict(list)
    for number, its in paths.items():
        for path in its:
            sharing[path].append(str(number))
    if all(TELLS_SHARDS_APART.search(path) for path, _ in texts.values()):
        for path, numbers in sharing.items():
            if len(numbers) > 1:
                told = f"shards {enumerated(numbers)} put {table} at one path, {path}"
                yield ("together", *numbers), f"{told}: each gets the rows of the others"


def _expanded(table: TableName, texts: Place, macros: Mapping[str, str]) -> Place | None:
    its = {**macros, "database": table.database, "table": table.table, "uuid": "{uuid}"}
    try:
        path, name = (expand_macros(text, its) for text in texts)
    except SqlError:
        return None
    return path, name


def _by_place(places: Mapping[HostId, Place]) -> dict[Place, list[str]]:
    found: dict[Place, list[str]] = defaultdict(list)
    for host, place in places.items():
        found[place].append(host.readable)
    return found


def _by_path(hosts: tuple[HostId, ...], places: Mapping[HostId, Place]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        if host in places:
            found[places[host][0]].append(host.readable)
    return found
