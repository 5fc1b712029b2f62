"""What readers see changes here, and nowhere else.

Two ways:

- *attach*: staged parts join their partitions, each by itself. Their directories are renamed into
  `detached/`, and `ATTACH PART` takes them from there (about 1 ms each), one statement for all.
- *swap*: some parts come and others go. A scratch table gets links of all parts of the partition as they
  shall be, in the order of their blocks, and `REPLACE PARTITION` puts them in the place of the old ones;
  readers see all of the old ones or all of the new ones. It costs about 1.5 ms a part, because chDB renames
  them all. Of a part that was just merged and is to be alone, the table that it was merged in is taken.

Safety argument.

1. attach: after the rename the part lies in `detached/` with its UUID and the mark `PASSING_MARK` in its
   name; `load` moves it back to the staged ones. After ATTACH PART it is active. It is never in two places.
   Where chDB fails at one of several, those before it have joined, and the rest goes back.
   A part of which readers are to see another form (`altering`) stays staged meanwhile, and the form goes
   that way; `load` removes it there. The part's own bytes have links in `originals/` before.
2. swap: the scratch table holds links only. A crash before REPLACE PARTITION leaves it to be cleared, one in
   the middle leaves old and new directories side by side: `load` keeps one of two with the same name and none
   that another covers, which is the partition as it was or as it is to be.
3. chDB leaves the old directories on disk for a while, and a restart would take them for active. So the swap
   then writes the first local block that lives in the partition to `live.json`: what is below it is dead (a
   swap gives every part a new, higher number). `publish` returns after that. The room for it on the disk is
   taken before.
4. staged directories of what was added go last. A crash before leaves them; `load` finds the part active.

Only this module and `recovery` take parts from the table.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.errors import Code, SqlError, is_passing
from engine.names import TableName, quote_string
from engine.part_storage.column_notes import needs_other_form
from engine.part_storage.disk import force_directory, force_to_disk
from engine.part_storage.live_marks import have_room_for, live_marks, write_marks
from engine.part_storage.merged_parts import MergedParts
from engine.part_storage.part_files import (
    first_block,
    is_linked,
    link_part,
    name_in,
    partition_of,
    remove_tree,
)
from engine.part_storage.part_sizes import check_files
from engine.part_storage.part_uuid import UUID_FILE
from engine.part_storage.producing import Producer
from engine.part_storage.scratch_tables import Scratch, ScratchTables
from engine.part_storage.table_state import PASSING_MARK, TEMPORARY_PREFIX, LocalPart, TableState
from engine.part_storage.workers import Connection, Workers
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartsBroken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """Parts that come and parts that go, at one moment per partition."""

    add: tuple[PartName, ...]
    remove: tuple[PartName, ...] = ()

    def of(self, partition_id: str, state: TableState) -> Change:
        """What of it is still to be done in a partition."""
        return Change(
            tuple(n for n in self.add if n.partition_id == partition_id and n not in state.active),
            tuple(n for n in self.remove if n.partition_id == partition_id and n in state.active),
        )


class Publisher:
    """Steps of one table; the caller runs one at a time."""

    def __init__(
        self,
        state: TableState,
        scratch: ScratchTables,
        producer: Producer,
        merged: MergedParts,
        workers: Workers,
    ) -> None:
        self._state = state
        self._scratch = scratch
        self._merged = merged
        self._producer = producer
        self._workers = workers
        self._reserve = workers.pool.disk_reserve

    def publish(self, connection: Connection, changes: Sequence[Change]) -> None:
        """`PartStore.publish` for each of `changes`, which concern different parts.

        All that concerns a partition is one swap if any of it needs one.
        """
        state = self._state
        adds = [name for change in changes for name in change.add]
        missing = [str(name) for name in adds if name not in state.active and name not in state.staged]
        if missing:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"Parts {', '.join(missing)} are not staged")
        removes = [name for change in changes for name in change.remove]
        joining: list[PartName] = []
        leaving: list[PartName] = []
        for partition_id in sorted({name.partition_id for name in (*adds, *removes)}):
            here = [change.of(partition_id, state) for change in changes]
            coming = sorted({name for change in here for name in change.add})
            going = sorted({name for change in here for name in change.remove})
            if not coming:
                leaving += going
                continue
            is_swap = going or any(len(change.add) > 1 for change in here)
            if is_swap or any(self._is_out_of_order(name) for name in coming):
                self._swap(connection, partition_id, coming, going)
            else:
                joining += coming
        if joining:
            self._attach(connection, joining)
        if leaving:
            with self._reserve.lent():
                self._take_away(connection, leaving)
        left = [name for name in adds if name in state.staged and name in state.active]
        for name in left:
            remove_tree(state.staged_directory(name))
        state.change_staged(remove=left)

    def detach(self, connection: Connection, names: Sequence[PartName], prefix: str) -> None:
        """`PartStore.remove` of parts that are kept in `detached/`."""
        state = self._state
        going = sorted(name for name in names if name in state.active)
        for name in going:
            self._keep_detached(name, prefix)
        force_directory(state.detached, state.durability)
        self._take_away(connection, going)

    def show_own_bytes(self, connection: Connection) -> None:
        """After an ALTER and at the start: of parts that chDB has rewritten without need, readers see what
        they are again. Until then it may be that they miss what other replicas' readers see."""
        state = self._state
        own = [name for name, local in state.active.items() if local.is_ahead]
        own = [name for name in own if not needs_other_form(state, state.active[name])]
        for partition_id in sorted({name.partition_id for name in own}):
            self._swap(connection, partition_id, [], [], [n for n in own if n.partition_id == partition_id])

    # -- attach --------------------------------------------------------------------------------------------

    def _is_out_of_order(self, name: PartName) -> bool:
        return self._state.order_matters and any(
            other.partition_id == name.partition_id and other > name for other in self._state.active
        )

    def _attach(self, connection: Connection, names: Sequence[PartName]) -> None:
        state = self._state
        originals: dict[PartName, Path | None] = {}
        passing: dict[PartName, str] = {}
        try:
            for name in names:
                shown, originals[name] = self._forms(connection, name)
                number = self._workers.next_number()
                local_name = f"{name.partition_id}_{number}_{number}_{_level(name)}_{PASSING_MARK}"
                shown.rename(state.detached / local_name)
                passing[name] = local_name
            attach = ", ".join(f"ATTACH PART {quote_string(local_name)}" for local_name in passing.values())
            connection.execute(f"ALTER TABLE {state.table.quoted} {attach}")
        except BaseException as error:  # whatever it is: what has not joined goes back to where it was staged
            joined = [
                name
                for name in passing
                if not self._taken_back(name, passing[name], is_form=originals[name] is not None)
            ]
            self._joined(joined, originals)
            if len(joined) < len(names) or not isinstance(error, SqlError):
                raise
            log.warning("part_storage.attached_in_spite_of table=%s error=%s", state.table, error)
        else:
            self._joined(names, originals)

    def _taken_back(self, name: PartName, passing: str, *, is_form: bool) -> bool:
        """A form of a part that is still staged is not wanted any more."""
        state = self._state
        back = state.staged_directory(name)
        if is_form:
            back = state.temporary("form", self._workers.next_number())
        for prefix in ("", "attaching_"):
            with contextlib.suppress(OSError):
                (state.detached / f"{prefix}{passing}").rename(back)
                if is_form:
                    remove_tree(back)
                return True
        return False

    def _joined(self, names: Sequence[PartName], originals: Mapping[PartName, Path | None]) -> None:
        """chDB has attached `names`, in this order."""
        state = self._state
        attached = {
            name: self._workers.surely(partial(state.newly_attached, name, _level(name))) for name in names
        }
        found = {name: local for name, local in attached.items() if local is not None}
        if unseen := [name for name in names if name not in found]:
            found |= self._find_new(unseen)
        state.change_active(
            add=[LocalPart(state.staged[name], originals[name] or found[name], found[name]) for name in names]
        )
        state.change_staged(remove=names)
        for name in names:
            if originals[name] is not None:
                remove_tree(state.staged_directory(name))

    def _find_new(self, names: Sequence[PartName]) -> dict[PartName, Path]:
        """The directories that chDB has just made for `names`."""
        state = self._state
        wanted = set(names)
        found: dict[PartName, Path] = {}
        for local_name in self._workers.surely(state.new_local_names):
            name = self._workers.surely(partial(name_in, state.data / local_name, partition_of(local_name)))
            if name in wanted and name is not None:
                known = found.get(name)
                if known is None or first_block(known.name) < first_block(local_name):
                    found[name] = state.data / local_name
        missing = sorted(wanted - found.keys())
        if missing:
            raise SqlError(Code.LOGICAL_ERROR, f"chDB has taken {missing[0]} and does not have it")
        return found

    def _forms(self, connection: Connection, name: PartName) -> tuple[Path, Path | None]:
        """What is to be shown of a staged part, and where its own bytes are kept if that is something
        else. What is staged stays as it is: should it not come to be shown, those bytes are the part."""
        staged = self._state.staged_directory(name)
        original = self._state.originals_root / str(name)
        remove_tree(original)  # of an attempt that failed; it may be of another part of this name
        form = self._producer.form_for_readers(connection, staged, name)
        if form is None:
            return staged, None
        link_part(staged, original, name=name)
        force_to_disk(original, self._state.durability)
        return form, original

    # -- swap ----------------------------------------------------------------------------------------------

    def _swap(
        self,
        connection: Connection,
        partition_id: str,
        coming: Sequence[PartName],
        going: Sequence[PartName],
        own: Collection[PartName] = (),
    ) -> None:
        """Of those that stay, the ones in `own` are to be shown as they are."""
        state = self._state
        gone = set(going)
        staying = [
            LocalPart(local.part, local.directory, local.directory) if local.part.name in own else local
            for local in state.in_partition(partition_id)
            if local.part.name not in gone
        ]
        forms = {name: self._forms(connection, name) for name in coming}
        final = sorted(
            [(local.part, local.visible, local.directory if local.is_ahead else None) for local in staying]
            + [(state.staged[name], *forms[name]) for name in coming],
            key=lambda each: each[0].name,
        )
        try:
            marks = self._show(connection, partition_id, final)
        finally:
            for shown, original in forms.values():
                if original is not None:
                    remove_tree(shown)
        found = self._find_new([part.name for part, _, _ in final])
        self._mark_live(marks, partition_id, found.values())
        state.change_active(
            remove=going,
            add=[
                LocalPart(part, original or found[part.name], found[part.name]) for part, _, original in final
            ],
        )
        for name in (*going, *own):
            remove_tree(state.originals_root / str(name))

    def _show(
        self, connection: Connection, partition_id: str, final: Sequence[tuple[Part, Path, Path | None]]
    ) -> Mapping[str, int]:
        """These parts are the partition; returns the marks before."""
        scratch = self._table_of_merged(final) or self._linked(connection, partition_id, final)
        try:
            marks = live_marks(self._state)
            have_room_for(self._state, marks, [partition_id])
            self._replace(connection, partition_id, scratch, {part.name for part, _, _ in final if part.rows})
        finally:
            self._scratch.drop_later(scratch)
        return marks

    def _take_away(self, connection: Connection, going: Sequence[PartName]) -> None:
        """Parts go and none come in their place."""
        here = Counter(name.partition_id for name in self._state.active)
        leaving: dict[str, list[PartName]] = {}
        for name in going:
            leaving.setdefault(name.partition_id, []).append(name)
        whole = [partition_id for partition_id, names in leaving.items() if len(names) == here[partition_id]]
        if whole:
            self._empty(connection, {partition_id: leaving.pop(partition_id) for partition_id in whole})
        for partition_id, names in leaving.items():
            self._swap(connection, partition_id, [], names)

    def _empty(self, connection: Connection, partitions: Mapping[str, Sequence[PartName]]) -> None:
        """As `_swap` of all parts of these partitions for none: one table without parts, one look and one
        mark do for all. Where one of them fails those before it are done."""
        state = self._state
        marks = dict(live_marks(state))
        have_room_for(state, marks, partitions)
        scratch = self._scratch.make(connection, "swap")
        done: list[str] = []
        try:
            for partition_id in partitions:
                self._replace(connection, partition_id, scratch, frozenset())
                done.append(partition_id)
        finally:
            self._scratch.drop_later(scratch)
            self._find_new([])
            first = self._first_to_come(done)
            self._workers.surely(lambda: write_marks(state, {**marks, **first}))
            gone = [name for partition_id in done for name in partitions[partition_id]]
            state.change_active(remove=gone)
            for name in gone:
                remove_tree(state.originals_root / str(name))

    def _first_to_come(self, partitions: Collection[str]) -> Mapping[str, int]:
        """By partition, a number above all on the disk now: what comes next has it, or a larger one."""
        found = dict.fromkeys(partitions, 0)
        for name in self._state.local_names:
            if (partition_id := partition_of(name)) in found:
                found[partition_id] = max(found[partition_id], first_block(name))
        return {partition_id: block + 1 for partition_id, block in found.items()}

    def _replace(
        self, connection: Connection, partition_id: str, scratch: Scratch, coming: AbstractSet[PartName]
    ) -> None:
        """chDB makes the swap and then an empty part to cover what has gone, for which it wants a MiB: its
        error may come behind the swap."""
        state = self._state
        before = {local.visible.name for local in state.in_partition(partition_id)}
        try:
            connection.execute(
                f"ALTER TABLE {state.table.quoted} REPLACE PARTITION ID {quote_string(partition_id)}"
                f" FROM {scratch.name.quoted}"
            )
        except SqlError as error:
            # Whatever else ran out: the view in memory must not go its own way.
            here = self._workers.surely(lambda: self._named_in_chdb(connection, partition_id))
            if before & here.keys() or not coming <= set(here.values()):
                raise
            log.warning("part_storage.swapped_in_spite_of table=%s error=%s", state.table, error)

    def _named_in_chdb(self, connection: Connection, partition_id: str) -> dict[str, PartName | None]:
        """The parts that chDB shows, and the names that they carry."""
        state, table = self._state, self._state.table
        rows = connection.rows(
            "SELECT name FROM system.parts WHERE active"
            f" AND database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
            f" AND partition_id = {quote_string(partition_id)}"
        )
        return {name: name_in(state.data / name, partition_id) for (name,) in rows}

    def _linked(
        self, connection: Connection, partition_id: str, final: Sequence[tuple[Part, Path, Path | None]]
    ) -> Scratch:
        sources = [(directory, part.name) for part, directory, _ in final]
        try:
            return self._scratch.filled(connection, "swap", partition_id, sources)
        except (SqlError, FileNotFoundError) as error:
            active = self._state.active
            broken = [name for directory, name in sources if name in active and not _is_whole(directory)]
            if broken:
                raise PartsBroken(self._state.table, broken) from error
            raise

    def _table_of_merged(self, final: Sequence[tuple[Part, Path, Path | None]]) -> Scratch | None:
        """The scratch table in which the only part of the partition was merged, if that is what is to be
        shown of it."""
        if len(final) != 1:
            return None
        ((part, directory, original),) = final
        if original is not None or part.name not in self._state.staged:
            return None
        merged = self._merged.take(part.name, directory)
        if merged is None:
            return None
        os.link(directory / UUID_FILE, merged.directory / UUID_FILE)
        return merged.scratch

    def _mark_live(self, known: Mapping[str, int], partition_id: str, directories: Collection[Path]) -> None:
        state = self._state
        marks = dict(known)
        if directories:
            marks[partition_id] = min(first_block(directory.name) for directory in directories)
        else:
            marks.update(self._first_to_come([partition_id]))
        self._workers.surely(lambda: write_marks(state, marks))

    def _keep_detached(self, name: PartName, prefix: str) -> None:
        state = self._state
        source = state.active[name].directory
        if not source.is_dir():
            log.error("part_storage.part_is_gone table=%s part=%s", state.table, name)
            return
        keep_in_detached(state, source, f"{prefix}_{name}" if prefix else str(name))


def _level(name: PartName) -> int:
    """In a part of a higher level FINAL looks for no rows of equal key; chDB keeps the level so far."""
    return min(name.level, 1)


def _is_whole(directory: Path) -> bool:
    try:
        check_files(directory, directory.name)
    except (PartDiffers, OSError) as error:
        return is_passing(error)
    return True


def drop_local(connection: Connection, table: TableName, local_names: Sequence[str]) -> None:
    """Take single parts away by chDB's names; at the start, before anybody reads."""
    for name in local_names:
        try:
            connection.execute(f"ALTER TABLE {table.quoted} DROP PART {quote_string(name)}")
        except SqlError as error:
            # chDB removes empty parts by itself, and a swap has put all others of the partition away.
            if error.code != Code.NO_SUCH_DATA_PART:
                raise


def keep_in_detached(state: TableState, source: Path, directory: str) -> None:
    """Links of a part become a directory of `detached/`, of this name or one like it. A process that was
    killed behind this step does it again: twice kept would be twice attached."""
    target = place_in_detached(state, directory, of=source)
    if not target.exists():
        unfinished = state.staged_root / f"{TEMPORARY_PREFIX}detached_{directory}"
        remove_tree(unfinished)
        link_part(source, unfinished, name=None)
        unfinished.rename(target)
    force_to_disk(target, state.durability, parent=state.detached)


def place_in_detached(state: TableState, directory: str, *, of: Path | None = None) -> Path:
    """A name in `detached/` that is free: chDB, too, adds `_tryN`. Or one under which the part `of` is kept
    already."""
    target, number = state.detached / directory, 0
    while target.exists() and not (of is not None and is_linked(of, target)):
        number += 1
        target = state.detached / f"{directory}_try{number}"
    return target
