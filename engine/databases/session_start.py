"""A replica's session begins: whose replica it is, that its definitions are Keeper's, `active`.

Source: ClickHouse's DatabaseReplicated::tryConnectToZooKeeperAndInitDatabase, DatabaseReplicatedDDLWorker.
"""

from __future__ import annotations

import logging

from engine.databases.cluster import database_uuid_in, is_there, read_cluster
from engine.databases.comparison import compare
from engine.databases.digest import digest_of
from engine.databases.entries import EntryExecutor
from engine.databases.numbering import enqueue_empty, on_same_session
from engine.databases.paths import DROPPED
from engine.databases.progress import Progress
from engine.databases.replica import DatabaseReplica
from engine.ddl.text import encode_bytes
from engine.errors import Code, NodeExists, SqlError
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.recipes import remove_unowned, try_remove

log = logging.getLogger(__name__)


async def begin_session(
    replica: DatabaseReplica, progress: Progress, executor: EntryExecutor, keeper: Keeper
) -> None:
    """The replica is active in this session, and writable. Raises SqlError 253, 571, 224, and what `compare`
    and Keeper say; it can be called again then."""
    paths, me = replica.paths, replica.me
    await _check_identity(replica, progress, keeper)
    await _end_older_session(replica, keeper)
    await executor.record_what_is_done(keeper)
    async with progress.definitions:  # not beside a statement of a client's that changes them
        pointer = await compare(keeper, replica, progress.known)
    progress.pointer = progress.current = pointer
    progress.cluster = await read_cluster(keeper, paths, replica.group)
    try:
        await keeper.create(
            paths.replica(me, "active"), replica.server_uuid.encode(), mode=CreateMode.EPHEMERAL
        )
    except NodeExists:
        raise SqlError(Code.REPLICA_IS_ALREADY_ACTIVE, f"Replica {me} at {paths.root} is active") from None
    progress.active_in = keeper
    if replica.settings.check_consistency:
        # A table's own replication may have altered it since they were compared.
        async with progress.definitions:
            texts = replica.schema.texts()
            await keeper.set(paths.replica(me, "digest"), str(digest_of(texts)).encode())
            progress.known = texts
    progress.be_writable()
    log.info("databases.active database=%s ptr=%d", replica.name, pointer)


async def _check_identity(replica: DatabaseReplica, progress: Progress, keeper: Keeper) -> None:
    paths, me, mine = replica.paths, replica.me, encode_bytes(replica.host)
    value = await is_there(keeper, paths.replica(me))
    if value is None or value == DROPPED:
        progress.note_down("its replica in ZooKeeper is gone: it was probably dropped")
        raise SqlError(
            Code.DATABASE_REPLICATION_FAILED,
            f"Replica {me} is not at {paths.root}: it was dropped",
            hint="DROP DATABASE, or SYSTEM RESTORE DATABASE REPLICA if Keeper has lost its data.",
        )
    if value == mine:
        return
    if database_uuid_in(value) != database_uuid_in(mine):
        progress.note_down("its replica in ZooKeeper is another server's")
        raise SqlError(
            Code.REPLICA_ALREADY_EXISTS,
            f"Replica {me} at {paths.root} is {value.decode(errors='replace')}",
        )

    async def tell() -> None:
        """The server's address is another one now. By halves the others would never hear of it."""
        await keeper.set(paths.replica(me), mine)
        await enqueue_empty(keeper, replica.env, paths, me)

    async with progress.numbers:
        await on_same_session(replica.env, tell)


async def _end_older_session(replica: DatabaseReplica, keeper: Keeper) -> None:
    """An `active` of this server is an older session's; another's is waited for by trying again. One of no
    session would never go."""
    path = replica.paths.replica(replica.me, "active")
    if await remove_unowned(keeper, path):
        return
    value = await is_there(keeper, path)
    if value is not None and value.split(b"\t")[0] == replica.server_uuid.encode():
        await try_remove(keeper, path)
