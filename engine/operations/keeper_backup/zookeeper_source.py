"""Which Keeper a backup is of: sessions with it, and its name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from engine.config.model import KeeperSection
from engine.env import Env
from engine.keeper import opening
from engine.operations.keeper_backup.patient import PatientKeeper

PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def patient_keeper(
    section: KeeperSection, env: Env, *, patience_s: float = PATIENCE_S
) -> AsyncIterator[PatientKeeper]:
    """Sessions with the Keeper of a configuration, as many as it takes. Raises KeeperUnavailable at once when
    there is none to be had at the start."""
    first = await opening.connect(section, env)
    await first.close()
    async with PatientKeeper(opening.factory(section, env), env, patience_s=patience_s) as keeper:
        yield keeper


def name_of(section: KeeperSection) -> str:
    """The servers, sorted, and the root of the sessions: `zk1:2181,zk2:2181/clickhouse`."""
    servers = sorted(f"{host}:{port}" for host, port in section.hosts)
    return ",".join(servers) + section.root.rstrip("/")
