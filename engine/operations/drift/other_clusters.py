"""What the migrations of other clusters make on hosts of this one: hosts may be in several clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.names import HostId
from engine.operations.drift.explain import LedgerView, mentions, read_ledger
from engine.operations.drift.model import Drift, DriftKind, ObjectName
from engine.operations.site import Site


def other_ledgers(site: Site) -> dict[frozenset[HostId], LedgerView]:
    """What the migrations of the other clusters with hosts of this one say, by their hosts."""
    found: dict[frozenset[HostId], LedgerView] = {}
    for name, cluster in site.config.topology.clusters.items():
        hosts = frozenset(cluster.host_ids)
        if name != site.cluster and hosts & set(site.hosts):
            known = found.get(hosts, LedgerView({}))
            read = read_ledger(site.ledger_url, name, site.env).records
            records = dict(enumerate([*known.records.values(), *read.values()]))
            found[hosts] = LedgerView(records)
    return found


def objects_of_others(site: Site) -> frozenset[ObjectName]:
    """What other clusters' migrations make, and those of this one do not. Reads the ledger."""
    ledger = read_ledger(site.ledger_url, site.cluster, site.env)
    return frozenset(_wanted_elsewhere(ledger, other_ledgers(site)))


def concerning_this_cluster(
    drifts: Iterable[Drift], ledger: LedgerView, others: Mapping[frozenset[HostId], LedgerView]
) -> tuple[Drift, ...]:
    """Without what lacks on a host, or is there alone, because the migrations of another cluster make it, and
    this cluster's do not. `others` have the hosts of theirs."""
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


def _wanted_elsewhere(
    ledger: LedgerView, others: Mapping[frozenset[HostId], LedgerView]
) -> dict[ObjectName, set[HostId]]:
    """By object, the hosts of the clusters that make it."""
    own = mentions(ledger.records.values())
    wanted: dict[ObjectName, set[HostId]] = {}
    for hosts, other in others.items():
        for name in mentions(other.records.values()):
            if name not in own:
                wanted.setdefault(name, set()).update(hosts)
    return wanted
