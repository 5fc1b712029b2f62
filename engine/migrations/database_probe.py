"""Which Replicated databases the hosts of a cluster have: asked before a plan and before a run. Reads only.

A host that cannot be asked is passed over, with a note: the others of the cluster have the same databases.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine.config.model import Topology
from engine.errors import OnclusterError, Refused
from engine.names import HostId


class DatabaseProbe(Protocol):
    """Asks hosts; `engine.migrations.probe` over HTTP."""

    async def replicated_databases(self, host: HostId) -> frozenset[str]:
        """Empty when nobody knows where to ask. Raises OnclusterError when the host does not answer."""
        ...


async def databases_of(
    topology: Topology, cluster: str, probe: DatabaseProbe | None
) -> tuple[frozenset[str], list[str]]:
    """The names that any host has, and what is to be said of hosts that did not answer."""
    if probe is None:
        return frozenset(), []
    try:
        hosts = topology.cluster(cluster).host_ids
    except Refused:
        return frozenset(), []
    answers = await asyncio.gather(
        *(probe.replicated_databases(host) for host in hosts), return_exceptions=True
    )
    found: set[str] = set()
    notes: list[str] = []
    for host, answer in zip(hosts, answers, strict=True):
        match answer:
            case frozenset():
                found |= answer
            case OnclusterError():
                notes.append(
                    f"{host.readable} does not say whether it has Replicated databases: {answer.message}"
                )
            case BaseException():
                raise answer
    return frozenset(found), notes
