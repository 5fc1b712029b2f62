"""The requests that make a replicated table and a replica of it, as data.

Safety argument. A table and its first replica are made in one transaction (`table_ops`): there is never a
table without a replica, and of two nodes that create at once one gets NodeExists and looks again. A further
replica is made in one transaction too (`replica_ops`), which fails if the list of replicas has changed since
it was read: so nobody decides on an old list whether there is someone to copy from. Nodes of newer servers
(`later_nodes`) are made one by one after that, by every replica, and a node that exists is as good as one
made; a crash between them leaves a table that the next start completes. Nothing here removes anything but an
empty `leader_election` of an older server.

Order and content are those of ClickHouse 26.9 (chDB 4.4), read from ZooKeeper's transaction log. Source:
ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from engine.keeper.base import Check, Create, Op, Remove, SetData
from engine.replication.paths import ReplicaPaths, TablePaths

ALL_LEAD = b"all (multiple leaders Ok)"
NO_PINNED_PARTS = b'{"part_uuids":"[]"}'
_NO_SERVER = UUID(int=0)


class FirstParts(enum.Enum):
    """What a table's first replica begins with."""

    NONE = "nothing"
    PUT_ASIDE = "what SYSTEM RESTORE REPLICA has put aside, to be attached"


@dataclass(frozen=True, slots=True)
class NewReplica:
    """What a node brings to Keeper with a table: the texts of `metadata` and `columns`, and who it is.

    `metadata_version` is that of the table's `metadata` node for a replica that joins, 0 for the first one.
    `first_parts` counts only if the table is made with it.
    """

    metadata: bytes
    columns: bytes
    table_uuid: UUID
    server_uuid: UUID = _NO_SERVER
    metadata_version: int = 0
    first_parts: FirstParts = FirstParts.NONE

    @property
    def creator_info(self) -> bytes:
        """By this a replica knows its own half-done creation again."""
        return f"{self.table_uuid}|{self.server_uuid}".encode()


def table_ops(paths: TablePaths, replica: ReplicaPaths, new: NewReplica) -> tuple[Op, ...]:
    """One multi: the table with its first replica. NodeExists means that somebody was faster.

    The ancestors of `paths.root` have to exist.
    """
    return (
        Create(paths.root),
        Create(paths.metadata, new.metadata),
        Create(paths.columns, new.columns),
        Create(paths.log),
        Create(paths.blocks),
        Create(paths.async_blocks),
        Create(paths.deduplication_hashes),
        Create(paths.block_numbers),
        Create(paths.nonincrement_block_numbers),
        Create(paths.leader_election),
        Create(paths.temp),
        Create(paths.insert_lock_holder),
        Create(paths.other_lock_holder),
        Create(paths.replicas, _last_added(replica)),
        Create(paths.quorum),
        Create(paths.quorum_last_part),
        Create(paths.quorum_failed_parts),
        Create(paths.mutations),
        *_replica_nodes(replica, new, is_lost=b"0"),
        *([Create(replica.restoring)] if new.first_parts is FirstParts.PUT_ASIDE else []),
    )


def replica_ops(
    paths: TablePaths, replica: ReplicaPaths, new: NewReplica, *, replica_count: int, replicas_version: int
) -> tuple[Op, ...]:
    """One multi: a further replica.

    `replica_count` and `replicas_version` are the number of children and the version of `replicas`, read
    together. NodeExists: there is a replica of this name (see `NewReplica.creator_info`); BadVersion: the
    list has changed, read it again; NoNode: the last replica was dropped right now.
    """
    return (
        *_replica_nodes(replica, new, is_lost=b"1" if replica_count else b"0"),
        SetData(paths.replicas, _last_added(replica), replicas_version),
    )


def later_nodes(paths: TablePaths, new: NewReplica) -> tuple[Create, ...]:
    """Nodes that a table of an older server lacks. Each is created by itself; NodeExists is fine."""
    return (
        Create(paths.quorum),
        Create(paths.quorum_last_part),
        Create(paths.quorum_failed_parts),
        Create(paths.mutations),
        Create(paths.quorum_parallel),
        Create(paths.part_moves_shard),
        Create(paths.pinned_part_uuids, NO_PINNED_PARTS),
        Create(paths.alter_partition_version),
        Create(paths.async_blocks),
        Create(paths.deduplication_hashes),
        Create(paths.lost_part_count),
        Create(paths.insert_lock_holder),
        Create(paths.other_lock_holder),
        Create(paths.lightweight_updates),
        Create(f"{paths.lightweight_updates}/in_progress"),
        Create(paths.table_shared_id, str(new.table_uuid).encode()),
    )


def leader_election_ops(paths: TablePaths) -> tuple[Op, ...]:
    """One multi: from now on every replica may assign merges.

    NotEmpty: it was done before, or servers before 20.6 elect a leader there. In the second case the caller
    must not assign merges.
    """
    return (
        Remove(paths.leader_election),
        Create(paths.leader_election),
        Create(f"{paths.leader_election}/leader_election-0", ALL_LEAD),
    )


def names_made_by_themselves(paths: TablePaths) -> frozenset[str]:
    """The children of a table's node that its replicas, and INSERTs, make where they miss them."""
    later = (node.path for node in later_nodes(paths, NewReplica(b"", b"", _NO_SERVER)))
    made = (paths.leader_election, paths.block_numbers, *later)
    return frozenset(path.removeprefix(f"{paths.root}/").partition("/")[0] for path in made)


def pristine_checks(replica: ReplicaPaths) -> tuple[Check, ...]:
    """What holds of a replica that was created and never activated: nobody has written to these nodes."""
    return tuple(
        Check(path, 0)
        for path in (replica.host, replica.log_pointer, replica.is_lost, replica.metadata_version)
    )


def _last_added(replica: ReplicaPaths) -> bytes:
    return f"last added replica: {replica.name}".encode("utf-8", "surrogateescape")


def _replica_nodes(replica: ReplicaPaths, new: NewReplica, *, is_lost: bytes) -> tuple[Create, ...]:
    return (
        Create(replica.root),
        Create(replica.host),
        Create(replica.log_pointer),
        Create(replica.queue),
        Create(replica.parts),
        Create(replica.flags),
        Create(replica.is_lost, is_lost),
        Create(replica.metadata, new.metadata),
        Create(replica.columns, new.columns),
        Create(replica.metadata_version, str(new.metadata_version).encode()),
        Create(replica.min_unprocessed_insert_time),
        Create(replica.max_processed_insert_time),
        Create(replica.mutation_pointer),
        Create(replica.creator_info, new.creator_info),
    )
