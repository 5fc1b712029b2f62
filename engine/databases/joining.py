"""The first replica makes a database in Keeper, every replica its own node, and the last one removes it.

Safety argument. The database is made in one transaction, a replica in one, which checks `max_log_ptr`, so
that it knows from which entry on it has to follow. After a lost reply the whole is done again: what
is there with this replica's own value is taken for made. Removing begins with `replicas`, in a transaction
that raises the root's version, which every further removal checks: one that was cut short is finished by the
next CREATE, and one that was only slow removes nothing of the database that is made after it. Nor does it of
a replica that is made again: the mark of one that is going raises its node's version, too.

Source: ClickHouse's DatabaseReplicated::createDatabaseNodesInZooKeeper, createReplicaNodesInZooKeeper,
dropReplica and drop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.databases.cluster import is_there
from engine.databases.numbering import enqueue_empty
from engine.databases.paths import DROPPED, MARK, DatabasePaths, ReplicaName
from engine.ddl.text import encode_bytes
from engine.env import Env
from engine.errors import BadVersion, Code, MultiFailed, NodeExists, NoNode, NotEmpty, SqlError
from engine.keeper.base import Check, Create, Keeper, Op, Remove, SetData
from engine.keeper.recipes import create_ancestors, remove_recursive

_ATTEMPTS = 10
_OF_OLD = frozenset({"log", "replicas", "counter", "metadata", "max_log_ptr", "logs_to_keep"})


async def create_database(
    keeper: Keeper, paths: DatabasePaths, *, database_name: str, logs_to_keep: int
) -> None:
    """Make the database's nodes, or find them there. Raises SqlError 36 for a path with something else."""
    for _ in range(_ATTEMPTS):
        await create_ancestors(keeper, paths.root)
        try:
            await keeper.multi([*_database_ops(paths, database_name, logs_to_keep)])
            return
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists):
                raise
        await check_is_database(keeper, paths)
        if await keeper.exists(paths.replicas) is not None:
            return
        await _remove_rest(keeper, paths)


def _database_ops(paths: DatabasePaths, database_name: str, logs_to_keep: int) -> Sequence[Op]:
    return [
        Create(paths.root, MARK),
        Create(paths.log),
        Create(paths.replicas),
        Create(paths.counter),
        # The first number is 1: there is no entry 0.
        Create(f"{paths.counter}/cnt-"),
        Remove(f"{paths.counter}/cnt-"),
        Create(paths.metadata),
        Create(paths.max_log_ptr, b"1"),
        Create(paths.logs_to_keep, str(logs_to_keep).encode()),
        Create(paths.first_database_name, encode_bytes(database_name)),
    ]


async def check_is_database(keeper: Keeper, paths: DatabasePaths) -> None:
    """Raises SqlError 36. A database of an old version is marked as one."""
    mark = await is_there(keeper, paths.root)
    if mark == MARK:
        return
    names = set((await keeper.children(paths.root)).names) if mark is not None else set()
    if mark == b"" and names >= _OF_OLD:
        await keeper.set(paths.root, MARK)
        return
    raise SqlError(
        Code.BAD_ARGUMENTS,
        f"Cannot add new database replica: provided path {paths.root} already contains some data and it does "
        "not look like Replicated database path.",
    )


async def create_replica(
    keeper: Keeper, env: Env, paths: DatabasePaths, me: ReplicaName, *, host: str, group: str = ""
) -> None:
    """Raises SqlError 253 for a replica that another database has made."""
    for _ in range(_ATTEMPTS):
        value = await is_there(keeper, paths.replica(me))
        if value is not None:
            if value != encode_bytes(host):
                raise SqlError(
                    Code.REPLICA_ALREADY_EXISTS,
                    f"Replica {me} already exists at {paths.root}: it is {value.decode('utf-8', 'replace')}",
                    hint="Take another replica name, or SYSTEM DROP DATABASE REPLICA if that server is gone.",
                )
            break
        newest = await keeper.get(paths.max_log_ptr)
        ops: list[Op] = [
            Create(paths.replica(me), encode_bytes(host)),
            Create(paths.replica(me, "log_ptr"), b"0"),
            Create(paths.replica(me, "digest"), b"0"),
            Create(paths.replica(me, "replica_group"), encode_bytes(group)),
            Create(paths.replica(me, "max_log_ptr_at_creation"), newest.data),
            Check(paths.max_log_ptr, newest.stat.version),
        ]
        try:
            await keeper.multi(ops)
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists | BadVersion):
                raise
            continue
        break
    else:
        raise SqlError(
            Code.DATABASE_REPLICATION_FAILED, f"Cannot create replica {me} at {paths.root}: too many changes"
        )
    await enqueue_empty(keeper, env, paths, me)


async def mark_dropped(keeper: Keeper, env: Env, paths: DatabasePaths, me: ReplicaName, *, host: str) -> None:
    """Others do not count on this replica from now on. What an earlier call may have begun is done again: by
    halves the others would not hear of it."""
    if await is_there(keeper, paths.replica(me)) not in (encode_bytes(host), DROPPED):
        return
    await keeper.set(paths.replica(me), DROPPED)
    await enqueue_empty(keeper, env, paths, me)


async def remove_replica(keeper: Keeper, paths: DatabasePaths, name: ReplicaName | str) -> None:
    """One that is marked as dropped; with the last one goes the database."""
    if await is_there(keeper, paths.root) != MARK:
        return
    await _remove_dropped(keeper, paths.replica(name))
    try:
        await keeper.multi([Remove(paths.replicas), SetData(paths.root, MARK)])
    except MultiFailed as failed:
        if isinstance(failed.error, NotEmpty):
            return
        if not isinstance(failed.error, NoNode):
            raise
    await _remove_rest(keeper, paths)


async def _remove_dropped(keeper: Keeper, path: str) -> None:
    """What a replica that is marked has, and nothing of the one that is made in its place."""
    try:
        node = await keeper.get(path)
    except NoNode:
        return
    if node.data == DROPPED:
        await _remove_of_version(keeper, path, node.stat.version)


async def _remove_rest(keeper: Keeper, paths: DatabasePaths) -> None:
    """Of a database without `replicas`. Whoever comes later takes over from whoever is at it."""
    try:
        stat = await keeper.set(paths.root, MARK)
    except NoNode:
        return
    if await keeper.exists(paths.replicas) is not None:
        return  # it is a new one
    await _remove_of_version(keeper, paths.root, stat.version)


async def _remove_of_version(keeper: Keeper, path: str, version: int) -> None:
    try:
        await remove_recursive(keeper, path, fence=(Check(path, version),))
    except MultiFailed as failed:
        if not isinstance(failed.error, BadVersion | NoNode):
            raise


async def drop_other_replica(
    keeper: Keeper, env: Env, paths: DatabasePaths, full_name: str, *, if_there: bool, me: ReplicaName | None
) -> bool:
    """SYSTEM DROP DATABASE REPLICA; whether there was one. Raises SqlError 36 for no database, no replica and
    one that is active."""
    name = ReplicaName.parse(full_name)
    if await is_there(keeper, paths.root) != MARK:
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Path {paths.root} does not look like a path of Replicated database"
        )
    value = await is_there(keeper, paths.replica(name))
    if value is None:
        if if_there:
            return False
        raise SqlError(Code.BAD_ARGUMENTS, f"Replica {name} does not exist (database path: {paths.root})")
    active = paths.replica(name, "active")
    try:
        # That it can be made tells that there is none at the moment of the mark.
        await keeper.multi([Create(active), Remove(active), SetData(paths.replica(name), DROPPED)])
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists):
            raise
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Replica {name} is active, cannot drop it (database path: {paths.root})"
        ) from None
    if me is not None:
        await enqueue_empty(keeper, env, paths, me)
    await remove_replica(keeper, paths, name)
    return True


async def restore_database(
    keeper: Keeper,
    paths: DatabasePaths,
    texts: Mapping[str, str],
    *,
    database_name: str,
    logs_to_keep: int,
) -> None:
    """SYSTEM RESTORE DATABASE REPLICA: the database's nodes again, with this replica's definitions, unless
    another replica was faster."""
    await create_ancestors(keeper, paths.root)
    tables = [Create(paths.table(name), encode_bytes(text)) for name, text in texts.items()]
    try:
        await keeper.multi([*_database_ops(paths, database_name, logs_to_keep), *tables])
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists):
            raise
        await check_is_database(keeper, paths)
