"""Which Distributed tables this node has: one file per table, below `<path>/oncluster/distributed/`.

In chDB a Distributed table is a placeholder of the same name and columns, which cannot be read. Its
record here says what it really is. The table's present name is chDB's to say, by its UUID.

Safety argument. A record is written before chDB's table is made and removed after it is gone, each time whole
(temporary file, fsync, rename, fsync of the directory). A crash between leaves a record without a table: the
next start removes it, and puts aside what its table still had to send. There is never a table without its
record.
A record that cannot be read keeps its table from being used, since nobody knows where its rows are; it keeps
nothing else from being used. Its file, and what waits to be sent, stay.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from engine.distributed.definition import DistributedDefinition
from engine.errors import Corrupt, SqlError, disk_error
from engine.names import TableName
from engine.node.whole_files import force_directory, write_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DistributedRecord:
    """`name` is the last one known."""

    uuid: UUID
    name: TableName
    definition: DistributedDefinition

    def to_bytes(self) -> bytes:
        facts = {
            "uuid": str(self.uuid),
            "database": self.name.database,
            "table": self.name.table,
            "engine_full": self.definition.engine_full,
        }
        return json.dumps(facts, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> DistributedRecord:
        """Raises Corrupt."""
        try:
            facts = json.loads(data.decode("utf-8", "surrogateescape"))
            return cls(
                uuid=UUID(facts["uuid"]),
                name=TableName(str(facts["database"]), str(facts["table"])),
                definition=DistributedDefinition.parse(str(facts["engine_full"])),
            )
        except (ValueError, KeyError, TypeError, AttributeError, SqlError) as error:
            raise Corrupt(
                f"The record of a Distributed table {where} cannot be read: {error}",
                hint="Put the file back from a backup and start the node again, or DROP the table.",
            ) from error


class DistributedCatalog:
    """All records, in memory and on disk. One process at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records: dict[UUID, DistributedRecord] = {}
        self._damaged: dict[UUID, Corrupt] = {}

    def load(self) -> Sequence[DistributedRecord]:
        """Read the directory, making it if need be. Raises OSError when that cannot be done."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._records, self._damaged = {}, {}
        for file in sorted(self._directory.glob("*.json")):
            try:
                record = DistributedRecord.from_bytes(_content(file), where=str(file))
            except Corrupt as error:
                log.error("distributed.damaged_definition file=%s error=%s", file, error)
                if (uuid := _uuid(file.stem)) is not None:
                    self._damaged[uuid] = error
                continue
            self._records[record.uuid] = record
        return self.all()

    @property
    def damaged(self) -> Mapping[UUID, Corrupt]:
        """The tables whose records cannot be read, and why."""
        return self._damaged

    def all(self) -> Sequence[DistributedRecord]:
        return tuple(self._records.values())

    def get(self, uuid: UUID) -> DistributedRecord | None:
        return self._records.get(uuid)

    def put(self, record: DistributedRecord) -> None:
        """Durable when this returns. Raises SqlError 243 or 1001 when the disk does not take it."""
        try:
            write_whole(self._file(record.uuid), record.to_bytes())
        except OSError as error:
            raise disk_error(error, f"Cannot write down that {record.name} is a Distributed table") from error
        self._records[record.uuid] = record

    def remove(self, uuid: UUID) -> None:
        """Durable when this returns; nothing if there is no such record."""
        self._file(uuid).unlink(missing_ok=True)
        force_directory(self._directory)
        self._records.pop(uuid, None)
        self._damaged.pop(uuid, None)

    def _file(self, uuid: UUID) -> Path:
        return self._directory / f"{uuid}.json"


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Corrupt(
            f"The record of a Distributed table {file} cannot be read: {error.strerror or error}",
            hint="Look at the disk of the node, and start the node again.",
        ) from error


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
