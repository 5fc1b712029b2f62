"""What the pieces of one table's part store share: where things are, and what is there.

    <pool>/store/…/<uuid>/                     chDB's own directory of the table
    <pool>/oncluster/staged/<uuid>/<part>/     staged parts; `tmp_…` are unfinished and removed by `load`
    <pool>/oncluster/staged/<uuid>/live.json   see `live_marks`
    <pool>/oncluster/staged/<uuid>/attaching.json  see `attaching`
    <pool>/oncluster/staged/<uuid>/originals/  see `altering`
    <pool>/data/_oncluster/…_<uuid>_<n>/       stage and scratch tables, gone after a restart

All on one file system, so that parts are hard-linked and renamed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from engine.names import TableName
from engine.part_storage.disk import Durability, force_to_disk
from engine.part_storage.part_files import is_local_name, last_block, name_in, remove_tree
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.storage.layout import private_directory

PASSING_MARK = 888_888_888
"""The mutation in the name of a part on its way through `detached/`: no part of a user has it."""

TEMPORARY_PREFIX = "tmp_"


def blocks_of(local_name: str) -> str:
    """chDB's name of a part without the number of its mutation: what chDB itself does to a part keeps it."""
    return "_".join(local_name.split("_")[:4])


def staged_root(pool_path: Path, uuid: str) -> Path:
    """Where a table's staged parts are, and all else that is kept beside chDB's table."""
    return private_directory(pool_path) / "staged" / uuid


@dataclass(frozen=True, slots=True)
class LocalPart:
    """An active part. `directory` has the bytes that Keeper knows; `visible` is what readers see, whose name
    is chDB's. The two differ only after a column was renamed, or added under the name of a dropped one, until
    the part itself is mutated."""

    part: Part
    directory: Path
    visible: Path

    @property
    def is_ahead(self) -> bool:
        """Whether readers see another form of the part."""
        return self.directory != self.visible


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What chDB says of a table."""

    data: Path
    engine: str
    create: str


@dataclass(slots=True)
class TableState:
    """Changed by steps on worker threads; readers get maps that never change."""

    table: TableName
    uuid: str
    pool_path: Path
    data: Path
    durability: Durability
    order_matters: bool = False
    """Rows of equal key are told apart by the order of their parts (Replacing without version, …)."""
    has_hidden_settings: bool = False
    """`hidden_settings` are known to be in its definition."""
    active: Mapping[PartName, LocalPart] = field(default_factory=dict)
    active_parts: Mapping[PartName, Part] = field(default_factory=dict)
    staged: Mapping[PartName, Part] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    """Columns that an ALTER renamed, old name to new: parts that come may still have the old one."""
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Columns that an ALTER dropped, each with its mutation's number by partition; see `column_notes`."""
    altering: Mapping[str, PartName] = field(default_factory=dict)
    """While an ALTER lets chDB rewrite parts: what they are, by chDB's name without a mutation (`blocks_of`).
    """
    local_names: set[str] = field(default_factory=set)
    """Every directory of a part that was in `data` when it was looked at last."""
    last_block: int = 0
    """The largest number in their names."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def staged_root(self) -> Path:
        return staged_root(self.pool_path, self.uuid)

    @property
    def detached(self) -> Path:
        return self.data / "detached"

    @property
    def originals_root(self) -> Path:
        """Parts as Keeper knows them, of which readers see another form."""
        return self.staged_root / "originals"

    @property
    def sending_root(self) -> Path:
        return self.staged_root / "tmp_sending"

    def staged_directory(self, name: PartName) -> Path:
        return self.staged_root / str(name)

    def temporary(self, purpose: str, number: int) -> Path:
        """A directory for a part that is being made; on the file system of the staged ones."""
        return self.staged_root / f"{TEMPORARY_PREFIX}{purpose}_{number}"

    def directory_of(self, name: PartName) -> Path | None:
        """Where an active or staged part lies."""
        local = self.active.get(name)
        if local is not None:
            return local.directory
        return self.staged_directory(name) if name in self.staged else None

    def in_partition(self, partition_id: str) -> list[LocalPart]:
        """Active parts in the order of their blocks."""
        return sorted(
            (local for name, local in self.active.items() if name.partition_id == partition_id),
            key=lambda local: local.part.name,
        )

    def change_active(self, *, remove: Iterable[PartName] = (), add: Iterable[LocalPart] = ()) -> None:
        with self.lock:
            # Copied, not made anew: a copy hashes no name.
            active, parts = dict(self.active), dict(self.active_parts)
            for name in remove:
                active.pop(name, None)
                parts.pop(name, None)
            for local in add:
                active[local.part.name] = local
                parts[local.part.name] = local.part
            self.active, self.active_parts = MappingProxyType(active), MappingProxyType(parts)

    def change_staged(self, *, remove: Iterable[PartName] = (), add: Iterable[Part] = ()) -> None:
        with self.lock:
            staged = dict(self.staged)
            for name in remove:
                staged.pop(name, None)
            for part in add:
                staged[part.name] = part
            self.staged = MappingProxyType(staged)

    def put_in_place(self, temporary: Path, part: Part) -> Part:
        """A finished directory becomes a staged part, on the disk; the one that is there already stays.

        It gets its name before it is forced to disk. Should power fail in between, nobody was told of it:
        `load` finds a staged part that Keeper does not know, or none.
        """
        known = self.staged.get(part.name)
        if known is None and part.name in self.active:
            known = self.active[part.name].part
        if known is not None:
            remove_tree(temporary)
            return known
        target = self.staged_directory(part.name)
        remove_tree(target)  # of a part that was discarded, when removing it failed
        temporary.rename(target)
        force_to_disk(target, self.durability, parent=self.staged_root)
        self.change_staged(add=[part])
        return part

    def newly_attached(self, name: PartName, level: int) -> Path | None:
        """Where chDB has put a part of one block if it gave it the next number, as it does unless a swap came
        between; None if there is no such, and `new_local_names` has to look for it."""
        block = self.last_block + 1
        local_name = f"{name.partition_id}_{block}_{block}_{level}"
        directory = self.data / local_name
        if name_in(directory, name.partition_id) != name:
            return None
        self.last_block = block
        self.local_names.add(local_name)
        return directory

    def new_local_names(self) -> list[str]:
        """Directories of parts that came since the last call."""
        known = self.local_names
        with os.scandir(self.data) as entries:
            here = {each.name for each in entries if each.name in known or is_local_name(each.name)}
        fresh = sorted(here - known)
        self.last_block = max((last_block(name) for name in fresh), default=self.last_block)
        # chDB uses a number once as long as it runs; a part that is gone needs not be remembered.
        self.local_names = here
        return fresh
