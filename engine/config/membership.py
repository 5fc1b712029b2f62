"""Whether two configurations mean the same hosts by one cluster's name, and where they differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from engine.names import HostId

Shards = Mapping[int, tuple[HostId, ...]]
"""A cluster's hosts by the number of their shard. The order of a shard's replicas is its own matter."""


def is_same_cluster(ours: Shards, theirs: Shards) -> bool:
    return _members(ours) == _members(theirs)


def differing_shards(ours: Shards, theirs: Shards) -> list[str]:
    """A clause for each shard that has other hosts there than here."""
    here, there = _members(ours), _members(theirs)
    return [
        f"shard {number} is {_named(theirs, number)} there and {_named(ours, number)} here"
        for number in sorted({*theirs, *ours})
        if there.get(number) != here.get(number)
    ]


def _members(shards: Shards) -> dict[int, frozenset[HostId]]:
    return {number: frozenset(hosts) for number, hosts in shards.items()}


def _named(shards: Shards, number: int) -> str:
    return " + ".join(host.readable for host in shards.get(number, ())) or "nothing"
