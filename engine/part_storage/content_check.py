"""Reading every byte of a part that is not active, and comparing every hash.

chDB's `CHECK TABLE` does it, on a table of equal structure that the part is attached to; not on the table
itself, where a part with a name of ours is complained of. Such a table is used for several parts before it is
dropped: making and dropping one costs twice as much as checking a small part.

A part of a few megabytes whose list of files is known to be right (its digest is Keeper's) is hashed here:
that takes a tenth of the time. Larger ones are not, because it keeps Python's lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from engine.errors import SqlError, is_passing
from engine.names import quote_string
from engine.part_storage.part_files import CHECKSUMS_FILE, files_of, link_part
from engine.part_storage.scratch_tables import Scratch, ScratchTables, local_parts
from engine.part_storage.workers import Connection
from engine.replication.file_hash import FileHash
from engine.replication.part_checksums import PartDiffers, parse_checksums_file
from engine.replication.part_name import PartName

_SMALL_BYTES = 4 << 20
_PIECE_BYTES = 64 << 10
_MAX_USES = 50
_MAX_KEPT_BYTES = 64 << 20


@dataclass(slots=True)
class _Kept:
    scratch: Scratch
    epoch: int
    uses: int = 0
    kept_bytes: int = 0


def has_all_hashes(directory: Path, name: PartName) -> bool:
    """Compare every listed file of a small part with its hash; False: it is not small, or has projections.

    Raises PartDiffers. What no list names is not looked at.
    """
    sizes = files_of(directory)
    if sum(size for _, size in sizes) > _SMALL_BYTES or any("/" in file for file, _ in sizes):
        return False
    listed = parse_checksums_file((directory / CHECKSUMS_FILE).read_bytes(), where=str(name))
    for file in listed:
        if _hash_of(directory / file.name) != file.hash:
            raise PartDiffers(str(name), f"file {file.name} does not have its hash")
    return True


def _hash_of(path: Path) -> bytes:
    hashed = FileHash()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            hashed.update(piece)
    return hashed.digest()


class ContentChecker:
    """Of one table; several checks may run at once."""

    def __init__(self, scratch: ScratchTables) -> None:
        self._scratch = scratch
        self._idle: list[_Kept] = []
        self._lock = threading.Lock()

    def check(self, connection: Connection, directory: Path, name: PartName) -> None:
        """Raises PartDiffers, and SqlError for what is no word on the part: a full disk, no memory."""
        kept = self._take(connection)
        try:
            self._check(connection, kept, directory, name)
            kept.uses += 1
            kept.kept_bytes += sum(size for _, size in files_of(directory))
        except BaseException:  # whatever it is: a scratch table in doubt is not used again
            self._scratch.drop_later(kept.scratch)
            raise
        if kept.uses >= _MAX_USES or kept.kept_bytes > _MAX_KEPT_BYTES:
            self._scratch.drop_later(kept.scratch)
        else:
            with self._lock:
                self._idle.append(kept)

    def close(self, connection: Connection) -> None:
        """Drop what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            self._scratch.drop(connection, kept.scratch)

    def _take(self, connection: Connection) -> _Kept:
        epoch = self._scratch.epoch
        with self._lock:
            stale = [kept for kept in self._idle if kept.epoch != epoch]
            self._idle = [kept for kept in self._idle if kept.epoch == epoch]
            kept = self._idle.pop() if self._idle else None
        for each in stale:
            self._scratch.drop(connection, each.scratch)
        return kept or _Kept(self._scratch.make(connection, "check"), epoch)

    def _check(self, connection: Connection, kept: _Kept, directory: Path, name: PartName) -> None:
        table = kept.scratch
        before = set(local_parts(table.path))
        link_part(directory, table.path / "detached" / f"{name.partition_id}_1_1_0", name=None)
        try:
            connection.execute(f"ALTER TABLE {table.name.quoted} ATTACH PART '{name.partition_id}_1_1_0'")
            fresh = [each for each in local_parts(table.path) if each not in before]
            if len(fresh) != 1:
                raise PartDiffers(str(name), "chDB does not find it")
            found = connection.rows(
                f"CHECK TABLE {table.name.quoted} PART {quote_string(fresh[0])}"
                " SETTINGS check_query_single_value_result = 0"
            )
        except SqlError as error:
            if is_passing(error):
                raise
            raise PartDiffers(str(name), error.message) from None
        for _, is_passed, message in found:
            if not int(is_passed):
                raise PartDiffers(str(name), str(message))
        if len(found) != 1:
            raise PartDiffers(str(name), "chDB does not check it")
