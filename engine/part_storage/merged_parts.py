"""Scratch tables that hold nothing but a part that was merged in them, until it is published.

The swap that shows a merged part needs a table that holds what the partition is to hold. Where that is the
merged part alone, as after OPTIMIZE FINAL, the table is there already. It is a short cut only: whatever
speaks against it, the swap makes a table of its own from the staged part, which is what counts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from engine.part_storage.part_files import is_linked
from engine.part_storage.scratch_tables import Scratch, ScratchTables
from engine.part_storage.workers import Connection
from engine.replication.part_name import PartName

_MAX_KEPT = 4


@dataclass(frozen=True, slots=True)
class Merged:
    """`directory` is the part's, in the table."""

    scratch: Scratch
    directory: Path
    epoch: int


class MergedParts:
    """Of one table; merges and swaps may run at once."""

    def __init__(self, scratch: ScratchTables) -> None:
        self._scratch = scratch
        self._kept: dict[PartName, Merged] = {}
        self._lock = threading.Lock()

    def keep(self, part: PartName, scratch: Scratch, directory: Path, *, epoch: int) -> None:
        """`epoch` is that of the table's structure when `scratch` was made."""
        with self._lock:
            unwanted = [self._kept.pop(part, None)]
            self._kept[part] = Merged(scratch, directory, epoch)
            if len(self._kept) > _MAX_KEPT:
                unwanted.append(self._kept.pop(next(iter(self._kept))))
        for each in unwanted:
            if each is not None:
                self._scratch.drop_later(each.scratch)

    def take(self, part: PartName, staged: Path) -> Merged | None:
        """The table of a part, if what is staged under its name is what was merged in it and the table has
        the structure still. The caller drops it."""
        with self._lock:
            merged = self._kept.pop(part, None)
        if merged is None:
            return None
        if merged.epoch == self._scratch.epoch and is_linked(staged, merged.directory):
            return merged
        self._scratch.drop_later(merged.scratch)
        return None

    def forget(self, part: PartName) -> None:
        """It is not going to be published. Called by a step."""
        with self._lock:
            merged = self._kept.pop(part, None)
        if merged is not None:
            self._scratch.drop_later(merged.scratch)

    def close(self, connection: Connection) -> None:
        """Drop what is kept."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for merged in kept:
            self._scratch.drop(connection, merged.scratch)
