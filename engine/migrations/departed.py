"""Hosts that left the configuration with a statement in hand: nobody should wait for them without knowing."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config.model import Topology
from engine.migrations.states import LedgerRow


def departed(rows: Iterable[LedgerRow], topology: Topology) -> list[str]:
    """A note for each host of `rows` that is waited for and is in no cluster any more."""
    there = {host for cluster in topology.clusters.values() for host in cluster.host_ids}
    waited_for = {row.host for row in rows if not row.state.is_final} - there
    return [
        f"{host.readable} is waited for and is in no cluster of the configuration any more. If it does "
        f"not come back: `oncluster cleanup abandon {host.readable} --reason …`."
        for host in sorted(waited_for)
    ]
