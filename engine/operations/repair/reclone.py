"""A replica whose host has lost the table: dropped from Keeper, created again, cloned from the others.

Safety argument. The host answers and does not have the table, nor has it detached, which would lose its place
in Keeper and with it rows that only it has; nobody has the replica; it is not active; all other replicas are
healthy. 1. The replica is removed from Keeper, in a way that fails when it becomes active
meanwhile (`drop_dead_replica`). What it had that the others have not is on no disk. 2. The table is created
on the host with the statement that was approved; it clones the others. A crash between 1 and 2, and a CREATE
that fails, leave a table with one replica less, which no health check misses any more: the act stays begun
and says so, and done again it goes on with 2. It never drops a table.
"""

from __future__ import annotations

from engine.client import NodeClient
from engine.errors import Code, OnclusterError, SqlError
from engine.names import quote_identifier, quote_string
from engine.operations.again import make_again
from engine.operations.repair.performing import Steps, Work
from engine.replication.commands.drop import drop_dead_replica
from engine.replication.paths import TablePaths


async def _is_missing(work: Work) -> bool:
    return work.state.replica(work.replica).told is None


async def _objection(work: Work) -> str:
    host = work.state.hosts[work.host]
    if not host.is_answering or not host.knows_replicas:
        return f"{work.host.readable} does not say which tables it has"
    if work.state.replica(work.replica).is_active:
        return "some server runs the replica: it is active in Keeper"
    database, table = quote_string(work.table.database), quote_string(work.table.table)
    if await _count(work, f"FROM system.tables WHERE database = {database} AND name = {table}"):
        return f"{work.host.readable} has another table called {work.table}"
    try:
        detached = await _count(
            work, f"FROM system.detached_tables WHERE database = {database} AND table = {table}"
        )
    except SqlError as error:
        if error.code != Code.UNKNOWN_TABLE:  # servers before 24.4 do not say it
            raise
        detached = 0
    if detached:
        return f"{work.table} is detached on {work.host.readable}: attach it, or drop it"
    return ""


async def _count(work: Work, what: str) -> int:
    async def read(client: NodeClient) -> int:
        return int((await client.query_rows(f"SELECT count() {what}")).scalar)

    answer = await work.site.ask(work.host, read)
    if isinstance(answer, OnclusterError):
        raise answer
    return answer


async def _reclone(work: Work) -> None:
    if work.state.replica(work.replica).registered is not None:
        await drop_dead_replica(work.site.keeper, TablePaths(work.path), work.replica)
    if work.table.database != "default":
        await work.client.command(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(work.table.database)}")
    try:
        await make_again(work.client, str(work.act.payload["create"]))
    except SqlError as error:
        if error.code != Code.TABLE_ALREADY_EXISTS:
            raise


def _is_dropped_only(work: Work) -> str:
    state = work.state.replica(work.replica)
    if state.registered is not None or state.told is not None:
        return ""
    where = work.host.readable
    return f"replica {work.replica} was dropped from Keeper and {where} does not have {work.table} yet"


RECLONE = Steps(needed=_is_missing, objection=_objection, do=_reclone, half_done=_is_dropped_only)
