"""The replicas of one table as they are now, for whoever is about to touch one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.names import HostId
from engine.operations.health.facts import ClusterFacts, HostFacts, RegisteredReplica, ReplicaFacts
from engine.operations.repair.kinds import Peers


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica: what its host says (None: no host has it) and what Keeper says (None: not registered)."""

    name: str
    host: HostId | None = None
    told: ReplicaFacts | None = None
    registered: RegisteredReplica | None = None

    @property
    def is_active(self) -> bool:
        return self.registered is not None and self.registered.is_active

    @property
    def trouble(self) -> str:
        """Why it is not healthy; empty if it is."""
        if self.registered is None:
            return "Keeper does not know it"
        if self.registered.is_lost:
            return "it is lost"
        if self.told is None:
            return "its host does not answer, or does not have it"
        if self.told.is_session_expired:
            return "its session is lost"
        if self.told.is_readonly:
            return "it is read-only"
        if not self.registered.is_active:
            return "it is not active"
        return ""


@dataclass(frozen=True, slots=True)
class TableState:
    """One table path: its replicas by name, and the hosts that were asked."""

    path: str
    exists: bool
    replicas: Mapping[str, ReplicaState]
    hosts: Mapping[HostId, HostFacts]

    def replica(self, name: str) -> ReplicaState:
        return self.replicas.get(name) or ReplicaState(name)

    def others(self, name: str) -> list[ReplicaState]:
        return [replica for other, replica in self.replicas.items() if other != name]

    def objection(self, name: str, peers: Peers) -> str:
        """Why replica `name` must not be touched now; empty if it may be."""
        others = self.others(name)
        ill = [f"{other.name} ({other.trouble})" for other in others if other.trouble]
        match peers:
            case Peers.ANY:
                return ""
            case Peers.ONE_ACTIVE:
                if not self.exists or any(other.is_active and not other.trouble for other in others):
                    return ""
                return "no other replica of its table is active and healthy: " + (
                    ", ".join(ill) or "none is there"
                )
            case Peers.ALL_HEALTHY:
                if not others:
                    return "it is the only replica: nobody has the data that it would take"
                return f"another replica of its shard is not healthy: {', '.join(ill)}" if ill else ""


def state_of(facts: ClusterFacts, path: str) -> TableState:
    """What the facts say of one table. Keeper has to have been asked for it."""
    registered = facts.keeper.tables.get(path)
    names = dict.fromkeys(registered.replicas if registered else ())
    told: dict[str, tuple[HostId, ReplicaFacts]] = {}
    for host, replica in facts.replicas():
        if replica.path == path:
            told[replica.name] = (host.host, replica)
            names[replica.name] = None
    replicas = {
        name: ReplicaState(
            name,
            host=told[name][0] if name in told else None,
            told=told[name][1] if name in told else None,
            registered=registered.replicas.get(name) if registered else None,
        )
        for name in names
    }
    return TableState(path, registered is not None and registered.exists, replicas, facts.hosts)
