"""Which of ClickHouse's error codes say that files are not what was written."""

from __future__ import annotations

from engine.errors import Code

DAMAGED_FILES = frozenset(
    {
        Code.CHECKSUM_DOESNT_MATCH,
        Code.NO_FILE_IN_DATA_PART,
        Code.BAD_SIZE_OF_FILE_IN_DATA_PART,
        Code.CORRUPTED_DATA,
        Code.CANNOT_DECOMPRESS,
        Code.UNKNOWN_CODEC,
        Code.POTENTIALLY_BROKEN_DATA_PART,
    }
)
"""Whoever says it, and wherever the bytes came from."""

DAMAGED_WHEN_READ_HERE = DAMAGED_FILES | {
    Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED,
    Code.ATTEMPT_TO_READ_AFTER_EOF,
    Code.CANNOT_READ_ALL_DATA,
    Code.CANNOT_READ_FROM_FILE_DESCRIPTOR,
    Code.FILE_DOESNT_EXIST,
    Code.INCORRECT_DATA,
}
"""Of a table that a host reads from its own disk. A broken connection gives these, too, so they say nothing
of what was fetched."""
