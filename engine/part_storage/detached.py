"""Parts that are kept but not read: `detached/`, and backups in `shadow/`.

Names of directories come from users and from Keeper's entries: they are looked up in a listing, never joined.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import escape_for_file_name
from engine.part_storage.disk import force_directory, force_names, force_path
from engine.part_storage.part_files import hash_of_part, link_part, name_in, partition_of, remove_tree
from engine.part_storage.part_uuid import UUID_FILE
from engine.part_storage.publishing import drop_local, keep_in_detached, place_in_detached
from engine.part_storage.recovery import CHDB_BROKEN_PREFIX, broken_directory
from engine.part_storage.table_state import PASSING_MARK, TableState
from engine.part_storage.workers import Connection
from engine.replication.part_store import DetachedPart, PartsBroken

_PREFIX = re.compile(r"[a-z][a-z-]{0,40}\Z")


class DetachedParts:
    """Of one table."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._hashes: Mapping[tuple[str, int], str | None] = {}

    def list(self) -> Sequence[DetachedPart]:
        """See `PartStore.detached`."""
        return [part for part, _ in self._directories()]

    def with_hash(self, hash_text: str) -> Sequence[DetachedPart]:
        """See `PartStore.detached_with`."""
        found = self._directories()
        with self._state.lock:
            known = self._hashes
        # Each replica asks once for each part that another one attaches, and files are slow to open.
        hashes = {key: known[key] if key in known else self._hash_of(key[0]) for _, key in found}
        with self._state.lock:
            self._hashes = hashes
        return [part for part, key in found if hashes[key] == hash_text]

    def _directories(self) -> Sequence[tuple[DetachedPart, tuple[str, int]]]:
        """In the order of their names; each with its name and inode, by which it is known again."""
        with os.scandir(self._state.detached) as entries:
            keys = sorted((entry.name, entry.inode()) for entry in entries if entry.is_dir())
        return [
            (self._part_of(name), (name, inode))
            for name, inode in keys
            if not name.endswith(f"_{PASSING_MARK}")
        ]

    def _part_of(self, directory: str) -> DetachedPart:
        part = DetachedPart.of(directory)
        if self._state.order_matters and part.name is not None:
            return replace(part, level=min(part.name.level, 1))
        return part

    def _hash_of(self, directory: str) -> str | None:
        return hash_of_part(self._state.detached / directory)

    def find(self, directory: str) -> Path | None:
        return next((d for d in self._state.detached.iterdir() if d.name == directory and d.is_dir()), None)

    def remove(self, directory: str) -> None:
        """Nothing if it is not there."""
        found = self.find(directory)
        if found is not None:
            remove_tree(found)
            force_directory(self._state.detached, self._state.durability)

    def relabel(self, directory: str, prefix: str) -> None:
        """See `PartStore.relabel_detached`."""
        if prefix and not _PREFIX.match(prefix):
            raise ValueError(f"{prefix!r} is no prefix")
        source = self.find(directory)
        if source is None:
            return
        name = str(DetachedPart.of(directory).name or directory)
        source.rename(place_in_detached(self._state, f"{prefix}_{name}" if prefix else name))
        force_directory(self._state.detached, self._state.durability)

    def set_aside(self, connection: Connection, directory: str, prefix: str) -> None:
        """See `PartStore.set_aside`."""
        if not _PREFIX.match(prefix):
            raise ValueError(f"{prefix!r} is no prefix")
        state = self._state
        source = broken_directory(state, directory)
        if source is None:
            return
        local_name = source.name.removeprefix(CHDB_BROKEN_PREFIX)
        name = name_in(source, partition_of(local_name))
        kept_as = f"{prefix}_{name or local_name}"
        if source.parent == state.data:  # readers see it: chDB has to let go of it
            keep_in_detached(state, source, kept_as)
            drop_local(connection, state.table, [source.name])
        else:
            target = place_in_detached(state, kept_as)
            source.rename(target)
            (target / UUID_FILE).unlink(missing_ok=True)
        force_directory(state.detached, state.durability)

    def keep_staged(self, directory: Path, name: str) -> None:
        """A staged part's directory becomes one of `detached/`, of this name or one like it."""
        target = place_in_detached(self._state, name)
        directory.rename(target)
        (target / UUID_FILE).unlink(missing_ok=True)
        force_directory(self._state.detached, self._state.durability)

    def freeze(self, partition_ids: Sequence[str] | None, backup_name: str, number: int) -> None:
        """See `PartStore.freeze`; what readers see must not change meanwhile, or the backup would have both a
        part and what it was merged into. `number` is one that no other call gets."""
        state = self._state
        escaped = escape_for_file_name(backup_name)
        if not escaped:
            raise SqlError(Code.BAD_ARGUMENTS, "A backup needs a name")
        relative = state.data.relative_to(state.pool_path)
        root = state.pool_path / "shadow" / escaped / relative
        chosen = [
            (name, local.directory)
            for name, local in sorted(state.active.items())
            if partition_ids is None or name.partition_id in partition_ids
        ]
        gone = [name for name, directory in chosen if not directory.is_dir()]
        if gone:
            raise PartsBroken(state.table, gone)
        root.mkdir(parents=True, exist_ok=True)
        # Half a part, left by a kill or a loss of power, would be taken for a whole one by the next attempt.
        made = state.temporary("frozen", number)
        made.mkdir()
        try:
            wanted = [(str(name), part) for name, part in chosen if not (root / str(name)).exists()]
            for directory, part in wanted:
                link_part(part, made / directory, name=None)
            force_names(made, state.durability)
            for directory, _ in wanted:
                (made / directory).rename(root / directory)
            force_path(root, state.durability, below=state.pool_path)
        finally:
            remove_tree(made)
