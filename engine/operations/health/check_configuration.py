"""Checks what hosts were configured with: all of them have to know the same cluster, as we do, and no two may
take themselves for the same host or replica.

Where the queue is in Keeper no host tells: one that looks elsewhere is found by entries that wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from engine.config.health_model import HealthSettings
from engine.config.membership import Shards, differing_shards, is_same_cluster
from engine.names import HostId
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, HostFacts
from engine.operations.health.making import finding
from engine.wording import listed

_REPLICA = "replica"
"""The macro that tells replicas of one table apart, in ClickHouse's own default_replica_name, too."""


def check_configuration(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """CONFIG_DIFFERS."""
    alike: dict[tuple[tuple[str, str], ...], list[HostId]] = defaultdict(list)
    for host in facts.hosts.values():
        theirs = host.configuration.shards
        if theirs is not None and not is_same_cluster(facts.shards, theirs):
            yield _other_cluster(facts, host, theirs)
        itself = host.configuration.itself or frozenset()
        if itself and host.host not in itself and itself & facts.hosts.keys():
            yield _another_host(facts, host, sorted(itself))
        macros = host.configuration.macros or {}
        if _REPLICA in macros:
            alike[tuple(sorted(macros.items()))].append(host.host)
    for same, hosts in alike.items():
        if len(hosts) > 1:
            yield _one_replica(facts, dict(same), hosts)


def _other_cluster(facts: ClusterFacts, host: HostFacts, theirs: Shards) -> Finding:
    name = host.host.readable
    if theirs:
        differing = listed(differing_shards(facts.shards, theirs))
        what = f"{name} knows another {facts.cluster} than we do: {differing}."
    else:
        what = f"{name} does not know the cluster {facts.cluster}, to which it belongs here."
    return finding(
        facts,
        FindingKind.CONFIG_DIFFERS,
        Severity.WARNING,
        what,
        "Make <remote_servers> of all servers and of this configuration the same: ON CLUSTER, Distributed "
        "tables and checks go by it.",
        host=host.host,
        subject="remote_servers",
    )


def _another_host(facts: ClusterFacts, host: HostFacts, itself: list[HostId]) -> Finding:
    name, other = host.host.readable, listed([each.readable for each in itself])
    return finding(
        facts,
        FindingKind.CONFIG_DIFFERS,
        Severity.CRITICAL,
        f"What answers at {name} takes itself for {other}: it carries out ON CLUSTER statements for {other}, "
        f"perhaps in its place, and none for {name}.",
        "Give each server its own name, that by which <remote_servers> knows it: <host_name> of a node, the "
        "machine's name or address of a ClickHouse server. Is it the right server for that name, correct the "
        "address over which it was asked (<http_addresses>).",
        host=host.host,
        subject="host_name",
    )


def _one_replica(facts: ClusterFacts, macros: Mapping[str, str], hosts: list[HostId]) -> Finding:
    names = [host.readable for host in hosts]
    said = listed([f"{name}={text}" for name, text in macros.items()], most=5)
    return finding(
        facts,
        FindingKind.CONFIG_DIFFERS,
        Severity.WARNING,
        f"{listed(names)} have the same macros ({said}): each takes itself for the same replica.",
        f"Give each of them a {{{_REPLICA}}} of its own in <macros>. Until then a replicated table whose "
        "path is made of macros can be on one of them only.",
        subject=f"macros of {', '.join(names)}",
    )
