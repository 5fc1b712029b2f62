"""An entry of `log/` and of `queue/`: who wrote it when, and what to do.

A replica copies entries from the table's log into its own queue, byte for byte. Source:
ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.replication import log_actions as kinds
from engine.replication.log_actions import Action, MergeParts, MutatePart, read_action
from engine.replication.part_name import PartName
from engine.replication.text import FormatReader, encode_bytes, escape

OLDEST_VERSION = 1
CREATE_TIME_VERSION = 2
BLOCK_ID_VERSION = 3
DEDUPLICATE_VERSION = 4
UUID_VERSION = 5
DEDUPLICATE_BY_COLUMNS_VERSION = 6
LOG_ENTRY_ID_VERSION = 7
MAX_VERSION = LOG_ENTRY_ID_VERSION


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry. `create_time` is wall time of the writer (see `text.time_text`), empty in version 1.

    `source_replica` is empty for an entry that was put into a queue directly. `part_type` and `storage_type`
    are empty for the usual ones (Wide, Full). `quorum` is the number of replicas an insert waits for.

    `version` is the least to be written with: the content may need a newer one. An entry read from version
    1 to 3 is written as version 4, as ClickHouse does; any other is written as it was read.
    """

    action: Action
    source_replica: str
    create_time: str
    block_id: str = ""
    log_entry_id: str = ""
    part_type: str = ""
    storage_type: str = ""
    quorum: int = 0
    version: int = DEDUPLICATE_VERSION

    @property
    def version_written(self) -> int:
        """The oldest version, from 4 on, that has room for the content."""
        needed = DEDUPLICATE_VERSION
        if isinstance(self.action, MergeParts | MutatePart) and self.action.result_uuid is not None:
            needed = UUID_VERSION
        if isinstance(self.action, MergeParts) and self.action.deduplicate_by_columns:
            needed = DEDUPLICATE_BY_COLUMNS_VERSION
        if self.log_entry_id:
            needed = LOG_ENTRY_ID_VERSION
        return max(self.version, needed)

    @property
    def new_parts(self) -> tuple[PartName, ...]:
        """The parts that will exist when the entry is done."""
        return new_parts(self.action)

    def to_bytes(self) -> bytes:
        """The text of the znode."""
        version = self.version_written
        text = (
            f"format version: {version}\ncreate_time: {self.create_time}\n"
            f"source replica: {self.source_replica}\nblock_id: {escape(self.block_id)}\n"
        )
        if version >= LOG_ENTRY_ID_VERSION:
            text += f"log_entry_id: {escape(self.log_entry_id)}\n"
        text += self.action.text() + "\n"
        if self.part_type:
            text += f"part_type: {self.part_type}\n"
        if self.storage_type:
            text += f"storage_type: {self.storage_type}\n"
        if self.quorum:
            text += f"quorum: {self.quorum}\n"
        return encode_bytes(text)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> LogEntry:
        """Parse an entry; `where` names it in errors.

        Raises MalformedEntry: 287 for an unknown version, 233 for a part's name that is none, 27 otherwise.
        """
        reader = FormatReader.of(data, where=where)
        version = reader.version("format version: ", known=range(OLDEST_VERSION, MAX_VERSION + 1))
        create_time = block_id = log_entry_id = ""
        if version >= CREATE_TIME_VERSION:
            create_time = reader.line("create_time: ", reader.time)
        source_replica = reader.line("source replica: ", reader.raw)
        if version >= BLOCK_ID_VERSION:
            block_id = reader.line("block_id: ", reader.escaped)
        if version >= LOG_ENTRY_ID_VERSION:
            log_entry_id = reader.line("log_entry_id: ", reader.escaped)
        action = read_action(reader, version=version)
        part_type = reader.line("", reader.word) if reader.accept("part_type: ") else ""
        storage_type = reader.line("", reader.word) if reader.accept("storage_type: ") else ""
        quorum = 0 if reader.at_end else reader.line("quorum: ", reader.unsigned)
        reader.end()
        return cls(
            action=action,
            source_replica=source_replica,
            create_time=create_time,
            block_id=block_id,
            log_entry_id=log_entry_id,
            part_type=part_type,
            storage_type=storage_type,
            quorum=quorum,
            version=max(version, DEDUPLICATE_VERSION),
        )


def new_parts(action: Action) -> tuple[PartName, ...]:
    """The parts that `action` makes."""
    match action:
        case kinds.GetPart(part) | kinds.AttachPart(part) | kinds.ClonePartFromShard(part):
            return (part,)
        case kinds.MergeParts() | kinds.MutatePart():
            return (action.result,)
        case kinds.ReplaceRange():
            return action.results
        case kinds.DropRange() | kinds.ClearInRange() | kinds.AlterMetadata() | kinds.SyncPinnedPartUuids():
            return ()
