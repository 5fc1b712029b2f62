"""What the migrations of other clusters make on hosts of this one: hosts may be in several clusters."""

from __future__ import annotations

from collections.abc import Iterable

from engine.names import HostId
from engine.operations.drift.explain import LedgerView, OtherLedger, mentions, read_ledger
from engine.operations.drift.model import Drift, DriftKind, ObjectName
from engine.operations.site import Site


def other_ledgers(site: Site) -> tuple[OtherLedger, ...]:
    """What the migrations of the other clusters with hosts of this one say."""
    return tuple(
        OtherLedger(name, frozenset(cluster.host_ids), read_ledger(site.ledger_url, name, site.env))
        for name, cluster in site.config.topology.clusters.items()
        if name != site.cluster and set(cluster.host_ids) & set(site.hosts)
    )


def objects_of_others(site: Site) -> frozenset[ObjectName]:
    """What other clusters' migrations make, and those of this one do not. Reads the ledger."""
    ledger = read_ledger(site.ledger_url, site.cluster, site.env)
    return frozenset(_wanted_elsewhere(ledger, other_ledgers(site)))


def concerning_this_cluster(
    drifts: Iterable[Drift], ledger: LedgerView, others: Iterable[OtherLedger]
) -> tuple[Drift, ...]:
    """Without what lacks on a host, or is there alone, because the migrations of another cluster make it, and
    this cluster's do not."""
    wanted = _wanted_elsewhere(ledger, others)

    def is_meant(drift: Drift) -> bool:
        hosts = wanted.get(drift.object)
        if hosts is None:
            return False
        match drift.kind:
            case DriftKind.MISSING:
                return drift.host not in hosts
            case DriftKind.EXTRA:
                return drift.host in hosts
            case _:
                return False

    return tuple(drift for drift in drifts if not is_meant(drift))


def _wanted_elsewhere(ledger: LedgerView, others: Iterable[OtherLedger]) -> dict[ObjectName, set[HostId]]:
    """By object, the hosts of the clusters that make it."""
    own = mentions(ledger.records.values())
    wanted: dict[ObjectName, set[HostId]] = {}
    for other in others:
        for name in mentions(other.ledger.records.values()):
            if name not in own:
                wanted.setdefault(name, set()).update(other.hosts)
    return wanted
