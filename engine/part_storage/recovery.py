"""What a part store finds on the disk at its start, after whatever crash.

1. Scratch tables and unfinished directories (`tmp_…`) are removed: they held links or copies only.
2. Of chDB's active parts, those below the mark in `live.json` are dead, those that another one covers and
   second ones of a name are leftovers of a swap that was cut: they are dropped. This has to happen before
   anybody reads.
   An ALTER that was cut is settled first (see `altering`), and afterwards parts that chDB rewrote without
   need are shown as they are.
3. `detached/…_888888888` with a UUID is a part on its way from staged to active: back to staged.
4. Staged parts that are active are removed; those that cannot be read are broken, as are active parts without
   a replicated name, and what chDB itself moved away as broken when it loaded the table.

Repeatable: every step may be cut and is done again by the next start.
"""

from __future__ import annotations

import logging
from pathlib import Path

from engine.names import quote_string
from engine.part_storage.altering import Alterer
from engine.part_storage.disk import write_durably
from engine.part_storage.hidden_settings import missing_settings
from engine.part_storage.live_marks import forget_marks, live_marks
from engine.part_storage.part_files import (
    CHECKSUMS_FILE,
    first_block,
    is_local_name,
    name_in,
    partition_of,
    read_part,
    remove_tree,
)
from engine.part_storage.part_uuid import UUID_FILE, part_of_text, uuid_of
from engine.part_storage.publishing import Publisher, drop_local
from engine.part_storage.scratch_tables import ScratchTables
from engine.part_storage.table_state import PASSING_MARK, TEMPORARY_PREFIX, LocalPart, TableState
from engine.part_storage.workers import Connection
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_set import covered
from engine.replication.part_store import LoadedParts

log = logging.getLogger(__name__)

CHDB_BROKEN_PREFIX = "broken-on-start_"


def load(
    connection: Connection,
    state: TableState,
    scratch: ScratchTables,
    publisher: Publisher,
    alterer: Alterer,
) -> LoadedParts:
    """See `PartStore.load`."""
    state.staged_root.mkdir(parents=True, exist_ok=True)
    scratch.clear(connection)
    for directory in state.staged_root.iterdir():
        if directory.name.startswith(TEMPORARY_PREFIX):
            remove_tree(directory)
            directory.unlink(missing_ok=True) if directory.is_file() else None
    if not state.has_hidden_settings:
        _hold_settings(connection, state, scratch)
    broken: list[str] = []
    alterer.load(connection)
    _load_active(connection, state, broken)
    alterer.find_originals()
    publisher.show_own_bytes(connection)
    _take_back_passing(state)
    _load_staged(state, broken)
    broken += sorted(
        f"detached/{directory.name}"
        for directory in state.detached.iterdir()
        if directory.name.startswith(CHDB_BROKEN_PREFIX) and (directory / UUID_FILE).exists()
    )
    state.new_local_names()
    return LoadedParts(
        active=tuple(local.part for _, local in sorted(state.active.items())),
        staged=tuple(part for _, part in sorted(state.staged.items())),
        broken=tuple(broken),
        broken_bytes=sum(_bytes_in(broken_directory(state, each)) for each in broken),
    )


def _hold_settings(connection: Connection, state: TableState, scratch: ScratchTables) -> None:
    """A table that was made without them, or by an earlier version, gets the hidden settings."""
    if missing := missing_settings(scratch.create_text(connection)):
        changes = ", ".join(f"{name} = {value}" for name, value in missing.items())
        connection.define(f"ALTER TABLE {state.table.quoted} MODIFY SETTING {changes}")
        scratch.forget_definition()
    state.has_hidden_settings = True


def _load_active(connection: Connection, state: TableState, broken: list[str]) -> None:
    table = state.table
    rows = connection.rows(
        "SELECT name, active, uuid, rows FROM system.parts"
        f" WHERE database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
    )
    marks = live_marks(state)
    dead: list[str] = []
    named: dict[PartName, list[str]] = {}
    for local_name, _, uuid, count in (row for row in rows if row[1]):
        partition_id = partition_of(local_name)
        # The file may be newer than what chDB has in memory: an ALTER names the parts it rewrote.
        name = name_in(state.data / local_name, partition_id) or part_of_text(partition_id, uuid)
        if name is None and not int(count):
            continue  # chDB covers what it drops by empty parts; dropping one would make the next
        if first_block(local_name) < marks.get(partition_id, 0):
            dead.append(local_name)
        elif name is None:
            broken.append(local_name)
        else:
            named.setdefault(name, []).append(local_name)
    for name in covered(named):
        dead += named.pop(name)
    for copies in named.values():
        copies.sort(key=first_block)
        dead += copies[:-1]
    if dead:
        log.info("part_storage.leftovers table=%s parts=%s", table, ",".join(sorted(dead)))
        drop_local(connection, table, dead)
    if marks and not any(not row[1] for row in rows):
        forget_marks(state)
    found: list[LocalPart] = []
    for name, copies in sorted(named.items()):
        directory = state.data / copies[-1]
        try:
            found.append(LocalPart(read_part(directory, name), directory, directory))
        except PartDiffers:
            broken.append(copies[-1])
    state.change_active(remove=tuple(state.active), add=found)


def _take_back_passing(state: TableState) -> None:
    for directory in sorted(state.detached.iterdir()):
        local_name = directory.name.removeprefix("attaching_")
        if not local_name.endswith(f"_{PASSING_MARK}") or not is_local_name(local_name):
            continue
        name = name_in(directory, partition_of(local_name))
        if name is None or name in state.active or state.staged_directory(name).exists():
            remove_tree(directory)
        else:
            directory.rename(state.staged_directory(name))


def _load_staged(state: TableState, broken: list[str]) -> None:
    found = []
    for directory in sorted(state.staged_root.iterdir()):
        name = PartName.try_parse(directory.name)
        if name is None:
            continue
        if name in state.active or not (directory / CHECKSUMS_FILE).exists():
            remove_tree(directory)
            continue
        try:
            found.append(read_part(directory, name))
        except PartDiffers:
            broken.append(f"staged/{directory.name}")
            continue
        if name_in(directory, name.partition_id) != name:  # it was being renamed
            write_durably(directory / UUID_FILE, str(uuid_of(name)).encode(), state.durability)
    state.change_staged(remove=tuple(state.staged), add=found)


def _bytes_in(directory: Path | None) -> int:
    if directory is None:
        return 0
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def broken_directory(state: TableState, directory: str) -> Path | None:
    """Where a directory is that `load` reported as broken; None for any other name."""
    place, _, name = directory.rpartition("/")
    root = {"": state.data, "detached": state.detached, "staged": state.staged_root}.get(place)
    is_known = is_local_name(name) or name.startswith(CHDB_BROKEN_PREFIX)
    if root is None or not is_known or "/" in name or not (root / name).is_dir():
        return None
    return root / name
