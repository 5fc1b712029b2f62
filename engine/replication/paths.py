"""The znodes of a replicated table and of its replicas.

A table's path and a replica's name are the user's (macros already expanded) and are checked here once. Part
names, partition ids and sequence names that are joined to a path are of validated types or checked by their
grammar before. Source: ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.replication.block_id import BlockId
from engine.replication.part_name import PartName, is_partition_id

_SEQUENCE = re.compile(r"(?:log|queue|block)-(\d{10})\Z", re.ASCII)
_COMPONENT = re.compile(r"[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+\Z")


def sequence_number(name: str) -> int | None:
    """The number in a child's name of `log/`, `queue/` or `block_numbers/<partition>/`; None for another."""
    match = _SEQUENCE.match(name)
    return int(match.group(1)) if match else None


def _check_component(name: str, what: str) -> None:
    """Raises SqlError 36 unless `name` may be one step of a znode's path."""
    if not _COMPONENT.match(name) or name in (".", ".."):
        raise SqlError(Code.BAD_ARGUMENTS, f"{what} {name!r} cannot be part of a path in Keeper.")


@dataclass(frozen=True, slots=True)
class ReplicaPaths:
    """The znodes of one replica. `root` is without a trailing slash."""

    root: str

    @property
    def name(self) -> str:
        return self.root.rpartition("/")[2]

    @property
    def host(self) -> str:
        return f"{self.root}/host"

    @property
    def is_active(self) -> str:
        return f"{self.root}/is_active"

    @property
    def is_lost(self) -> str:
        return f"{self.root}/is_lost"

    @property
    def log_pointer(self) -> str:
        return f"{self.root}/log_pointer"

    @property
    def queue(self) -> str:
        return f"{self.root}/queue"

    @property
    def queue_prefix(self) -> str:
        return f"{self.root}/queue/queue-"

    @property
    def parts(self) -> str:
        return f"{self.root}/parts"

    @property
    def flags(self) -> str:
        return f"{self.root}/flags"

    @property
    def force_restore_data(self) -> str:
        return f"{self.root}/flags/force_restore_data"

    @property
    def restoring(self) -> str:
        """Of SYSTEM RESTORE REPLICA, made with the table: the parts that it has put aside are the table's."""
        return f"{self.root}/flags/restoring"

    @property
    def metadata(self) -> str:
        return f"{self.root}/metadata"

    @property
    def columns(self) -> str:
        return f"{self.root}/columns"

    @property
    def metadata_version(self) -> str:
        return f"{self.root}/metadata_version"

    @property
    def min_unprocessed_insert_time(self) -> str:
        return f"{self.root}/min_unprocessed_insert_time"

    @property
    def max_processed_insert_time(self) -> str:
        return f"{self.root}/max_processed_insert_time"

    @property
    def mutation_pointer(self) -> str:
        return f"{self.root}/mutation_pointer"

    @property
    def creator_info(self) -> str:
        return f"{self.root}/creator_info"

    def part(self, part: PartName) -> str:
        return f"{self.root}/parts/{part}"

    def queue_entry(self, name: str) -> str:
        """Raises SqlError 36 for a name that no entry has."""
        return f"{self.root}/queue/{_sequence(name)}"


@dataclass(frozen=True, slots=True)
class TablePaths:
    """The znodes of one table. `root` is absolute and without a trailing slash.

    Raises SqlError 36 BAD_ARGUMENTS for a path that Keeper would refuse.
    """

    root: str

    def __post_init__(self) -> None:
        root = self.root.rstrip("/")
        if not root.startswith("/"):
            raise SqlError(Code.BAD_ARGUMENTS, f"Table path {self.root!r} does not begin with a slash.")
        for step in root[1:].split("/"):
            _check_component(step, f"In table path {self.root!r}: step")
        object.__setattr__(self, "root", root)

    @property
    def metadata(self) -> str:
        return f"{self.root}/metadata"

    @property
    def columns(self) -> str:
        return f"{self.root}/columns"

    @property
    def log(self) -> str:
        return f"{self.root}/log"

    @property
    def log_prefix(self) -> str:
        return f"{self.root}/log/log-"

    @property
    def blocks(self) -> str:
        return f"{self.root}/blocks"

    @property
    def async_blocks(self) -> str:
        return f"{self.root}/async_blocks"

    @property
    def deduplication_hashes(self) -> str:
        return f"{self.root}/deduplication_hashes"

    @property
    def block_numbers(self) -> str:
        return f"{self.root}/block_numbers"

    @property
    def nonincrement_block_numbers(self) -> str:
        return f"{self.root}/nonincrement_block_numbers"

    @property
    def leader_election(self) -> str:
        return f"{self.root}/leader_election"

    @property
    def temp(self) -> str:
        return f"{self.root}/temp"

    @property
    def insert_lock_holder(self) -> str:
        """What the block number locks of inserts name as their holder, from 22.11 on."""
        return f"{self.root}/temp/abandonable_lock-insert"

    @property
    def other_lock_holder(self) -> str:
        """As `insert_lock_holder`, for mutations, ALTERs and dropped partitions."""
        return f"{self.root}/temp/abandonable_lock-other"

    @property
    def replicas(self) -> str:
        return f"{self.root}/replicas"

    @property
    def quorum(self) -> str:
        return f"{self.root}/quorum"

    @property
    def quorum_status(self) -> str:
        return f"{self.root}/quorum/status"

    @property
    def quorum_parallel(self) -> str:
        return f"{self.root}/quorum/parallel"

    @property
    def quorum_last_part(self) -> str:
        return f"{self.root}/quorum/last_part"

    @property
    def quorum_failed_parts(self) -> str:
        return f"{self.root}/quorum/failed_parts"

    @property
    def mutations(self) -> str:
        return f"{self.root}/mutations"

    @property
    def mutation_prefix(self) -> str:
        """Sequential nodes here have no name before their number."""
        return f"{self.root}/mutations/"

    @property
    def alter_partition_version(self) -> str:
        return f"{self.root}/alter_partition_version"

    @property
    def part_moves_shard(self) -> str:
        return f"{self.root}/part_moves_shard"

    @property
    def pinned_part_uuids(self) -> str:
        return f"{self.root}/pinned_part_uuids"

    @property
    def table_shared_id(self) -> str:
        return f"{self.root}/table_shared_id"

    @property
    def lost_part_count(self) -> str:
        return f"{self.root}/lost_part_count"

    @property
    def lightweight_updates(self) -> str:
        return f"{self.root}/lightweight_updates"

    @property
    def dropped(self) -> str:
        return f"{self.root}/dropped"

    @property
    def dropped_lock(self) -> str:
        return f"{self.root}/dropped/lock"

    def replica(self, name: str) -> ReplicaPaths:
        """Raises SqlError 36 for a name that Keeper would refuse."""
        _check_component(name, "Replica name")
        return ReplicaPaths(f"{self.root}/replicas/{name}")

    def log_entry(self, name: str) -> str:
        """Raises SqlError 36 for a name that no entry has."""
        return f"{self.root}/log/{_sequence(name)}"

    def block(self, block_id: BlockId) -> str:
        return f"{self.root}/blocks/{block_id}"

    def partition_block_numbers(self, partition_id: str) -> str:
        """Raises SqlError 36 for what is no partition id."""
        if not is_partition_id(partition_id):
            raise SqlError(Code.BAD_ARGUMENTS, f"{partition_id[:200]!r} is no partition id.")
        return f"{self.root}/block_numbers/{partition_id}"

    def block_number_prefix(self, partition_id: str) -> str:
        return f"{self.partition_block_numbers(partition_id)}/block-"

    def parallel_quorum(self, part: PartName) -> str:
        return f"{self.root}/quorum/parallel/{part}"

    def failed_part(self, part: PartName) -> str:
        return f"{self.root}/quorum/failed_parts/{part}"

    def mutation(self, number: int) -> str:
        return f"{self.root}/mutations/{number:010}"


def _sequence(name: str) -> str:
    if sequence_number(name) is None:
        raise SqlError(Code.BAD_ARGUMENTS, f"{name[:200]!r} is not the name of an entry.")
    return name
