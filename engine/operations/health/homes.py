"""Where a replica that Keeper knows should be running.

A replica's node in Keeper has its server's interserver name, which need not be what the cluster calls that
host; several servers behind one address even write the same. So other replicas, which a host and Keeper both
know, are asked for help: by their address, and by their name, which a server gives to all of its replicas.
Behind an address that several hosts share may be one more, which has lost all of its replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass

from engine.names import HostId
from engine.operations.health.facts import ClusterFacts, RegisteredReplica


@dataclass(frozen=True, slots=True)
class Homes:
    """What the replicas that hosts have told of say about addresses and names."""

    hosts: Set[HostId]
    by_address: Mapping[HostId, Set[HostId]]
    by_name: Mapping[str, Set[HostId]]
    by_path: Mapping[str, Set[HostId]]

    @classmethod
    def of(cls, facts: ClusterFacts) -> Homes:
        by_address: dict[HostId, set[HostId]] = defaultdict(set)
        by_name: dict[str, set[HostId]] = defaultdict(set)
        by_path: dict[str, set[HostId]] = defaultdict(set)
        for host in facts.hosts:
            by_name[host.host].add(host)
        for told_by, replica in facts.replicas():
            by_name[replica.name].add(told_by.host)
            by_path[replica.path].add(told_by.host)
            registered = facts.registered(replica)
            if registered is not None and registered.host is not None:
                by_address[registered.host].add(told_by.host)
        empty = facts.hosts.keys() - {told_by.host for told_by, _ in facts.replicas()}
        for hosts in by_address.values():
            if len(hosts) > 1:
                hosts |= empty
        return cls(facts.hosts.keys(), by_address, by_name, by_path)

    def home_of(self, path: str, replica: RegisteredReplica) -> HostId | None:
        """The one host that it can be; None where none or several can. A host that has another replica of
        the table is not it."""
        if replica.host in self.hosts:
            return replica.host
        taken = self.by_path.get(path, frozenset())
        by_address = self.by_address.get(replica.host, frozenset()) if replica.host else frozenset()
        by_name = self.by_name.get(replica.name, frozenset())
        told = [names - taken for names in (by_address, by_name) if names - taken]
        candidates = frozenset[HostId]().union(*told) if len(told) < 2 else told[0] & told[1]
        return next(iter(candidates)) if len(candidates) == 1 else None
