"""Which replicated tables this node has: one file per table, below `<path>/oncluster/replicated/`.

A record holds what chDB does not know: the path in Keeper and the replica's name, the engine as the user
wrote it, and how far a CREATE or DROP has come. The table's present name is chDB's to say, by its UUID: a
record's name is only the last one known.

Safety argument. A record is written before anything else of a table and removed after everything else, each
time whole (temporary file, fsync, rename, fsync of the directory). A crash leaves the record as it was before
or as it is after, so whatever exists of a table, in chDB or in Keeper, has a record that says what to do
with it:

CREATING    chDB's table or the replica in Keeper may be there or not. CREATE goes on from here: both of its
            steps can be repeated.
CONVERTING  chDB's table is there, and was a plain one; the replica in Keeper may be there or not.
LEAVING     chDB's table is there, with nothing of which a plain table may not know; Keeper's replica stays.
ATTACHED    both are there. The table may be detached: chDB knows.
DROPPING    either may be there still; DROP goes on from here, at the next start if need be.
(no file)   neither is there.

Nothing here removes data.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from engine.errors import Corrupt
from engine.names import TableName
from engine.node.whole_files import force_directory, write_whole
from engine.replication.paths import ReplicaPaths, TablePaths

WITHOUT_RECORD = (
    "Put it back from a backup, and start the node. Without it the table is a plain one that merges nothing: "
    "DROP it, SYSTEM DROP REPLICA on another host, and CREATE it, which fetches all rows."
)


class TableState(enum.Enum):
    """How far CREATE or DROP has come."""

    CREATING = "creating"
    CONVERTING = "converting"
    """From a plain table of chDB to a replicated one (`convert`)."""
    RESTORING = "restoring"
    """Brought back by UNDROP; its replica is to be made in Keeper anew (`undrop`)."""
    LEAVING = "leaving"
    """From a replicated table to a plain one of chDB (`unconvert`)."""
    ATTACHED = "attached"
    DROPPING = "dropping"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """`zookeeper_path` and `replica` are what Keeper sees, macros expanded.

    `shown_path` and `shown_replica` are what SHOW CREATE TABLE shows. `user_settings` are those settings of
    the CREATE statement that replication puts its own in the place of, as SQL literals.
    """

    uuid: UUID
    name: TableName
    zookeeper_path: str
    replica: str
    shown_path: str
    shown_replica: str
    state: TableState
    user_settings: Mapping[str, str] = field(default_factory=dict)
    for_view: UUID | None = None
    """The view that the table is being made for; None when that is there, and for all other tables."""

    @property
    def paths(self) -> TablePaths:
        return TablePaths(self.zookeeper_path)

    @property
    def me(self) -> ReplicaPaths:
        return self.paths.replica(self.replica)

    def to_bytes(self) -> bytes:
        facts = {
            "uuid": str(self.uuid),
            "database": self.name.database,
            "table": self.name.table,
            "zookeeper_path": self.zookeeper_path,
            "replica": self.replica,
            "shown_path": self.shown_path,
            "shown_replica": self.shown_replica,
            "state": self.state.value,
            "user_settings": dict(self.user_settings),
        }
        if self.for_view is not None:
            facts["for_view"] = str(self.for_view)
        return json.dumps(facts, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> TableRecord:
        """Raises Corrupt."""
        try:
            facts = json.loads(data.decode("utf-8", "surrogateescape"))
            return cls(
                uuid=UUID(facts["uuid"]),
                name=TableName(str(facts["database"]), str(facts["table"])),
                zookeeper_path=str(facts["zookeeper_path"]),
                replica=str(facts["replica"]),
                shown_path=str(facts["shown_path"]),
                shown_replica=str(facts["shown_replica"]),
                state=TableState(facts["state"]),
                user_settings={str(k): str(v) for k, v in facts["user_settings"].items()},
                for_view=UUID(facts["for_view"]) if "for_view" in facts else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"The record of a replicated table {where} cannot be read: {error}",
                hint=WITHOUT_RECORD,
            ) from error


class TableCatalog:
    """All records, in memory and on disk. One process at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records: dict[UUID, TableRecord] = {}

    def load(self) -> Sequence[TableRecord]:
        """Read the directory, making it if need be. Raises Corrupt for a record that cannot be read."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._records = {}
        for file in sorted(self._directory.glob("*.json")):
            record = TableRecord.from_bytes(file.read_bytes(), where=str(file))
            self._records[record.uuid] = record
        return self.all()

    def all(self) -> Sequence[TableRecord]:
        return tuple(self._records.values())

    def get(self, uuid: UUID) -> TableRecord | None:
        return self._records.get(uuid)

    def named(self, name: TableName) -> TableRecord | None:
        """The record of the table last known by this name; one that is being dropped has none."""
        for record in self._records.values():
            if record.name == name and record.state is not TableState.DROPPING:
                return record
        return None

    def at(self, replica: ReplicaPaths) -> TableRecord | None:
        """The record of the table that is this replica."""
        for record in self._records.values():
            if record.me == replica:
                return record
        return None

    def put(self, record: TableRecord) -> None:
        """Durable when this returns."""
        write_whole(self._file(record.uuid), record.to_bytes())
        self._records[record.uuid] = record

    def remove(self, uuid: UUID) -> None:
        """Durable when this returns; nothing if there is no such record."""
        self._file(uuid).unlink(missing_ok=True)
        force_directory(self._directory)
        self._records.pop(uuid, None)

    def _file(self, uuid: UUID) -> Path:
        return self._directory / f"{uuid}.json"
