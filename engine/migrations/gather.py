"""Looking around for a plan: presence of hosts, their backlog in the queue, sizes of tables, configurations.
Changes nothing.

Whoever cannot be asked is left out: a plan says what is known, and never fails because a node is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from engine.ddl.client import DDLQueueClient
from engine.ddl.queue_table import QueueState
from engine.errors import OnclusterError, Refused
from engine.migrations import lock
from engine.migrations.abandoned import require_gone
from engine.migrations.database_probe import DatabaseProbe, databases_of
from engine.migrations.departed import departed
from engine.migrations.errors import ChangedMigration, MigrationRefused, Problem
from engine.migrations.host_configuration import HostConfiguration
from engine.migrations.lint_databases import refused_by_databases
from engine.migrations.model import RunRequest
from engine.migrations.plan import Facts, Plan, Presence, TableFacts
from engine.migrations.plan_building import build_plan, tables_of
from engine.migrations.renamed import require_not_renamed
from engine.migrations.runner import MigrationRunner
from engine.migrations.selection import Selected, changes, select
from engine.migrations.states import MigrationRecord
from engine.names import HostId, TableName


class NodeProbe(DatabaseProbe, Protocol):
    """Asks nodes; `engine.client` over HTTP."""

    async def is_up(self, host: HostId) -> bool | None:
        """None: nobody knows where to ask."""
        ...

    async def table(self, host: HostId, table: TableName) -> TableFacts | None:
        """None: no such table there, or nobody knows. Raises OnclusterError when the node does not answer."""
        ...

    async def configuration(self, host: HostId, cluster: str) -> HostConfiguration | None:
        """None: nobody knows where to ask. Raises OnclusterError when the node does not answer."""
        ...


async def make_plan(runner: MigrationRunner, request: RunRequest, *, probe: NodeProbe | None = None) -> Plan:
    """What `runner.begin(request)` and the steps after it would do. Raises Keeper's errors.

    What forbids the run is among the plan's problems.
    """
    records = runner.ledger.records(runner.cluster)
    selected: tuple[Selected, ...] = ()
    problems: list[Problem] = []
    changed, notes = changes(runner.migrations, records)
    try:
        if not request.adopt_ledger:
            await runner.locked.check()
            require_not_renamed(runner.ledger, runner.migrations, runner.topology)
        selected = select(
            runner.migrations,
            records,
            direction=request.direction,
            target=runner.target_of(request),
            leniency=request.leniency,
        )
    except ChangedMigration:
        problems += changed
    except MigrationRefused as refusal:
        problems.append(Problem(str(runner.migrations.folder), 0, "refused", str(refusal), refusal.code))
    # At once: a host that hangs is waited for in each.
    facts, (replicated, silent) = await asyncio.gather(
        gather(runner, tables_of(selected, request), probe=probe),
        databases_of(runner.topology, runner.cluster, probe),
    )
    facts = replace(facts, still_queued=await _still_queued(runner, selected, request))
    problems += refused_by_databases(selected, request, runner.surroundings, replicated)
    said = [*map(str, notes), *silent, *_newcomers(runner, list(records.values()))]
    said += departed([row for item in selected for row in item.record.rows], runner.topology)
    return build_plan(
        runner.migrations,
        selected,
        request,
        runner.surroundings,
        facts,
        problems=problems,
        notes=said,
    )


async def gather(
    runner: MigrationRunner, tables: Sequence[TableName], *, probe: NodeProbe | None = None
) -> Facts:
    """Raises Keeper's errors; nodes that do not answer count as inactive."""
    try:
        hosts = runner.topology.cluster(runner.cluster).host_ids
    except Refused:
        hosts = ()
    presence = await _presence(runner, hosts)
    found: dict[tuple[HostId, TableName], TableFacts] = {}
    notes: list[str] = []
    configurations: dict[HostId, HostConfiguration] = {}
    if probe is not None:
        up = await asyncio.gather(*(probe.is_up(host) for host in hosts))
        for host, is_up in zip(hosts, up, strict=True):
            if is_up is not None:
                presence[host] = Presence.ACTIVE if is_up else Presence.INACTIVE
        asked = [
            (host, table) for host in hosts for table in tables if presence[host] is not Presence.INACTIVE
        ]
        answers = await asyncio.gather(*(probe.table(*pair) for pair in asked), return_exceptions=True)
        for pair, answer in zip(asked, answers, strict=True):
            match answer:
                case TableFacts():
                    found[pair] = answer
                case OnclusterError():
                    notes.append(f"{pair[0].readable} does not say how large {pair[1]} is: {answer.message}")
                case BaseException():
                    raise answer
        configurations = await _configurations(probe, runner.cluster, presence)
    held = await lock.look_for_run(runner.keeper, runner.locked.lock_path)
    return Facts(
        presence=presence,
        backlog=await _backlog(runner, hosts),
        tables=found,
        configurations=configurations,
        holder=f"{held.holder} (run {held.run_id})" if held is not None else "",
        notes=tuple(notes),
    )


async def _still_queued(
    runner: MigrationRunner, selected: Sequence[Selected], request: RunRequest
) -> dict[tuple[int, int], str]:
    """What a retry is refused for because a host that was abandoned may do its task yet."""
    found: dict[tuple[int, int], str] = {}
    if not request.leniency.retry_failed:
        return found
    client = DDLQueueClient(runner.keeper, runner.env, runner.queue.paths)
    for item in selected:
        for number in {row.statement for row in item.record.rows}:
            try:
                await require_gone(client, item.record.rows_of(number))
            except MigrationRefused as refusal:
                found[item.migration.version, number] = str(refusal)
    return found


async def _configurations(
    probe: NodeProbe, cluster: str, presence: Mapping[HostId, Presence]
) -> dict[HostId, HostConfiguration]:
    """Of those that say it; a user may not be allowed to read what they were configured with."""
    asked = [host for host, its in presence.items() if its is not Presence.INACTIVE]
    answers = await asyncio.gather(
        *(probe.configuration(host, cluster) for host in asked), return_exceptions=True
    )
    found = {}
    for host, answer in zip(asked, answers, strict=True):
        match answer:
            case HostConfiguration():
                found[host] = answer
            case None | OnclusterError():
                pass
            case BaseException():
                raise answer
    return found


async def _presence(runner: MigrationRunner, hosts: Sequence[HostId]) -> dict[HostId, Presence]:
    """From `replicas/<host>/active`. Where no host has it the servers may be too old to say."""
    paths = runner.queue.paths
    active = await runner.keeper.exists_many([paths.replica_active(host) for host in hosts])
    does_anybody_say = any(stat is not None for stat in active)
    return {
        host: Presence.ACTIVE
        if is_active is not None
        else Presence.INACTIVE
        if does_anybody_say
        else Presence.UNKNOWN
        for host, is_active in zip(hosts, active, strict=True)
    }


async def _backlog(runner: MigrationRunner, hosts: Sequence[HostId]) -> dict[HostId, int]:
    """Entries of the queue that each host has still to carry out."""
    client = DDLQueueClient(runner.keeper, runner.env, runner.queue.paths)
    waiting = dict.fromkeys(hosts, 0)
    for row in await client.queue_rows():
        if row.status not in (QueueState.INACTIVE, QueueState.ACTIVE) or row.host is None or row.port is None:
            continue
        host = HostId(row.host, row.port)
        if host in waiting:
            waiting[host] += 1
    return waiting


def _newcomers(runner: MigrationRunner, records: Sequence[MigrationRecord]) -> list[str]:
    """Hosts that joined the cluster after migrations were applied, and have none of them."""
    cluster = runner.topology.clusters.get(runner.cluster)
    applied = [r for r in records if r.state.is_in_schema and r.rows]
    if cluster is None or not applied:
        return []
    seen = {row.host for record in applied for row in record.rows}
    return [
        f"{host.readable} has none of the {len(applied)} applied migrations: it joined the cluster later."
        for host in cluster.host_ids
        if host not in seen
    ]
