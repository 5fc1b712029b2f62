"""Paths of tables in Keeper without a replica: dropped half-way, made half-way, or left by older servers.

Safety argument. Such a path holds no data, and it keeps everybody from making a table there. It goes only if
no host has a table at that path and it has been so for `leftover_after_s`. A host that gives no answer may
have one, unless a person says that it is gone.
1. `replicas` without children: one transaction removes `replicas`, which fails as soon as there is one, and
   makes `dropped` with the lock, after which nobody can join.
2. `dropped` is there: who dropped the table has died. The lock is taken; while somebody holds it, nothing.
3. Some nodes of a table without `replicas` and `dropped`: only where `metadata` or `columns` say by their
   text that this was a table. One transaction makes `dropped`, and fails if `replicas` has appeared.
Then everything goes under the lock, as with DROP TABLE (`engine.replication.commands.drop`); a crash leaves
`dropped`, and whoever comes next goes on, a server that makes the table included.
What only looks like a table, because directories have such names, is told by what is below them: nothing that
has the nodes of a table may stand inside.

It never touches a path with a replica, nor anything above the path.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from engine.errors import KeeperAnswer, MultiFailed
from engine.keeper.base import Create, Keeper, Node, Remove
from engine.operations.act import Act, ActResult, ActState, Danger
from engine.operations.cleanup.found import Found
from engine.operations.cleanup.owners import Owners, ask_owners
from engine.operations.cleanup.settings import CleanupSettings, GoneHost
from engine.operations.cleanup.table_tree import TableForm, TableInKeeper, Tree, read_table
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.site import Site
from engine.replication.commands.drop import finish_dropping, remove_table_without_replicas
from engine.wording import duration, listed

_OF_TABLES = frozenset({"replicas", "metadata", "columns"})
_TEXTS = {"metadata": b"metadata format version:", "columns": b"columns format version:"}


class TableAct(enum.StrEnum):
    """Acts of this kind."""

    WITHOUT_REPLICAS = "remove-table-without-replicas"
    HALF_DROPPED = "finish-dropping-table"
    REMAINS = "remove-remains-of-table"


_WHAT = {
    TableAct.WITHOUT_REPLICAS: "Remove the table at {} from Keeper: it has no replica.",
    TableAct.HALF_DROPPED: "Finish the removal of the table at {} from Keeper.",
    TableAct.REMAINS: "Remove what is left of a table at {} from Keeper.",
}


async def plan_tables(
    site: Site, settings: CleanupSettings, tree: Tree, owners: Owners, *, now_ms: int
) -> Found:
    """The paths that are tables for nobody."""
    acts: list[Act] = []
    findings: list[Finding] = []
    notes: list[str] = list(tree.notes)
    having = owners.paths
    for table in tree.tables:
        if table.replicas or table.path in having:
            continue
        kind = await _kind(site.keeper, table)
        if kind is None:
            notes.append(
                f"{table.path} looks like a table and is none that can be told for certain; it stays."
            )
            continue
        since_ms = await _since_ms(site.keeper, table)
        old_s = (now_ms - since_ms) / 1000
        if old_s < settings.leftover_after_s:
            continue
        findings.append(_finding(site, table, kind, since_ms))
        if silent := owners.not_asked(settings.gone):
            notes.append(f"{table.path} stays: {listed(silent)} does not answer, and may have a table there.")
            continue
        acts.append(
            Act(
                kind=kind,
                subject=table.path,
                what=_WHAT[kind].format(table.path),
                why=f"It is so for {duration(old_s)}, none of the {len(owners.hosts)} hosts that were asked "
                "has a table there, and none can be made there.",
                payload={
                    "table": table.path,
                    "gone": [[word.name, word.reason] for word in settings.gone],
                },
                danger=Danger.REPAIRS,
            )
        )
    return Found(tuple(acts), tuple(findings), tuple(notes))


async def perform_table(site: Site, act: Act) -> ActResult:
    """Raises Keeper's errors."""
    keeper, path = site.keeper, str(act.payload["table"])
    table = await read_table(keeper, path)
    if table is None:
        return ActResult(ActState.NOT_NEEDED, "It is gone.")
    if table.replicas:
        return ActResult(ActState.REFUSED, f"It has {len(table.replicas)} replicas.")
    kind = await _kind(keeper, table)
    if kind is None:
        return ActResult(ActState.REFUSED, "It is not certain that this is a table.")
    owners = await ask_owners(site)
    if path in owners.paths:
        return ActResult(ActState.REFUSED, "A host has a table there.")
    gone = tuple(GoneHost(str(name), str(reason)) for name, reason in act.payload["gone"])
    if silent := owners.not_asked(gone):
        return ActResult(ActState.REFUSED, f"{listed(silent)} does not answer.")
    match kind:
        case TableAct.WITHOUT_REPLICAS:
            is_removed = await remove_table_without_replicas(keeper, table.paths)
        case TableAct.HALF_DROPPED:
            is_removed = await finish_dropping(keeper, table.paths)
        case TableAct.REMAINS:
            is_removed = await _remove_remains(keeper, table)
    if not is_removed:
        return ActResult(ActState.REFUSED, "A replica has appeared.")
    if await keeper.exists(table.paths.dropped_lock) is not None:
        return ActResult(ActState.REFUSED, "Somebody else is removing it.")
    return ActResult(ActState.DONE)


async def _remove_remains(keeper: Keeper, table: TableInKeeper) -> bool:
    paths = table.paths
    try:
        await keeper.multi([Create(paths.replicas), Remove(paths.replicas), Create(paths.dropped)])
    except MultiFailed as failed:
        if failed.index == 0:
            return False
        # `dropped` has come since: somebody has the same in mind.
    return await finish_dropping(keeper, paths)


async def _kind(keeper: Keeper, table: TableInKeeper) -> TableAct | None:
    """None where it is not certain that there was a table."""
    children = [f"{table.path}/{name}" for name in sorted(table.nodes) if name != "dropped"]
    if not await _is_nothing_inside(keeper, children):
        return None
    match table.form:
        case TableForm.TABLE:
            return TableAct.WITHOUT_REPLICAS
        case TableForm.DROPPING:
            dropped = await keeper.children_many([table.paths.dropped])
            names = [
                name for answer in dropped if not isinstance(answer, KeeperAnswer) for name in answer.names
            ]
            return TableAct.HALF_DROPPED if set(names) <= {"lock"} else None
        case TableForm.REMAINS:
            return TableAct.REMAINS if await _is_text_of_table(keeper, table) else None


async def _is_nothing_inside(keeper: Keeper, children: Sequence[str]) -> bool:
    """No child has what only a table has: then it is not a directory of tables with names like these."""
    listed = await keeper.children_many(children)
    return not any(
        _OF_TABLES.intersection(answer.names) for answer in listed if not isinstance(answer, KeeperAnswer)
    )


async def _is_text_of_table(keeper: Keeper, table: TableInKeeper) -> bool:
    names = [name for name in _TEXTS if name in table.nodes]
    nodes = await keeper.get_many([f"{table.path}/{name}" for name in names])
    return any(
        isinstance(node, Node) and node.data.startswith(_TEXTS[name])
        for name, node in zip(names, nodes, strict=True)
    )


async def _since_ms(keeper: Keeper, table: TableInKeeper) -> int:
    """The latest time at which anything of it was made or written."""
    stats = await keeper.exists_many([table.path, *(f"{table.path}/{name}" for name in sorted(table.nodes))])
    return max((stat.mtime_ms for stat in stats if stat is not None), default=table.stat.mtime_ms)


def _finding(site: Site, table: TableInKeeper, kind: TableAct, since_ms: int) -> Finding:
    what = {
        TableAct.WITHOUT_REPLICAS: "has no replica",
        TableAct.HALF_DROPPED: "was dropped half-way",
        TableAct.REMAINS: "is what is left of a table",
    }[kind]
    return Finding(
        FindingKind.HALF_CREATED_TABLE,
        Severity.WARNING,
        site.cluster,
        f"{table.path} in Keeper {what}: a CREATE TABLE with this path may fail or hang.",
        "`oncluster cleanup plan --kind tables` shows what removes it.",
        subject=table.path,
        evidence={"nodes": len(table.nodes), "last_written_ms": since_ms},
        since_ms=since_ms,
    )
