"""The replicated name of a part, written as the part's UUID.

chDB names parts itself: ATTACH PART gives the next free number. But it keeps a part's `uuid.txt` through
ATTACH, REPLACE PARTITION and restart, and what it makes itself (merges, mutations, inserts) has none. So the
UUID carries the name, and no file has to be kept in step with what chDB does:

    bit 127 … 120   mark 0x0C, then 4 × 30 bits: first block, last block, level, mutation

The partition's id is not in it: the part knows it.
"""

from __future__ import annotations

import uuid

from engine.replication.part_name import PartName

UUID_FILE = "uuid.txt"

_MARK = 0x0C
_FIELD_BITS = 30
_FIELD_MASK = (1 << _FIELD_BITS) - 1
_NIL = uuid.UUID(int=0)


def uuid_of(part: PartName) -> uuid.UUID:
    """Raises ValueError for a number above 2³⁰ − 1; ClickHouse itself ends at 999,999,999."""
    number = _MARK
    for field in (part.min_block, part.max_block, part.level, part.mutation):
        if not 0 <= field <= _FIELD_MASK:
            raise ValueError(f"{part} does not fit into a UUID")
        number = number << _FIELD_BITS | field
    return uuid.UUID(int=number)


def part_of(partition_id: str, value: uuid.UUID) -> PartName | None:
    """The name that a UUID carries; None for no UUID (all zeros) and for one that was not made by
    `uuid_of`."""
    number = value.int
    if value == _NIL or number >> 4 * _FIELD_BITS != _MARK:
        return None
    fields = [number >> shift * _FIELD_BITS & _FIELD_MASK for shift in (3, 2, 1, 0)]
    name = PartName(partition_id, *fields)
    return PartName.try_parse(str(name))


def part_of_text(partition_id: str, text: str) -> PartName | None:
    """As `part_of`, of the text of a `uuid.txt` or of `system.parts.uuid`."""
    try:
        value = uuid.UUID(text.strip())
    except ValueError:
        return None
    return part_of(partition_id, value)
