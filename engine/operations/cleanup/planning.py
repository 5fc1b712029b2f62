"""One plan for all kinds of rubbish, and the performer of its acts. What a kind may do stands in its file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any

from engine.operations.act import Act, ActResult, ActState, Plan
from engine.operations.carrying_out import Performer
from engine.operations.cleanup.broken_spool import SpoolAct, perform_spool, plan_spool
from engine.operations.cleanup.ddl_queue import DdlAct, perform_ddl, plan_ddl
from engine.operations.cleanup.detached_parts import DetachedAct, perform_detached, plan_detached
from engine.operations.cleanup.found import Found
from engine.operations.cleanup.half_created import TableAct, perform_table, plan_tables
from engine.operations.cleanup.keeper_clock import keeper_now_ms
from engine.operations.cleanup.owners import answers_anywhere, ask_owners
from engine.operations.cleanup.replicas import Probe, ReplicaAct, ReplicaPerformer, plan_replicas
from engine.operations.cleanup.settings import CleanupKind, CleanupSettings
from engine.operations.cleanup.table_tree import find_tables
from engine.operations.finding import FindingKind
from engine.operations.records import Seen
from engine.operations.site import Site

OPERATION = "cleanup"


async def plan_cleanup(
    site: Site,
    settings: CleanupSettings | None = None,
    kinds: Collection[CleanupKind] = (),
    *,
    probe: Probe = answers_anywhere,
) -> Plan:
    """What would go, and why; nothing of the cluster is changed. No kinds means all of them.

    `probe` says whether a host outside the configuration still answers. Raises KeeperUnavailable and Keeper's
    errors, RecordsUnavailable; hosts that do not answer are notes.
    """
    settings = settings or CleanupSettings()
    wanted = frozenset(kinds) or frozenset(CleanupKind)
    looks: list[Coroutine[Any, Any, list[Found]]] = []
    if CleanupKind.DDL in wanted:
        looks.append(_one(plan_ddl, site, settings))
    if wanted & {CleanupKind.REPLICAS, CleanupKind.TABLES}:
        looks.append(_plan_tree(site, settings, wanted, probe))
    if CleanupKind.DETACHED in wanted:
        looks.append(_one(plan_detached, site, settings))
    if CleanupKind.SPOOL in wanted:
        looks.append(_one(plan_spool, site, settings))
    found = [part for look in await _at_once(looks) for part in look]
    return Plan(
        OPERATION,
        site.cluster,
        acts=tuple(act for part in found for act in part.acts),
        findings=tuple(finding for part in found for finding in part.findings),
        notes=tuple(dict.fromkeys(note for part in found for note in part.notes)),
    )


async def _at_once(looks: Iterable[Coroutine[Any, Any, list[Found]]]) -> list[list[Found]]:
    """What each has found: a host that hangs is waited for in each. The first error ends them all."""
    tasks = [asyncio.create_task(look) for look in looks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(
    look: Callable[[Site, CleanupSettings], Awaitable[Found]], site: Site, settings: CleanupSettings
) -> list[Found]:
    return [await look(site, settings)]


async def _plan_tree(
    site: Site, settings: CleanupSettings, wanted: Collection[CleanupKind], probe: Probe
) -> list[Found]:
    """Of replicas and tables, which rest on the same look at hosts and Keeper."""
    owners = await ask_owners(site)
    tree = await find_tables(site, settings, owners.paths)
    now_ms = await keeper_now_ms(site)
    found: list[Found] = []
    if CleanupKind.REPLICAS in wanted:
        found.append(await plan_replicas(site, settings, tree, owners, now_ms=now_ms, probe=probe))
    if CleanupKind.TABLES in wanted:
        found.append(await plan_tables(site, settings, tree, owners, now_ms=now_ms))
    return found


def cleanup_performer(site: Site, *, probe: Probe = answers_anywhere) -> Performer:
    """For `carry_out`. What the plan's settings said stands in its acts; ages are looked at again."""
    replicas = ReplicaPerformer(site, probe=probe)

    async def perform(act: Act) -> ActResult:
        if act.kind in tuple(DdlAct):
            return await perform_ddl(site, act)
        if act.kind in tuple(ReplicaAct):
            return await replicas(act)
        if act.kind in tuple(TableAct):
            return await perform_table(site, act)
        if act.kind in tuple(DetachedAct):
            return await perform_detached(site, act)
        if act.kind in tuple(SpoolAct):
            return await perform_spool(site, act)
        return ActResult(ActState.REFUSED, f"No act of cleanup is called {act.kind}.")

    return perform


_FINDINGS = {
    CleanupKind.DDL: frozenset({FindingKind.EXPIRED_DDL}),
    CleanupKind.REPLICAS: frozenset({FindingKind.ORPHANED_REPLICA, FindingKind.DEAD_REPLICA}),
    CleanupKind.TABLES: frozenset({FindingKind.HALF_CREATED_TABLE}),
    CleanupKind.DETACHED: frozenset({FindingKind.OLD_DETACHED_PARTS}),
}
"""What a look at a kind finds. Broken spool files are recorded by the health check, which looks oftener."""


def record_plan(site: Site, plan: Plan, kinds: Collection[CleanupKind] = ()) -> Seen:
    """Keep the plan's findings in the records. `kinds` are those that were planned: of them, what was not
    found again is resolved; of the others nothing is said."""
    seen = Seen()
    for kind in frozenset(kinds) or frozenset(CleanupKind):
        if kind in _FINDINGS:
            found = [finding for finding in plan.findings if finding.kind in _FINDINGS[kind]]
            part = site.records.see_findings(site.cluster, scope_of(kind), found)
            seen = Seen(
                (*seen.new, *part.new),
                (*seen.continuing, *part.continuing),
                (*seen.resolved, *part.resolved),
            )
    return seen


def scope_of(kind: CleanupKind) -> str:
    """The scope of a kind's findings in the records."""
    return f"{OPERATION}-{kind}"
