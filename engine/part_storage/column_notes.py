"""What a table remembers of its columns, because parts come that know less: durable, beside the parts.

- `renames.json`: old name to new. A part with the old name only is behind.
- `dropped.json`: of each column that was dropped, by partition, the number of the mutation that takes it out
  of parts. A part of an older version that has a column of that name has the one that was dropped, whatever
  the table has under this name by now; one of that version or a newer one has the table's, even if the table
  does not know it yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import Corrupt
from engine.part_storage.disk import write_durably
from engine.part_storage.mutation_scratch import columns_in
from engine.part_storage.table_state import LocalPart, TableState
from engine.replication.columns import Columns
from engine.replication.part_name import PartName

_RENAMES, _DROPPED = "renames.json", "dropped.json"


def note_alter(
    state: TableState,
    before: Columns,
    after: Columns,
    renames: Mapping[str, str],
    mutation: Mapping[str, int],
) -> None:
    """An ALTER is about to be applied. `mutation` is the number of its mutation by partition."""
    names = after.by_name
    # A column may have been renamed before: parts can be behind by any number of names.
    known = {old: renames.get(new, new) for old, new in state.renames.items()} | dict(renames)
    kept = {old: new for old, new in known.items() if old not in names and new in names}
    if kept != state.renames:
        _write(state, _RENAMES, kept)
        state.renames = kept
    gone = [name for name in before.by_name if name not in names and name not in renames]
    dropped = dict(state.dropped) | ({name: dict(mutation) for name in gone} if mutation else {})
    if dropped != state.dropped:
        _write(state, _DROPPED, dropped)
        state.dropped = dropped


def load_notes(state: TableState) -> None:
    """At the start. Raises Corrupt."""
    state.renames = {str(old): str(new) for old, new in _read(state, _RENAMES).items()}
    state.dropped = {
        str(column): {str(partition_id): int(number) for partition_id, number in numbers.items()}
        for column, numbers in _read(state, _DROPPED).items()
    }


def may_be_behind(state: TableState, part: PartName) -> bool:
    """Whether a part can have other columns than the table, as far as its name goes: most cannot."""
    return bool(state.renames) or any(
        part.data_version < numbers.get(part.partition_id, 0) for numbers in state.dropped.values()
    )


def stale_columns(state: TableState, part: PartName, columns: Iterable[str]) -> list[str]:
    """Those of a part's columns that are others than the table's of these names."""
    if not state.dropped:
        return []
    return sorted(
        name for name in columns if part.data_version < state.dropped.get(name, {}).get(part.partition_id, 0)
    )


def needs_other_form(state: TableState, local: LocalPart) -> bool:
    """Whether readers cannot be shown the own bytes of a part of which they see another form.

    chDB gives a part a column in an ALTER only by renaming one.
    """
    own, shown = columns_in(local.directory).keys(), columns_in(local.visible).keys()
    return bool(shown - own or stale_columns(state, local.part.name, own - shown))


def _write(state: TableState, file: str, notes: Mapping[str, object]) -> None:
    write_durably(state.staged_root / file, json.dumps(notes, sort_keys=True).encode(), state.durability)


def _read(state: TableState, file: str) -> dict[str, Any]:
    path: Path = state.staged_root / file
    try:
        notes = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _unreadable(state, path, str(error)) from error
    if not isinstance(notes, dict):
        raise _unreadable(state, path, "it has no names")
    return notes


def _unreadable(state: TableState, path: Path, why: str) -> Corrupt:
    return Corrupt(
        f"What table {state.table} remembers of its columns cannot be read from {path}: {why}. Without it "
        "values of renamed and dropped columns would be missing, or be there again.",
        hint="Where no part is older than the last ALTER that renamed or dropped a column, the file may be "
        "removed; otherwise drop the table on this replica and create it again.",
    )
