"""Where a replica that Keeper knows should be running.

A replica's node in Keeper has its server's interserver name, which need not be what the cluster calls that
host; several servers behind one address even write the same. So other replicas, which a host and Keeper both
know, are asked for help: by their address, and by their name, which a server gives to all of its replicas.
Behind an address that several hosts share may be one more, which has lost all of its replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from engine.names import HostId


@dataclass(frozen=True, slots=True)
class Told:
    """A replica that a host has told of, and the address that it has in Keeper, where that is known."""

    by: HostId
    path: str
    name: str
    address: HostId | None


@dataclass(frozen=True, slots=True)
class Homes:
    """What the replicas that hosts have told of say about addresses and names."""

    hosts: Set[HostId]
    by_address: Mapping[HostId, Set[HostId]]
    by_name: Mapping[str, Set[HostId]]
    by_path: Mapping[str, Set[HostId]]

    @classmethod
    def of(cls, hosts: Set[HostId], replicas: Iterable[Told]) -> Homes:
        by_address: dict[HostId, set[HostId]] = defaultdict(set)
        by_name: dict[str, set[HostId]] = defaultdict(set)
        by_path: dict[str, set[HostId]] = defaultdict(set)
        for host in hosts:
            by_name[host.host].add(host)
        empty = set(hosts)
        for told in replicas:
            empty.discard(told.by)
            by_name[told.name].add(told.by)
            by_path[told.path].add(told.by)
            if told.address is not None:
                by_address[told.address].add(told.by)
        for sharing in by_address.values():
            if len(sharing) > 1:
                sharing |= empty
        return cls(hosts, by_address, by_name, by_path)

    def home_of(self, path: str, name: str, address: HostId | None) -> HostId | None:
        """The one host that a replica can be of; None where none or several can. A host that has another
        replica of the table is not it."""
        if address in self.hosts:
            return address
        taken = self.by_path.get(path, frozenset())
        by_address = self.by_address.get(address, frozenset()) if address else frozenset()
        by_name = self.by_name.get(name, frozenset())
        told = [names - taken for names in (by_address, by_name) if names - taken]
        candidates = frozenset[HostId]().union(*told) if len(told) < 2 else told[0] & told[1]
        return next(iter(candidates)) if len(candidates) == 1 else None
