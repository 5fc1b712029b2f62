"""By partition, the first local block that lives.

What a swap has put aside stays on the disk for a while, and a restart would take it for active. `publishing`
says when a mark is written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from engine.part_storage.disk import force_directory, have_room, write_durably
from engine.part_storage.table_state import TableState

_ROOM_OF_MARK = 64
"""Bytes of one more mark, beside the partition's id."""


def live_marks(state: TableState) -> Mapping[str, int]:
    try:
        marks = json.loads(_marks_file(state).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {str(key): int(value) for key, value in marks.items()}


def have_room_for(state: TableState, marks: Mapping[str, int], partition_ids: Collection[str]) -> None:
    """For `marks` and one of each of these partitions. Raises SqlError 243."""
    room = sum(len(partition_id) + _ROOM_OF_MARK for partition_id in partition_ids)
    have_room(_marks_file(state), len(_marks_text(marks)) + room)


def write_marks(state: TableState, marks: Mapping[str, int]) -> None:
    """On the disk when it returns."""
    write_durably(_marks_file(state), _marks_text(marks), state.durability)


def forget_marks(state: TableState) -> None:
    """After a restart, when what was dead is gone: chDB may use its numbers again."""
    _marks_file(state).unlink(missing_ok=True)
    force_directory(state.staged_root, state.durability)


def _marks_file(state: TableState) -> Path:
    return state.staged_root / "live.json"


def _marks_text(marks: Mapping[str, int]) -> bytes:
    return json.dumps(marks, sort_keys=True).encode()
