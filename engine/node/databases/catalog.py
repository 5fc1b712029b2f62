"""Which databases of this node are Replicated: one file per database, below `<path>/oncluster/databases/`.

In chDB such a database is an Atomic one with the record's UUID; its present name is chDB's to say.

Safety argument. A record is written before anything else of a database and removed after everything else,
each time whole (temporary file, fsync, rename, fsync of the directory). What is there after a crash has a
record that says how to go on:

CREATING   chDB's database or the replica in Keeper may be there or not. Both steps can be repeated.
ATTACHED   both are there. The database may be detached: chDB knows.
DROPPING   either may be there still; DROP goes on from here, at the next start if need be.
(no file)  neither is there.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from engine.errors import Corrupt
from engine.node.databases.create_text import CreateText, Place
from engine.node.whole_files import force_directory, write_whole


class DatabaseState(enum.Enum):
    """How far CREATE or DROP has come."""

    CREATING = "creating"
    ATTACHED = "attached"
    DROPPING = "dropping"


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """`place` is what Keeper sees, macros expanded; `text` is what SHOW CREATE DATABASE shows. `name` is the
    last one known."""

    uuid: UUID
    name: str
    place: Place
    text: CreateText
    state: DatabaseState

    def to_bytes(self) -> bytes:
        facts = {
            "uuid": str(self.uuid),
            "name": self.name,
            "zookeeper_path": self.place.path,
            "shard": self.place.shard,
            "replica": self.place.replica,
            "arguments": list(self.text.arguments),
            "settings": dict(self.text.settings),
            "comment": self.text.comment,
            "state": self.state.value,
        }
        return json.dumps(facts, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> DatabaseRecord:
        """Raises Corrupt."""
        try:
            facts = json.loads(data.decode("utf-8", "surrogateescape"))
            path, shard, replica = map(str, facts["arguments"])
            return cls(
                uuid=UUID(facts["uuid"]),
                name=str(facts["name"]),
                place=Place(str(facts["zookeeper_path"]), str(facts["shard"]), str(facts["replica"])),
                text=CreateText(
                    name=str(facts["name"]),
                    arguments=(path, shard, replica),
                    settings={str(k): str(v) for k, v in facts["settings"].items()},
                    comment=str(facts["comment"]),
                ),
                state=DatabaseState(facts["state"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"The record of a Replicated database {where} cannot be read: {error}",
                hint="Put it back from a backup, or move it away: its database stays as an Atomic one.",
            ) from error


@dataclass(slots=True)
class DatabaseCatalog:
    """All records, in memory and on disk. One process at a time."""

    directory: Path
    _records: dict[UUID, DatabaseRecord] = field(default_factory=dict)

    def load(self) -> Sequence[DatabaseRecord]:
        """Read the directory, making it if need be. Raises Corrupt for a record that cannot be read."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._records = {}
        for file in sorted(self.directory.glob("*.json")):
            record = DatabaseRecord.from_bytes(file.read_bytes(), where=str(file))
            self._records[record.uuid] = record
        return self.all()

    @property
    def by_uuid(self) -> Mapping[UUID, DatabaseRecord]:
        return self._records

    def all(self) -> Sequence[DatabaseRecord]:
        return tuple(self._records.values())

    def named(self, name: str) -> DatabaseRecord | None:
        """The record of the database last known by this name; one that is being dropped has none."""
        for record in self._records.values():
            if record.name == name and record.state is not DatabaseState.DROPPING:
                return record
        return None

    def put(self, record: DatabaseRecord) -> None:
        """Durable when this returns."""
        write_whole(self._file(record.uuid), record.to_bytes())
        self._records[record.uuid] = record

    def remove(self, uuid: UUID) -> None:
        """Durable when this returns; nothing if there is no such record."""
        self._file(uuid).unlink(missing_ok=True)
        force_directory(self.directory)
        self._records.pop(uuid, None)

    def _file(self, uuid: UUID) -> Path:
        return self.directory / f"{uuid}.json"
