"""Making a replicated table in Keeper, or joining it.

Safety argument.

1. The nodes above the table's path are made; they stay, whatever happens.
2. What a DROP that crashed has left at the path is removed first, under its lock (`commands.drop`). What is
   left of a table that somebody has removed by hand goes in one transaction, which asserts that no replica
   can be there.
3. The table with its first replica is one transaction, a further replica another. The second checks that
   the list of replicas and the table's structure are still what they were when they were compared and asked
   about (`check_place`), and that there is a replica that nobody has begun to drop. A crash before it leaves
   nothing; after it there is a replica that was never active.
4. If the reply was lost, or the statement is repeated after a crash, the replica is found, with this table's
   and this server's id in `creator_info` and untouched since: it is ours, and taken as made. A replica with
   another creator, or one that was active, is refused (253).
5. Nodes of newer servers and the mark that every replica may lead come after that, one by one. A crash leaves
   some of them out; each start makes what is missing (`complete_table`).

It never changes a replica that exists, and removes only what a DROP has left, and its own new replica if
another structure is found when the statement is repeated.

Source: ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import Check, Create, Keeper, Node, Remove, Stat
from engine.keeper.recipes import create_ancestors, create_if_not_exists
from engine.replication.columns import Columns
from engine.replication.commands.drop import drop_replica, finish_dropping, remove_table_without_replicas
from engine.replication.creation import (
    NewReplica,
    later_nodes,
    leader_election_ops,
    names_made_by_themselves,
    pristine_checks,
    replica_ops,
    table_ops,
)
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata, Weight, check_metadata

log = logging.getLogger(__name__)

_ROUNDS = 1000
"""As in ClickHouse: others create and drop at the same path meanwhile."""
_ROUNDS_OF_A_STRANGER = 10
_A_STRANGER = "there is a node that is no replicated table."
"""After so many rounds a node that is neither a table nor being dropped is taken for something else."""
_LOST_REPLIES = 20
_OF_EACH_TABLE = "replicas"
_MOST_LEFTOVERS = 1000
"""More would not fit into one transaction."""
_SHARD_HINT = (
    "If the two are different shards, their path must differ: put {shard} into it, as in "
    "'/clickhouse/tables/{shard}/{database}/{table}'."
)


class Created(enum.Enum):
    """What `create_replica` found or made."""

    TABLE = "table"
    """The table, and this is its first replica."""
    REPLICA = "replica"
    """A further replica; it will copy the data at its first start."""
    REUSED = "reused"
    """The replica had been made before by the same statement, and never been used."""


class Structure(enum.Enum):
    """What a replica that joins a table may have for a definition."""

    THE_TABLES = "the table's"
    AN_OLDER_ONE = "the table's or an older one"
    """Of a table that is known to be this one: it was altered since the statement was decided. The replica
    takes the table's definition over when it copies its data. (ClickHouse: of secondary queries of Replicated
    databases.)"""


class Leadership(enum.Enum):
    """Who assigns merges."""

    ALL = "all replicas"
    ELECTED = "one elected replica"
    """A server before 20.6 takes part; only the leader it knows may assign merges."""


CheckPlace = Callable[[Keeper, TablePaths], Awaitable[None]]
"""Raises what speaks against a replica beside those that are at a path."""


async def _anybody(_keeper: Keeper, _paths: TablePaths) -> None: ...


async def create_replica(
    keeper: Keeper,
    paths: TablePaths,
    me: ReplicaPaths,
    new: NewReplica,
    definition: TableDefinition,
    *,
    check_place: CheckPlace = _anybody,
    structure: Structure = Structure.THE_TABLES,
) -> Created:
    """Make the table with this replica, or join the table. Repeatable after a crash with the same `new`.

    `check_place` is called before the replica joins others, and again if one joined since. Raises what it
    raises, and SqlError: 253 REPLICA_ALREADY_EXISTS, 122 or 342 for a table of another structure;
    SessionExpired, ConnectionLoss and OperationTimeout when Keeper does not answer: call it again.
    """
    lost = 0
    strangers = 0
    await _above(keeper, paths)
    for _ in range(_ROUNDS):
        try:
            replicas = await keeper.exists(paths.replicas)
            created = None
            if replicas is not None:
                created = await _join(keeper, paths, me, new, definition, check_place, structure)
            elif await keeper.exists(paths.dropped) is not None:
                await finish_dropping(keeper, paths)
            else:
                created = await _found(keeper, paths, me, new)
            if created is not None:
                await complete_table(keeper, paths, new)
                log.info("replication.created replica=%s what=%s", me.root, created.value)
                return created
            if await _is_stranger(keeper, paths):
                leftovers = await _leftovers(keeper, paths)
                strangers += not leftovers
                await _remove(keeper, paths, leftovers)
            if strangers > _ROUNDS_OF_A_STRANGER:
                break
        except (ConnectionLoss, OperationTimeout):
            lost += 1
            if lost > _LOST_REPLIES:
                raise
    raise _cannot_create(
        paths,
        _A_STRANGER
        if strangers > _ROUNDS_OF_A_STRANGER
        else "it is being created and dropped by others all the time, or was not wholly dropped.",
    )


async def refuse_stranger(keeper: Keeper, paths: TablePaths) -> None:
    """Before anything is changed for a `create_replica` that will not be possible. Raises SqlError 253."""
    if await _is_stranger(keeper, paths) and not await _leftovers(keeper, paths):
        raise _cannot_create(paths, _A_STRANGER)


def _cannot_create(paths: TablePaths, why: str) -> SqlError:
    return SqlError(
        Code.REPLICA_ALREADY_EXISTS,
        f"Cannot create table at {paths.root}: {why}",
        hint="Choose another path, or remove what is there by hand (`oncluster keeper rm`).",
    )


async def complete_table(keeper: Keeper, paths: TablePaths, new: NewReplica) -> Leadership:
    """Make the nodes that the table of an older server, or of a crashed CREATE, lacks. At every start.

    Repeatable; raises UnknownOutcome.
    """
    nodes = later_nodes(paths, new)
    stats = await keeper.exists_many([node.path for node in nodes])
    for node, stat in zip(nodes, stats, strict=True):
        if stat is None:
            await create_if_not_exists(keeper, node.path, node.data)
    return await open_leadership(keeper, paths)


async def open_leadership(keeper: Keeper, paths: TablePaths) -> Leadership:
    """Let every replica lead, unless servers before 20.6 hold an election right now.

    They make ephemeral nodes without the words `multiple leaders`; once they are gone this opens it to all.
    """
    try:
        await keeper.multi(leader_election_ops(paths))
        return Leadership.ALL
    except MultiFailed as failed:
        if isinstance(failed.error, NoNode):
            await create_if_not_exists(keeper, paths.leader_election)
            return await open_leadership(keeper, paths)
        if not isinstance(failed.error, NotEmpty | NodeExists):
            raise
    names = (await keeper.children(paths.leader_election)).names
    for node in await keeper.get_many([f"{paths.leader_election}/{name}" for name in names]):
        if isinstance(node, Node) and b"multiple leaders" not in node.data:
            return Leadership.ELECTED
    return Leadership.ALL


async def check_structure(
    keeper: Keeper,
    paths: TablePaths,
    definition: TableDefinition,
    *,
    allowed: frozenset[Weight] = frozenset(),
) -> tuple[Stat, Stat]:
    """Compare a table with Keeper's `metadata` and `columns`; returns the bookkeeping of the two nodes.

    Raises SqlError 342 for the metadata (but for what is `allowed`), 122 for the columns, MalformedEntry, and
    NoNode when the table is gone.
    """
    metadata = await keeper.get(paths.metadata)
    columns = await keeper.get(paths.columns)
    stored = TableMetadata.from_bytes(metadata.data, where=paths.metadata)
    check_metadata(definition.metadata, stored, table=paths.root, allowed=allowed)
    definition.columns.check_same(Columns.from_bytes(columns.data, where=paths.columns), where=paths.columns)
    return metadata.stat, columns.stat


async def _above(keeper: Keeper, paths: TablePaths) -> None:
    for last in (*[False] * _LOST_REPLIES, True):
        try:
            await create_ancestors(keeper, paths.root)
            return
        except (ConnectionLoss, OperationTimeout):
            if last:
                raise


async def _found(keeper: Keeper, paths: TablePaths, me: ReplicaPaths, new: NewReplica) -> Created | None:
    try:
        await keeper.multi(table_ops(paths, me, replace(new, metadata_version=0)))
    except MultiFailed as failed:
        if isinstance(failed.error, NoNode):
            await create_ancestors(keeper, paths.root)
        elif not isinstance(failed.error, NodeExists):
            raise
        return None
    return Created.TABLE


async def _join(
    keeper: Keeper,
    paths: TablePaths,
    me: ReplicaPaths,
    new: NewReplica,
    definition: TableDefinition,
    check_place: CheckPlace,
    structure: Structure,
) -> Created | None:
    """One attempt. None: something changed meanwhile, look again."""
    try:
        existing = await keeper.get(me.creator_info)
    except NoNode:
        existing = None
    if existing is not None or await keeper.exists(me.root) is not None:
        return await _reuse(keeper, paths, me, new, definition, existing, structure)
    try:
        replicas = await keeper.children(paths.replicas)
        others = [paths.replica(name) for name in replicas.names]
        hosts = await keeper.exists_many([other.host for other in others])
        whole = [other for other, host in zip(others, hosts, strict=True) if host is not None]
        if not whole:  # there is nobody to copy from: what DROPs have left is removed, and the table with it
            for other in others:
                await drop_replica(keeper, paths, other)
            await remove_table_without_replicas(keeper, paths)
            return None
        await check_place(keeper, paths)
        metadata_version, checks = await _checked(keeper, paths, definition, structure)
        ops = replica_ops(
            paths,
            me,
            replace(new, metadata_version=metadata_version),
            replica_count=replicas.stat.num_children,
            replicas_version=replicas.stat.version,
        )
        # A DROP does not change the version of `replicas`.
        await keeper.multi((*ops, *checks, Check(whole[0].host)))
    except NoNode:
        return None  # the last replica was dropped right now
    except MultiFailed as failed:
        if isinstance(failed.error, BadVersion | NoNode | NodeExists):
            return None
        raise
    return Created.REPLICA


async def _reuse(
    keeper: Keeper,
    paths: TablePaths,
    me: ReplicaPaths,
    new: NewReplica,
    definition: TableDefinition,
    creator: Node | None,
    structure: Structure,
) -> Created | None:
    stats = await keeper.exists_many([check.path for check in pristine_checks(me)])
    if creator is None and await keeper.exists(me.root) is None:
        return None  # it was dropped meanwhile
    if stats[0] is None:  # without `host`: a DROP of it has stopped half-way, it can never be active again
        await drop_replica(keeper, paths, me)
        return None
    if (
        creator is not None
        and creator.data == new.creator_info
        and all(stat is not None and stat.version == 0 for stat in stats)
    ):
        try:
            await _checked(keeper, paths, definition, structure)
        except NoNode:
            return None
        except SqlError:
            await drop_replica(keeper, paths, me)
            raise
        return Created.REUSED
    raise SqlError(
        Code.REPLICA_ALREADY_EXISTS,
        f"Replica {me.root} already exists",
        hint="Each replica needs a name of its own ({replica} in the configuration's macros); the table of a "
        f"server that is gone is removed by SYSTEM DROP REPLICA. {_SHARD_HINT}",
    )


async def _checked(
    keeper: Keeper, paths: TablePaths, definition: TableDefinition, structure: Structure
) -> tuple[int, Sequence[Check]]:
    """The version of the metadata that the replica has, and what has to be as it was looked at."""
    try:
        metadata, columns = await check_structure(keeper, paths, definition)
        checks = Check(paths.metadata, metadata.version), Check(paths.columns, columns.version)
        return metadata.version, checks
    except SqlError as error:
        if structure is Structure.AN_OLDER_ONE:
            log.info("replication.older_structure path=%s error=%s", paths.root, error.message)
            return 0, ()
        raise SqlError(
            error.code, f"{error.message} The table at {paths.root} exists already.", hint=_SHARD_HINT
        ) from None


async def _is_stranger(keeper: Keeper, paths: TablePaths) -> bool:
    """Whether there is a node at the table's path that no CREATE and no DROP of a table left."""
    root, replicas, dropped = await keeper.exists_many([paths.root, paths.replicas, paths.dropped])
    return root is not None and replicas is None and dropped is None


async def _leftovers(keeper: Keeper, paths: TablePaths) -> Sequence[str]:
    """All nodes below the table's path, children first, if they are what living replicas have made again
    while somebody removed the table by hand. Empty if there is anything else, such as other tables."""
    try:
        names = (await keeper.children(paths.root)).names
        if not names_made_by_themselves(paths).issuperset(names):
            return ()
        found: list[str] = []
        for name in names:
            found += await _tree(keeper, f"{paths.root}/{name}")
    except NoNode:
        return ()
    is_of_one_table = not any(_OF_EACH_TABLE in path[len(paths.root) :].split("/") for path in found)
    return found if is_of_one_table and len(found) <= _MOST_LEFTOVERS else ()


async def _tree(keeper: Keeper, path: str) -> list[str]:
    below: list[str] = []
    for name in (await keeper.children(path)).names:
        below += await _tree(keeper, f"{path}/{name}")
    return [*below, path]


async def _remove(keeper: Keeper, paths: TablePaths, leftovers: Sequence[str]) -> None:
    """With the table's own node, unless there is a table or something else by now."""
    if not leftovers:
        return
    nowhere = (Create(paths.replicas), Remove(paths.replicas))
    try:
        await keeper.multi([*nowhere, *map(Remove, leftovers), Remove(paths.root)])
        log.info("replication.leftovers_removed path=%s nodes=%d", paths.root, len(leftovers))
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists | NoNode | NotEmpty):
            raise
