"""ReplicatedMergeTree: part names, znodes and their texts, which parts to merge. Nothing here does I/O."""

from engine.replication.block_id import BlockId
from engine.replication.columns import Column, Columns, DefaultKind
from engine.replication.host import ReplicaHost
from engine.replication.log_entry import LogEntry
from engine.replication.merge_selector import Candidate, Selected, SelectorSettings, select_merge
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_checksums import FileChecksum, PartDiffers, PartDigest, check_same_part
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet, Added, Covered, PartsIntersect
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.quorum import LastQuorumParts, QuorumStatus
from engine.replication.table_definition import TableDefinition, parse_definition
from engine.replication.table_metadata import MergingMode, TableMetadata, Weight, check_metadata

__all__ = [
    "ActivePartSet",
    "Added",
    "BlockId",
    "Candidate",
    "Column",
    "Columns",
    "Covered",
    "DefaultKind",
    "FileChecksum",
    "LastQuorumParts",
    "LogEntry",
    "MergingMode",
    "MutationEntry",
    "PartDiffers",
    "PartDigest",
    "PartHeader",
    "PartName",
    "PartsIntersect",
    "QuorumStatus",
    "ReplicaHost",
    "ReplicaPaths",
    "Selected",
    "SelectorSettings",
    "TableDefinition",
    "TableMetadata",
    "TablePaths",
    "Weight",
    "check_metadata",
    "check_same_part",
    "parse_definition",
    "select_merge",
]
